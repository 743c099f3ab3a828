"""One loop in this process, which reports as JSON lines; `benchmarks.race` starts a process for each loop.

python -m benchmarks.loops LOOP TASK PRESET SEED MINUTES BEGIN EPISODES FOLDER
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ppga
from ppga import machine
from ppga.algorithms import ALGORITHMS
from ppga.archives import Archive, load_archive
from ppga.archives.files import ARCHIVE_FILE
from ppga.errors import check_choice
from ppga.runs import Iteration
from ppga.storage import read_json, write_json
from ppga.tasks import find

from benchmarks.library_task import Report
from benchmarks.pyribs_loops import pyribs_cma_mae, pyribs_cma_maega
from benchmarks.qdax_loops import ascii_me, qdax_dcrl_me, qdax_map_elites, qdax_pga_me

HISTORY_FILE = "history.json"


def ppga_loop(algorithm: str, task: str, preset: str, report: Report, seed: int, minutes: float) -> Archive:
    """An algorithm of ppga with a preset; like the other loops, it writes no files while it runs."""
    config, _ = ppga.preset(preset, task, algorithm)

    def watch(iteration: Iteration) -> None:
        record = iteration.record
        iteration.stop = not report(record["env_steps"], record["qd_score"], record["coverage"])

    budget = ppga.Budget(minutes=minutes)
    return ppga.train(task, config.replace(seed=seed), budget=budget, callbacks=[watch]).archive


def library_loop(
    loop: Callable[[str, str, Report, int], Archive],
    task: str,
    preset: str,
    report: Report,
    seed: int,
    minutes: float,  # noqa: ARG001
) -> Archive:
    """A loop of another library, which does not need to know how long it will run."""
    return loop(task, preset, report, seed)


PPGA_LOOPS = {name: partial(ppga_loop, name) for name in ALGORITHMS}
LIBRARY_LOOPS = {
    "qdax map-elites": partial(library_loop, qdax_map_elites),
    "qdax pga-me": partial(library_loop, qdax_pga_me),
    "qdax dcrl-me": partial(library_loop, qdax_dcrl_me),
    "ascii-me": partial(library_loop, ascii_me),
    "pyribs cma-mae": partial(library_loop, pyribs_cma_mae),
    "pyribs cma-maega": partial(library_loop, pyribs_cma_maega),
}
LOOPS = {**PPGA_LOOPS, **LIBRARY_LOOPS}
"""Loop -> function of task, preset, `Report`, seed and minutes that returns an archive."""


@dataclass(frozen=True)
class History:
    """The course of a loop.

    Attributes:
        seconds: time since the start of the process, at the end of each iteration.
        steps: control steps until then.
        scores: QD-score of the archive then.
        peak: largest amount of memory in GiB.
        cores: CPU cores that the process could use.
    """

    seconds: tuple[float, ...]
    steps: tuple[int, ...]
    scores: tuple[float, ...]
    peak: float | None
    cores: int

    @staticmethod
    def load(folder: Path) -> "History":
        """The history of the loop whose folder this is."""
        content = read_json(folder / HISTORY_FILE)
        seconds, steps, scores = (tuple(content[name]) for name in ("seconds", "steps", "scores"))
        return History(seconds, steps, scores, content["peak"], content["cores"])

    @property
    def speed(self) -> float:
        """Control steps/s after the first iteration, which compiles; of that one if it is the only one."""
        if len(self.seconds) == 1:
            return self.steps[0] / self.seconds[0]
        return (self.steps[-1] - self.steps[0]) / (self.seconds[-1] - self.seconds[0])

    def seconds_until(self, score: float) -> float | None:
        """Seconds until the archive first had this QD-score; None if it never had."""
        history = zip(self.seconds, self.scores, strict=True)
        return next((seconds for seconds, reached in history if reached >= score), None)


def run(loop: str, task: str, preset: str, seed: int, minutes: float, begin: float, folder: Path) -> None:
    """Run a loop, write its archive and its history, and print a line after every iteration.

    Args:
        loop: name of the loop.
        task: name of the task.
        preset: name of the preset.
        seed: random seed.
        minutes: budget of the loop, from `begin` on.
        begin: when the process started, in seconds since the epoch.
        folder: folder for the files. The history is written last: with it, the loop is complete.
    """
    iterations: list[tuple[float, int, float]] = []

    def report(steps: int, qd_score: float, coverage: float) -> bool:  # noqa: ARG001
        seconds = time.time() - begin
        iterations.append((seconds, steps, qd_score))
        show({"qd_score": qd_score, "seconds": seconds})
        return seconds < 60 * minutes

    archive = LOOPS[loop](task, preset, report, seed, minutes)
    seconds, steps, scores = zip(*iterations, strict=True)
    if seconds[-1] < 60 * minutes:  # ppga's algorithms return their archive after a signal
        sys.exit(f"stopped after {seconds[-1]:.0f} of {60 * minutes:g} s")
    history = History(seconds, steps, scores, machine.peak_memory_gib(), machine.visible_cores())
    archive = replace(archive, description=archive.description | {"algorithm": loop, "seed": seed})
    archive.save(folder / ARCHIVE_FILE)
    write_json(folder / HISTORY_FILE, asdict(history))


def show(line: dict[str, Any]) -> None:
    """Print a line for the process that runs the race."""
    print(json.dumps(line), flush=True)


def main(
    loop: str, task: str, preset: str, seed: str, minutes: str, begin: str, episodes: str, folder: str
) -> None:
    """Run a loop unless its folder has its history, and re-evaluate its elites; see `run`."""
    check_choice("loop", loop, LOOPS)
    name, place = find(task), Path(folder)
    if not (place / HISTORY_FILE).is_file():
        run(loop, name, preset, int(seed), float(minutes), float(begin), place)
    from benchmarks import fresh  # not earlier: it would add to the memory

    archive = load_archive(place / ARCHIVE_FILE)
    fresh.play(
        archive, int(episodes), int(seed), place, lambda done, of: show({"evaluated": done, "elites": of})
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
