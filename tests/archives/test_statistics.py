"""Statistics over the episodes of two evaluations, against those over all episodes at once."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ppga.archives.statistics import STATISTICS, combined, statistics_shapes
from ppga.storage import NumpyArray


def statistics(episodes: dict[str, NumpyArray]) -> dict[str, NumpyArray]:
    """Means and statistics over episodes (n, e, ...)."""
    return {
        "objective": episodes["objective"].mean(axis=1),
        "objective_std": episodes["objective"].std(axis=1),
        "measures": episodes["measures"].mean(axis=1),
        "measures_std": episodes["measures"].std(axis=1),
        "length": episodes["steps"].mean(axis=1),
        "survival": episodes["survived"].mean(axis=1),
    }


def episodes_of(rng: np.random.Generator, n: int, count: int) -> dict[str, NumpyArray]:
    """Random scores of n policies in that many episodes."""
    return {
        "objective": rng.normal(100, 30, (n, count)),
        "measures": rng.uniform(size=(n, count, 2)),
        "steps": rng.integers(1, 1000, (n, count)),
        "survived": rng.random((n, count)) < 0.5,
    }


@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(1, 9))
def test_two_evaluations_have_the_statistics_of_all_their_episodes(
    seed: int, first: int, second: int
) -> None:
    rng, n = np.random.default_rng(seed), 3
    old, new = episodes_of(rng, n, first), episodes_of(rng, n, second)
    together = {name: np.concatenate([old[name], new[name]], axis=1) for name in old}
    result = combined(statistics(old), statistics(new), np.full(n, second / (first + second)))
    assert set(result) == {"objective", "measures", *STATISTICS}
    for name, values in statistics(together).items():
        np.testing.assert_allclose(result[name], values, rtol=1e-9, atol=1e-9, err_msg=name)
        assert values.shape[1:] == statistics_shapes(2).get(name, values.shape[1:])


def test_statistics_that_are_not_known_become_those_of_the_new_episodes() -> None:
    rng = np.random.default_rng(0)
    new = statistics(episodes_of(rng, 2, 4))
    old: dict[str, Any] = {name: np.zeros_like(values) for name, values in new.items()}
    old["objective"] = new["objective"] + 10
    result = combined(old, new, np.full(2, 0.5))
    np.testing.assert_allclose(result["objective"], new["objective"] + 5)
    for name in STATISTICS:
        np.testing.assert_array_equal(result[name], new[name])
