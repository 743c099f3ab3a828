"""Ranking and recombination, against sorting by hand and the strategies of pyribs."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ribs.emitters.opt import CMAEvolutionStrategy

from ppga.search import ranked, recombined_mean


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0, math.nan, math.inf, -math.inf]), max_size=12))
def test_branches_are_ranked_by_improvement_without_those_that_are_not_finite(values: list[float]) -> None:
    finite = [number for number, value in enumerate(values) if math.isfinite(value)]
    expected = sorted(finite, key=lambda number: (-values[number], number))
    assert ranked(np.array(values, np.float32)).tolist() == expected


@pytest.mark.parametrize("n", [2, 3, 4, 9, 64])
def test_the_recombined_mean_is_that_of_cma_es(n: int) -> None:
    """CMA-ES moves its mean to the weighted mean of its parents."""
    rng = np.random.default_rng(n)
    es = CMAEvolutionStrategy(sigma0=1.0, solution_dim=3, batch_size=n, seed=1, dtype=np.float64)
    es.reset(np.zeros(3))
    samples, ranking = es.ask(), rng.permutation(n)
    es.tell(ranking, np.arange(n, 0, -1.0), n // 2)
    np.testing.assert_allclose(recombined_mean(samples[ranking]), np.asarray(es.mean), rtol=1e-12)


def test_one_branch_is_its_own_mean_and_the_worse_half_does_not_count() -> None:
    solutions = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    np.testing.assert_array_equal(recombined_mean(solutions[:1]), solutions[0])
    np.testing.assert_array_equal(recombined_mean(solutions[:3]), solutions[0])
    changed = solutions.copy()
    changed[3:] = np.nan
    np.testing.assert_array_equal(recombined_mean(changed[:6]), recombined_mean(solutions[:6]))
    assert recombined_mean(solutions).dtype == np.float32
