"""Loops of ppga and of other libraries on one task: seconds until an archive has a given QD-score.

Each loop runs in its own process, so that start and memory are its own.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from ppga.errors import InputError, check_choice
from ppga.machine import installed
from ppga.tasks import task_argument

from benchmarks.harness import Result, environment, format_value
from benchmarks.loops import LOOPS, PPGA_LOOPS

PACKAGES = {"qdax pga-me": "qdax", "qdax map-elites": "qdax"}
"""Loop -> optional package that it needs."""
EPISODES = 4
"""Episodes by which every elite is re-evaluated in the end."""


@dataclass(frozen=True)
class History:
    """What a loop has reported.

    Attributes:
        seconds: time since the start of the process, at the end of each iteration.
        steps: control steps until then.
        scores: QD-score of the archive then.
        peak: largest amount of memory in GiB.
        corrected_score: QD-score of the corrected archive.
        corrected_coverage: coverage of the corrected archive.
    """

    seconds: tuple[float, ...]
    steps: tuple[int, ...]
    scores: tuple[float, ...]
    peak: float
    corrected_score: float
    corrected_coverage: float

    @staticmethod
    def of_lines(lines: Iterable[dict[str, Any]]) -> "History":
        """The history from the lines that a loop has printed, with the seconds of each."""
        *iterations, memory, last = lines
        seconds, steps, scores = (
            tuple(line[name] for line in iterations) for name in ("seconds", "steps", "qd_score")
        )
        corrected = last["corrected"]
        return History(
            seconds, steps, scores, memory["peak_gib"], corrected["qd_score"], corrected["coverage"]
        )

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


def bench_race(
    task: str,
    preset: str,
    minutes: float,
    loops: Sequence[str] = (),
    show: Callable[[str], None] = lambda _: None,
) -> list[Result]:
    """Run loops one after the other.

    Args:
        task: name of the task.
        preset: name of the preset.
        minutes: minutes of each loop.
        loops: names of the loops; all by default. Loops whose package is not installed are left out.
        show: called with messages about the progress.
    """
    chosen = [check_choice("loop", loop, LOOPS) for loop in loops] or list(LOOPS)
    available = [loop for loop in chosen if installed(PACKAGES.get(loop, "ppga"))]
    return figures({loop: run(loop, task, preset, minutes, show) for loop in available}, task)


def run(loop: str, task: str, preset: str, minutes: float, show: Callable[[str], None]) -> History:
    """Run one loop in its own process."""
    begin, until = time.perf_counter(), time.time() + 60 * minutes
    words = (loop, task_argument(task), preset, minutes, until, EPISODES)
    command = [sys.executable, "-m", "benchmarks.loops", *map(str, words)]
    lines: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment()
        ) as process,
    ):
        assert process.stdout is not None
        for text in process.stdout:
            line = json.loads(text) | {"seconds": time.perf_counter() - begin}
            lines.append(line)
            if "qd_score" in line:
                show(f"{loop}: QD-score {line['qd_score']:,.0f} after {line['seconds']:.0f} s")
        if process.wait():
            errors.seek(0)
            last = "".join(errors.read().strip().splitlines()[-1:])
            raise InputError(f"{loop} ended with exit code {process.returncode}: {last}")
    return History.of_lines(lines)


def figures(histories: dict[str, History], task: str) -> list[Result]:
    """Figures of every loop, with ratios to the other library's loop with the highest QD-score.

    The goal of the race is that loop's final QD-score.
    """
    libraries = {loop: history for loop, history in histories.items() if loop not in PPGA_LOOPS}
    candidates = libraries or histories
    reference = max(candidates, key=lambda loop: candidates[loop].scores[-1])
    goal = histories[reference].scores[-1]
    base = _values(histories[reference], goal)
    results = []
    for loop, history in histories.items():
        for name, (value, unit) in _values(history, goal).items():
            comparable = loop != reference and "not reached" not in unit and base[name][0] != 0
            ratio = value / base[name][0] if comparable else None
            results.append(
                Result(f"{loop}: {name}/{task}", value, unit, ratio, reference if comparable else None)
            )
    return results


def _values(history: History, goal: float) -> dict[str, tuple[float, str]]:
    """Figures of a loop with their units, by name; if the goal was not reached, the seconds of the loop."""
    seconds = history.seconds_until(goal)
    end = history.seconds[-1]
    return {
        "first iteration": (history.seconds[0], "s"),
        "end": (end, "s, including the last iteration"),
        "speed": (history.speed, "steps/s"),
        "peak memory": (history.peak, "GiB"),
        "QD-score": (history.scores[-1], "as archived"),
        "corrected QD-score": (history.corrected_score, "re-evaluated"),
        "corrected coverage": (history.corrected_coverage, "share, re-evaluated"),
        f"until {goal:,.0f}": (end, "s, not reached") if seconds is None else (seconds, "s"),
    }


def race_table(results: Sequence[Result], title: str) -> Table:
    """A table with one row for each loop; a goal that was not reached is shown as "> seconds"."""
    cells: dict[str, dict[str, str]] = {}
    for result in results:
        loop, _, name = result.name.rpartition("/")[0].partition(": ")
        prefix = "> " if "not reached" in result.unit else ""
        heading = f"{name}, {result.unit.partition(',')[0]}"
        cells.setdefault(loop, {})[heading] = prefix + format_value(result.value)
    headings = list(dict.fromkeys(heading for row in cells.values() for heading in row))
    table = Table(title=title)
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    for loop, row in cells.items():
        table.add_row(loop, *(row.get(heading, "") for heading in headings))
    return table
