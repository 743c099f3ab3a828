"""`ppga doctor`: a check of this machine."""

import sys

from ppga import machine
from ppga.cli.common import command, console
from ppga.errors import check_count


def doctor(task: str = "halfcheetah", environments: int = 256, threads: int | None = None) -> None:
    """Show what this machine has, check the physics engines against each other, and measure their speed.

    Run this first on a new machine, and paste its output when you ask for help.

    Args:
        task: the robot to check and to measure.
        environments: number of environments that are measured at once.
        threads: threads of the mujoco engine; all usable cores by default.
    """
    machine.prepare_jax()
    from ppga.doctor import run

    healthy = run(task, check_count("--environments", environments), threads, console)
    sys.exit(0 if healthy else 1)


main = command(doctor)
