"""The sphere: its scores and gradients against its definition."""

import jax
import numpy as np
import pytest

from ppga.problems import Sphere
from ppga.problems.sphere import BOUND, OPTIMUM


def test_scores_and_gradients_follow_the_definition() -> None:
    problem, key = Sphere(solution_size=4), jax.random.key(0)
    points = np.array([[OPTIMUM] * 4, [-BOUND] * 4, [1.0, 2.0, 2 * BOUND, -4 * BOUND]], np.float32)
    scores = problem.evaluate(None, points, key, 1)
    assert scores.objective[:2] == pytest.approx([100.0, 0.0], abs=1e-4)
    np.testing.assert_allclose(scores.measures[2], [3.0, BOUND / 2 - BOUND / 4], rtol=1e-5)
    place = points[0] + 0.5
    _, gradients, _ = problem.jacobian(jax.numpy.asarray(place), key, 1)
    for axis in range(4):  # central differences
        step = np.zeros(4, np.float32)
        step[axis] = 1e-2
        after, before = (problem.evaluate(None, (place + s)[None], key, 1) for s in (step, -step))
        np.testing.assert_allclose(
            gradients[0, axis], (after.objective - before.objective)[0] / 2e-2, atol=2e-2
        )
