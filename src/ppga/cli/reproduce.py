"""`ppga reproduce`: the experiments of the paper."""

import sys
from pathlib import Path
from typing import Annotated

import tyro
from rich.box import SIMPLE
from rich.table import Table
from tyro.conf import Positional

from ppga import machine
from ppga.cli.common import command, console
from ppga.cli.study import show_runs, stoppable
from ppga.errors import check_count


def reproduce(
    experiment: Annotated[Positional[str | None], tyro.conf.arg(metavar="NAME")] = None,
    scale: str = "laptop",
    tasks: tuple[str, ...] = (),
    seeds: int | None = None,
    minutes: float | None = None,
    output: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("reproduce"),
    list: bool = False,
    dry_run: bool = False,
) -> None:
    """Run the study behind a table or figure of the paper, and draw it.

    Example: ppga reproduce ablations --scale laptop --tasks halfcheetah

    Ctrl-C stops it, and the same command resumes it. Experiments with the same runs share them.

    Args:
        experiment: name of the experiment, see --list.
        scale: smoke, laptop or paper.
        tasks: tasks in place of the paper's.
        seeds: number of seeds; 1 for the scales smoke and laptop, 4 for paper.
        minutes: minutes of each run; 10 for the scale laptop.
        output: folder of the studies, with a folder for each scale.
        list: list all experiments.
        dry_run: list the runs, and stop.
    """
    from ppga.studies.reproduce import EXPERIMENTS, SCALES, plan_experiment

    if list or experiment is None:
        table = Table(box=SIMPLE, title="ppga reproduce NAME")
        for heading in ("name", "shows", "systems", "tasks"):
            table.add_column(heading, overflow="fold")
        for name, entry in EXPERIMENTS.items():
            table.add_row(name, entry.description, "\n".join(entry.systems), " ".join(entry.tasks))
        console.print(table)
        scales = (f"--scale {name}: {text}" for name, text in SCALES.items())
        console.print(*scales, sep="\n", highlight=False)
        return
    if seeds is not None:
        check_count("--seeds", seeds)
    machine.prepare_jax()
    from ppga.studies import run_study

    planned = plan_experiment(experiment, scale, tasks, seeds, minutes, output)
    if dry_run:
        show_runs(planned)
        return
    with stoppable(output):
        succeeded = run_study(planned, console)
    sys.exit(0 if succeeded else 1)


main = command(reproduce)
