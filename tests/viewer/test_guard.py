"""viser's web server accepts the viewer's own pages only, and ignores their messages."""

import contextlib
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec.msgpack
import mujoco
import pytest
import viser
import viser._messages as messages
from viser.infra import _infra
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

from ppga.errors import InputError
from ppga.viewer.access import MOST_CLIENTS
from ppga.viewer.guard import MOST_WATCHERS
from ppga.viewer.stage import Stage

from helpers.browser import until

BALL = "<mujoco><worldbody><body><freejoint/><geom size='.1'/></body></worldbody></mujoco>"
STARTS = ("os.fork", "os.posix_spawn", "subprocess.Popen")


def ball(host: str = "127.0.0.1", port: int = 9100) -> Stage:
    return Stage(mujoco.MjModel.from_xml_string(BALL), 0.1, host, port)


@pytest.fixture(scope="module", params=["127.0.0.1", "0.0.0.0"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    stage = ball(request.param)
    yield stage
    stage.stop()


def visit(port: int, host: str | None = None, origin: str | None = None) -> ClientConnection:
    """A websocket to this machine, with any headers."""
    return connect(
        f"ws://{host or f'127.0.0.1:{port}'}",
        sock=socket.create_connection(("127.0.0.1", port), timeout=60),
        origin=None if origin is None else Origin(origin),
        subprotocols=[Subprotocol(f"viser-v{viser.__version__}")],
        max_size=None,
        proxy=None,
    )


def get(stage: Stage, **headers: str) -> bytes:
    request = urllib.request.Request(f"http://127.0.0.1:{stage.port}/", headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


def read_all(client: Any) -> None:
    while True:
        client.recv(timeout=60)


def send(client: Any, message: Any) -> None:
    client.send(msgspec.msgpack.encode(message.as_serializable_dict()))


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", socket.gethostname(), "192.168.7.7", "[::1]"])
def test_the_own_page_is_accepted_by_every_host_name(stage: Stage, name: str) -> None:
    host = f"{name}:{stage.port}"
    with visit(stage.port, host, f"http://{host}".lower()) as client:
        assert client.recv(timeout=60), "the content of the stage"
        until(lambda: stage.guard.watchers > 0, "a watcher")
    with visit(stage.port, host) as client:
        assert client.recv(timeout=60), "programs other than browsers send no Origin"
    until(lambda: stage.guard.watchers == 0, "no watchers")


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        (None, "http://evil.example"),
        (None, "https://127.0.0.1.evil.example:{port}"),
        (None, "http://127.0.0.1:1"),
        (None, "http://localhost:{port}"),
        (None, "null"),
        (None, ""),
        ("evil.example:{port}", "http://evil.example:{port}"),
        ("evil.example:{port}", None),
        ("127.0.0.1.evil.example:{port}", None),
    ],
)
def test_pages_of_other_sites_are_rejected(stage: Stage, host: str | None, origin: str | None) -> None:
    """By their origin, or by a host name that resolves to this machine."""
    host, origin = (text and text.format(port=stage.port) for text in (host, origin))
    with pytest.raises(InvalidStatus) as refusal, visit(stage.port, host, origin):
        pass
    assert refusal.value.response.status_code == 403
    assert stage.guard.watchers == 0


def test_viser_s_files_are_not_served_to_other_sites(stage: Stage) -> None:
    assert b"<html" in get(stage)
    assert b"<html" in get(stage, **{"Sec-Fetch-Site": "same-site", "Host": f"localhost:{stage.port}"})
    for headers in (
        {"Host": f"evil.example:{stage.port}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://evil.example"},
    ):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            get(stage, **headers)


def test_a_large_message_closes_its_own_connection_only(stage: Stage) -> None:
    with visit(stage.port) as other, visit(stage.port) as client:
        client.send(bytes(20_000))
        with pytest.raises(ConnectionClosed) as end:
            read_all(client)
        assert end.value.rcvd is not None
        assert end.value.rcvd.code == 1009, "too big"
        assert other.recv(timeout=60)
        assert other.ping().wait(60)


def test_too_many_websockets_are_rejected(stage: Stage) -> None:
    until(lambda: stage.guard.watchers == 0, "no watchers")
    with contextlib.ExitStack() as crowd:
        for _ in range(MOST_WATCHERS):
            crowd.enter_context(visit(stage.port))
        for _ in range(2):
            with pytest.raises(InvalidStatus, match="503"), visit(stage.port):
                pass
    until(lambda: stage.guard.watchers == 0, "no watchers")
    with visit(stage.port) as client:
        assert client.recv(timeout=60), "later clients are accepted"


def test_too_many_silent_connections_are_rejected(stage: Stage) -> None:
    until(lambda: stage.guard.watchers == 0, "no watchers")
    with contextlib.ExitStack() as crowd:
        silent = [
            crowd.enter_context(socket.create_connection(("127.0.0.1", stage.port), timeout=60))
            for _ in range(MOST_CLIENTS + 3)
        ]
        answers = [connection.recv(100)[:12] for connection in silent[MOST_CLIENTS:]]
        assert answers == [b"HTTP/1.1 503"] * 3, "websockets has another Server.handlers or connection_made"

    def answered() -> bool:
        with contextlib.suppress(OSError):
            return b"<html" in get(stage)
        return False

    until(answered, "an answer to a later client")


@pytest.fixture
def attempts() -> Iterator[list[str]]:
    """Attempts to connect to another machine, or to start a process that could."""
    attempts: list[str] = []
    watching = True

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if not watching:
            return
        if event in STARTS:
            attempts.append(event)
        elif event == "socket.getaddrinfo" and arguments[0] not in ("127.0.0.1", "localhost", None):
            attempts.append(f"{event} {arguments[0]}")
        elif event == "socket.connect" and isinstance(arguments[1], tuple) and arguments[1][0] != "127.0.0.1":
            attempts.append(f"{event} {arguments[1]}")

    sys.addaudithook(audit)  # hooks cannot be removed
    yield attempts
    watching = False


def send_every_message(server: Any, port: int, closes: tuple[type[Exception], ...] = ()) -> Any:
    """Send requests to share, to upload an empty file, and to move the camera; return the upload button.

    Args:
        server: a viser server.
        port: its port.
        closes: errors of a server that closes the connection when a message is malformed.
    """
    button = server.gui.add_upload_button("a file")
    with visit(port) as client:
        send(client, messages.ShareUrlRequest())
        send(client, messages.FileTransferStartUpload(button._impl.uuid, "1", "name", "text/plain", 0, 0))
        axis = (1.0, 0.0, 0.0)
        send(client, messages.ViewerCameraMessage((*axis, 0.0), axis, 1.0, 0.1, 9.0, 9, 9, axis, axis))
        with contextlib.suppress(*closes):
            client.send("not even bytes")
            client.send(b"not a message")
            client.recv(timeout=60)
    return button


def test_messages_have_no_effect(stage: Stage, attempts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same messages make an unguarded viser share its server and store a file."""
    button = send_every_message(stage.server, stage.port)
    until(lambda: stage.guard.watchers == 0, "the connection to be closed")

    plain, shared = viser.ViserServer("127.0.0.1", 9150, verbose=False), threading.Event()
    monkeypatch.setattr(plain, "request_share_url", shared.set)
    try:
        uploaded = send_every_message(plain, plain.get_port(), closes=(ConnectionClosed,))
        assert shared.wait(60), "viser's message for sharing has changed: this test sends an outdated one"
        until(
            lambda: uploaded.value.name == "name",
            "an uploaded file; if viser's message has changed, this test sends an outdated one",
        )
    finally:
        plain.stop()

    hint = "viser reads messages without websockets' ServerConnection.recv"
    assert attempts == [], hint
    assert button.value.name == "", hint
    assert not stage.server.get_clients(), hint


def test_a_viser_that_cannot_be_guarded_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it opened its server with another function."""
    theirs = vars(_infra)["websockets"]
    own = SimpleNamespace(
        asyncio=SimpleNamespace(server=SimpleNamespace(serve=theirs.asyncio.server.serve)),
        exceptions=theirs.exceptions,
        datastructures=theirs.datastructures,
    )
    monkeypatch.setattr(_infra, "websockets", own)
    with pytest.raises(InputError, match=r"websockets\.asyncio\.server\.serve"):
        ball(port=9160)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", 9160), timeout=60)
