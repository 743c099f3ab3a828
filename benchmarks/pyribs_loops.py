"""CMA-MAE and CMA-MAEGA by pyribs on a task of ppga, with the settings of their papers on robots.

CMA-MAE: Tjanaka et al., RA-L 2023 (github.com/icaros-usc/scaling-cma-mae). CMA-MAEGA: gradients as in Tjanaka
et al., GECCO 2022 (github.com/icaros-usc/dqd-rl), and the same soft archive.
"""

from typing import Any

import numpy as np
from ribs.archives import GridArchive
from ribs.emitters import EvolutionStrategyEmitter, GradientArborescenceEmitter
from ribs.schedulers import Scheduler
from scipy.stats import rankdata

from ppga.algorithms.cma_maega import mirrored_noise
from ppga.archives import Archive
from ppga.storage import NumpyArray

from benchmarks.library_task import LibraryTask, Report

ALPHA = 0.001
"""Learning rate of the soft archive's thresholds."""
THRESHOLDS = {"walker2d": -67.17, "halfcheetah": -2797.5, "hopper": -362.1, "ant": -374.7}
"""Task -> first threshold of all cells, as published for PyBullet's robots; else the QD-score offset."""
SIGMA = 0.02
"""Initial step size of CMA-MAE, and noise of OpenAI-ES."""


def pyribs_cma_mae(task_name: str, preset: str, report: Report, seed: int) -> Archive:
    """CMA-MAE with separable CMA-ES, by pyribs' scheduler."""
    task = LibraryTask(task_name, preset, report, seed)
    soft, elites = _archives(task)
    starts = task.problem.random(task.key(), task.sizes.emitters)
    emitters = [
        EvolutionStrategyEmitter(
            soft, x0=start, sigma0=SIGMA, ranker="imp", es="sep_cma_es", selection_rule="mu",
            restart_rule="basic", batch_size=task.sizes.emitter_batch, seed=emitter_seed,
        )
        for emitter_seed, start in zip(_seeds(seed, len(starts)), starts, strict=True)
    ]  # fmt: skip
    scheduler = Scheduler(soft, emitters, result_archive=elites)
    while True:
        scheduler.tell(*task.evaluate(scheduler.ask()))
        if not task.report(elites.data("objective")):
            return _result(task, elites)


def pyribs_cma_maega(task_name: str, preset: str, report: Report, seed: int) -> Archive:
    """CMA-MAEGA, by pyribs' scheduler; OpenAI-ES estimates the gradients of objective and measures."""
    task = LibraryTask(task_name, preset, report, seed)
    soft, elites = _archives(task)
    emitter_seed, noise_seed = _seeds(seed, 2)
    emitter = GradientArborescenceEmitter(
        soft, x0=task.problem.random(task.key(), 1)[0], sigma0=1.0, lr=1.0, ranker="imp",
        grad_opt="gradient_ascent", selection_rule="mu", restart_rule="basic", normalize_grad=True,
        batch_size=task.sizes.branches, seed=emitter_seed,
    )  # fmt: skip
    scheduler = Scheduler(soft, [emitter], result_archive=elites)
    rng = np.random.default_rng(noise_seed)
    while True:
        point = scheduler.ask_dqd()  # (1, d)
        noise = mirrored_noise(rng, task.sizes.samples, point.shape[1])
        objective, measures = task.evaluate(np.concatenate([point, point + SIGMA * noise]))
        jacobian = es_gradients(noise, np.column_stack([objective, measures])[1:])
        scheduler.tell_dqd(objective[:1], measures[:1], jacobian[None])
        scheduler.tell(*task.evaluate(scheduler.ask()))
        if not task.report(elites.data("objective")):
            return _result(task, elites)


def es_gradients(noise: NumpyArray, scores: NumpyArray) -> NumpyArray:
    """Directions (k, d) of the gradients of k scores, from those (n, k) of policies with noise (n, d).

    Ranks stand for scores, as in OpenAI-ES; the lengths mean nothing.
    """
    ranks = rankdata(scores, axis=0)  # equal scores give no direction
    directions: NumpyArray = (ranks - ranks.mean(axis=0)).T @ noise
    return directions


def _archives(task: LibraryTask) -> tuple[GridArchive, GridArchive]:
    """The soft archive, and the archive of the elites."""
    problem = task.problem
    grid: dict[str, Any] = {
        "solution_dim": problem.solution_size, "dims": problem.archive_shape,
        "ranges": problem.measure_ranges, "dtype": np.float32,
    }  # fmt: skip
    threshold = THRESHOLDS.get(task.task.name, problem.qd_offset)
    return GridArchive(**grid, learning_rate=ALPHA, threshold_min=threshold), GridArchive(**grid)


def _seeds(seed: int, count: int) -> list[int]:
    """Seeds of a loop's parts."""
    return [int(number) for number in np.random.SeedSequence(seed).generate_state(count)]


def _result(task: LibraryTask, elites: GridArchive) -> Archive:
    return task.archive(*(elites.data(name) for name in ("solution", "objective", "measures")))
