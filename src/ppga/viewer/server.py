"""The viewer's web server: the page, its requests, and a stream of status events."""

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
from ppga.errors import InputError, error_text
from ppga.viewer.access import FULL, MOST_CLIENTS, is_foreign, own_names
from ppga.viewer.viewer import Viewer

PAGES = {"/": "index.html", "/page.js": "page.js", "/page.css": "page.css"}
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
LARGEST_REQUEST = 10_000
"""Maximum bytes of a request's body."""
STATUS_SECONDS = 0.1
"""Seconds between two status events."""
TIMEOUT = 60.0
"""Seconds until an inactive connection is closed."""


class _Handler(BaseHTTPRequestHandler):
    """Handles the requests of the viewer's own page, and refuses all other requests.

    Args:
        viewer: answers the requests.
        names: host names that the server may be called by, see `own_names`.
        *args: arguments of `BaseHTTPRequestHandler`.
    """

    protocol_version = "HTTP/1.1"
    server_version = "ppga"
    timeout = TIMEOUT

    def __init__(self, viewer: Viewer, names: frozenset[str], *args: Any) -> None:
        self.viewer, self.names = viewer, names
        super().__init__(*args)

    def log_message(self, *args: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """Answer requests for pages, data and downloads."""
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        viewer = self.viewer
        which = query.get("which", ARCHIVED)
        downloads: dict[str, tuple[str, Callable[[], bytes]]] = {
            "/api/policy": ("policy.safetensors", lambda: viewer.policy(_number(query, "slot"))),
            "/api/rollout.csv": ("rollout.csv", lambda: viewer.rollout(_number(query, "slot"))),
            "/api/animation.gif": ("animation.gif", lambda: viewer.animation(_number(query, "slot"))),
        }
        answers: dict[str, Callable[[], Any]] = {
            "/api/about": viewer.about,
            "/api/cells": lambda: viewer.cells(which),
            "/api/trajectory": viewer.source.trajectory,
            "/api/clock": viewer.status,
        }
        if not self._accepted():
            return
        if url.path in PAGES:
            page = PAGES[url.path]
            content = files("ppga.viewer").joinpath("page", page).read_bytes()
            self._send(HTTPStatus.OK, content, f"{KINDS[Path(page).suffix]}; charset=utf-8")
        elif url.path == "/api/status":
            self._send_status()
        elif url.path in downloads:
            name, make = downloads[url.path]
            self._answer(make, name)
        elif url.path in answers:
            self._answer(answers[url.path])
        else:
            self._send(HTTPStatus.NOT_FOUND, b"not found", "text/plain")

    def do_POST(self) -> None:
        """Answer requests with side effects; they need a header that pages of other sites cannot send."""
        viewer = self.viewer
        answers = {
            "/api/play": viewer.play,
            "/api/pin": viewer.pin,
            "/api/remove": viewer.remove,
            "/api/clock": viewer.set_clock,
        }
        if not self._accepted():
            return
        stated = self.headers.get("Content-Length") or "0"
        length = int(stated) if stated.isdecimal() else LARGEST_REQUEST + 1
        if self.path not in answers or self.headers.get("X-Ppga") != "1" or length > LARGEST_REQUEST:
            self.close_connection = True
            self._send(HTTPStatus.NOT_FOUND, b"not found", "text/plain")
            return
        try:
            request = json.loads(self.rfile.read(length) or b"{}")
        except ValueError:
            request = None
        if not isinstance(request, dict):
            self._send(HTTPStatus.BAD_REQUEST, b'{"problem": "expected a JSON object"}', "application/json")
            return
        self._answer(partial(answers[self.path], request))

    def _accepted(self) -> bool:
        """Whether the request comes from the viewer's own page; other requests are refused."""
        if not is_foreign(self.headers, self.names):
            return True
        self.close_connection = True
        self._send(HTTPStatus.FORBIDDEN, b"unknown host name or foreign origin", "text/plain")
        return False

    def _answer(self, make: Callable[[], Any], name: str | None = None) -> None:
        """Send the result of `make`, or its error.

        Args:
            make: returns JSON values; bytes for a download.
            name: file name of a download; None for JSON.
        """
        try:
            content = make()
        except InputError as error:
            text = json.dumps({"problem": str(error)}).encode()
            self._send(HTTPStatus.BAD_REQUEST, text, "application/json")
            return
        except Exception as error:  # the page shows every error
            text = json.dumps({"problem": error_text(error)}).encode()
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
        except OSError:  # the client has closed the connection
            self.close_connection = True

    def _send_status(self) -> None:
        """Send status events until the client closes the connection."""
        self.close_connection = True
        try:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            while not self.server.closing:  # type: ignore[attr-defined]
                self.wfile.write(b"data: " + json.dumps(self.viewer.status()).encode() + b"\n\n")
                self.wfile.flush()
                time.sleep(STATUS_SECONDS)
        except OSError:  # the client has closed the connection
            pass


def _number(query: dict[str, str], name: str) -> int:
    """An integer in a query; raises an InputError if it is missing or is none."""
    try:
        return int(query[name])
    except (KeyError, ValueError):
        raise InputError(f"{name} must be an integer, got {query.get(name)!r}.") from None


class PageServer(ThreadingHTTPServer):
    """Serves a viewer on the first free port.

    Args:
        path: a run's folder, an archive's folder, an archive's file, or pretrained:NAME.
        host: host name or address to listen on.
        port: first port to try.
    """

    daemon_threads = True
    allow_reuse_address = os.name == "posix"  # otherwise a port stays in use for a minute after it is closed

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
            raise InputError(f"no free port from {port} to {min(port + 99, 65534)}; choose another --port.")
        self.viewer, self.host, self.port = viewer, host, candidate
        self._free_connections = threading.BoundedSemaphore(MOST_CLIENTS)
        self._preparing = threading.Thread(target=viewer.prepare, daemon=True)

    def serve_forever(self, poll_interval: float = 0.5) -> None:
        """Serve until closed, and prepare the stage in the background."""
        self._preparing.start()
        super().serve_forever(poll_interval)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a request in a thread of its own, or refuse it if there are too many."""
        if self._free_connections.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with contextlib.suppress(OSError):  # the client has closed the connection
            request.sendall(FULL)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle a request in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free_connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: malformed requests are not worth a traceback."""

    @property
    def address(self) -> str:
        """URL of the page."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host and '[' not in host else host}:{self.port}/"

    @property
    def private(self) -> bool:
        """Whether only this machine can connect."""
        return ipaddress.ip_address(self.socket.getsockname()[0].partition("%")[0]).is_loopback

    def close(self) -> None:
        """Stop serving and close the stage, after a compilation that is in progress."""
        self.closing = True
        if self._preparing.ident is not None:  # serve_forever was called
            self.shutdown()
        self.server_close()
        self.viewer.close()
        if self._preparing.ident is not None:
            self._preparing.join()
