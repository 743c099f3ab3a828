"""`ppga view`: an archive in the browser."""

import os
import sys
import threading
import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.text import Text
from tyro.conf import Positional

from ppga import machine
from ppga.cli.common import TaskFile, command, console, register_task
from ppga.errors import InputError, import_extra

if TYPE_CHECKING:
    from ppga.viewer.server import PageServer
    from ppga.viewer.source import Source


def view(
    run: Annotated[Positional[Path | None], tyro.conf.arg(metavar="RUN")] = None,
    pretrained: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None,
    host: str = "127.0.0.1",
    port: int = 8750,
    wait: bool = False,
    no_browser: bool = False,
    task: TaskFile = None,
) -> None:
    """Show an archive in the browser: click a cell, and watch its elite walk.

    Example: ppga view runs/walker

    Example: ppga view --pretrained walker2d

    A run that is still being trained is updated as it grows. The page needs no internet. To see it on another
    machine, forward its port and the next one: ssh -L 8750:localhost:8750 -L 8751:localhost:8751 HOST.

    Args:
        run: a run's folder, an archive's folder, an archive's file, or pretrained:NAME.
        pretrained: name of an archive that is included with ppga.
        host: address to listen on; by default only this machine can connect.
        port: port of the page, or the next free one; the 3D view uses the next free port.
        wait: wait for a folder that does not exist yet.
        no_browser: open no browser.
        task: the task, if it is in a file of yours.
    """
    from ppga.archives.included import PREFIX

    if (run is None) == (pretrained is None):
        raise InputError("give an archive: either ppga view RUN or ppga view --pretrained NAME.")
    run = run or Path(f"{PREFIX}{pretrained}")
    if not 1 <= port <= 65000:
        raise InputError(f"--port must lie in [1, 65000], got {port}.")
    source = _source(run, wait)
    machine.prepare_jax()
    register_task(task, source.task())
    import_extra("viser", "view")  # here, because the page would show it late
    from ppga.viewer.server import PageServer

    server = PageServer(run, host, port)
    if server.port != port:
        console.print(f"port {port} is in use; using {server.port}", highlight=False)
    console.print(f"{run} is at {server.address}    (Ctrl-C ends it)", highlight=False, soft_wrap=True)
    if not server.private:
        console.print(f"listening on {host}: everyone who can reach this machine can connect", style="yellow")
    has_display = sys.platform != "linux" or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    if has_display and not no_browser:
        webbrowser.open(server.address)
    _serve(server)


def _source(run: Path, wait: bool) -> "Source":
    """The archive or run, which exists and can be read."""
    from ppga.viewer.source import Source

    if run.is_file() and run.suffix != ".safetensors":
        raise InputError(f"{run} is not an archive.")
    if not wait and not Source(run).exists():
        raise InputError(f"there is no run and no archive in {run}; --wait waits for one.")
    try:
        with console.status(Text(f"waiting for {run}")):
            while not Source(run).exists():
                time.sleep(0.5)
    except KeyboardInterrupt:
        sys.exit(130)
    source = Source(run)
    snapshot = source.snapshot()
    if snapshot.archive is None and snapshot.version:  # it exists and cannot be read
        raise InputError(snapshot.problem or f"cannot read {run}.")
    return source


def _serve(server: "PageServer") -> None:
    """Serve the page until Ctrl-C."""
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    port_shown = False
    try:
        while thread.is_alive():
            thread.join(0.2)
            stage = server.viewer.stage
            if stage is not None and not port_shown and stage.port != server.port + 1:
                console.print(f"the 3D view is on port {stage.port}", highlight=False)
            port_shown = stage is not None
    except KeyboardInterrupt:
        console.print("")
    finally:
        server.close()


main = command(view)
