"""`ppga demo`: train an archive for a few minutes and show the gaits of its elites."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ppga import machine
from ppga.cli.common import command, console

if TYPE_CHECKING:
    from ppga.archives import Archive

DIAGRAM_STEPS = 60
"""Control steps of a gait diagram."""


def demo(task: str = "halfcheetah", minutes: float = 5.0, seed: int = 0, preset: str = "laptop") -> None:
    """Train an archive for five minutes and show the gaits of its elites.

    Example: ppga demo --task walker2d --minutes 10

    Args:
        task: the task, see ppga tasks.
        minutes: minutes of training.
        seed: seed of all randomness.
        preset: laptop, paper or smoke.
    """
    machine.prepare_jax()
    from ppga.algorithms import preset as load_preset
    from ppga.cli.summary import make_display, show_outcome
    from ppga.config import Budget
    from ppga.runs import train
    from ppga.runs.signals import exit_on_signals
    from ppga.tasks import find, sample

    task = find(task)
    config, _ = load_preset(preset, task)
    output = Path("runs") / f"demo-{task}-{datetime.now():%Y%m%d-%H%M%S}"
    with exit_on_signals():
        outcome = train(
            task, config.replace(seed=seed), budget=Budget(minutes=minutes), output=output,
            display=make_display(console),
        )  # fmt: skip
    if len(outcome.archive) and sample(task).has_feet:
        _show_gaits(outcome.archive)
    show_outcome(console, outcome)


def _show_gaits(archive: "Archive") -> None:
    """Gait diagrams of the best elite, and of those whose feet touch the ground least."""
    from ppga.analysis import gaits
    from ppga.analysis.corrected import task_of

    task = task_of(archive)
    seconds = DIAGRAM_STEPS * task.control_dt
    console.print(f"Ground contact of each foot in {DIAGRAM_STEPS} control steps ({seconds:g} s):\n")
    diagrams = gaits.text(task, archive, gaits.corners(archive), DIAGRAM_STEPS)
    console.print(diagrams, highlight=False, soft_wrap=True)


main = command(demo)
