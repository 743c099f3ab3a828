"""viser's web server, open to the viewer's own pages only.

By itself viser accepts websockets of any site's page, and does what they say: it takes in files, or opens a
public tunnel to itself. It has no setting for that, so the function by which it opens its server is replaced
meanwhile.
"""

import logging
import threading
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, NoReturn

import viser
import websockets.asyncio.server
from websockets.asyncio.server import ServerConnection, serve

from ppga.errors import InputError
from ppga.viewer.access import FULL, MOST_CLIENTS, is_foreign, own_names

MOST_WATCHERS = 16
"""Websockets at once; a page has one."""
LARGEST_MESSAGE = 10_000
"""Bytes that a client may send at a time."""
_OPENING = threading.Lock()
_LOGGER = logging.Logger("viser")  # nobody's: odd requests are not worth a traceback
_LOGGER.addHandler(logging.NullHandler())


class Guard:
    """Decides who may connect to viser's web server.

    Args:
        host: it listens on.

    Attributes:
        watchers: websockets that are open.
        used: viser has opened its server with it.
    """

    def __init__(self, host: str) -> None:
        self.names = own_names(host)
        self.watchers, self.used = 0, False

    def serve(
        self,
        handler: Callable[[ServerConnection], Awaitable[None]],
        *place: Any,
        process_request: Callable[..., Any],
        **settings: Any,
    ) -> serve:
        """`websockets.asyncio.server.serve` with a check of each request, and limits."""
        self.used = True

        async def watch(connection: ServerConnection) -> None:
            self.watchers += 1
            try:
                await handler(connection)
            finally:
                self.watchers -= 1

        def check(connection: ServerConnection, request: Any) -> Any:
            if is_foreign(request.headers, self.names):
                return connection.respond(HTTPStatus.FORBIDDEN, "call me by my own name")
            if len(connection.server.connections) >= MOST_WATCHERS:
                return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "too many at once")
            return process_request(connection, request)

        settings |= {"max_size": LARGEST_MESSAGE, "create_connection": _Watcher, "logger": _LOGGER}
        return serve(watch, *place, process_request=check, **settings)


class _Watcher(ServerConnection):
    """A connection that is only written to: what the client says is thrown away."""

    def connection_made(self, transport: Any) -> None:
        """Answer that there are too many, if so."""
        super().connection_made(transport)
        if len(self.server.handlers) > MOST_CLIENTS:
            transport.write(FULL)
            transport.close()

    async def recv(self, decode: bool | None = None) -> NoReturn:
        """Read until the connection is closed, which raises."""
        while True:
            await super().recv(decode)


def guarded_viser(host: str, port: int) -> tuple[Any, Guard]:
    """A `viser.ViserServer` and its guard.

    Args:
        host: to listen on.
        port: to begin looking for a free one at.
    """
    guard = Guard(host)
    with _OPENING:
        websockets.asyncio.server.serve = guard.serve  # type: ignore[assignment, misc]
        try:
            server = viser.ViserServer(host=host, port=port, verbose=False)
        finally:
            websockets.asyncio.server.serve = serve  # type: ignore[misc]
    if not guard.used:
        server.stop()
        raise InputError(
            f"viser {viser.__version__} does not open its web server by websockets.asyncio.server.serve, so "
            "any website could connect to it. Install a version that ppga was tested with: "
            "pip install 'ppga[view]'."
        )
    return server, guard
