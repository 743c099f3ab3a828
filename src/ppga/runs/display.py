"""What a person sees while a run goes on: a live picture on a terminal, plain lines elsewhere."""

import contextlib
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

from ppga.archives.maps import text as heatmap
from ppga.storage import NumpyArray

OUTPUT_ERRORS = (OSError, ValueError, SystemExit)
"""Raised by printing to nobody: ValueError by a closed file, SystemExit by rich for a broken pipe."""
LINE_SECONDS = 10.0
"""Least time between two plain lines."""


class Display(Protocol):
    """What the loop tells."""

    def begin(self, title: str, share: float) -> None:
        """The run starts, with a share of its budget used up already."""

    def pulse(self) -> None:
        """Something went on inside an iteration."""

    def show(
        self,
        record: dict[str, Any],
        share: float,
        warnings: Sequence[str],
        shape: tuple[int, ...],
        cells: NumpyArray,
        objective: NumpyArray,
    ) -> None:
        """An iteration is over."""

    def say(self, message: str) -> None:
        """A line to keep."""

    def end(self) -> None:
        """The run is over, well or not."""


class Silent:
    """Shows nothing; for use from Python."""

    def begin(self, title: str, share: float) -> None:
        """Nothing."""

    def pulse(self) -> None:
        """Nothing."""

    def show(self, *args: Any) -> None:
        """Nothing."""

    def say(self, message: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class FailSafe:
    """Another display until that fails, and nothing from then on: a run does not end with its terminal.

    Args:
        display: the other one.
    """

    def __init__(self, display: Display) -> None:
        self.display = display

    def begin(self, title: str, share: float) -> None:
        """See `Display.begin`."""
        self._try(self.display.begin, title, share)

    def pulse(self) -> None:
        """See `Display.pulse`."""
        self._try(self.display.pulse)

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
            with contextlib.suppress(*OUTPUT_ERRORS):  # a live view gives the terminal back
                failed.end()
            warnings.warn(f"the display failed and is switched off: {error!r}", RuntimeWarning, stacklevel=4)


class Lines:
    """A plain line now and then; for files, pipes and `--quiet`."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet
        self.last, self.warned = -LINE_SECONDS, set[str]()

    def begin(self, title: str, share: float) -> None:  # noqa: ARG002
        """Say what runs."""
        self._print(title)

    def pulse(self) -> None:
        """Nothing."""

    def show(
        self,
        record: dict[str, Any],
        share: float,
        warnings: Sequence[str],
        shape: tuple[int, ...],  # noqa: ARG002
        cells: NumpyArray,  # noqa: ARG002
        objective: NumpyArray,  # noqa: ARG002
    ) -> None:
        """A line, unless there was one a moment ago."""
        for warning in warnings:
            if warning.split("(")[0] not in self.warned:
                self.warned.add(warning.split("(")[0])
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
        """A line."""
        self._print(message)

    def end(self) -> None:
        """Nothing."""

    def _print(self, message: str) -> None:
        self.console.print(message, soft_wrap=True, markup=False, emoji=False, highlight=False)


class _View(Live):
    """A live view; what fails in the thread that draws it is raised when it is updated."""

    failure: BaseException | None = None

    def refresh(self) -> None:
        """Draw it."""
        try:
            super().refresh()
        except OUTPUT_ERRORS as error:
            self.failure = error

    def update(self, renderable: RenderableType, *, refresh: bool = False) -> None:
        """Replace what it shows."""
        if self.failure is not None:
            raise self.failure
        super().update(renderable, refresh=refresh)


class Picture:
    """A live view with a progress bar, the figures, and the archive."""

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
        self.body: RenderableType = Text("compiling ...", style="dim")
        self.began, self.first = time.monotonic(), 0.0
        self.beats = 0

    def begin(self, title: str, share: float) -> None:
        """Open the view."""
        self.first, self.began = share, time.monotonic()
        self.progress.update(self.bar, description=title, completed=share)
        self.live.start()
        self.live.update(self._group())

    def pulse(self) -> None:
        """Turn the wheel: learning goes on."""
        self.beats += 1
        self.live.update(self._group())

    def show(
        self,
        record: dict[str, Any],
        share: float,
        warnings: Sequence[str],
        shape: tuple[int, ...],
        cells: NumpyArray,
        objective: NumpyArray,
    ) -> None:
        """Bring everything up to date."""
        self.beats = 0
        gone = time.monotonic() - self.began
        done = share - self.first
        left = f"{gone * (1 - share) / done / 60:.1f} min left" if 0 < done and share < 1 else ""
        self.progress.update(self.bar, completed=min(share, 1.0), left=left)
        notes = [Text(f"! {warning}", style="yellow") for warning in warnings]
        picture = heatmap(shape, cells, objective)
        self.body = Group(Columns([Padding(_figures(record), (0, 2, 0, 0)), picture]), *notes)
        self.live.update(self._group())

    def say(self, message: str) -> None:
        """A line above the view."""
        self.live.console.print(message, soft_wrap=True, markup=False, emoji=False, highlight=False)

    def end(self) -> None:
        """Leave the last view standing."""
        self.live.stop()

    def _group(self) -> Group:
        return Group(self.progress, Text("." * self.beats, style="dim"), self.body)


def _figures(record: dict[str, Any]) -> Table:
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
        "best": f"{record['best']:,.0f}",
        "mean": f"{record['mean']:,.0f}",
        "new elites": f"{record['new_elites']}",
        "restarts": f"{record['restarts']}",
    }
    if "search_objective" in record:
        where = vector(record["search_measures"][0])
        rows["search policy"] = f"{record['search_objective'][0]:,.0f} at {where}"
    if "xnes_mean" in record:
        rows["xNES mean"] = vector(record["xnes_mean"][0])
        rows["xNES scale"] = f"{record['xnes_scale'][0]:.2f}"
    if record["nonfinite"]:
        rows["not finite"] = f"{record['nonfinite']}"
    for name, value in rows.items():
        table.add_row(name, value)
    return table
