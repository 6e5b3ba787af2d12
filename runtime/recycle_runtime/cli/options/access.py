"""The token that the processes of a job share, and the certificate of the process that listens."""

import os
from pathlib import Path

from recycle_runtime.cli.output import UsageError, UserError
from recycle_runtime.options.run import RunOptions
from recycle_runtime.protocol.access import SHORTEST_TOKEN, Access, TokenFileError
from recycle_runtime.protocol.framing import TOKEN
from recycle_runtime.protocol.tls import Certificate, CertificateError, make_certificate


def access(options: RunOptions) -> Access:
    """UsageError or UserError if there is no token, or one that others can read."""
    if options.token_file is not None:
        try:
            return Access(token_file=options.token_file, tls=options.tls)
        except TokenFileError as error:
            raise UserError(f"--token-file {error}") from None
    found = os.environ.get(TOKEN, "")
    if len(found) < SHORTEST_TOKEN:
        raise UsageError(
            f"{TOKEN} must be set to the job's token, a secret of {SHORTEST_TOKEN} letters or more that all "
            "its processes share, or --token-file FILE given"
        )
    return Access(found, tls=options.tls)


def check_certificate(options: RunOptions) -> None:
    """UsageError if the options for it do not go together."""
    files = {"--tls-certificate": options.tls_certificate, "--tls-key": options.tls_key}
    given = [flag for flag, file in files.items() if file is not None]
    if len(given) == 1:
        raise UsageError(f"{' and '.join(files)} belong together, only {given[0]} is given")
    if given and not options.tls:
        raise UsageError(f"{given[0]} is for --tls, which is not given")


def certificate(options: RunOptions) -> Certificate | None:
    """None without --tls; UserError if there can be none."""
    check_certificate(options)
    if not options.tls:
        return None
    try:
        if options.tls_certificate is not None and options.tls_key is not None:
            return Certificate(Path(options.tls_certificate), Path(options.tls_key))
        return make_certificate()
    except CertificateError as error:
        raise UserError(str(error)) from None
