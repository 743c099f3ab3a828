"""`ppga study`: a comparison of algorithms."""

import contextlib
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from ppga import machine
from ppga.cli.common import command, console, writing
from ppga.errors import InputError, check_choice, check_count

if TYPE_CHECKING:
    from ppga.studies import Study


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
    """Compare algorithms: run each on each task with each seed, then write a report.

    Example: ppga study --tasks halfcheetah walker2d --algorithms pga-me ppga --seeds 2 --minutes 10

    Ctrl-C stops a study, and the same command resumes it; finished runs are skipped. The command may ask for
    more seeds, tasks, algorithms or minutes later.

    Args:
        tasks: names from ppga tasks, FILE.py:NAME, or all.
        algorithms: names from ppga algorithms, ppga-cma-es, ppga-recombination, or all. With settings:
            ALGORITHM:NAME=VALUE,NAME=VALUE, for example ppga:strategy.sigma0=1,ppo.gamma=0.98.
        seeds: number of seeds, from 0.
        minutes: minutes of each run; 10 if no budget is given.
        env_steps: control steps of each run.
        evaluations: evaluated policies of each run.
        preset: settings of all runs: laptop, paper or smoke.
        episodes: episodes that re-evaluate each elite for the metrics of the corrected archive; 0 for none.
        output: folder of the study: TASK/ALGORITHM-SEED, and report/.
        cluster: ray executes the runs on a Ray cluster, several at once; slurm writes a script for sbatch.
        address: of the Ray cluster, or auto; by default one is started on this machine.
        cores: cores of the cluster that each run takes.
        only: execute only this run, counted from 0, and write no report; for the jobs of an array.
        dry_run: list the runs, and stop.
    """
    check_count("--seeds", seeds)
    check_count("--cores", cores)
    check_choice("cluster", cluster, ("none", "ray", "slurm"))
    if episodes < 0:
        raise InputError(f"--episodes must be at least 0, got {episodes}.")
    if address is not None and cluster != "ray":
        raise InputError("--address needs --cluster ray.")
    machine.prepare_jax()
    from ppga.config import Budget
    from ppga.distributed.cluster import Cluster
    from ppga.studies import plan_study, run_study, write_script

    given = Budget(minutes=minutes, env_steps=env_steps, evaluations=evaluations)
    budget = Budget(minutes=10.0) if given == Budget() else given
    with stoppable(output):
        planned = plan_study(tasks, algorithms, seeds, budget, preset, episodes, output)
        if dry_run:
            show_runs(planned)
            return
        if cluster == "slurm":
            script = shlex.quote(str(write_script(planned, cores)))
            console.print(f"sbatch {script}", soft_wrap=True, highlight=False)
            return
        if only is not None:
            sys.exit(_execute_one(planned, only))
        succeeded = run_study(planned, console, Cluster(address) if cluster == "ray" else None, cores)
    sys.exit(0 if succeeded else 1)


def _execute_one(study: "Study", number: int) -> int:
    """Execute one run of a study; its exit code, as a shell reports it."""
    from ppga.studies import count_attempt, execute, is_finished

    runs = study.runs()
    if not 0 <= number < len(runs):
        raise InputError(f"--only must lie in [0, {len(runs) - 1}], got {number}.")
    run = runs[number]
    if is_finished(run, study):
        return 0
    count_attempt(run)
    code = execute(run, study)
    return 128 - code if code < 0 else code


def show_runs(study: "Study") -> None:
    """List the folders of a study's runs."""
    for run in study.runs():
        console.print(str(run.folder), soft_wrap=True, highlight=False)


@contextlib.contextmanager
def stoppable(output: Path) -> Iterator[None]:
    """Report that a study was stopped, or that its folder cannot be written."""
    try:
        with writing(output):
            yield
    except KeyboardInterrupt:
        console.print("\nstopped; the same command resumes the study", highlight=False)
        sys.exit(130)


main = command(study)
