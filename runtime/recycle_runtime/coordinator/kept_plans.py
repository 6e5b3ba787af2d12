"""The bundle that a job began with, beside its journal, since the file itself may be replaced.

Workers that train have read the file as it was then. A coordinator that is started again orders plans by
their numbers, so it needs the same ones. Needs no torch.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from recycle_runtime.coordinator.last_generation import OtherJobError, Remembered
from recycle_runtime.files import sentence, write_whole
from recycle_runtime.plan.bundle import Bundle, BundleError, digest_of

FILE = "job.plan"
_LOGGER = logging.getLogger(__name__)


def keep_plans(bundle: str, folder: Path) -> None:
    """As the file is now; a job does not end because there is no room for it."""
    try:
        write_whole(folder / FILE, Path(bundle).read_bytes())
    except OSError as error:
        _LOGGER.warning("%s: do not replace %s while the job runs", sentence(error), bundle)


def request_plans(
    given: tuple[str, Bundle],
    folder: Path,
    remembered: Remembered | None,
    read: Callable[[str], Bundle] = Bundle.read,
) -> tuple[str, Bundle]:
    """File and bundle: those that are given, or those that the workers of the journal have.

    OtherJobError if these are not there any more.
    """
    path, bundle = given
    setup = None if remembered is None or remembered.ended is not None else remembered.setup
    if setup is None or setup.plans in ("", digest_of(bundle)):
        return given
    copy = str(folder / FILE)
    try:
        kept = read(copy)
    except (OSError, BundleError):
        kept = None
    if kept is None or digest_of(kept) != setup.plans:
        raise OtherJobError(
            f"{path}: the job in {folder} was started with other plans (plans {setup.plans} there, "
            f"{digest_of(bundle)} here): put the former file back"
        )
    _LOGGER.warning(
        "%s has been replaced (plans %s, the job was started with %s): the copy in %s is used",
        path, digest_of(bundle), setup.plans, copy,
    )  # fmt: skip
    return copy, kept
