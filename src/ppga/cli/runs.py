"""Commands that train: `train`, `demo`, `study`, `reproduce`."""

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.box import SIMPLE
from rich.table import Table
from tyro.conf import Positional

from ppga import machine
from ppga.cli.common import console
from ppga.errors import InputError, at_least_one, choose

if TYPE_CHECKING:
    from ppga.study import Plan


def train_command(words: list[str]) -> Callable[..., None]:
    """The command `train`; a stand-in when another is called, which would not need what it imports."""
    if words[:1] == ["train"]:
        from ppga.training import command

        return command(words[1:], console)

    def stand_in() -> None:
        """Train an archive of many good and different policies."""

    return stand_in


def task_first(words: list[str]) -> list[str]:
    """The same words; what `train` is given by --task comes first, where no option takes it for its own."""
    if words[:1] != ["train"]:
        return words
    given = []
    left = iter(words[1:])
    rest = []
    for word in left:
        if word == "--task":
            given.append(next(left, ""))
        elif word.startswith("--task="):
            given.append(word.removeprefix("--task="))
        else:
            rest.append(word)
    if "" in given or len(given) > 1:
        raise InputError(f"--task takes one task, got {', '.join(filter(None, given)) or 'none'}.")
    return ["train", *given, *rest]


def demo(task: str = "halfcheetah", minutes: float = 5.0, seed: int = 0) -> None:
    """Train an archive for five minutes, and see how differently its elites walk.

    Example: ppga demo --task walker2d --minutes 10

    Args:
        task: the robot.
        minutes: how long to train.
        seed: of all randomness.
    """
    machine.check_devices()
    from ppga.demo import run, show_gaits
    from ppga.tasks import find, sample
    from ppga.training import make_display, show

    task = find(task)
    outcome = run(task, minutes, seed, make_display(console))
    if len(outcome.archive) and sample(task).has_feet:
        show_gaits(outcome.archive, console)
    show(console, outcome)


def study(
    tasks: tuple[str, ...] = ("halfcheetah",),
    algorithms: tuple[str, ...] = ("all",),
    seeds: int = 1,
    minutes: float | None = None,
    env_steps: int | None = None,
    evaluations: int | None = None,
    preset: str = "laptop",
    episodes: int = 20,
    output: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("study"),
    cluster: str = "none",
    address: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT")] = None,
    cores: int = 2,
    only: int | None = None,
    dry_run: bool = False,
) -> None:
    """Compare algorithms: run each on each task with each seed, one after the other, and write a report.

    Example: ppga study --tasks halfcheetah walker2d --algorithms pga-me ppga --seeds 2 --minutes 10

    It can be stopped with Ctrl-C and continued by the same command; what is done is skipped. More seeds,
    tasks, algorithms or minutes may be asked for later.

    Args:
        tasks: robots, see `ppga tasks`; or all.
        algorithms: see `ppga algorithms`; ppga-cma-es and ppga-recombination too;
            ALGORITHM:OPTION=VALUE,OPTION=VALUE with any options of `ppga train`, switches as OPTION=true or
            false; or all.
        seeds: how many, from 0.
        minutes: of each run; 10 if no budget is given.
        env_steps: of each run, in control steps.
        evaluations: of each run, in judged policies.
        preset: settings of all runs.
        episodes: by which every elite is judged again for the corrected figures; 0 for none.
        output: the study's folder: TASK/ALGORITHM-SEED, and report/.
        cluster: ray spreads the runs over a Ray cluster, many at once; slurm writes a script for sbatch.
        address: of the Ray cluster, or auto; one on this machine by default.
        cores: that a run takes of the cluster.
        only: run no other than this one, counted from 0, and write no report; for the jobs of an array.
        dry_run: show the runs, and stop.
    """
    at_least_one("--seeds", seeds)
    at_least_one("--cores", cores)
    choose("cluster", cluster, ("none", "ray", "slurm"))
    if episodes < 0:
        raise InputError(f"--episodes must be at least 0, got {episodes}.")
    machine.check_devices()
    from ppga.cluster.crew import Cluster
    from ppga.runs import PRESETS, Budget
    from ppga.study import count_attempt, do, finished, plan, run, write_slurm

    choose("preset", preset, PRESETS)
    given = Budget(minutes=minutes, env_steps=env_steps, evaluations=evaluations)
    budget = Budget(minutes=10.0) if given == Budget() else given
    if address is not None and cluster != "ray":
        raise InputError("an address belongs to --cluster ray.")
    with _stoppable(output):
        planned = plan(tasks, algorithms, seeds, budget, preset, episodes, output)
        if dry_run:
            _show_runs(planned)
            return
        if cluster == "slurm":
            script = shlex.quote(str(write_slurm(planned, cores)))
            console.print(f"sbatch {script}", soft_wrap=True, highlight=False, markup=False)
            return
        if only is not None:
            if not 0 <= only < len(planned.runs()):
                raise InputError(f"--only must lie in [0, {len(planned.runs()) - 1}], got {only}.")
            one = planned.runs()[only]
            if finished(one, planned):
                return
            count_attempt(one)
            code = do(one, planned)
            sys.exit(128 - code if code < 0 else code)  # as a shell tells of a signal
        well = run(planned, console, Cluster(address) if cluster == "ray" else None, cores)
    sys.exit(0 if well else 1)


def _show_runs(plan: "Plan") -> None:
    """A line for each run of a study, and nothing else."""
    for one in plan.runs():
        console.print(str(one.folder), soft_wrap=True, highlight=False)


@contextlib.contextmanager
def _stoppable(output: Path) -> Iterator[None]:
    """Tell of a study that was stopped, or that cannot be written."""
    try:
        yield
    except KeyboardInterrupt:
        console.print("\nstopped; the same command goes on with the study", highlight=False)
        sys.exit(130)
    except OSError as error:
        raise InputError(f"cannot write to {output}: {error.strerror or error}.") from None


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
    """Run the study behind one of the paper's tables and figures, and draw it.

    Example: ppga reproduce ablations --scale laptop --tasks halfcheetah

    It can be stopped and continued by the same command; experiments that share runs share them.

    Args:
        experiment: which one; see --list.
        scale: smoke, laptop or paper.
        tasks: other robots than the paper's.
        seeds: how many; 1 at the laptop's scale, 4 at the paper's.
        minutes: of each run; 10 at the laptop's scale.
        output: where the studies go, a folder for each scale.
        list: show all experiments.
        dry_run: show the runs, and stop.
    """
    from ppga.reproduce import EXPERIMENTS, SCALES, planned

    if list or experiment is None:
        table = Table(box=SIMPLE, title="ppga reproduce NAME")
        for heading in ("name", "shows", "systems", "on"):
            table.add_column(heading, overflow="fold")
        for name, one in EXPERIMENTS.items():
            table.add_row(name, one.shows, "\n".join(one.systems), " ".join(one.tasks))
        console.print(table)
        console.print(
            *(f"--scale {name}: {what}" for name, what in SCALES.items()), sep="\n", highlight=False
        )
        return
    if seeds is not None:
        at_least_one("--seeds", seeds)
    machine.check_devices()
    from ppga.study import run

    made = planned(experiment, scale, tasks, seeds, minutes, output)
    if dry_run:
        _show_runs(made)
        return
    with _stoppable(output):
        well = run(made, console)
    sys.exit(0 if well else 1)
