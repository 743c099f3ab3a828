"""Studies on a Ray cluster: as many runs at once as it has cores for."""

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ppga.distributed.cluster import Cluster
from ppga.distributed.ray_pool import TRIES, connected, is_transient, reason_of
from ppga.errors import InputError
from ppga.studies.plan import Study, StudyRun
from ppga.studies.processes import execute
from ppga.studies.progress import last_metrics


def run_on_ray(
    waiting: Sequence[StudyRun], study: Study, console: Console, cluster: Cluster, cores: int
) -> dict[StudyRun, str]:
    """Execute runs of a study on a Ray cluster, and return the failed ones with the reasons.

    The study's folder must be the same on all nodes. A run that ends with its node, or because of another
    failure of the cluster, is resumed on any node with free cores, until it has been tried `TRIES` times.
    """
    with connected(cluster) as ray:
        available = ray.cluster_resources().get("CPU", 0)
        if available < cores:
            raise InputError(f"a run takes {cores} cores, and the cluster has {available:g}.")
        remote = ray.remote(num_cpus=cores, max_retries=0)(_execute_on_node)
        absolute = replace(study, output=study.output.absolute())
        absolute_runs = dict(zip(study.runs(), absolute.runs(), strict=True))

        def start(run: StudyRun) -> Any:
            return remote.remote(absolute_runs[run], absolute, os.getcwd())

        running = {start(run): run for run in waiting}
        states = dict.fromkeys(waiting, "waiting")
        failed: dict[StudyRun, str] = {}
        tries: Counter[StudyRun] = Counter()
        try:
            with Live(progress_table(states), console=console, refresh_per_second=1) as live:
                while running:
                    done, _ = ray.wait(list(running), num_returns=1, timeout=2.0)
                    for answer in done:
                        run = running.pop(answer)
                        try:
                            reason = ray.get(answer)
                        except ray.exceptions.RayError as error:
                            tries[run] += 1
                            if is_transient(ray, error) and tries[run] < TRIES:
                                running[start(run)] = run
                                continue
                            reason = reason_of(ray, error)
                        states[run] = "done"
                        if reason:
                            failed[run] = reason
                            states[run] = f"failed ({reason.partition(':')[0]})"
                    live.update(progress_table(states))
        except KeyboardInterrupt:
            for answer in running:
                ray.cancel(answer)
            ray.wait(list(running), num_returns=len(running), timeout=120)
            raise
    return failed


def _execute_on_node(run: StudyRun, study: Study, folder: str) -> str:
    """Execute a run on another node, in the folder in which the study was started; the reason if it fails."""
    os.chdir(folder)
    os.environ.pop("OMP_NUM_THREADS", None)  # set by Ray
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        code = execute(run, study, errors)
        errors.seek(0)
        output = errors.read()
    sys.stderr.write(output)  # for Ray's log
    lines = output.strip().splitlines()
    return f"exit code {code}{': ' + lines[-1] if lines else ''}" if code else ""


def progress_table(states: Mapping[StudyRun, str]) -> Table:
    """The states of all runs, and their last metrics."""
    table = Table(box=SIMPLE)
    for heading in ("run", "", "minutes", "iterations", "coverage", "best", "QD-score"):
        table.add_column(heading, justify="left" if heading in ("run", "") else "right")
    for run, state in states.items():
        last = last_metrics(run.folder)
        cells = [] if last is None else [
            f"{last['wall_time'] / 60:.1f}", str(last["iteration"]), f"{last['coverage']:.0%}",
            "" if last["best"] is None else f"{last['best']:,.0f}", f"{last['qd_score']:,.0f}",
        ]  # fmt: skip
        shown = "running" if state == "waiting" and last is not None else state
        table.add_row(Text(f"{run.task} {run.system} {run.seed}"), Text(shown), *cells)
    return table
