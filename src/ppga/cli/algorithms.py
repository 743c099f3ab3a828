"""`ppga algorithms`: the algorithms with their references."""

from rich.box import SIMPLE
from rich.table import Table

from ppga.cli.common import command, console


def algorithms() -> None:
    """List the algorithms with their references."""
    from ppga.algorithms import ALGORITHMS

    table = Table(box=SIMPLE, caption="ppga train halfcheetah --algorithm NAME")
    table.add_column("algorithm")
    table.add_column("")
    for name, entry in ALGORITHMS.items():
        table.add_row(name, entry.algorithm.summary)
    paper = "(Batra et al., ICLR 2024)"
    for options, text in (
        ("--strategy.kind cma-es", "CMA-ES instead of xNES adapts the gradient coefficients"),
        ("--step recombination", "the mean of the best branches instead of a walk"),
    ):
        table.add_row(f"ppga {options}", f"ablation: {text} {paper}")
    table.add_section()
    table.add_row("in studies", "ppga-cma-es and ppga-recombination name the two ablations")
    console.print(table)


main = command(algorithms)
