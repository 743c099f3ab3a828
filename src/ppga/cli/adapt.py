"""`ppga adapt`: an elite that works on a damaged robot."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.box import SIMPLE
from rich.table import Table

from ppga import machine
from ppga.cli.common import Run, TaskFile, check_seed, command, console, progress_bar, register_task, writing
from ppga.errors import InputError, check_count

if TYPE_CHECKING:
    from ppga.adaptation import Recovery


def adapt(
    run: Run,
    damage: tuple[str, ...] = (),
    trials: int = 15,
    episodes: int = 10,
    sets: int = 1,
    seed: int = 0,
    output: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("adaptation.png"),
    task: TaskFile = None,
) -> None:
    """Find, in a few trials, an elite that works on a damaged robot.

    Example: ppga adapt runs/walker --damage weak:foot_joint:0.2 friction:0.5

    The archive is the prior: a trial of one elite changes what is expected of elites with similar measures,
    and the next trial is the most promising one. The result is compared with the archive's best elite and
    with random trials.

    Args:
        run: a run's folder, an archive's folder, an archive's file, or pretrained:NAME.
        damage: lock:JOINT, weak:JOINT:FACTOR, mass:BODY:FACTOR or friction:FACTOR; several may be given.
        trials: maximum number of trials, one episode each.
        episodes: episodes of every elite on the damaged robot: the trial, and others that score the result.
        sets: number of repetitions in different episodes; results are means over them.
        seed: seed of the initial states of the first set; each further set uses the next seed.
        output: picture of reward over trials; the results are written beside it as JSON.
        task: the task, if it is in a file of yours.
    """
    check_count("--trials", trials)
    check_count("--episodes", episodes)
    check_count("--sets", sets)
    for number in (seed, seed + sets - 1):
        check_seed(number)
    if output.suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"--output must be a picture (.png, .svg or .pdf), got {output}.")
    with writing(output):
        output.parent.mkdir(parents=True, exist_ok=True)
    machine.prepare_jax()
    from ppga.adaptation import draw, recover
    from ppga.analysis import plots
    from ppga.analysis.corrected import task_of
    from ppga.archives import load_archive
    from ppga.storage import write_json
    from ppga.tasks import Task, damaged

    archive = load_archive(run, mapped=True)
    register_task(task, archive.description["task"]["name"])
    robot = task_of(archive)
    if not isinstance(robot, Task):
        raise InputError(f"{robot.name} is not simulated by MuJoCo here, so it cannot be damaged.")
    damaged_robot = damaged(robot, damage)
    with progress_bar(f"{len(archive)} elites on the damaged robot", sets * len(archive)) as progress:
        recovery = recover(archive, damaged_robot, trials, episodes, seed, sets, progress)
    console.print(_trials(recovery, episodes))
    if recovery.diverged:
        console.print(f"physics diverged in {recovery.diverged:.0%} of the episodes", style="yellow")
    console.print(_summary(recovery), highlight=False, soft_wrap=True)
    with writing(output):
        write_json(output.with_suffix(".json"), {"damage": list(damage), **recovery.to_json()})
        plots.save(draw(recovery, ", ".join(damage)), output)
    console.print(f"{output}", soft_wrap=True)


def _summary(recovery: "Recovery") -> str:
    """The result in words."""
    first, sets = recovery.adaptations[0], len(recovery.adaptations)
    if sets == 1:
        choice = f"After {recovery.trials[0]} trials, the elite of cell {first.best}"
    else:
        choice = f"After {recovery.trials.mean():.1f} trials (mean over {sets} sets), the chosen elite"
    return (
        f"The best elite scored {recovery.intact:,.0f} on the intact robot and scores "
        f"{recovery.champion.mean():,.0f} on the damaged one. {choice} scores "
        f"{recovery.adapted[:, -1].mean():,.0f}. As many random trials give "
        f"{recovery.random_equal_trials.mean():,.0f}; the best elite for this damage scores "
        f"{recovery.possible.mean():,.0f}."
    )


def _trials(recovery: "Recovery", episodes: int) -> Table:
    """A row for each trial; means for several sets."""
    sets = len(recovery.adaptations)
    scored = f"mean of {episodes - 1} other episodes" if episodes > 1 else "of the trial itself"
    over = "" if sets == 1 else f"; all results are means over {sets} sets"
    table = Table(box=SIMPLE, caption=f"chosen, random: {scored}{over}")
    for heading in ("trial", "cell" if sets == 1 else "sets", "reward", "chosen", "random"):
        table.add_column(heading, justify="right")
    for number, reward in enumerate(recovery.trial_rewards):
        which = recovery.adaptations[0].cells[number] if sets == 1 else (recovery.trials > number).sum()
        table.add_row(
            str(number + 1), str(which), f"{reward:,.0f}", f"{recovery.adapted[:, number].mean():,.0f}",
            f"{recovery.random[:, number].mean():,.0f}",
        )  # fmt: skip
    return table


main = command(adapt)
