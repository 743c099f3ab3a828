"""Loops beside each other on one task: how soon each has an archive of a given QD-score, and what it takes.

Each runs in a process of its own, so that start-up and memory are its own.
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

from ppga.bench.harness import Result, shown
from ppga.bench.loops import LOOPS, OURS
from ppga.errors import InputError, choose
from ppga.machine import installed
from ppga.tasks import word_for

NEEDS = {"qdax pga-me": "qdax", "qdax map-elites": "qdax"}
"""Loop -> package, where it is an optional one."""
EPISODES = 4
"""By which every elite is judged again in the end."""


@dataclass(frozen=True)
class Course:
    """How a loop went.

    Attributes:
        seconds: since its process began, at the end of each iteration.
        steps: control steps until then.
        scores: QD-score of its archive then.
        peak: GiB of memory, at most.
        again: QD-score when every elite was judged again in the end.
        filled: share of the cells that these elites fill.
    """

    seconds: tuple[float, ...]
    steps: tuple[int, ...]
    scores: tuple[float, ...]
    peak: float
    again: float
    filled: float

    @property
    def rate(self) -> float:
        """Control steps a second after the first iteration, which compiles; of all, if there is no other."""
        if len(self.seconds) == 1:
            return self.steps[0] / self.seconds[0]
        return (self.steps[-1] - self.steps[0]) / (self.seconds[-1] - self.seconds[0])

    def reached(self, score: float) -> float | None:
        """Seconds until the archive first had this QD-score; None if it never had."""
        return next(
            (second for second, now in zip(self.seconds, self.scores, strict=True) if now >= score), None
        )


def bench_race(
    name: str,
    settings: str,
    minutes: float,
    loops: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> list[Result]:
    """All loops, or those that are named, one after the other, each for so many minutes."""
    chosen = [choose("loop", loop, LOOPS) for loop in loops] or list(LOOPS)
    runs = [loop for loop in chosen if installed(NEEDS.get(loop, "ppga"))]
    return figures({loop: run(loop, name, settings, minutes, say) for loop in runs}, name)


def run(
    loop: str, name: str, settings: str, minutes: float, say: Callable[[str], None], episodes: int = EPISODES
) -> Course:
    """One loop in a process of its own."""
    began, until = time.perf_counter(), time.time() + 60 * minutes
    what = (loop, word_for(name), settings, minutes, until, episodes)
    words = [sys.executable, "-m", "ppga.bench.loops", *map(str, what)]
    lines: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            told = json.loads(line)
            lines.append(told | {"seconds": time.perf_counter() - began})
            if "qd_score" in told:
                say(f"{loop}: QD-score {told['qd_score']:,.0f} after {lines[-1]['seconds']:.0f} s")
        if process.wait():
            errors.seek(0)
            said = errors.read().strip().splitlines()
            raise InputError(f"{loop} ended with {process.returncode}: {''.join(said[-1:])}")
    return course(lines)


def course(lines: Iterable[dict[str, Any]]) -> Course:
    """What the lines of a loop tell."""
    *laps, memory, last = lines
    seconds, steps, scores = (tuple(lap[what] for lap in laps) for what in ("seconds", "steps", "qd_score"))
    again = last["again"]
    return Course(seconds, steps, scores, memory["peak_gib"], again["qd_score"], again["coverage"])


def figures(courses: dict[str, Course], name: str) -> list[Result]:
    """Figures of every loop, held against the one of the others that came furthest.

    The QD-score that all race for is what that one had in the end.
    """
    others = {loop: course for loop, course in courses.items() if loop not in OURS} or courses
    best = max(others, key=lambda loop: others[loop].scores[-1])
    goal = others[best].scores[-1]
    results = []
    for loop, course in courses.items():
        reached = course.reached(goal)
        unreached = "" if reached is not None else ", not reached"
        values = {
            "first iteration": (course.seconds[0], courses[best].seconds[0], "s"),
            "ended": (course.seconds[-1], courses[best].seconds[-1], "s, with the iteration under way"),
            "speed": (course.rate, courses[best].rate, "steps/s"),
            "peak memory": (course.peak, courses[best].peak, "GiB"),
            "QD-score": (course.scores[-1], goal, "as archived"),
            "judged again": (course.again, courses[best].again, "QD-score"),
            "cells": (course.filled, courses[best].filled, "share, judged again"),
            f"until {goal:,.0f}": (
                course.seconds[-1] if reached is None else reached,
                courses[best].reached(goal),
                f"s{unreached}",
            ),
        }
        results += [
            Result(f"{loop}: {what}/{name}", value, unit)
            if loop == best or (unreached and what.startswith("until")) or not base
            else Result(f"{loop}: {what}/{name}", value, unit, value / base, best)
            for what, (value, base, unit) in values.items()
        ]
    return results


def table(results: Sequence[Result], title: str) -> Table:
    """A row a loop; what was not reached took longer than it ran."""
    cells: dict[str, dict[str, str]] = {}
    for result in results:
        loop, _, what = result.name.rpartition("/")[0].partition(": ")
        cell = "> " * ("not reached" in result.unit) + shown(result.value)
        cells.setdefault(loop, {})[f"{what}, {result.unit.partition(',')[0]}"] = cell
    headings = list(dict.fromkeys(heading for row in cells.values() for heading in row))
    made = Table(title=title)
    for heading in ("", *headings):
        made.add_column(heading, justify="right" if heading else "left", no_wrap=not heading)
    for loop, row in cells.items():
        made.add_row(loop, *(row.get(heading, "") for heading in headings))
    return made
