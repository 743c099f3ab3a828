"""Timing and reporting that all benchmarks share.

Machines are shared and noisy, so candidates are timed in turn, round after round, and medians are reported.
"""

import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from ppga import machine

ROOT = Path(__file__).parents[1]
"""Root of the repository."""


@dataclass(frozen=True)
class Result:
    """One measured figure.

    Attributes:
        name: "figure/task".
        value: the figure.
        unit: its unit.
        ratio: value divided by that of the reference; None for a figure without a reference.
        against: name of the reference.
        interval: 95% interval of a mean over several seeds; None for a figure without one.
    """

    name: str
    value: float
    unit: str
    ratio: float | None = None
    against: str | None = None
    interval: tuple[float, float] | None = None


def rates(candidates: Mapping[str, Callable[[], int]], rounds: int) -> dict[str, float]:
    """Median amount of work per second of each candidate.

    Args:
        candidates: name -> a function that does its work and returns its amount. Each is called once before
            the timing, so that compilation is not counted.
        rounds: how often each candidate is timed.
    """
    for work in candidates.values():
        work()
    timed: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, work in candidates.items():
            start = time.perf_counter()
            amount = work()
            timed[name].append(amount / (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in timed.items()}


def table(results: Sequence[Result], title: str) -> Table:
    """A table with one row for each result."""
    rows = Table(title=title)
    for heading in ("", "value", "unit", "ratio", "against"):
        if heading in ("value", "ratio"):  # numbers are never cut
            rows.add_column(heading, justify="right", no_wrap=True)
        else:
            rows.add_column(heading, overflow="fold")
    for result in results:
        ratio = "" if result.ratio is None else f"{result.ratio:.2f}"
        rows.add_row(result.name, format_value(result.value), result.unit, ratio, result.against or "")
    return rows


def format_value(value: float) -> str:
    """A figure with at least three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def write_json(results: Sequence[Result], path: Path) -> None:
    """Write results to a file, with the machine they were measured on."""
    content = {"machine": machine.describe(), "results": [asdict(result) for result in results]}
    path.write_text(json.dumps(content, indent=2) + "\n")


def environment() -> dict[str, str]:
    """Environment variables of a process that can import `benchmarks` in any working directory."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
