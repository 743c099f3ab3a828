"""viser's web server, accessible to the viewer's own pages only.

By default, viser accepts websockets from pages of any site and obeys their messages: they can upload files or
open a public tunnel. No setting changes this, so the function that opens viser's server is replaced while it
starts.
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
"""Maximum number of websockets; a page has one."""
LARGEST_MESSAGE = 10_000
"""Maximum bytes of a client's message."""
_OPENING = threading.Lock()
_LOGGER = logging.Logger("viser")  # discards tracebacks of malformed requests
_LOGGER.addHandler(logging.NullHandler())


class Guard:
    """Decides which requests to viser's web server are accepted.

    Args:
        host: host name or address that the server listens on.

    Attributes:
        watchers: number of open websockets.
        used: whether viser has opened its server with `serve`.
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
        """`websockets.asyncio.server.serve` that checks each request and limits their number."""
        self.used = True

        async def watch(connection: ServerConnection) -> None:
            self.watchers += 1
            try:
                await handler(connection)
            finally:
                self.watchers -= 1

        def check(connection: ServerConnection, request: Any) -> Any:
            if is_foreign(request.headers, self.names):
                return connection.respond(HTTPStatus.FORBIDDEN, "unknown host name or foreign origin")
            if len(connection.server.connections) >= MOST_WATCHERS:
                return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "too many clients")
            return process_request(connection, request)

        settings |= {
            "max_size": LARGEST_MESSAGE,
            "create_connection": _WriteOnlyConnection,
            "logger": _LOGGER,
        }
        return serve(watch, *place, process_request=check, **settings)


class _WriteOnlyConnection(ServerConnection):
    """A connection that discards the client's messages."""

    def connection_made(self, transport: Any) -> None:
        """Refuse the connection if there are too many."""
        super().connection_made(transport)
        if len(self.server.handlers) > MOST_CLIENTS:
            transport.write(FULL)
            transport.close()

    async def recv(self, decode: bool | None = None) -> NoReturn:
        """Read and discard messages until the connection is closed, which raises."""
        while True:
            await super().recv(decode)


def guarded_viser(host: str, port: int) -> tuple[Any, Guard]:
    """A `viser.ViserServer` and its guard.

    Args:
        host: host name or address to listen on.
        port: first port to try.

    Raises:
        InputError: the installed version of viser cannot be guarded.
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
            f"viser {viser.__version__} does not open its web server with websockets.asyncio.server.serve, "
            "so any website could connect to it. Install a version that ppga was tested with: "
            "pip install 'ppga[view]'."
        )
    return server, guard
