"""Seconds from a click in the viewer to the robot, and of drawing a frame, on the server's side."""

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import ppga
from ppga.archives import Archive
from ppga.errors import import_extra
from ppga.tasks import robot
from ppga.viewer.stage import TICK, Stage
from ppga.viewer.viewer import Viewer

from benchmarks.harness import Result

DRAWN = 200
"""Frames drawn to time one."""


def bench_view(task: str, rounds: int) -> list[Result]:
    """Time clicks on elites, which play whole episodes, and frames with two robots."""
    robot(task)  # raises an InputError for a task that cannot be drawn
    config, _ = ppga.preset("smoke", task, "map-elites")
    laptop, _ = ppga.preset("laptop", task)
    config = config.replace(**{"simulation": laptop.simulation, "network.actor": laptop.network.actor})
    archive = ppga.train(task, config, budget=ppga.Budget(iterations=1)).archive
    with TemporaryDirectory() as folder:
        archive.save(Path(folder) / "archive.safetensors")
        viewer = Viewer(Path(folder), "127.0.0.1", 8700)
        try:
            viewer.ready()
            return _measure(task, viewer, archive, rounds)
        finally:
            viewer.close()


def _measure(task: str, viewer: Viewer, archive: Archive, rounds: int) -> list[Result]:
    assert viewer.stage is not None
    cells = archive.elites["index"].tolist()
    with _client(viewer.stage):
        clicks, steps = [], []
        for number in range(rounds):
            start = time.perf_counter()
            answer = viewer.play({"slot": 0, "cell": cells[number % len(cells)], "start": number})
            clicks.append(time.perf_counter() - start)
            steps.append(answer["steps"])
        viewer.pin({})
        viewer.stage.clock.set(playing=False)  # or the stage's own thread would draw meanwhile
        frames = []
        for number in range(DRAWN):
            viewer.stage.clock.set(at=number * viewer.stage.dt)
            start = time.perf_counter()
            viewer.stage.draw()
            frames.append(time.perf_counter() - start)
    frame = statistics.median(frames)
    return [
        Result(f"click/{task}", statistics.median(clicks), f"s ({min(steps)} steps or more)"),
        Result(f"slowest click/{task}", max(clicks), "s"),
        Result(f"draw/{task}", frame, "s", frame / TICK, f"a tick, {TICK:g} s"),
    ]


@contextmanager
def _client(stage: Stage) -> Iterator[None]:
    """Receive all that the stage sends, as a browser would, without drawing it."""
    viser, client = import_extra("viser", "view"), import_extra("websockets.sync.client", "view")
    version = f"viser-v{viser.__version__}"
    address = f"ws://127.0.0.1:{stage.port}"
    with client.connect(address, subprotocols=[version], max_size=None) as connection:
        connection.recv()
        receiver = threading.Thread(target=lambda: [None for _ in connection], daemon=True)
        receiver.start()
        yield
    receiver.join()
