"""The server of the playground: who may ask, what is answered, and that nothing ends it."""

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from recycle_compiler.frontend import parse_job_text
from recycle_compiler.playground.answer import Piece
from recycle_compiler.playground.server import Playground, Turns
from recycle_compiler.playground.settings import Settings, settings_of

JOB = """\
job small {
  parallel { pipeline = 2  data = 3 }
  batch    { microbatches = 2 }
  profile  { forward = 1  backward_input = 1  backward_weight = 1  optimizer = 1 }
  memory   { capacity = 2 }
}
"""


def settings() -> Settings:
    return settings_of(parse_job_text(JOB, "small.job"))


@pytest.fixture
def served() -> Generator[Playground]:
    with Playground(settings()) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(
    server: Playground, method: str = "GET", path: str = "/", body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=300)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, named)
    response = connection.getresponse()
    try:
        return response.status, dict(response.headers), response.read()
    finally:
        connection.close()


def plan(server: Playground, sent: Any) -> list[dict[str, Any]]:
    body = json.dumps(sent).encode()
    status, _, content = ask(server, "POST", "/plan", body, Content_Type="application/json")
    assert status == 200
    return [json.loads(line) for line in content.splitlines()]


def test_the_page_and_a_plan(served: Playground) -> None:
    status, headers, content = ask(served)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b'id="data">' in content and b"@@" not in content
    pieces = plan(served, settings().document() | {"failed": [[0, 1]]})
    assert pieces[0]["text"].startswith("job small {") and "done" in pieces[-1]
    plans = [piece["plan"] for piece in pieces if "plan" in piece]
    assert plans[-1]["failed"] == [[0, 1]] and plans[-1]["period"] >= plans[-1]["lower_bound"]
    (bars,) = [piece["bars"] for piece in pieces if "bars" in piece]
    assert [bar["name"] for bar in bars] == ["ReCycle", "1F1B", "ZB-H1", "ZB-H2"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"failed": [[0, 1], [1, 1], [2, 1]]}, "stage 1 has no live worker: all 3 of its workers failed"),
        ({"capacity": [0.5, 0.5]}, "capacity"),
        ({"forward": [0, 0]}, "forward must be more than 0"),
        ({"name": "not a name"}, ""),
    ],
)
def test_numbers_without_a_plan_are_told_so(served: Playground, change: dict[str, Any], words: str) -> None:
    pieces = plan(served, settings().document() | change)
    assert words in pieces[-1]["error"]
    assert "bug" not in pieces[-1]["error"]


def test_only_our_own_page_may_ask(served: Playground) -> None:
    own = f"127.0.0.1:{served.server_port}"
    for headers in (
        {"Host": "example.com"},
        {"Host": f"example.com:{served.server_port}"},
        {"Host": "127.0.0.1"},
        {"Origin": "http://example.com"},
        {"Origin": "null"},
        {"Host": own, "Origin": f"https://{own}"},
    ):
        for method, path in (("GET", "/"), ("POST", "/plan")):
            status, _, content = ask(served, method, path, b"{}" if method == "POST" else None, **headers)
            assert status == 403 and set(json.loads(content)) == {"error"}
    assert ask(served, Host=own, Origin=f"http://{own}")[0] == 200
    assert ask(served, Host=f"localhost:{served.server_port}")[0] == 200


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {"Content_Type": "application/json"}, 400),
        (b"[" * 60_000, {"Content_Type": "application/json"}, 400),
        (b'{"stages": 1}', {"Content_Type": "application/json"}, 400),
        (b"\xff\xfe", {"Content_Type": "application/json"}, 400),
        (b"{}", {"Content_Type": "text/plain"}, 415),
        (b"{}", {"Content_Type": "application/json", "Content_Length": "99999999"}, 413),
        (b"{}", {"Content_Type": "application/json", "Content_Length": "-1"}, 413),
    ],
)
def test_bad_requests_are_answered_and_end_nothing(
    served: Playground, body: bytes, headers: dict[str, str], status: int
) -> None:
    found, _, content = ask(served, "POST", "/plan", body, **headers)
    assert found == status and json.loads(content)["error"]
    assert ask(served, "POST", "/elsewhere", b"{}", Content_Type="application/json")[0] == 404
    assert ask(served, "GET", "/../etc/passwd")[0] == 404
    assert ask(served)[0] == 200


def test_a_field_of_the_wrong_type_is_told(served: Playground) -> None:
    """The connection was closed without a word."""
    for name, value in (("unit", {}), ("forward", [10**400, 1]), ("failed", {"0": 1})):
        body = json.dumps(settings().document() | {name: value}).encode()
        status, _, content = ask(served, "POST", "/plan", body, Content_Type="application/json")
        assert status == 400 and json.loads(content)["error"].startswith(f"{name} must be ")


def test_rubbish_and_broken_connections_end_nothing(served: Playground) -> None:
    for content in (
        b"\x16\x03\x01\x00\xff" * 50,
        b"GET\r\n\r\n",
        b"POST /plan HTTP/1.1\r\nContent-Length: 9\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", served.server_port)) as connection:
            connection.sendall(content)
    assert ask(served)[0] == 200


def test_a_bug_is_told_and_ends_nothing(served: Playground) -> None:
    def broken(_: Settings) -> Iterator[Piece]:
        yield {"text": "x"}
        raise ZeroDivisionError

    served.answers = broken
    pieces = plan(served, settings().document())
    assert pieces[0] == {"text": "x"} and "bug in recyclec" in pieces[-1]["error"]
    assert ask(served)[0] == 200


def test_only_the_last_that_was_asked_for_is_made() -> None:
    turns = Turns()
    first, second = turns.take(), turns.take()
    made: list[int] = []

    def make() -> Iterator[Piece]:
        made.append(1)
        yield {"text": "x"}
        yield {"done": 1}

    assert list(turns.pieces(first, make)) == [{"superseded": True}]
    assert made == []
    assert list(turns.pieces(second, make)) == [{"text": "x"}, {"done": 1}]
    pieces = turns.pieces(turns.take(), make)
    assert next(pieces) == {"text": "x"}
    turns.take()
    assert list(pieces) == [{"superseded": True}]


def test_interrupting_it_ends_it_cleanly(tmp_path: Path) -> None:
    path = tmp_path / "small.job"
    path.write_text(JOB)
    command = [sys.executable, "-m", "recycle_compiler.cli", "play", str(path)]
    # A shell that starts processes in the background may have had them ignore interrupts.
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, rest = process.communicate()
    assert first.startswith("recyclec: http://127.0.0.1:") and "shows small; ctrl-C ends it" in first
    assert (process.returncode, out, rest) == (0, "", "recyclec: ended\n")
