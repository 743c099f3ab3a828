"""Short runs whose figures are recorded, so that nobody changes an algorithm without noticing.

Other processors and other versions of XLA round differently, which a few short iterations do not amplify
much. If you have changed an algorithm on purpose, record the new figures, and give the reason in the commit.
"""

from typing import Any

import numpy as np
import pytest

import ppga
from ppga.runs import Budget
from ppga.search import (
    ConfirmationConfig,
    LegConfig,
    ObjectiveConfig,
    RewardPhaseConfig,
    StochasticEvaluationConfig,
)  # fmt: skip
from ppga.strategies import StrategyConfig

from helpers.settings import settings, slider
from helpers.slider import Slider

FIGURES = ("qd_score", "coverage", "best", "mean", "evaluations", "env_steps", "restarts")


def figures(task: Any, config: ppga.AlgorithmConfig, iterations: int) -> list[float]:
    """Metrics at the end of a run, and norms of the strategy's mean and of the search policy's measures."""
    record = ppga.train(task, config, budget=Budget(iterations=iterations)).record
    assert record is not None
    return [float(record[name]) for name in FIGURES] + [
        float(np.linalg.norm(record.get(name, 0.0))) for name in ("strategy_mean", "search_measures")
    ]


def sphere(**changes: Any) -> ppga.PPGAConfig:
    """Settings that do not depend on presets, so that a better preset leaves the figures unchanged."""
    return ppga.PPGAConfig(
        seed=5,
        evaluation=StochasticEvaluationConfig(episodes=2),
        confirm=ConfirmationConfig(episodes=8, max_measure_std=0.07, recheck=2),
        archive=ppga.SoftArchiveConfig(alpha=0.3, threshold_min=0.0),
        branches=24,
        jacobian_updates=5,
        walk_updates=5,
        strategy=StrategyConfig(sigma0=2.0),
        objective=ObjectiveConfig(),
        phases=RewardPhaseConfig(first_iterations=8, updates=60, every=0),
        legs=LegConfig(iterations=6, first_iterations=0, elite="sparse"),
    ).replace(**changes)


GOLDEN: dict[str, tuple[Any, list[float]]] = {
    "ppga": (
        lambda: ("sphere", sphere(), 20),
        [12023.67, 0.3275, 99.99879, 91.78377, 741.0, 0.0, 2.0, 6.025522, 36.89911],
    ),
    "ppga, cma-es": (
        lambda: ("sphere", sphere(**{"strategy.kind": "cma-es"}), 20),
        [13458.32, 0.37, 99.99598, 90.93459, 749.0, 0.0, 2.0, 3.498834, 10.56371],
    ),
    "ppga, recombination": (
        lambda: ("sphere", sphere(step="recombination"), 20),
        [11949.38, 0.3375, 99.99879, 88.51394, 749.0, 0.0, 2.0, 7.255065, 34.78859],
    ),
    "ppga on a slider": (
        lambda: (
            slider(),
            settings(**{"confirm.episodes": 2, "confirm.recheck": 1, "objective.min_reward_share": 0.0}),
            4,
        ),
        [19.99991, 0.2, 19.99991, 9.999954, 27.0, 2984.0, 0.0, 3.190073, 0.02809434],
    ),
    "mcppo on a slider": (
        lambda: (
            slider(),
            settings(
                "mcppo",
                **{"confirm.episodes": 2, "confirm.recheck": 1, "updates": 4, "archive.shape": (200,)},
            ),
            4,
        ),
        [79.98643, 0.02, 19.9999, 19.99661, 29.0, 5192.0, 0.0, 0.0, 0.0],
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_short_run_has_the_recorded_figures(name: str) -> None:
    run, recorded = GOLDEN[name]
    np.testing.assert_allclose(figures(*run()), recorded, rtol=2e-3)


def test_any_number_of_threads_gives_the_same_archive() -> None:
    archives = []
    for threads in (1, 2):
        task = Slider(threads=threads)
        assert task.physics.callers(100) == threads, "the number of threads that evaluate"
        config = settings(**{"confirm.episodes": 2, "branches": 20})
        archives.append(ppga.train(task, config, budget=Budget(iterations=2)).archive)
    assert len(archives[0]) > 0
    for name, values in archives[0].elites.items():
        np.testing.assert_array_equal(values, archives[1].elites[name], err_msg=name)
