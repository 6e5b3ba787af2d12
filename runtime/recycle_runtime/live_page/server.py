"""Serves the page of a run, its state and its numbers over HTTP. No torch.

Whoever has the page's token may read; nothing can be changed through it. The token is derived from the
job's own, which is never sent. The link carries it once; from then on a cookie does, or a header.
"""

import hashlib
import hmac
import ipaddress
import json
import logging
import threading
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from recycle_runtime.live_page.prometheus import prometheus_text
from recycle_runtime.live_page.run_state import RunState

_LOGGER = logging.getLogger(__name__)
_COOKIE = "recycle_page"
_PATIENCE_S = 10.0
"""For a client that says nothing."""
_PAGE = Path(__file__).with_name("live.html")
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}


def page_token(job_token: str) -> str:
    """Token that readers of the page present; the job's token cannot be derived from it."""
    return hmac.digest(job_token.encode(), b"live page", hashlib.sha256).hex()[:32]


class PageServer:
    """Answers on threads of its own until it is closed; use it in a `with` block."""

    def __init__(self, state: RunState, token: str, host: str, port: int) -> None:
        """OSError if nothing can listen there."""
        self._server = _Server(state, token, host, port)
        self._thread = threading.Thread(target=self._server.serve_forever, name="live page", daemon=True)

    @property
    def link(self) -> str:
        """Opens the page in a browser."""
        host, port = self._server.server_address[:2]
        name = f"[{host}]" if ":" in str(host) else host
        return f"http://{name}:{port}/?token={self._server.token}"

    def __enter__(self) -> "PageServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 16

    def __init__(self, state: RunState, token: str, host: str, port: int) -> None:
        self.state, self.token = state, token
        # What a page that opens from disk would be given; this one asks for its data.
        self.page = _PAGE.read_bytes().replace(b"@@TITLE@@", b"recycle-run").replace(b"@@DATA@@", b"null")
        super().__init__((host, port), _Handler)
        address = ipaddress.ip_address(str(self.server_address[0]))
        self.is_local = address.is_loopback

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that goes away, or talks nonsense, is no news for the user."""
        _LOGGER.debug("page: a request of %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]
    timeout = _PATIENCE_S
    server_version, sys_version = "recycle", ""

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        if self.server.is_local and not self._names_this_machine():
            # A page of another site could have its own name point here.
            self._answer(403, "text/plain", b"this page is for names of this machine\n")
        elif asked.path == "/" and "token" in (query := parse_qs(asked.query)):
            self._let_in(query["token"][0])
        elif not self._is_known():
            self._answer(401, "text/plain", b"open the link that the job has printed; it holds a token\n")
        elif asked.path == "/":
            self._answer(200, "text/html; charset=utf-8", self.server.page)
        elif asked.path == "/state.json":
            state = json.dumps(self.server.state.snapshot(), allow_nan=False).encode()
            self._answer(200, "application/json", state)
        elif asked.path == "/metrics":
            text = prometheus_text(self.server.state.totals()).encode()
            self._answer(200, "text/plain; version=0.0.4; charset=utf-8", text)
        else:
            self._answer(404, "text/plain", b"there is /, /state.json and /metrics\n")

    def log_message(self, format: str, *args: Any) -> None:
        _LOGGER.debug("page: " + format, *args)

    def _names_this_machine(self) -> bool:
        try:
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
            if name == "localhost":
                return True
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False

    def _is_known(self) -> bool:
        kind, _, shown = self.headers.get("Authorization", "").partition(" ")
        if kind == "Bearer":
            return self._is_token(shown.strip())
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(_COOKIE)
        except CookieError:
            return False
        return cookie is not None and self._is_token(cookie.value)

    def _is_token(self, shown: str) -> bool:
        return hmac.compare_digest(shown.encode("utf-8", "replace"), self.server.token.encode())

    def _let_in(self, shown: str) -> None:
        """The token leaves the address bar, and with it the history of the browser."""
        if not self._is_token(shown):
            self._answer(401, "text/plain", b"this is not the token of the job that runs here\n")
            return
        cookie = f"{_COOKIE}={shown}; HttpOnly; SameSite=Strict; Path=/"
        self._answer(303, "text/plain", b"", {"Location": "/", "Set-Cookie": cookie})

    def _answer(self, code: int, kind: str, body: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {**_HEADERS, **(more or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
