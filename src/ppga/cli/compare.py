"""`ppga compare`: two archives, cell by cell."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.box import SIMPLE
from rich.table import Table
from tyro.conf import Positional

from ppga.cli.common import command, console
from ppga.errors import InputError

if TYPE_CHECKING:
    from ppga.archives import Archive


def compare(
    first: Annotated[Positional[Path], tyro.conf.arg(metavar="A")],
    second: Annotated[Positional[Path], tyro.conf.arg(metavar="B")],
    output: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("difference.png"),
) -> None:
    """Compare two archives cell by cell.

    Example: ppga compare runs/a runs/b --output difference.png

    Args:
        first: a run, an archive's folder, an archive's file, or pretrained:NAME.
        second: another one.
        output: picture of the difference, second minus first.
    """
    from ppga.analysis import plots
    from ppga.archives import load_archive

    a, b = load_archive(first, mapped=True), load_archive(second, mapped=True)
    _check_comparable(a, b)
    both, differences, only_a, only_b = plots.compare_cells(a, b)
    table = Table(box=SIMPLE)
    for heading in ("", "first", "second"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, form in (("qd_score", ",.0f"), ("coverage", ".1%")):
        table.add_row(plots.NAMES[name], f"{getattr(a, name):{form}}", f"{getattr(b, name):{form}}")
    table.add_row("cells occupied only here", str(len(only_a)), str(len(only_b)))
    better = int((differences < 0).sum()), int((differences > 0).sum())
    table.add_row("cells with the better elite", *map(str, better))
    console.print(table)
    if len(both):
        console.print(
            f"In the {len(both)} cells that both occupy, the second is better by {differences.mean():,.1f}.",
            highlight=False,
        )
    try:
        plots.save(plots.difference(a, b), output)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write to {output}: {error}.") from None
    console.print(f"{output}", soft_wrap=True)


def _check_comparable(a: "Archive", b: "Archive") -> None:
    """Raise an InputError unless two archives have the same task, measures and cells."""
    import numpy as np

    tasks = [archive.description["task"]["name"] for archive in (a, b)]
    if tasks[0] != tasks[1]:
        raise InputError(f"the archives are of {tasks[0]} and of {tasks[1]}.")
    if a.measure_names != b.measure_names:
        names = [", ".join(archive.measure_names) for archive in (a, b)]
        raise InputError(f"the measures differ: {names[0]} and {names[1]}.")
    if (a.shape, a.ranges, a.centroids is None) != (b.shape, b.ranges, b.centroids is None):
        raise InputError(f"the cells differ: {a.shape} in {a.ranges} and {b.shape} in {b.ranges}.")
    if a.centroids is not None and b.centroids is not None and not np.array_equal(a.centroids, b.centroids):
        raise InputError("the cells differ: they have other centroids.")


main = command(compare)
