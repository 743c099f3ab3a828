"""CMA-MAE by pyribs on a task of ppga."""

from typing import Any

import numpy as np
from ribs.archives import GridArchive
from ribs.emitters import EvolutionStrategyEmitter
from ribs.schedulers import Scheduler

from ppga.archives import Archive

from benchmarks.library_task import LibraryTask, Report


def pyribs_cma_mae(task_name: str, preset: str, report: Report) -> Archive:
    """CMA-MAE with separable CMA-ES, by pyribs' scheduler."""
    task = LibraryTask(task_name, preset, report)
    problem, sizes = task.problem, task.sizes
    grid: dict[str, Any] = {
        "solution_dim": problem.solution_size, "dims": problem.archive_shape,
        "ranges": problem.measure_ranges, "dtype": np.float32,
    }  # fmt: skip
    soft = GridArchive(**grid, learning_rate=0.01, threshold_min=problem.qd_offset)
    elites = GridArchive(**grid)
    emitters = [
        EvolutionStrategyEmitter(
            soft, x0=solution, sigma0=0.02, ranker="imp", es="sep_cma_es", selection_rule="mu",
            restart_rule="basic", batch_size=sizes.emitter_batch, seed=seed,
        )
        for seed, solution in enumerate(problem.random(task.key(), sizes.emitters))
    ]  # fmt: skip
    scheduler = Scheduler(soft, emitters, result_archive=elites)
    while True:
        scheduler.tell(*task.evaluate(scheduler.ask()))
        if not task.report(elites.data("objective")):
            return task.archive(*(elites.data(name) for name in ("solution", "objective", "measures")))
