"""Short runs whose figures are written down: nobody changes the algorithm without noticing.

Another processor or another version of XLA rounds otherwise, which a few short iterations do not amplify
much. If you have changed the algorithm on purpose, write the new figures down, and say why in the commit.
"""

from typing import Any

import numpy as np
import pytest

import ppga
from ppga.runs import Budget
from slider import Slider
from test_numbers import settings, slider

FIGURES = ("qd_score", "coverage", "best", "mean", "evaluations", "env_steps", "restarts")


def figures(task: Any, config: ppga.PPGAConfig, iterations: int) -> list[float]:
    """What a run came to, with the norm of its xNES mean and of its search policy's measures."""
    record = ppga.train(task, config, budget=Budget(iterations=iterations)).record
    assert record is not None
    return [float(record[name]) for name in FIGURES] + [
        float(np.linalg.norm(record.get(name, 0.0))) for name in ("xnes_mean", "search_measures")
    ]


def sphere(**changes: Any) -> ppga.PPGAConfig:
    """Settings of its own, so that a better preset leaves the figures as they are."""
    search = ppga.SearchConfig(
        branches=24, episodes=2, confirm=8, steady=0.07, recheck=2, jacobian_updates=5, walk_updates=5,
        first_updates=60, reward_first=8, sigma0=2.0, leg=6, restart_at="sparse", **changes,
    )  # fmt: skip
    archive = ppga.ArchiveConfig(alpha=0.3, threshold_min=0.0)
    return ppga.PPGAConfig(seed=5, search=search, archive=archive)


GOLDEN: dict[str, tuple[Any, list[float]]] = {
    "ppga": (
        lambda: ("sphere", sphere(), 20),
        [12023.67, 0.3275, 99.99879, 91.78377, 743.0, 0.0, 2.0, 6.025522, 36.89911],
    ),
    "ppga, cma-es": (
        lambda: ("sphere", sphere(strategy="cma-es"), 20),
        [13458.32, 0.37, 99.99598, 90.93459, 751.0, 0.0, 2.0, 3.498834, 10.56371],
    ),
    "ppga, recombination": (
        lambda: ("sphere", sphere(step="recombination"), 20),
        [11949.38, 0.3375, 99.99879, 88.51394, 751.0, 0.0, 2.0, 7.255065, 34.78859],
    ),
    "ppga on a slider": (
        lambda: (slider(), settings(confirm=2, recheck=1, reward_share=0.0), 4),
        [39.99967, 0.2, 19.99988, 19.99984, 27.0, 2984.0, 0.0, 3.190073, 0.02809434],
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_short_run_comes_to_what_it_always_has(name: str) -> None:
    make, known = GOLDEN[name]
    np.testing.assert_allclose(figures(*make()), known, rtol=2e-3)


def test_any_number_of_threads_gives_the_same_archive() -> None:
    found = []
    for threads in (1, 2):
        task = Slider(threads=threads)
        assert task.physics.callers(100) == threads, "those who judge are as many"
        found.append(ppga.train(task, settings(confirm=2, branches=20), budget=Budget(iterations=2)).archive)
    assert len(found[0]) > 0
    for name, values in found[0].elites.items():
        np.testing.assert_array_equal(values, found[1].elites[name], err_msg=name)
