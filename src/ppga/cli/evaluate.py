"""`ppga evaluate`: the corrected archive."""

from pathlib import Path
from typing import Annotated

import tyro
from rich.box import SIMPLE
from rich.table import Table

from ppga import machine
from ppga.cli.common import Run, TaskFile, check_seed, command, console, progress_bar, register_task, writing
from ppga.errors import InputError, check_count


def evaluate(
    run: Run,
    episodes: int = 50,
    physics: str | None = None,
    seed: int = 0,
    output: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None,
    task: TaskFile = None,
) -> None:
    """Re-evaluate all elites and move each to the cell of its mean measures: the corrected archive.

    Example: ppga evaluate runs/walker --episodes 20

    Writes corrected.safetensors (the corrected archive), evaluation.csv (a table of all elites) and
    evaluation.json (the metrics) beside the archive. The same command resumes an interrupted evaluation.

    Args:
        run: a run's folder, an archive's folder, an archive's file, or pretrained:NAME.
        episodes: number of episodes of each elite.
        physics: engine, mujoco or mjx; the archive's own by default.
        seed: seed of the initial states.
        output: folder of the files; the archive's own by default, the working directory for pretrained
            archives.
        task: the task, if it is in a file of yours.
    """
    check_count("--episodes", episodes)
    check_seed(seed)
    machine.prepare_jax()
    from ppga.analysis import corrected
    from ppga.archives.files import find_archive, load_archive
    from ppga.archives.included import output_folder

    file = find_archive(run)
    archive = load_archive(file, mapped=True)
    register_task(task, archive.description["task"]["name"])
    folder = output or output_folder(file)
    with progress_bar(f"{len(archive)} elites, {episodes} episodes each", len(archive)) as progress:
        evaluation = corrected.evaluate(
            archive,
            episodes,
            physics=physics,
            seed=seed,
            progress=progress,
            partial=folder / corrected.PARTIAL,
        )
    if not len(evaluation.corrected):
        raise InputError("the physics diverged in an episode of every elite: the corrected archive is empty.")
    with writing(folder):
        corrected.save(evaluation, folder)
    metrics = corrected.evaluation_metrics(evaluation)
    table = Table(box=SIMPLE, caption=f"QD offset {metrics['qd_offset']:g}; engine {metrics['physics']}")
    for heading in ("", "archived", f"corrected, {episodes} episodes"):
        table.add_column(heading, justify="left" if not heading else "right")
    objective = archive.elites["objective"]
    table.add_row("QD-score", f"{archive.qd_score:,.0f}", f"{metrics['qd_score']:,.0f}")
    table.add_row("coverage", f"{archive.coverage:.1%}", f"{metrics['coverage']:.1%}")
    survivors = metrics["survivor_coverage"], archive.survivor_coverage
    if survivors[0] is not None and survivors[0] < metrics["coverage"]:  # in some tasks no episode ends early
        before = "" if survivors[1] is None else f"{survivors[1]:.1%}"
        table.add_row("coverage of survivors", before, f"{survivors[0]:.1%}")
    table.add_row("best", f"{objective.max():,.0f}", f"{metrics['best']:,.0f}")
    table.add_row("mean", f"{objective.mean():,.0f}", f"{metrics['mean']:,.0f}")
    console.print(table)
    console.print(
        f"{metrics['reproducibility']:.0%} of the elites land in their own cell. The median elite drifts by "
        f"{metrics['drift_median']:.3f} of the measures' ranges and loses "
        f"{metrics['objective_loss_median']:,.0f} of its objective.",
        highlight=False,
        soft_wrap=True,
    )


main = command(evaluate)
