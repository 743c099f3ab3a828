"""How long a click in the viewer takes, and how much of the time drawing takes; the server's side of it."""

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ppga.archives import Archive
from ppga.bench.harness import Result
from ppga.errors import import_extra
from ppga.runs import Budget, preset, train
from ppga.tasks import robot
from ppga.viewer.stage import TICK, Stage
from ppga.viewer.viewer import Viewer

DRAWN = 200
"""Pictures drawn to time one."""


def bench_view(name: str, rounds: int) -> list[Result]:
    """Clicks on elites that play whole episodes, and pictures of two robots."""
    robot(name)  # an unknown name is told here
    config, _ = preset("smoke", name, "map-elites")
    usual, _ = preset("laptop", name)
    config = replace(config, simulation=usual.simulation, network=usual.network)
    archive = train(name, config, budget=Budget(iterations=1)).archive
    with TemporaryDirectory() as folder:
        archive.save(Path(folder) / "archive.safetensors")
        viewer = Viewer(Path(folder), "127.0.0.1", 8700)
        try:
            viewer.ready()
            return _measured(name, viewer, archive, rounds)
        finally:
            viewer.close()


def _measured(name: str, viewer: Viewer, archive: Archive, rounds: int) -> list[Result]:
    assert viewer.stage is not None
    cells = archive.elites["index"].tolist()
    with _watched(viewer.stage):
        clicks, steps = [], []
        for number in range(rounds):
            start = time.perf_counter()
            told = viewer.play({"slot": 0, "cell": cells[number % len(cells)], "start": number})
            clicks.append(time.perf_counter() - start)
            steps.append(told["steps"])
        viewer.pin({})
        viewer.stage.clock.set(playing=False)  # or its own thread would draw meanwhile
        times = []
        for number in range(DRAWN):
            viewer.stage.clock.set(at=number * viewer.stage.dt)
            start = time.perf_counter()
            viewer.stage.draw()
            times.append(time.perf_counter() - start)
    drawing = statistics.median(times)
    return [
        Result(f"click/{name}", statistics.median(clicks), f"s ({min(steps)} steps or more)"),
        Result(f"slowest click/{name}", max(clicks), "s"),
        Result(f"draw/{name}", drawing, "s", drawing / TICK, f"a tick, {TICK:g} s"),
    ]


@contextmanager
def _watched(stage: Stage) -> Iterator[None]:
    """Somebody looks: takes all that the stage sends, as a browser would, and draws none of it."""
    viser, client = import_extra("viser", "view"), import_extra("websockets.sync.client", "view")
    version = f"viser-v{viser.__version__}"
    address = f"ws://127.0.0.1:{stage.port}"
    with client.connect(address, subprotocols=[version], max_size=None) as connection:
        connection.recv()
        taking = threading.Thread(target=lambda: [None for _ in connection], daemon=True)
        taking.start()
        yield
    taking.join()
