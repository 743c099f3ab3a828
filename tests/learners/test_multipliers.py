"""Lagrange multipliers as a function of the target."""

import jax.numpy as jnp
import numpy as np
import pytest

from ppga.learners.multipliers import MultiplierConfig, Multipliers, MultiplierState


@pytest.mark.parametrize("gain", [0.0, 2.0])
@pytest.mark.parametrize("measures", [1, 2, 4])
def test_multipliers_of_a_linear_quadratic_problem_are_found(measures: int, gain: float) -> None:
    """The policy x that maximizes -|x - a|^2 / 2 + c x is a + c, so E[x] = z needs c(z) = z - a."""
    config = MultiplierConfig(points=256, gain=gain, learning_rate=0.2, smoothing=0.2, limit=10.0)
    multipliers = Multipliers(config, measures)
    rng = np.random.default_rng(measures)
    best = rng.uniform(-0.3, 0.3, measures).astype(np.float32)
    state = multipliers.initial()
    for _ in range(600):
        targets = jnp.asarray(rng.uniform(-1, 1, (256, measures)), jnp.float32)
        reached = best + multipliers.at(state, targets)
        state = multipliers.updated(state, targets, targets - reached, jnp.ones(256))
    goals = rng.uniform(-0.6, 0.6, (100, measures)).astype(np.float32)
    np.testing.assert_allclose(multipliers.at(state, jnp.asarray(goals)), goals - best, atol=0.15)


def test_multipliers_of_targets_out_of_reach_are_bounded() -> None:
    multipliers = Multipliers(MultiplierConfig(points=16, learning_rate=1.0, limit=3.0), 2)
    state, targets = multipliers.initial(), jnp.ones((8, 2))
    for _ in range(100):
        state = multipliers.updated(state, targets, jnp.ones((8, 2)), jnp.ones(8))
    np.testing.assert_allclose(multipliers.at(state, targets)[0], 3 / np.sqrt(2), rtol=0.02)


def test_multipliers_far_from_all_targets_do_not_change() -> None:
    multipliers = Multipliers(MultiplierConfig(points=256), 2)
    targets = jnp.full((4, 2), 0.9)
    state = multipliers.updated(multipliers.initial(), targets, jnp.ones((4, 2)), jnp.ones(4))
    far = np.linalg.norm(multipliers.points - 0.9, axis=1) > 1.0
    for values in (state.sums, state.errors):
        assert np.abs(values[far]).max() < 1e-6
        assert np.abs(values[~far]).max() > 1e-3


def test_an_update_equals_a_slow_one() -> None:
    rng = np.random.default_rng(0)
    multipliers = Multipliers(MultiplierConfig(points=32, gain=2.0, learning_rate=0.1, limit=0.5), 2)
    sums, latest, targets, errors = (
        rng.normal(size=(n, 2)).astype(np.float32) for n in (32, 32, 5, 5)
    )  # fmt: skip
    amounts = rng.uniform(size=5).astype(np.float32)
    kernel = np.array([
        [np.exp(-np.sum((target - point) ** 2) / (1 / 16)) for point in multipliers.points]
        for target in targets
    ])  # fmt: skip  # half the spacing of 32 points in a square of side 2 is the root of 1/32
    kernel /= kernel.sum(axis=1, keepdims=True)
    expected = MultiplierState(jnp.array(sums), jnp.array(latest))
    for j in range(32):
        mass = sum(amounts[i] * kernel[i, j] for i in range(5))
        error = sum(amounts[i] * kernel[i, j] * errors[i] for i in range(5)) / max(mass, 1e-6)
        new = sums[j] + 0.1 * min(mass, 1.0) * error
        expected = MultiplierState(
            expected.sums.at[j].set(new * min(1.0, 0.5 / np.linalg.norm(new))),
            expected.errors.at[j].set(latest[j] + 0.05 * min(mass, 1.0) * (error - latest[j])),
        )
    before = MultiplierState(jnp.asarray(sums), jnp.asarray(latest))
    after = multipliers.updated(before, *map(jnp.asarray, (targets, errors, amounts)))
    np.testing.assert_allclose(after.sums, expected.sums, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(after.errors, expected.errors, rtol=1e-4, atol=1e-6)
