"""Files that a command reads and writes: `-`, closed and full streams, files that cannot be written."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
Recyclec = Callable[..., tuple[int, str, str]]
NO_FULL_DEVICE = not Path("/dev/full").exists()


def in_shell(words: str, module: str = "recycle_compiler.cli") -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command with what the shell adds to it."""
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m {module} {words}"],
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fmt - < {job} >&-", (1, "", "recyclec: error: cannot write stdout: it is closed\n")),
        ("check {job} 2>&-", (0, "", "")),
        ("check {job} >&- 2>&-", (0, "", "")),
        ("check nothing.job 2>&-", (1, "", "")),
        ("check - <&-", (1, "", "<stdin>: error[unreadable]: the file cannot be read: it is closed\n")),
    ],
)
def test_closed_streams(small_job: str, words: str, expected: tuple[int, str, str]) -> None:
    assert in_shell(words.format(job=small_job)) == expected


@pytest.mark.skipif(NO_FULL_DEVICE, reason="needs /dev/full")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "fmt - < {job} > /dev/full",
            (1, "", "recyclec: error: cannot write stdout: no space left on device\n"),
        ),
        ("check {job} 2> /dev/full", (0, "", "")),
    ],
)
def test_full_streams(small_job: str, words: str, expected: tuple[int, str, str]) -> None:
    assert in_shell(words.format(job=small_job)) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("streams {plan} >&-", (1, "", "recycle-run: error: cannot write stdout: it is closed\n")),
        ("streams nothing.plan 2>&-", (1, "", "")),
        pytest.param(
            "streams {plan} > /dev/full",
            (1, "", "recycle-run: error: cannot write stdout: no space left on device\n"),
            marks=pytest.mark.skipif(NO_FULL_DEVICE, reason="needs /dev/full"),
        ),
    ],
)
def test_streams_of_recycle_run(small_bundle: str, words: str, expected: tuple[int, str, str]) -> None:
    assert in_shell(words.format(plan=small_bundle), "recycle_runtime.cli") == expected


@pytest.mark.parametrize("command", [["show", "{plan}"], ["plan", "{job}", "--failed", "0:0"]])
@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("nowhere/x", "there is no folder {folder}/nowhere"),
        ("", "it is a folder"),
        ("loop", "too many levels of symbolic links"),
        ("file/x", "not a directory"),
    ],
)
def test_an_output_that_cannot_be_written(
    small_bundle: str,
    small_job: str,
    recyclec: Recyclec,
    tmp_path: Path,
    command: list[str],
    target: str,
    why: str,
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    path = str(tmp_path / target)
    argv = [word.format(plan=small_bundle, job=small_job) for word in command]
    words = f"recyclec: error: cannot write {path}: {why.format(folder=tmp_path)}\n"
    assert recyclec(*argv, "-o", path) == (1, "", words)
    assert (tmp_path / "loop").is_symlink()


@pytest.mark.skipif(NO_FULL_DEVICE, reason="needs /dev/full")
def test_a_full_device_is_named(small_bundle: str, recyclec: Recyclec) -> None:
    words = "recyclec: error: cannot write /dev/full: no space left on device\n"
    assert recyclec("show", small_bundle, "-o", "/dev/full") == (1, "", words)


@pytest.mark.parametrize("command", [["compile"], ["plan", "--failed", "0:0"]])
def test_the_input_is_not_overwritten(
    small_job: str, recyclec: Recyclec, tmp_path: Path, command: list[str]
) -> None:
    link = tmp_path / "link.job"
    link.hardlink_to(small_job)
    before = link.read_bytes()
    words = f"recyclec: error: {link} is the input; `-o` must name another file\n"
    assert recyclec(*command, small_job, "-o", str(link)) == (2, "", words)
    assert link.read_bytes() == before


@pytest.mark.parametrize("command", [["compile"], ["plan", "--failed", "0:0"]])
def test_the_profile_is_not_overwritten(
    recyclec: Recyclec, tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = {"forward": 1, "backward_input": 1, "backward_weight": 1, "activation_bytes": 1}
    content = json.dumps({"format": "recycle-profile", "version": 1, "stages": [stage]})
    (tmp_path / "measured.json").write_text(content)
    (tmp_path / "link.json").symlink_to("measured.json")
    job = tmp_path / "one.job"
    job.write_text(
        "job one { parallel { pipeline = 1  data = 2 } batch { microbatches = 1 } "
        'profile from "measured.json" }'
    )
    for out in (tmp_path / "measured.json", tmp_path / "link.json"):
        words = f"recyclec: error: {out} is the profile that the job reads; `-o` must name another file\n"
        assert recyclec(*command, str(job), "-o", str(out)) == (2, "", words)
    monkeypatch.chdir(tmp_path)
    assert recyclec(*command, "one.job", "-o", "measured.json")[0] == 2
    assert (tmp_path / "measured.json").read_text() == content
    (tmp_path / "old.txt").write_text("something else")
    assert recyclec(*command, "one.job", "-o", "old.txt", "--quiet")[0] == 0


def test_what_stdin_comes_from_is_not_overwritten(small_job: str, tmp_path: Path) -> None:
    link = tmp_path / "link.job"
    link.hardlink_to(small_job)
    words = f"recyclec: error: {link} is the input; `-o` must name another file\n"
    assert in_shell(f"compile - -o {link} < {small_job}") == (2, "", words)


def test_a_bundle_is_not_overwritten_by_its_picture(small_bundle: str, recyclec: Recyclec) -> None:
    assert recyclec("show", small_bundle, "-o", small_bundle)[0] == 2


@pytest.fixture
def stdin_is(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    def replace(content: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))

    return replace


def test_jobs_from_stdin(
    small_job: str,
    small_bundle: str,
    recyclec: Recyclec,
    tmp_path: Path,
    stdin_is: Callable[[bytes], None],
) -> None:
    content = Path(small_job).read_bytes()
    stdin_is(content)
    assert recyclec("check", "-")[2].startswith("recyclec: <stdin>: ok, job small")
    stdin_is(content)
    assert recyclec("compile", "-", "-o", str(tmp_path / "x.plan"), "--jobs", "1")[0] == 0
    assert (tmp_path / "x.plan").read_bytes() == Path(small_bundle).read_bytes()
    stdin_is(content)
    from_stdin = recyclec("plan", "-", "--failed", "0:0", "-o", "-")
    assert from_stdin == recyclec("plan", small_job, "--failed", "0:0")
    stdin_is(b"job {")
    assert recyclec("check", "-")[2].startswith("<stdin>:1:5: error[no-name]")


@pytest.mark.parametrize("command", ["check", "fmt"])
def test_stdin_without_end_is_refused(
    recyclec: Recyclec, stdin_is: Callable[[bytes], None], command: str
) -> None:
    stdin_is(b" " * ((1 << 20) + 1))
    code, data, words = recyclec(command, "-")
    assert (code, data) == (1, "")
    assert words.startswith("<stdin>: error[too-large]: the file is larger than 1 MiB\n")


def test_a_bundle_does_not_go_to_stdout(small_job: str, recyclec: Recyclec) -> None:
    words = "recyclec: error: a bundle is no text for stdout; name a file with `-o PLAN`\n"
    assert recyclec("compile", small_job, "-o", "-") == (2, "", words)


def test_a_bundle_has_no_format(small_job: str, recyclec: Recyclec, tmp_path: Path) -> None:
    path = tmp_path / "one.plan"
    code, data, words = recyclec("plan", small_job, "--failed", "0:0", "-o", str(path), "--format", "json")
    assert (code, data) == (2, "")
    assert words.startswith(f"recyclec: error: {path} would be a bundle, which has no format")
    assert not path.exists()


def test_an_interrupt_while_dumping_says_where_dumps_are(
    small_job: str, recyclec: Recyclec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("recycle_compiler.cli.observers.PrintChanges.__call__", interrupt)
    options = ("--json", "--dump-dir", str(tmp_path / "ir"), "--print-after-change")
    words = f"recyclec: error: interrupted, wrote {tmp_path / 'ir'}\n"
    assert recyclec("compile", small_job, *options) == (130, "", words)


def test_dumps_of_an_earlier_run_do_not_stay(small_job: str, recyclec: Recyclec, tmp_path: Path) -> None:
    options = ("--json", "--quiet", "--dump-dir", str(tmp_path))
    (tmp_path / "2-failed").mkdir()
    (tmp_path / "2-failed" / "01-old-pass.txt").touch()
    (tmp_path / "1-failed").mkdir()
    (tmp_path / "1-failed" / "notes.txt").touch()
    (tmp_path / "not-failed").mkdir()
    assert recyclec("compile", small_job, *options, "--failures", "0")[0] == 0
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.iterdir())
    assert left == ["0-failed", "1-failed", "not-failed"]
    assert [path.name for path in (tmp_path / "1-failed").iterdir()] == ["notes.txt"]
    file = tmp_path / "file"
    file.touch()
    code, _, words = recyclec("compile", small_job, "--json", "--dump-dir", str(file))
    assert (code, words) == (1, f"recyclec: error: cannot write {file}: file exists\n")
