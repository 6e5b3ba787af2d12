"""Options for the token and for TLS: what is missing or does not go together is said in a sentence."""

from pathlib import Path

import pytest

from recycle_runtime.cli.main import parse_arguments
from recycle_runtime.cli.options.access import access, certificate
from recycle_runtime.cli.options.run import read_options
from recycle_runtime.cli.output import UsageError, UserError
from recycle_runtime.options.run import RunOptions
from recycle_runtime.protocol.framing import TOKEN


def parsed(*words: str) -> RunOptions:
    return read_options(parse_arguments(["coordinator", "a.plan", "--listen", "h:1", "--state", "s", *words]))


def test_the_variable_holds_it_unless_a_file_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "v" * 32)
    assert access(parsed()).tokens() == ("v" * 32,)
    path = tmp_path / "token"
    path.write_text("f" * 32)
    path.chmod(0o600)
    found = access(parsed("--token-file", str(path), "--tls"))
    assert found.tokens() == ("f" * 32,) and found.tls
    path.chmod(0o644)
    with pytest.raises(UserError, match=f"^--token-file {path}: others may read"):
        access(parsed("--token-file", str(path)))


def test_no_token_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "short")
    with pytest.raises(UsageError, match=r"16 letters or more .* or --token-file FILE given"):
        access(parsed())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--tls", "--tls-key", "k"), "belong together, only --tls-key is given"),
        (("--tls", "--tls-certificate", "c"), "belong together, only --tls-certificate is given"),
        (("--tls-certificate", "c", "--tls-key", "k"), "--tls-certificate is for --tls"),
    ],
)
def test_options_that_do_not_go_together(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        certificate(parsed(*words))


def test_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert certificate(parsed()) is None
    with pytest.raises(UserError, match="missing and missing: "):
        certificate(parsed("--tls", "--tls-certificate", "missing", "--tls-key", "missing"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="--tls makes a certificate with the command openssl"):
        certificate(parsed("--tls"))
