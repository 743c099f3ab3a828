"""Output of commands before and after a training run."""

import math
import os
import sys
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from ppga.algorithms import AlgorithmConfig
from ppga.archives.heatmaps import text as heatmap
from ppga.cli.options import ENABLED, options_of
from ppga.config import Budget
from ppga.runs import Outcome
from ppga.runs.display import Display, Lines, Picture
from ppga.runs.estimate import Estimate, duration
from ppga.tasks import task_argument


def make_display(console: Console, quiet: bool = False) -> Display:
    """A live view on a terminal, plain lines elsewhere."""
    return Picture(console) if console.is_terminal and not quiet else Lines(console, quiet)


def show_outcome(console: Console, outcome: Outcome) -> None:
    """Show the archive, its metrics and the next commands; exit as a signal that ended the run demands."""
    archive = outcome.archive
    name = archive.description["task"]["name"]
    argument = task_argument(name)
    task_file = "" if argument == name else os.path.relpath(argument)  # every command must name it
    resume = f"ppga train{' ' + task_file if task_file else ''} --resume {outcome.folder}"
    if len(archive):
        objective = archive.elites["objective"]
        console.print(heatmap(archive.shape, archive.elites["index"], objective))
        best = archive.elite(archive.best())
        place = " ".join(f"{value:.2f}" for value in best["measures"])
        console.print(
            f"{len(archive)} of {archive.cells} cells ({archive.coverage:.0%}), "
            f"QD-score {archive.qd_score:,.0f} (offset {archive.qd_offset:g}), "
            f"best {best['objective']:,.0f} at {place} ({', '.join(archive.measure_names)}), "
            f"mean {objective.mean():,.0f}",
            soft_wrap=True,
            highlight=False,
        )
    if outcome.folder:
        console.print(
            f"\n  watch      ppga view {outcome.folder}{' --task ' + task_file if task_file else ''}"
            f"\n  heatmap    {outcome.folder / 'heatmap.png'}"
            f"\n  metrics    {outcome.folder / 'metrics.jsonl'}"
            f"\n  archive    {outcome.folder / 'archive'}    ppga.load_archive({str(outcome.folder)!r})"
            f"\n  longer     {resume} --minutes {_double_minutes(outcome)}\n",
            soft_wrap=True,
            highlight=False,
        )
    if outcome.interrupted:
        console.print(f"stopped early. Resume with: {resume}", soft_wrap=True)
        sys.exit(128 + outcome.interrupted)


def _double_minutes(outcome: Outcome) -> int:
    """Twice the minutes that the run has taken."""
    seconds = float((outcome.record or {}).get("wall_time", 1800.0))
    return math.ceil(2 * seconds / 60)


def show_plan(
    console: Console, task: str, config: AlgorithmConfig, budget: Budget, expected: Estimate
) -> None:
    """Show settings and budget of a run, and what it will take."""
    table = Table(box=SIMPLE, title=f"{config.algorithm} on {task}", show_header=False)

    def rows(prefix: str, values: Any) -> None:
        for option in options_of(values, prefix):
            if option.default != ENABLED:
                table.add_row(option.name, str(option.default))

    rows("", config)
    table.add_section()
    rows("budget.", budget)
    table.add_section()
    table.add_row("parameters of a policy", f"{expected.parameters:,}")
    table.add_row("control steps per iteration", f"about {expected.iteration_steps:,}")
    table.add_row("memory, full archives", f"{expected.archive_bytes / 2**20:,.0f} MiB")
    table.add_row("memory, learning", f"{expected.learning_bytes / 2**20:,.0f} MiB")
    iterations = "unknown" if expected.iterations is None else f"{expected.iterations:,}"
    table.add_row("iterations", f"about {iterations}")
    console.print(table)
    console.print(cost(expected), highlight=False)


def cost(expected: Estimate) -> str:
    """The time that a run will take, in words."""
    if expected.iteration_seconds is None:
        return "time: unknown"
    total = "" if expected.seconds is None else f"; the run takes about {duration(expected.seconds)}"
    return f"on this machine an iteration takes about {duration(expected.iteration_seconds)}{total}"
