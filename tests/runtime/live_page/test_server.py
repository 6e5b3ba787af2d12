"""Readers of the page, and what strangers get."""

import http.client
import json
import socket
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

from recycle_runtime.live_page.run_state import RunState
from recycle_runtime.live_page.server import PageServer, page_token

TOKEN = page_token("the token of the job")


@pytest.fixture
def served() -> Iterator[tuple[str, int]]:
    with PageServer(RunState("tiny", 2, 2, timed=True), TOKEN, "127.0.0.1", 0) as page:
        link = urlsplit(page.link)
        assert parse_qs(link.query) == {"token": [TOKEN]}
        assert link.hostname is not None and link.port is not None
        yield link.hostname, link.port


def ask(served: tuple[str, int], path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(*served, timeout=120)
    connection.request("GET", path, headers=headers)
    return connection.getresponse()


def test_the_token_of_the_job_is_not_that_of_the_page() -> None:
    assert page_token("another") != TOKEN
    assert "token of the job" not in TOKEN


def test_the_link_lets_a_browser_in(served: tuple[str, int]) -> None:
    answer = ask(served, f"/?token={TOKEN}")
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    page = ask(served, "/", Cookie=cookie.partition(";")[0])
    assert page.status == 200
    text = page.read().decode()
    assert "@@" not in text and "connect-src 'self'" in text


def test_programs_show_a_header(served: tuple[str, int]) -> None:
    state = ask(served, "/state.json", Authorization=f"Bearer {TOKEN}")
    assert json.load(state)["name"] == "tiny"
    metrics = ask(served, "/metrics", Authorization=f"Bearer {TOKEN}")
    assert metrics.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert b"recycle_workers 4" in metrics.read()


@pytest.mark.parametrize("path", ["/", "/state.json", "/metrics", "/?token=", "/?token=wrong", "/other"])
def test_nobody_else_is_told_anything(served: tuple[str, int], path: str) -> None:
    for headers in (
        {},
        {"Cookie": "recycle_page=wrong"},
        {"Authorization": "Bearer \u00e9"},
        {"Cookie": ";;=,\x01"},
    ):
        answer = ask(
            served,
            path,
            **{name: value.encode("latin-1").decode("latin-1") for name, value in headers.items()},
        )
        assert answer.status == 401
        assert b"tiny" not in answer.read()


def test_a_name_of_another_site_is_refused(served: tuple[str, int]) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "", "[::", "10.0.0.1"):
        assert ask(served, "/metrics", Host=host, Authorization=f"Bearer {TOKEN}").status == 403
    assert ask(served, "/metrics", Host="localhost:1", Authorization=f"Bearer {TOKEN}").status == 200


def test_nothing_can_be_changed(served: tuple[str, int]) -> None:
    connection = http.client.HTTPConnection(*served, timeout=120)
    connection.request("POST", "/", body=b"x", headers={"Authorization": f"Bearer {TOKEN}"})
    assert connection.getresponse().status == 501


def test_garbage_does_not_end_it(served: tuple[str, int]) -> None:
    for text in (
        b"",
        b"\x00" * 100,
        b"GET",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    ):
        with socket.create_connection(served, timeout=120) as line:
            line.sendall(text)
    assert ask(served, "/metrics", Authorization=f"Bearer {TOKEN}").status == 200


def test_pages_are_not_kept_and_not_framed(served: tuple[str, int]) -> None:
    headers = ask(served, "/state.json", Authorization=f"Bearer {TOKEN}").headers
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["X-Content-Type-Options"] == "nosniff"
