"""The novelty of transitions, against a slow and obvious version."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ppga.problems.novelty import REFERENCES, NoveltyProblem


def test_novelty_is_the_mean_distance_to_recorded_steps() -> None:
    rng = np.random.default_rng(0)
    recorded = rng.integers(0, 2, (REFERENCES, 2)).astype(np.float32)
    replay = SimpleNamespace(sample=lambda *_: np.concatenate([np.zeros((REFERENCES, 5)), recorded], axis=1))
    problem: Any = SimpleNamespace(measure_names=("a", "b"), replay=replay)
    rows = np.concatenate([np.ones((2, 3, 5)), rng.integers(0, 2, (2, 3, 2))], axis=-1)
    extended = NoveltyProblem.with_extra_gains(problem, rows, rng)
    for place in np.ndindex(2, 3):
        expected = np.mean([np.linalg.norm(rows[place][-2:] - reference) for reference in recorded])
        assert extended[place][-1] == pytest.approx(expected, rel=1e-5)
        np.testing.assert_array_equal(extended[place][:-1], rows[place])
