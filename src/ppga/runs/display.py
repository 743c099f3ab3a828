"""Displays of a running training: a live view on a terminal, plain lines elsewhere."""

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rich.box import SIMPLE
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ppga.archives.heatmaps import text as heatmap
from ppga.storage import NumpyArray

OUTPUT_ERRORS = (OSError, ValueError, SystemExit)
"""Errors of printing: ValueError for a closed file, SystemExit of rich for a broken pipe."""
LINE_SECONDS = 10.0
"""Least seconds between two plain lines."""


class Display(Protocol):
    """Shows the progress of a run."""

    def begin(self, title: str, share: float) -> None:
        """Called at the start of the run.

        Args:
            title: describes the run in a line.
            share: share of the budget that is used up already.
        """

    def pulse(self) -> None:
        """Called now and then within an iteration."""

    def compiling(self, program: str) -> None:
        """Called when JAX starts to compile a program, with what it does, and with "" when it has done so."""

    def show(
        self,
        record: dict[str, Any],
        share: float,
        warnings: Sequence[str],
        shape: tuple[int, ...],
        cells: NumpyArray,
        objective: NumpyArray,
    ) -> None:
        """Called after an iteration.

        Args:
            record: its metrics.
            share: share of the budget that is used up.
            warnings: messages for the user.
            shape: cells of the archive along each measure.
            cells: (n,) occupied cells.
            objective: (n,) objectives of their elites.
        """

    def say(self, message: str) -> None:
        """Print a message that stays visible."""

    def end(self) -> None:
        """Called when the run ends, also by an error."""


class Silent:
    """Shows nothing; the default in Python."""

    def begin(self, title: str, share: float) -> None:
        """Do nothing."""

    def pulse(self) -> None:
        """Do nothing."""

    def compiling(self, program: str) -> None:
        """Do nothing."""

    def show(self, *args: Any) -> None:
        """Do nothing."""

    def say(self, message: str) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""


class FailSafe:
    """Forwards to a display until that fails, and then to none, so that a run survives its terminal.

    Args:
        display: the display.
    """

    def __init__(self, display: Display) -> None:
        self.display = display

    def begin(self, title: str, share: float) -> None:
        """See `Display.begin`."""
        self._try(self.display.begin, title, share)

    def pulse(self) -> None:
        """See `Display.pulse`."""
        self._try(self.display.pulse)

    def compiling(self, program: str) -> None:
        """See `Display.compiling`."""
        self._try(self.display.compiling, program)

    def show(self, *args: Any) -> None:
        """See `Display.show`."""
        self._try(self.display.show, *args)

    def say(self, message: str) -> None:
        """See `Display.say`."""
        self._try(self.display.say, message)

    def end(self) -> None:
        """See `Display.end`."""
        self._try(self.display.end)

    def _try(self, call: Callable[..., None], *args: Any) -> None:
        try:
            call(*args)
        except OUTPUT_ERRORS as error:
            failed, self.display = self.display, Silent()
            with contextlib.suppress(*OUTPUT_ERRORS):  # a live view restores the terminal
                failed.end()
            warnings.warn(f"the display failed and is switched off: {error!r}", RuntimeWarning, stacklevel=4)


class Lines:
    """Prints a plain line now and then; for files, pipes and `--quiet`.

    Args:
        console: where to print.
        quiet: print warnings and messages only.
    """

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet
        self.last, self.warned = -LINE_SECONDS, set[str]()

    def begin(self, title: str, share: float) -> None:  # noqa: ARG002
        """Print the title, unless the display is quiet."""
        if not self.quiet:
            self._print(title)

    def pulse(self) -> None:
        """Do nothing."""

    def compiling(self, program: str) -> None:
        """Do nothing."""

    def show(
        self,
        record: dict[str, Any],
        share: float,
        warnings: Sequence[str],
        shape: tuple[int, ...],  # noqa: ARG002
        cells: NumpyArray,  # noqa: ARG002
        objective: NumpyArray,  # noqa: ARG002
    ) -> None:
        """Print new warnings, and a line of metrics unless there was one within LINE_SECONDS."""
        for warning in warnings:
            kind = warning.split("(")[0]  # numbers in parentheses change
            if kind not in self.warned:
                self.warned.add(kind)
                self._print(f"warning: iteration {record['iteration']}: {warning}")
        now = time.monotonic()
        if not self.quiet and (now - self.last >= LINE_SECONDS or share >= 1):
            self.last = now
            self._print(
                f"{min(share, 1):4.0%}  iteration {record['iteration']}  {record['wall_time']:,.0f} s  "
                f"{record['steps_per_second']:,.0f} steps/s  QD-score {record['qd_score']:,.0f}  "
                f"coverage {record['coverage']:.0%}  best {record['best']:,.0f}  mean {record['mean']:,.0f}  "
                f"restarts {record['restarts']}"
                + (f"  not finite {record['nonfinite']}" if record["nonfinite"] else "")
            )

    def say(self, message: str) -> None:
        """Print a message."""
        self._print(message)

    def end(self) -> None:
        """Do nothing."""

    def _print(self, message: str) -> None:
        self.console.print(message, soft_wrap=True, markup=False, emoji=False, highlight=False)


class _View(Live):
    """A live view that raises errors of its drawing thread when it is updated.

    Attributes:
        failure: error of the drawing thread.
    """

    failure: BaseException | None = None

    def refresh(self) -> None:
        """Draw the view."""
        try:
            super().refresh()
        except OUTPUT_ERRORS as error:
            self.failure = error

    def update(self, renderable: RenderableType, *, refresh: bool = False) -> None:
        """Replace the content of the view."""
        if self.failure is not None:
            raise self.failure
        super().update(renderable, refresh=refresh)


class Picture:
    """A live view with a progress bar, metrics and the archive.

    Args:
        console: terminal to draw on.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            expand=True,
        )
        self.live = _View(console=console, refresh_per_second=4, transient=False)
        self.bar = self.progress.add_task("", total=1.0, left="")
        self.body: RenderableType = Text("")
        self.program = ""
        self.start_time, self.start_share = time.monotonic(), 0.0
        self.pulses = 0

    def begin(self, title: str, share: float) -> None:
        """Open the view."""
        self.start_share, self.start_time = share, time.monotonic()
        self.progress.update(self.bar, description=title, completed=share)
        self.live.start()
        self.live.update(self._group())

    def pulse(self) -> None:
        """Add a dot below the progress bar."""
        self.pulses += 1
        self.live.update(self._group())

    def compiling(self, program: str) -> None:
        """Name the program behind the dots while it is compiled."""
        self.program = program
        self.live.update(self._group())  # drawn by a thread, which may wait for a terminal

    def show(
        self,
        record: dict[str, Any],
        share: float,
        warnings: Sequence[str],
        shape: tuple[int, ...],
        cells: NumpyArray,
        objective: NumpyArray,
    ) -> None:
        """Update the view."""
        self.pulses = 0
        elapsed = time.monotonic() - self.start_time
        done = share - self.start_share
        left = f"{elapsed * (1 - share) / done / 60:.1f} min left" if 0 < done and share < 1 else ""
        self.progress.update(self.bar, completed=min(share, 1.0), left=left)
        notes = [Text(f"! {warning}", style="yellow") for warning in warnings]
        archive = heatmap(shape, cells, objective)
        self.body = Group(Columns([Padding(_metrics(record), (0, 2, 0, 0)), archive]), *notes)
        self.live.update(self._group())

    def say(self, message: str) -> None:
        """Print a message above the view."""
        self.live.console.print(message, soft_wrap=True, markup=False, emoji=False, highlight=False)

    def end(self) -> None:
        """Close the view; its last content stays visible."""
        self.live.stop()

    def _group(self) -> Group:
        status = "." * self.pulses + (f" compiling the {self.program}" if self.program else "")
        return Group(self.progress, Text(status, style="dim"), self.body)


def _percent(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.1%}"


def _metrics(record: dict[str, Any]) -> Table:
    """A table of an iteration's metrics."""
    table = Table(box=SIMPLE, show_header=False)
    table.add_column(style="dim")
    table.add_column(justify="right")

    def vector(values: Sequence[float]) -> str:
        return " ".join(f"{value:.2f}" for value in values)

    rows = {
        "iteration": f"{record['iteration']:,}",
        "evaluations": f"{record['evaluations']:,}",
        "steps": f"{record['env_steps']:,}",
        "steps/s": f"{record['steps_per_second']:,.0f}",
        "QD-score": f"{record['qd_score']:,.0f}",
        "coverage": f"{record['coverage']:.1%}",
        "survivors' coverage": _percent(record["survivor_coverage"]),
        "best": f"{record['best']:,.0f}",
        "mean": f"{record['mean']:,.0f}",
        "new elites": f"{record['new_elites']}",
        "restarts": f"{record['restarts']}",
    }
    if "search_objective" in record:
        measures = vector(record["search_measures"])
        rows["search policy"] = f"{record['search_objective']:,.0f} at {measures}"
    if "strategy_mean" in record:
        rows["strategy mean"] = vector(record["strategy_mean"])
        rows["strategy scale"] = f"{record['strategy_scale']:.2f}"
    if record["nonfinite"]:
        rows["not finite"] = f"{record['nonfinite']}"
    for name, value in rows.items():
        table.add_row(name, value)
    return table
