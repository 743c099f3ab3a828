"""Numbers that are not finite are counted, reported, and affect no other episode or learner."""

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import ppga
from ppga.learners.agent import Agent, ReturnStatistics
from ppga.learners.vppo import VPPO
from ppga.physics import Array
from ppga.rollouts import evaluate, record
from ppga.runs import Budget, Iteration
from ppga.runs.display import Lines

from helpers.settings import settings, slider
from helpers.slider import BAD, BAD_START


def left_and_right(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
    """Half of the sliders go to the left, half of them to the right."""
    return jnp.where(jnp.arange(8)[:, None] < 4, -1.0, 1.0)


@pytest.mark.parametrize("corrupted", ["observation", "reward", "proxies"])
def test_a_nonfinite_number_ends_the_episode_of_its_environment_only(corrupted: str) -> None:
    expected = record(slider(), left_and_right, jax.random.key(0), 8, 20)
    recorded = record(slider(corrupted), left_and_right, jax.random.key(0), 8, 20)
    active = np.asarray(recorded.active)
    assert active[:4].all()
    reached = np.asarray(expected.qpos)[4:, 1:, 0] > BAD
    np.testing.assert_array_equal(active[4:, :-1], ~reached)
    assert (active[4:].sum(axis=1) < 19).all(), "all that go to the right reach the bad place"
    for name in ("observation", "reward", "proxies"):
        values, finite = np.asarray(getattr(recorded, name)), np.asarray(getattr(expected, name))
        assert np.isfinite(values).all(), name
        np.testing.assert_array_equal(values[:4], finite[:4], err_msg=name)
        np.testing.assert_array_equal(values[active], finite[active], err_msg=name)


INITIAL = ("initial observation", "initial physics")
"""What is not finite at some starts."""


@pytest.mark.parametrize("corrupted", INITIAL)
def test_an_environment_that_cannot_start_ends_at_once_and_no_other_is_affected(corrupted: str) -> None:
    key, n = jax.random.key(3), 32
    starts = np.asarray(slider().reset(key, n).bodies.qpos)[:, 0]
    bad = starts < BAD_START
    assert 3 < bad.sum() < 20
    state = slider(corrupted).reset(key, n)
    np.testing.assert_array_equal(state.diverged, bad)
    np.testing.assert_array_equal(state.finished, bad)
    assert np.isfinite(state.observation).all()

    def act(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
        return -jnp.sign(observation[:, :1] + 1e-3)

    scores = evaluate(slider(corrupted), act, key, n)
    expected_scores = evaluate(slider(), act, key, n)
    not_started = np.asarray(scores.steps) == 0
    np.testing.assert_array_equal(scores.diverged, not_started)
    assert 0 < not_started.sum() < n
    for name in ("objective", "measures", "steps"):
        values, expected = np.asarray(getattr(scores, name)), np.asarray(getattr(expected_scores, name))
        assert np.isfinite(values).all(), name
        np.testing.assert_array_equal(values[~not_started], expected[~not_started], err_msg=name)

    restarted = slider(corrupted).restart(state, jax.random.key(4))
    np.testing.assert_array_equal(restarted.observation[~bad], state.observation[~bad])
    assert not np.asarray(restarted.finished)[bad].all(), "most get a finite start"


@pytest.mark.parametrize("corrupted", INITIAL)
def test_learning_is_not_affected_by_environments_that_cannot_start(corrupted: str) -> None:
    """Parameters and normalizers do not depend on what the trajectory holds for steps that were not taken."""
    vppo = VPPO(slider(corrupted), (4,), (4,), settings().ppo)  # type: ignore[attr-defined]
    policies = jax.vmap(vppo.init_policy)(jax.random.split(jax.random.key(0), 2))
    learners = jax.vmap(vppo.init_learner)(jax.random.split(jax.random.key(1), 2))
    returns: Any = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), ReturnStatistics.initial(2))
    agents, keys = Agent(policies, returns, learners), jax.random.split(jax.random.key(2), 2)
    _, trajectory = vppo.collect(agents, vppo.init_envs(jax.random.key(3)), keys)
    taken = np.asarray(trajectory.active)
    assert 0 < (~taken).sum() < taken.size / 4
    np.testing.assert_array_equal(np.asarray(trajectory.diverged), ~taken)
    for name in ("observation", "rewards", "action", "returns"):
        assert np.isfinite(np.asarray(getattr(trajectory, name))).all(), name

    def with_other_values(values: Array) -> Array:
        mask = taken.reshape(*taken.shape, *[1] * (values.ndim - 3))
        return jnp.where(mask, values, 7.0)

    changed = ("observation", "noise", "action", "rewards", "returns")
    other = replace(trajectory, **{name: with_other_values(getattr(trajectory, name)) for name in changed})
    assert not np.array_equal(other.observation, trajectory.observation)
    weights = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    updated = [vppo.update(agents, data, weights, keys) for data in (trajectory, other)]
    jax.tree.map(np.testing.assert_array_equal, updated[0], updated[1])
    normalized = [vppo.update_normalizers(agents, data) for data in (trajectory, other)]
    jax.tree.map(np.testing.assert_array_equal, normalized[0], normalized[1])
    normalizer, statistics = normalized[0].policy.normalizer, normalized[0].return_statistics
    for agent in range(2):  # the slow and obvious way
        rows = np.asarray(trajectory.observation)[agent][taken[agent]]
        np.testing.assert_allclose(normalizer.mean[agent], rows.mean(0), rtol=1e-4)
        np.testing.assert_allclose(normalizer.variance[agent], rows.var(0), rtol=1e-4)
        assert normalizer.count[agent] == len(rows)
        expected = np.asarray(trajectory.returns)[agent][taken[agent]].mean(0)
        np.testing.assert_allclose(statistics.mean[agent], expected, rtol=1e-4)


@pytest.mark.parametrize("algorithm", ["ppga", "map-elites", "pga-me", "pbt-me-sac"])
@pytest.mark.parametrize("corrupted", INITIAL)
def test_a_run_whose_environments_sometimes_cannot_start_continues(algorithm: str, corrupted: str) -> None:
    records: list[dict[str, Any]] = []
    outcome = ppga.train(
        slider(corrupted), settings(algorithm), budget=Budget(iterations=3),
        callbacks=[lambda iteration: records.append(iteration.record)],
    )  # fmt: skip
    assert records[-1]["nonfinite"] > 0
    assert len(outcome.archive) > 0
    for name, values in outcome.archive.elites.items():
        assert np.isfinite(values).all(), name
    if algorithm == "ppga":
        assert sum(sum(line["jacobian_nonfinite"]) for line in records) == 0, "no gradient is affected"
        assert sum(sum(line["jacobian_diverged"]) for line in records) > 0


def test_a_run_where_some_rewards_are_not_finite_continues_and_warns() -> None:
    output = io.StringIO()
    records: list[dict[str, Any]] = []
    outcome = ppga.train(
        slider("reward"), settings(), budget=Budget(iterations=8),
        callbacks=[lambda iteration: records.append(iteration.record)],
        display=Lines(Console(file=output, width=200)),
    )  # fmt: skip
    assert records[-1]["nonfinite"] > 0
    assert sum(sum(line["jacobian_diverged"]) for line in records) > 0
    assert sum(sum(line["jacobian_nonfinite"]) for line in records) == 0, "no gradient is affected"
    assert "not finite" in output.getvalue()
    assert len(outcome.archive) > 0
    for name, values in outcome.archive.elites.items():
        assert np.isfinite(values).all(), name


Corrupt = Callable[[Any], Any]


def with_nan(tree: Any, row: int | None = None) -> Any:
    """All arrays of floating-point numbers with NaN in one row, or everywhere."""
    place: Any = ... if row is None else row
    return jax.tree.map(
        lambda leaf: leaf.at[place].set(jnp.nan) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree
    )


def part_with_nan(path: str, row: int | None = None) -> Corrupt:
    """A function that puts NaN in a part of a state, given by a dotted path, in one row or everywhere."""

    def corrupt(state: Any) -> Any:
        first, _, rest = path.partition(".")
        part = getattr(state, first)
        changed = part_with_nan(rest, row)(part) if rest else with_nan(part, row)
        return replace(state, **{first: changed})

    return corrupt


CORRUPTIONS: dict[str, list[Corrupt]] = {
    "ppga": [
        part_with_nan("policy.parameters"),
        part_with_nan("policy.normalizer"),
        part_with_nan("learners.critic", 1),
        part_with_nan("learners.optimizer", 1),
        part_with_nan("return_statistics.covariance", 1),
    ],
    "td3ga": [part_with_nan("critics.parameters", 0), part_with_nan("theta")],
    "pbt-me-sac": [part_with_nan("agents.actor", 1), part_with_nan("agents.critics", 1)],
}


@pytest.mark.parametrize("algorithm", CORRUPTIONS)
def test_a_nonfinite_learner_is_reinitialized(algorithm: str) -> None:
    corruptions = iter(CORRUPTIONS[algorithm])
    records: list[dict[str, Any]] = []

    def corrupt_every_other_iteration(iteration: Iteration) -> None:
        records.append(iteration.record)
        state, problem = iteration.algorithm.problem_state, iteration.algorithm.problem
        leaves = jax.tree.leaves([getattr(state, part) for part in problem.learner_parts])
        assert all(np.isfinite(leaf).all() for leaf in leaves), "the learner was reinitialized"
        if len(records) % 2:
            iteration.algorithm.problem_state = next(corruptions, lambda state: state)(state)

    # no exchange, which may replace the agent first
    changes = {"worst_share": 0.0, "archive_share": 0.0} if algorithm == "pbt-me-sac" else {}
    budget = Budget(iterations=2 * len(CORRUPTIONS[algorithm]) + 1)
    outcome = ppga.train(
        slider(), settings(algorithm, **changes), budget=budget, callbacks=[corrupt_every_other_iteration]
    )
    for before, corrupted in zip(records[::2], records[1::2], strict=False):
        assert corrupted["nonfinite"] > before["nonfinite"], "it is counted"
        if algorithm != "pbt-me-sac":
            assert corrupted["restarted"] >= 1
    assert np.isfinite(records[-1]["search_objective"]).all()
    assert records[-1]["evaluations"] > records[-2]["evaluations"]
    for name, values in outcome.archive.elites.items():
        assert np.isfinite(values).all(), name
