"""The viewer's own little web server: the page, what it asks for, and news of the clock and the run."""

import contextlib
import errno
import ipaddress
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ppga.archives.files import ARCHIVED
from ppga.errors import InputError, told
from ppga.viewer.access import FULL, MOST_CLIENTS, is_foreign, own_names
from ppga.viewer.viewer import Viewer

PAGES = {"/": "index.html", "/page.js": "page.js", "/page.css": "page.css"}
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
LARGEST_QUESTION = 10_000
"""Bytes that the page may send at a time."""
NEWS_SECONDS = 0.1
SILENCE = 60.0
"""Seconds that a connection may say nothing."""


class _Handler(BaseHTTPRequestHandler):
    """Answers only what the page asks, and only to whoever called it by its own name."""

    protocol_version = "HTTP/1.1"
    server_version = "ppga"
    timeout = SILENCE

    def __init__(self, viewer: Viewer, names: frozenset[str], *args: Any) -> None:
        self.viewer, self.names = viewer, names
        super().__init__(*args)

    def log_message(self, *args: Any) -> None:
        """Nothing: the terminal is for people."""

    def do_GET(self) -> None:
        """Pages, questions without consequences, files to take home."""
        place = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(place.query).items()}
        viewer = self.viewer
        which = asked.get("which", ARCHIVED)
        files_of: dict[str, tuple[str, Callable[[], bytes]]] = {
            "/api/policy": ("policy.safetensors", lambda: viewer.policy(_number(asked, "slot"))),
            "/api/rollout.csv": ("rollout.csv", lambda: viewer.rollout(_number(asked, "slot"))),
            "/api/film.gif": ("film.gif", lambda: viewer.film(_number(asked, "slot"))),
        }
        answers: dict[str, Callable[[], Any]] = {
            "/api/about": viewer.about,
            "/api/cells": lambda: viewer.cells(which),
            "/api/path": viewer.source.path_of_search,
            "/api/clock": viewer.news,
        }
        if not self._welcome():
            return
        if place.path in PAGES:
            page = PAGES[place.path]
            content = files("ppga.viewer").joinpath("page", page).read_bytes()
            self._send(HTTPStatus.OK, content, f"{KINDS[Path(page).suffix]}; charset=utf-8")
        elif place.path == "/api/news":
            self._send_news()
        elif place.path in files_of:
            name, make = files_of[place.path]
            self._answer(make, name)
        elif place.path in answers:
            self._answer(answers[place.path])
        else:
            self._send(HTTPStatus.NOT_FOUND, b"not here", "text/plain")

    def do_POST(self) -> None:
        """What has consequences; a header that other sites cannot send without asking keeps them out."""
        viewer = self.viewer
        answers = {
            "/api/play": viewer.play,
            "/api/pin": viewer.pin,
            "/api/leave": viewer.leave,
            "/api/clock": viewer.set_clock,
        }
        if not self._welcome():
            return
        said = self.headers.get("Content-Length") or "0"
        length = int(said) if said.isdecimal() else LARGEST_QUESTION + 1
        if self.path not in answers or self.headers.get("X-Ppga") != "1" or length > LARGEST_QUESTION:
            self.close_connection = True
            self._send(HTTPStatus.NOT_FOUND, b"not here", "text/plain")
            return
        try:
            question = json.loads(self.rfile.read(length) or b"{}")
        except ValueError:
            question = None
        if not isinstance(question, dict):
            self._send(HTTPStatus.BAD_REQUEST, b'{"problem": "not a question"}', "application/json")
            return
        self._answer(partial(answers[self.path], question))

    def _welcome(self) -> bool:
        """Whether this server was called by its own name, and not from a foreign page, whose name may lead
        here too.
        """
        if not is_foreign(self.headers, self.names):
            return True
        self.close_connection = True
        self._send(HTTPStatus.FORBIDDEN, b"call me by my own name", "text/plain")
        return False

    def _answer(self, make: Callable[[], Any], name: str | None = None) -> None:
        try:
            content = make()
        except InputError as error:
            text = json.dumps({"problem": str(error)}).encode()
            self._send(HTTPStatus.BAD_REQUEST, text, "application/json")
            return
        except Exception as error:  # whatever it is, the page can say it
            text = json.dumps({"problem": told(error)}).encode()
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, text, "application/json")
            return
        if name is not None:
            self._send(HTTPStatus.OK, content, "application/octet-stream", name)
        else:
            self._send(HTTPStatus.OK, json.dumps(content).encode(), "application/json")

    def _send(self, status: HTTPStatus, content: bytes, kind: str, name: str | None = None) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            if name:
                self.send_header("Content-Disposition", f'attachment; filename="{name}"')
            self.end_headers()
            self.wfile.write(content)
        except OSError:  # nobody listens any more
            self.close_connection = True

    def _send_news(self) -> None:
        """Server-sent events, as long as somebody listens."""
        self.close_connection = True
        try:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            while not self.server.closing:  # type: ignore[attr-defined]
                self.wfile.write(b"data: " + json.dumps(self.viewer.news()).encode() + b"\n\n")
                self.wfile.flush()
                time.sleep(NEWS_SECONDS)
        except OSError:  # nobody listens any more
            pass


def _number(asked: dict[str, str], name: str) -> int:
    """A whole number of a question, or an InputError."""
    try:
        return int(asked[name])
    except (KeyError, ValueError):
        raise InputError(f"{name} must be a whole number, got {asked.get(name)!r}.") from None


class PageServer(ThreadingHTTPServer):
    """Serves a viewer on the first free port from the given one on.

    Args:
        path: what to look at.
        host: to listen on.
        port: to begin looking for a free one at.
    """

    daemon_threads = True
    allow_reuse_address = os.name == "posix"  # or a port would stay taken for a minute after use

    def __init__(self, path: Path, host: str, port: int) -> None:
        self.closing = False
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        names = own_names(host)
        for candidate in range(port, min(port + 100, 65535)):
            viewer = Viewer(path, host, candidate)
            try:
                super().__init__((host, candidate), partial(_Handler, viewer, names))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise InputError(f"cannot listen on {host}:{candidate}: {error.strerror}.") from None
            else:
                break
        else:
            raise InputError(f"no free port from {port} on.")
        self.viewer, self.host, self.port = viewer, host, candidate
        self._places = threading.BoundedSemaphore(MOST_CLIENTS)
        self._preparing = threading.Thread(target=viewer.prepare, daemon=True)

    def serve_forever(self, poll_interval: float = 0.5) -> None:
        """Serve until closed; get the stage ready meanwhile."""
        self._preparing.start()
        super().serve_forever(poll_interval)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, if there are not too many."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with contextlib.suppress(OSError):  # nobody listens any more
            request.sendall(FULL)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """In that thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: who asks oddly is not worth a traceback."""

    @property
    def address(self) -> str:
        """Where the page is."""
        here = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{f'[{here}]' if ':' in here and '[' not in here else here}:{self.port}/"

    @property
    def private(self) -> bool:
        """Whether nobody but this machine can ask."""
        return ipaddress.ip_address(self.socket.getsockname()[0].partition("%")[0]).is_loopback

    def close(self) -> None:
        """Stop serving and close the stage; what is being compiled is waited for."""
        self.closing = True
        if self._preparing.ident is not None:  # it was served
            self.shutdown()
        self.server_close()
        self.viewer.close()
        if self._preparing.ident is not None:
            self._preparing.join()
