"""How long a click in the viewer takes, and how much of the time drawing takes; the server's side of it."""

import statistics
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ppga.archives import Archive
from ppga.bench.harness import Result
from ppga.runs import Budget, preset, train
from ppga.tasks import robot
from ppga.viewer.stage import TICK
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
    clicks, cells = [], archive.elites["index"].tolist()
    for number in range(rounds):
        start = time.perf_counter()
        told = viewer.play({"slot": 0, "cell": cells[number % len(cells)], "start": number})
        clicks.append(time.perf_counter() - start)
    viewer.pin({})
    start = time.perf_counter()
    for _ in range(DRAWN):
        viewer.stage.draw()
    drawing = (time.perf_counter() - start) / DRAWN
    return [
        Result(f"click/{name}", statistics.median(clicks), f"s ({told['steps']} steps)"),
        Result(f"draw/{name}", drawing, "s", drawing / TICK, f"a tick, {TICK:g} s"),
    ]
