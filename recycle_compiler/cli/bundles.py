"""Read a bundle and its plans; what is wrong with the file is the user's to hear, in one sentence."""

from recycle_compiler.backends.bundle import read_streams
from recycle_compiler.backends.replay import replay
from recycle_compiler.ir.bundled import read_job
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.streams import Streams
from recycle_runtime.cli.output import UserError
from recycle_runtime.plan.bundle import Bundle, BundleError


def read_bundle(path: str) -> Bundle:
    """The bundle in a file; a file that is not one is the user's mistake."""
    try:
        return Bundle.read(path)
    except BundleError as error:
        raise UserError(f"{path}: {error}") from error


def read_bundle_job(bundle: Bundle, path: str) -> JobSpec:
    """The job that the plans are for."""
    try:
        return read_job(bundle)
    except BundleError as error:
        raise UserError(f"{path}: {error}") from error


def read_plan(bundle: Bundle, path: str, index: int) -> Streams:
    """One plan; damage that shows only now is still the file's fault."""
    try:
        return read_streams(bundle, index)
    except BundleError as error:
        raise UserError(f"{path}: {error}") from error


def schedule_of(streams: Streams, path: str) -> Schedule:
    """Start of each op, as a schedule; UserError naming the file if a stream cannot run to its end."""
    try:
        return replay(streams)
    except ValueError as error:
        raise UserError(f"{path}: {error}; `recyclec verify` says more") from error
