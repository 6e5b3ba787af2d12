"""`recycle-run node` takes what agent and coordinator take, and says what is wrong before it starts them."""

from pathlib import Path

import pytest

from recycle_runtime.cli.commands import node
from recycle_runtime.cli.main import command_line, main
from recycle_runtime.cli.options.run import read_options
from recycle_runtime.protocol.framing import TOKEN

OF_OTHERS = {
    "--coordinator": "node knows where it is",
    "--listen": "the same",
    "--advertise": "the same",
    "--record": "for `local --trace`",
    "--debug": "a node has no terminal",
    "--candidate": "its number is that of the node",
    "--address-file": "not for users",
    "--listener": "not for users",
    "--observed": "not for users",
    "--fault": "not for users",
    "--rejoin": "not for users",
}


def options(command: str) -> set[str]:
    parser = command_line().parsers()[1][command]
    actions = parser._actions  # pyright: ignore[reportPrivateUsage]
    return {name for action in actions for name in action.option_strings if name.startswith("--")}


def test_every_option_of_agent_and_coordinator_is_one_of_node() -> None:
    both = options("agent") | options("coordinator")
    assert both - options("node") == set(OF_OTHERS)
    assert options("node") - both == {"--port", "--node-timeout", "--node-state"}


def test_options_are_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command lines are such that the commands accept them, with the values that were given."""
    for name in ("x.plan", "x.py"):
        (tmp_path / name).touch()
    (tmp_path / "token").write_text("t" * 32)
    (tmp_path / "token").chmod(0o600)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(TOKEN, raising=False)
    for name, value in (("MASTER_ADDR", "first"), ("NODE_RANK", "1"), ("NNODES", "5")):
        monkeypatch.setenv(name, value)
    seen: list[list[str]] = []

    class Recorded:
        def __init__(self, place: object, coordinator: list[str], agent: list[str], shared: Path) -> None:
            assert shared == Path("s/coordinator")
            seen.extend((coordinator, agent))

        def run(self, stop: object) -> int:
            return 7

        def end(self) -> None:
            seen.append(["end"])

    monkeypatch.setattr(node, "Node", Recorded)
    argv = ["node", "x.plan", "--program", "x.py", "--steps", "9", "--workers-per-node", "2", "--state", "s"]
    argv += [
        "--node-timeout",
        "8",
        "--heartbeat-timeout",
        "4",
        "--resume",
        "--checkpoint=-kept",
        "--seed",
        "3",
    ]
    argv += ["--failed", "0:1", "--failed", "1:1", "--page", "--node-state", "/own"]
    argv += ["--metrics", "run.jsonl", "--quiet"]
    argv += ["--token-file", "token", "--tls", "--tls-certificate", "c", "--tls-key", "k"]
    assert main(argv) == 7
    coordinator, agent, end = seen
    assert end == ["end"]
    told = command_line().parse([*coordinator, "--listen", "first:1"])
    assert (told.steps, told.nodes, told.heartbeat_timeout, told.resume) == (9, 5, 8.0, True)
    assert (told.metrics, told.quiet) == ("run.jsonl", True)
    assert (told.checkpoint, told.failed, told.page) == ("-kept", ["0:1", "1:1"], "0")
    assert (told.state, told.advertise, told.max_resumes) == ("s/coordinator", "first", 3)
    assert (told.token_file, told.tls, told.tls_certificate, told.tls_key) == ("token", True, "c", "k")
    told = command_line().parse([*agent, "--coordinator", "first:1"])
    assert (told.token_file, told.tls) == ("token", True)
    assert (told.program, told.seed, told.heartbeat_timeout, told.state) == ("x.py", 3, 4.0, "/own")
    assert (told.checkpoint, told.workers_per_node, told.script_words) == ("-kept", 2, [])


@pytest.mark.parametrize("takeover", ["0", "5"])
def test_an_agent_knows_where_the_end_of_the_job_is_marked(
    takeover: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An agent that was started again, with no node to take over, looked for a coordinator of a finished
    job."""
    for name in ("x.plan", "x.py"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    for name, value in (("MASTER_ADDR", "first"), ("NODE_RANK", "1"), ("NNODES", "5"), (TOKEN, "t" * 32)):
        monkeypatch.setenv(name, value)
    seen: list[str] = []

    class Recorded:
        def __init__(self, place: object, coordinator: object, agent: list[str], shared: object) -> None:
            assert (shared is None) == (takeover == "0")
            seen.extend(agent)

        def run(self, stop: object) -> int:
            return 0

        def end(self) -> None: ...

    monkeypatch.setattr(node, "Node", Recorded)
    argv = ["node", "x.plan", "--workers-per-node", "2", "--state", "s", "--takeover-timeout", takeover]
    assert main([*argv, "x.py", "--mine"]) == 0
    told = command_line().parse([*seen[:2], "--coordinator", "first:1", *seen[2:]])
    assert told.address_file == "s/coordinator/address"
    assert told.script_words == ["x.py", "--mine"]


def test_an_agent_may_have_no_file_with_the_address() -> None:
    argv = ["node", "x.plan", "--workers-per-node", "2", "--state", "s", "x.py", "--mine"]
    words = node.agent_words(read_options(command_line().parse(argv)), "s")
    assert "--address-file" not in words
    assert words[-2:] == ["x.py", "--mine"]


def test_whoever_ends_with_its_parent_is_told() -> None:
    argv = ["node", "x.plan", "--program", "x.py", "--steps", "9", "--workers-per-node", "2", "--state", "s"]
    for more, told in (([], False), (["--end-with-parent"], True)):
        options = read_options(command_line().parse([*argv, *more]))
        agent = command_line().parse([*node.agent_words(options, "s"), "--coordinator", "first:1"])
        words = node.coordinator_words(options, "first", 5)
        coordinator = command_line().parse([*words, "--listen", "first:1"])
        assert (agent.end_with_parent, coordinator.end_with_parent) == (told, told)


@pytest.mark.parametrize(("seconds", "words"), [("0", []), ("4", ["--takeover-timeout=4.0"])])
def test_a_coordinator_hears_of_taking_over_where_nodes_do(seconds: str, words: list[str]) -> None:
    argv = ["node", "x.plan", "--program", "x.py", "--steps", "9", "--workers-per-node", "2", "--state", "s"]
    options = read_options(command_line().parse([*argv, "--takeover-timeout", seconds]))
    told = node.coordinator_words(options, "first", 5)
    assert [word for word in told if word.startswith("--takeover")] == words


@pytest.mark.parametrize(
    ("environment", "code", "words"),
    [
        ({}, 2, "nothing says which node this is"),
        ({"MASTER_ADDR": "here", "NODE_RANK": "0"}, 1, "absent.plan: no such file"),
        ({"MASTER_ADDR": "here", "NODE_RANK": "0", TOKEN: ""}, 2, "must be set to the job's token"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    environment: dict[str, str],
    code: int,
    words: str,
) -> None:
    for name in (
        "MASTER_ADDR",
        "NODE_RANK",
        "SLURM_JOB_NODELIST",
        "JOB_COMPLETION_INDEX",
        "TORCHELASTIC_RUN_ID",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({TOKEN: "t" * 32} | environment).items():
        monkeypatch.setenv(name, value)
    argv = [
        "node",
        "absent.plan",
        "--program",
        "x.py",
        "--steps",
        "1",
        "--workers-per-node",
        "1",
        "--state",
        "s",
    ]
    assert main(argv) == code
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("command", ["node", "local", "coordinator"])
def test_a_job_does_not_resume_less_than_never(
    command: str,
    square: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in {TOKEN: "t" * 32, "MASTER_ADDR": "here", "NODE_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    program, state = tmp_path / "x.py", ["--state", str(tmp_path / "state")]
    program.touch()
    more = {
        "node": ["--program", str(program), "--workers-per-node", "4", *state],
        "local": ["--program", str(program)],
        "coordinator": ["--listen", "127.0.0.1:0", *state],
    }
    assert main([command, square, "--steps", "1", "--max-resumes", "-1", *more[command]]) == 2
    assert capsys.readouterr().err == "recycle-run: error: --max-resumes must be at least 0, got -1\n"
    assert not (tmp_path / "state").exists()
