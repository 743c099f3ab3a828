"""`ppga tasks`: the tasks with their sizes."""

from typing import Literal

from rich.box import SIMPLE
from rich.table import Table

from ppga import machine
from ppga.cli.common import command, console
from ppga.errors import InputError


def tasks() -> None:
    """List the tasks with their sizes."""
    machine.prepare_jax()
    from ppga.tasks import make_task, names

    table = Table(
        box=SIMPLE,
        caption="measure of a foot: share of time on the ground; your own task: ppga train FILE.py:NAME",
    )
    for heading in ("task", "observation", "action", "archive", "QD offset", "control step", "measures"):
        justify: Literal["left", "right"] = "left" if heading in ("task", "measures") else "right"
        table.add_column(heading, justify=justify, no_wrap=heading == "task")
    for name in names():
        try:
            task = make_task(name)
        except InputError as error:  # of an installed package; the others are listed all the same
            table.add_row(name, *[""] * 5, str(error))
            continue
        table.add_row(
            name,
            str(task.observation_size),
            str(task.action_size),
            "x".join(map(str, task.archive_shape)),
            f"{task.qd_offset:g}",
            f"{1000 * task.control_dt:g} ms",
            ", ".join(task.measure_names),
        )
    console.print(table)


main = command(tasks)
