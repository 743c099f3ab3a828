"""Commands that list what there is: `tasks`, `algorithms`."""

from rich.box import SIMPLE
from rich.table import Table

from ppga import machine
from ppga.cli.common import console
from ppga.errors import InputError


def tasks() -> None:
    """List the tasks with their sizes."""
    machine.check_devices()
    from ppga.tasks import make_task, names

    table = Table(
        box=SIMPLE,
        caption="a foot is measured by its share of time on the floor; your own: ppga train FILE.py:CLASS",
    )
    for heading in ("task", "sees", "acts", "archive", "QD offset", "step", "measures"):
        table.add_column(heading, justify="left" if heading in ("task", "measures") else "right")
    for name in names():
        try:
            task = make_task(name)
        except InputError as error:  # of a package; the others are listed all the same
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


def algorithms() -> None:
    """List the algorithms, with their references."""
    from ppga.algorithms import ALGORITHMS

    table = Table(box=SIMPLE, caption="ppga train halfcheetah --algorithm NAME")
    table.add_column("algorithm")
    table.add_column("")
    for name, algorithm in ALGORITHMS.items():
        table.add_row(name, algorithm.summary)
    paper = "(Batra et al., ICLR 2024)"
    table.add_row(
        "ppga --strategy cma-es",
        f"ablation: CMA-ES adapts the gradient coefficients, not xNES {paper}; in studies ppga-cma-es",
    )
    table.add_row(
        "ppga --step recombination",
        f"ablation: no walk, a step to where the best branches are {paper}; in studies ppga-recombination",
    )
    console.print(table)
