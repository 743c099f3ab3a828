"""One loop in this process, which reports as JSON lines; `benchmarks.race` starts a process for each loop.

python -m benchmarks.loops LOOP TASK PRESET MINUTES UNTIL EPISODES
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial

import ppga
from ppga import machine
from ppga.archives import Archive
from ppga.errors import check_choice
from ppga.runs import Iteration
from ppga.tasks import find

from benchmarks.library_task import Report
from benchmarks.pyribs_loops import pyribs_cma_mae
from benchmarks.qdax_loops import qdax_map_elites, qdax_pga_me


def ppga_loop(algorithm: str, task: str, preset: str, report: Report, minutes: float) -> Archive:
    """An algorithm of ppga with a preset; like the other loops, it writes no files."""
    config, _ = ppga.preset(preset, task, algorithm)

    def watch(iteration: Iteration) -> None:
        record = iteration.record
        iteration.stop = not report(record["env_steps"], record["qd_score"], record["coverage"])

    return ppga.train(task, config, budget=ppga.Budget(minutes=minutes), callbacks=[watch]).archive


def library_loop(
    loop: Callable[[str, str, Report], Archive],
    task: str,
    preset: str,
    report: Report,
    minutes: float,  # noqa: ARG001
) -> Archive:
    """A loop of another library, which does not need to know how long it will run."""
    return loop(task, preset, report)


PPGA_LOOPS = {name: partial(ppga_loop, name) for name in ("ppga", "pga-me", "map-elites")}
LIBRARY_LOOPS = {
    "qdax pga-me": partial(library_loop, qdax_pga_me),
    "qdax map-elites": partial(library_loop, qdax_map_elites),
    "pyribs cma-mae": partial(library_loop, pyribs_cma_mae),
}
LOOPS = {**PPGA_LOOPS, **LIBRARY_LOOPS}
"""Loop -> function of task, preset, `Report` and minutes that returns an archive."""


def main(loop: str, task: str, preset: str, minutes: str, until: str, episodes: str) -> None:
    """Print a line after every iteration, then one about memory, then one about the corrected archive.

    Args:
        loop: name of the loop.
        task: name of a task, or FILE.py:NAME.
        preset: name of the preset.
        minutes: budget of the loop.
        until: when the loop ends, in seconds since the epoch; so the start of the process counts.
        episodes: episodes of each elite in the corrected archive.
    """

    def report(steps: int, qd_score: float, coverage: float) -> bool:
        print(json.dumps({"steps": steps, "qd_score": qd_score, "coverage": coverage}), flush=True)
        return time.time() < float(until)

    archive = LOOPS[check_choice("loop", loop, LOOPS)](find(task), preset, report, float(minutes))
    print(json.dumps({"peak_gib": machine.peak_memory_gib()}), flush=True)
    from ppga.analysis import corrected  # not earlier: it would add to the memory

    archive = corrected.evaluate(archive, int(episodes)).corrected
    figures = {"qd_score": archive.qd_score, "coverage": archive.coverage}
    print(json.dumps({"corrected": figures}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
