"""Short runs whose figures are written down: nobody changes the algorithm without noticing.

Another processor or another version of XLA rounds otherwise, which a few short iterations do not amplify
much. If you have changed the algorithm on purpose, write the new figures down, and say why in the commit.
"""

from dataclasses import replace
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
    config, _ = ppga.preset("laptop", "sphere")
    search = replace(config.search, branches=24, leg=6, recheck=2, **changes)
    return replace(config, seed=5, search=search)


GOLDEN: dict[str, tuple[Any, list[float]]] = {
    "ppga": (
        lambda: ("sphere", sphere(), 20),
        [13203.12, 0.3625, 99.99858, 91.05599, 755.0, 0.0, 2.0, 5.88177, 51.25441],
    ),
    "ppga, cma-es": (
        lambda: ("sphere", sphere(strategy="cma-es"), 20),
        [14397.85, 0.4025, 99.9781, 89.42764, 776.0, 0.0, 2.0, 3.429295, 17.53938],
    ),
    "ppga, recombination": (
        lambda: ("sphere", sphere(step="recombination"), 20),
        [11981.48, 0.32, 99.99858, 93.60529, 739.0, 0.0, 2.0, 5.87021, 54.36598],
    ),
    "ppga on a slider": (
        lambda: (slider(), settings(confirm=2, recheck=1), 4),
        [19.99935, 0.1, 19.99935, 19.99935, 29.0, 3064.0, 0.0, 1.477748, 0.04171259],
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
