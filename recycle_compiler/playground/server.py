"""Serves the playground on loopback: one page, and plans for what it sends.

Only this machine can connect, and only the page itself may ask: a request whose Host is not the address that
is served, or whose Origin is another page, is refused, so that no web site can use the server through a
browser. A request that cannot be answered is answered with a sentence, and never ends the server.
"""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from recycle_compiler.playground.answer import Piece, answer
from recycle_compiler.playground.settings import MOST, Settings, SettingsError, read_settings
from recycle_compiler.viz.plan_page import page_frame
from recycle_compiler.viz.shell import whole_page

LOOPBACK = "127.0.0.1"
_MOST_BYTES = 64 * 1024
_SILENCE = 30.0
"""Seconds after which somebody who sends nothing is hung up on."""
_log = logging.getLogger(__name__)

Answer = Callable[[Settings], Iterator[Piece]]


class Turns:
    """One plan at a time, and only the last one that was asked for."""

    def __init__(self) -> None:
        self._planning = threading.Lock()
        self._counting = threading.Lock()
        self._last = 0

    def take(self) -> int:
        """A number; those before it are of no interest any more."""
        with self._counting:
            self._last += 1
            return self._last

    def pieces(self, turn: int, make: Callable[[], Iterator[Piece]]) -> Iterator[Piece]:
        """Pieces of an answer, until somebody asks for something newer."""
        with self._planning:
            for piece in make() if turn == self._last else ():
                yield piece
                if turn != self._last:
                    break
        if turn != self._last:
            yield {"superseded": True}


class Playground(ThreadingHTTPServer):
    """The server; `address` is where a browser finds it."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, settings: Settings, port: int = 0, answers: Answer = answer) -> None:
        super().__init__((LOOPBACK, port), Handler)
        self.page = _page(settings).encode("utf-8")
        self.turns = Turns()
        self.answers = answers
        self.hosts = {f"{host}:{self.server_port}" for host in (LOOPBACK, "localhost")}

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is its owner's affair."""
        _log.debug("a connection from %s ended early", client_address, exc_info=True)


def _page(settings: Settings) -> str:
    data: dict[str, Any] = {**page_frame(), "settings": settings.document(), "most": MOST}
    return whole_page("play", f"{settings.name}: playground", data)


class Handler(BaseHTTPRequestHandler):
    """GET / is the page, POST /plan answers with one JSON object a line."""

    server_version = "recyclec"
    sys_version = ""
    timeout = _SILENCE

    @property
    def playground(self) -> Playground:
        return cast(Playground, self.server)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)

    def do_GET(self) -> None:
        if not self._is_welcome():
            return
        if self.path != "/":
            self._refuse(HTTPStatus.NOT_FOUND, "there is one page here, and it is /")
            return
        self._begin(HTTPStatus.OK, "text/html; charset=utf-8")
        self.wfile.write(self.playground.page)

    def do_POST(self) -> None:
        if not self._is_welcome():
            return
        if self.path != "/plan":
            self._refuse(HTTPStatus.NOT_FOUND, "plans are asked for at /plan")
            return
        if self.headers.get_content_type() != "application/json":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send application/json")
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 10 and int(length) <= _MOST_BYTES):
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"send at most {_MOST_BYTES} bytes")
            return
        try:
            settings = read_settings(json.loads(self.rfile.read(int(length))))
        except (ValueError, RecursionError):
            self._refuse(HTTPStatus.BAD_REQUEST, "what was sent is not JSON")
            return
        except SettingsError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
            return
        self._answer(settings)

    def _answer(self, settings: Settings) -> None:
        server = self.playground
        self._begin(HTTPStatus.OK, "application/x-ndjson")
        try:
            for piece in server.turns.pieces(server.turns.take(), lambda: server.answers(settings)):
                self._line(piece)
        except (ConnectionError, TimeoutError):
            # The page has asked for something else meanwhile.
            _log.debug("nobody waits for this plan any more")
        except Exception:
            _log.exception("a plan could not be made")
            self._line({"error": "this is a bug in recyclec, not in your numbers; the terminal says more"})

    def _line(self, piece: Piece) -> None:
        self.wfile.write(json.dumps(piece, separators=(",", ":"), allow_nan=False).encode() + b"\n")
        self.wfile.flush()

    def _is_welcome(self) -> bool:
        """True if the request was made by our own page, or by somebody who typed its address."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if host not in self.playground.hosts:
            self._refuse(HTTPStatus.FORBIDDEN, f"this is {self.playground.address}, not {host[:100]!r}")
            return False
        if origin is not None and origin != f"http://{host}":
            self._refuse(HTTPStatus.FORBIDDEN, "other pages may not ask for plans")
            return False
        return True

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        # What the request still holds is not read, so the connection cannot be used again.
        self.close_connection = True
        self._begin(status, "application/json")
        self._line({"error": sentence})

    def _begin(self, status: HTTPStatus, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
