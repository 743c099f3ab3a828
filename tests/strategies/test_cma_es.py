"""CMA-ES behind the interface of xNES, and the search distribution's settings."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ribs.emitters.opt import CMAEvolutionStrategy

from ppga.strategies import CMAES, STRATEGIES, XNES, StrategyConfig, make_strategy


def generations(es: Any, count: int) -> None:
    """Minimize an ellipsoid."""
    for _ in range(count):
        losses = (es.ask() ** 2 * np.arange(1, 4)).sum(axis=1)
        es.tell(np.argsort(losses), -np.sort(losses))


def test_equals_pyribs_with_the_better_half_as_parents() -> None:
    ours = CMAES(0.5, 3, 8, seed=1)
    theirs = CMAEvolutionStrategy(sigma0=0.5, solution_dim=3, batch_size=8, seed=1, dtype=np.float64)
    theirs.reset(np.zeros(3))
    for _ in range(20):
        samples = ours.ask()
        np.testing.assert_array_equal(theirs.ask(), samples)
        losses = (samples**2 * np.arange(1, 4)).sum(axis=1)
        ranking = np.argsort(losses)
        ours.tell(ranking, -losses)
        theirs.tell(ranking, -losses, 4)
    np.testing.assert_array_equal(ours.mean, theirs.mean)
    assert ours.scale == theirs.sigma


def test_a_generation_with_fewer_than_two_scores_changes_nothing() -> None:
    es = CMAES(0.5, 3, 8, seed=1)
    before = es.mean.copy()
    es.ask()
    es.tell(np.array([5]), np.arange(8.0))
    es.tell(np.array([], int), np.arange(8.0))
    np.testing.assert_array_equal(es.mean, before)
    assert es.scale == 0.5


def test_a_restored_state_continues_exactly() -> None:
    original = CMAES(0.5, 3, 8, seed=1)
    generations(original, 7)
    saved = original.state()
    assert all(isinstance(values, np.ndarray) and values.dtype != object for values in saved.values())
    generations(original, 7)
    restored = CMAES(0.5, 3, 8, seed=99)
    restored.load_state(saved)
    generations(restored, 7)
    for name, values in original.state().items():
        np.testing.assert_array_equal(restored.state()[name], values, err_msg=name)


def no_generator(state: dict[str, Any]) -> None:
    (name,) = (name for name, values in state.items() if values.dtype == np.uint8)
    state[name] = np.frombuffer(json.dumps({"bit_generator": "none"}).encode(), np.uint8)


BAD_STATES: list[Callable[[dict[str, Any]], Any]] = [
    lambda state: state.pop("mean"),
    lambda state: state.update(extra=np.zeros(1)),
    lambda state: state.update(mean=np.zeros(4)),
    lambda state: state.update(mean=np.full(3, np.nan)),
    lambda state: state.update(mean=np.array(["a", "b", "c"])),
    lambda state: state.update(batch_size=np.asarray(9)),
    no_generator,
]


@pytest.mark.parametrize("spoil", BAD_STATES)
def test_bad_states(spoil: Callable[[dict[str, Any]], Any]) -> None:
    es = CMAES(0.5, 3, 8, seed=1)
    state = es.state()
    spoil(state)
    with pytest.raises(ValueError):
        es.load_state(state)


def test_check_stop_reports_a_degenerate_distribution() -> None:
    es = CMAES(0.5, 3, 8, seed=1)
    generations(es, 3)
    assert not es.check_stop(np.arange(8.0)[::-1])
    assert es.check_stop(np.zeros(8)), "equal values do not rank anything"
    es.sigma = np.nan
    assert es.check_stop(np.arange(8.0)[::-1])


@pytest.mark.parametrize("kind", list(STRATEGIES))
def test_strategies_have_one_interface(kind: Any) -> None:
    es: Any = make_strategy(StrategyConfig(kind, sigma0=0.25), size=3, samples=10, seed=4)
    assert isinstance(es, XNES if kind == "xnes" else CMAES)
    assert es.ask().shape == (10, 3)
    initial = es.scale
    generations(es, 5)
    adapted = es.scale
    es.reset(np.array([1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(es.mean, [1.0, 2.0, 3.0])
    assert initial == es.scale == 0.25 != adapted


def test_strategies_of_other_seeds_draw_other_samples() -> None:
    for kind, seed in itertools.product(STRATEGIES, (0, 1)):
        draws = [make_strategy(StrategyConfig(kind), 3, 10, each).ask() for each in (seed, seed, seed + 1)]
        np.testing.assert_array_equal(draws[0], draws[1])
        assert not np.allclose(draws[0], draws[2])


def test_initial_means() -> None:
    zero, rng = StrategyConfig(), np.random.default_rng(0)
    np.testing.assert_array_equal(zero.initial_mean(3, rng), np.zeros(3))
    means = np.array([StrategyConfig(mean="random").initial_mean(3, rng) for _ in range(2000)])
    # uniform in [0, 2] for the reward, and in [-2, 2] for each measure
    for column, low in zip(means.T, (0.0, -2.0, -2.0), strict=True):
        assert low <= column.min() < low + 0.05
        assert 2 >= column.max() > 1.95
        assert column.mean() == pytest.approx((low + 2) / 2, abs=0.1)


@pytest.mark.parametrize("sigma0", [0.0, -1.0, np.nan, np.inf])
def test_bad_settings(sigma0: float) -> None:
    with pytest.raises(ValueError, match=r"--strategy\.sigma0 must be a positive number"):
        StrategyConfig(sigma0=sigma0).check()
