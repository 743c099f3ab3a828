"""Something to look at: train an archive for a few minutes, and see how different its elites walk."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path

from rich.console import Console

from ppga.analysis import gaits
from ppga.analysis.corrected import task_of
from ppga.archives import Archive
from ppga.runs import Budget, Outcome, preset, train
from ppga.runs.display import Display
from ppga.runs.signals import exit_on_signals

STRIP = 60
"""Control steps of a gait diagram."""


def run(task: str, minutes: float, seed: int, display: Display) -> Outcome:
    """Train with the laptop preset."""
    config, _ = preset("laptop", task)
    output = Path("runs") / f"demo-{task}-{datetime.now():%Y%m%d-%H%M%S}"
    config, budget = replace(config, seed=seed), Budget(minutes=minutes)
    with exit_on_signals():
        return train(task, config, budget=budget, output=output, display=display)


def show_gaits(archive: Archive, console: Console) -> None:
    """Gait diagrams of the best elite, and of those nearest to where each foot touches least."""
    task = task_of(archive)
    console.print(f"Which foot touches the floor, {STRIP} control steps ({STRIP * task.control_dt:g} s):\n")
    console.print(gaits.text(task, archive, gaits.corners(archive), STRIP), highlight=False, soft_wrap=True)
