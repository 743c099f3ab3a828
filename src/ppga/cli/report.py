"""`ppga report`: a page about runs."""

from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from ppga import machine
from ppga.cli.common import TaskFile, command, console, register_task, writing
from ppga.errors import InputError


def report(
    runs: Annotated[Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN")],
    output: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("report"),
    task: TaskFile = None,
) -> None:
    """Write a page about one or more runs: curves, heatmaps, gaits, and tables with intervals over seeds.

    Example: ppga report runs/walker-0 runs/walker-1 --output walker-report

    Args:
        runs: folders of runs. For an archive without a run (its file, or pretrained:NAME) the page shows what
            the archive contains.
        output: folder of report.html, which contains everything, and of the figures as PNG and SVG.
        task: the task, if it is in a file of yours; needed for gaits.
    """
    if not runs:
        raise InputError("no run was given. Usage: ppga report RUN...")
    machine.prepare_jax()
    register_task(task)
    from ppga.analysis.report import report as write

    with writing(output), console.status("drawing"):
        page = write(runs, output)
    console.print(f"{page}", soft_wrap=True)


main = command(report)
