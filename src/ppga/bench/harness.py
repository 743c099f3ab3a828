"""How every benchmark measures and reports.

Machines are noisy, so what is compared is measured in turn, round after round, and the medians stand.
"""

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from ppga import machine


@dataclass(frozen=True)
class Result:
    """One measured figure.

    Attributes:
        name: "what/task".
        value: the figure.
        unit: its unit.
        ratio: value divided by that of the thing it is held against; None for that thing itself.
        against: what that is.
    """

    name: str
    value: float
    unit: str
    ratio: float | None = None
    against: str | None = None


def rates(candidates: Mapping[str, Callable[[], int]], rounds: int) -> dict[str, float]:
    """Median work per second of each candidate, measured in turn.

    Args:
        candidates: name -> a function that does its work to the end and says how much that was. Each is
            called once before anything is timed, so that compiling does not count.
        rounds: how often each is timed.
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
    """The results as people read them."""
    made = Table(title=title)
    for column, justify in (
        ("", "left"),
        ("value", "right"),
        ("unit", "left"),
        ("ratio", "right"),
        ("against", "left"),
    ):
        number = justify == "right"  # is never cut; words give way
        made.add_column(column, justify=justify, no_wrap=number, overflow="fold")  # type: ignore[arg-type]
    for result in results:
        ratio = "" if result.ratio is None else f"{result.ratio:.2f}"
        made.add_row(result.name, shown(result.value), result.unit, ratio, result.against or "")
    return made


def shown(value: float) -> str:
    """A figure with three digits or more."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def write_json(results: Sequence[Result], path: Path) -> None:
    """The results as programs read them, with the machine they were measured on."""
    content = {"machine": machine.describe(), "results": [asdict(result) for result in results]}
    path.write_text(json.dumps(content, indent=2) + "\n")
