"""Options: the token that the processes of a job share, and whether their connections are encrypted."""

import os
from argparse import Namespace
from pathlib import Path

from recycle_runtime.cli.output import UsageError, UserError
from recycle_runtime.cli.parser import Arguments
from recycle_runtime.protocol.access import SHORTEST_TOKEN, Access, TokenFileError
from recycle_runtime.protocol.framing import TOKEN
from recycle_runtime.protocol.tls import Certificate, CertificateError, make_certificate

SERVER_OPTIONS = ("--tls-certificate", "--tls-key")


def add_token_argument(parser: Arguments) -> None:
    """Where the token stands."""
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="the job's token, in a file that its owner alone may read (chmod 600); it is read again for "
        "every new connection, and all its lines are accepted, so that a job can get another token while it "
        f"runs (default: the variable {TOKEN})",
    )


def add_tls_argument(parser: Arguments) -> None:
    """For all processes of a job, or none."""
    parser.add_argument(
        "--tls",
        action="store_true",
        help="encrypt connections to the coordinator with TLS 1.3; all processes of a job need it, or none",
    )


def add_certificate_arguments(parser: Arguments) -> None:
    """For the process that listens."""
    what = "in PEM format, for --tls (default: made at start with the command openssl)"
    parser.add_argument("--tls-certificate", metavar="FILE", help=f"the coordinator's certificate {what}")
    parser.add_argument("--tls-key", metavar="FILE", help="its key in PEM format, without a password")


def access(arguments: Namespace) -> Access:
    """UsageError or UserError if there is no token, or one that others can read."""
    if arguments.token_file is not None:
        try:
            return Access(token_file=arguments.token_file, tls=arguments.tls)
        except TokenFileError as error:
            raise UserError(f"--token-file {error}") from None
    found = os.environ.get(TOKEN, "")
    if len(found) < SHORTEST_TOKEN:
        raise UsageError(
            f"{TOKEN} must be set to the job's token, a secret of {SHORTEST_TOKEN} letters or more that all "
            "its processes share, or --token-file FILE given"
        )
    return Access(found, tls=arguments.tls)


def check_certificate(arguments: Namespace) -> None:
    """UsageError if the options for it do not go together."""
    given = [option for option in SERVER_OPTIONS if _value(arguments, option) is not None]
    if len(given) == 1:
        raise UsageError(f"{' and '.join(SERVER_OPTIONS)} belong together, only {given[0]} is given")
    if given and not arguments.tls:
        raise UsageError(f"{given[0]} is for --tls, which is not given")


def certificate(arguments: Namespace) -> Certificate | None:
    """None without --tls; UserError if there can be none."""
    check_certificate(arguments)
    if not arguments.tls:
        return None
    try:
        if arguments.tls_certificate is not None:
            return Certificate(Path(arguments.tls_certificate), Path(arguments.tls_key))
        return make_certificate()
    except CertificateError as error:
        raise UserError(str(error)) from None


def _value(arguments: Namespace, option: str) -> str | None:
    return getattr(arguments, option.removeprefix("--").replace("-", "_"))
