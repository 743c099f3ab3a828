"""Execution of a study, and its report."""

import time
from collections.abc import Callable, Sequence

from rich.console import Console

from ppga.analysis.report import report
from ppga.distributed.cluster import Cluster
from ppga.runs.estimate import duration
from ppga.storage import write_json
from ppga.studies.plan import Study, StudyRun
from ppga.studies.processes import STOPPED, execute
from ppga.studies.progress import exceeded_budget, expected_seconds, is_finished
from ppga.studies.ray import run_on_ray


def run_study(study: Study, console: Console, cluster: Cluster | None = None, cores: int = 2) -> bool:
    """Execute the runs that are not finished, then write the report; return whether all runs succeeded.

    Args:
        study: the study.
        console: shows messages.
        cluster: a Ray cluster for the runs; by default, they run on this machine, one after the other.
        cores: cores that each run takes of the cluster.

    Raises:
        KeyboardInterrupt: a run got a stop signal; the same command resumes the study.
    """

    def say(message: str) -> None:
        console.print(message, soft_wrap=True, markup=False, emoji=False, highlight=False)

    runs = study.runs()
    waiting = [run for run in runs if not is_finished(run, study)]
    say(f"{len(runs)} runs: {', '.join(study.systems)} on {', '.join(study.tasks)}, {study.seeds} seeds each")
    if len(waiting) < len(runs):
        say(f"{len(runs) - len(waiting)} of them are done already")
    if waiting:
        with console.status("estimating the time"):
            seconds = expected_seconds(waiting, study)
        say(_time_message(seconds, None if cluster is None else cores))
    write_json(
        study.output / "study.json",
        {"preset": study.preset, "tasks": study.tasks, "algorithms": study.systems, "seeds": study.seeds},
    )
    if cluster is not None and waiting:
        failed = run_on_ray(waiting, study, console, cluster, cores)
    else:
        failed = _run_here(waiting, study, say)
    notes = [f"{run.folder} has used more than its budget." for run in runs if exceeded_budget(run, study)]
    for note in notes:
        say(note)
    if folders := [run.folder for run in runs if run.files.metrics.exists()]:
        say(f"\n{report(folders, study.output / study.report, notes)}")
    for run, reason in failed.items():
        say(f"failed: {run.folder} ({reason})")
    return not failed


def _run_here(waiting: Sequence[StudyRun], study: Study, say: Callable[[str], None]) -> dict[StudyRun, str]:
    """Execute runs one after the other, and return the failed ones with the reasons."""
    failed: dict[StudyRun, str] = {}
    for number, run in enumerate(waiting, start=1):
        say(f"\n{number} of {len(waiting)}: {run.system} on {run.task}, seed {run.seed}")
        code = execute(run, study)
        if code in STOPPED:
            raise KeyboardInterrupt
        if code:
            failed[run] = f"exit code {code}"
            say(f"{run.folder} failed ({failed[run]}); the study continues with the next run")
    return failed


def _time_message(seconds: float | None, cores: int | None) -> str:
    """Message about the time that a study will take.

    Args:
        seconds: duration of all runs one after the other; None if unknown.
        cores: cores of each run on a cluster; None if the runs are on this machine.
    """
    if seconds is None:
        return "the time it will take cannot be estimated"
    if cores is not None:
        return f"about {duration(seconds)} left on {cores} cores for each run, shared by the cluster"
    until = time.strftime("%A %H:%M", time.localtime(time.time() + seconds))
    return f"about {duration(seconds)} left, until {until}"
