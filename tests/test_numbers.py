"""Numbers that go bad, wherever they come from, stay where they are: counted, shown, and left behind."""

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
from ppga.learners.vppo import VPPO, Agent, Returns
from ppga.physics import Array
from ppga.rollouts import evaluate, record
from ppga.runs import Budget, Iteration
from ppga.runs.display import Lines
from slider import BAD, BAD_START, Slider


def slider(spoilt: str = "") -> Slider:
    kind: type[Slider] = type("Spoilt" + spoilt.title().replace(" ", ""), (Slider,), {"spoilt": spoilt})
    return kind()


def to_and_fro(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
    """Half of the sliders to the left, half of them to the right."""
    return jnp.where(jnp.arange(8)[:, None] < 4, -1.0, 1.0)


@pytest.mark.parametrize("spoilt", ["observation", "reward", "proxies"])
def test_one_environments_bad_numbers_end_its_episode_and_no_other(spoilt: str) -> None:
    sound = record(slider(), to_and_fro, jax.random.key(0), 8, 20)
    found = record(slider(spoilt), to_and_fro, jax.random.key(0), 8, 20)
    lived = np.asarray(found.alive)
    assert lived[:4].all()
    reached = np.asarray(sound.qpos)[4:, 1:, 0] > BAD
    np.testing.assert_array_equal(lived[4:, :-1], ~reached)
    assert (lived[4:].sum(axis=1) < 19).all(), "all that go right come to the bad place"
    for name in ("observation", "reward", "proxies"):
        values, good = np.asarray(getattr(found, name)), np.asarray(getattr(sound, name))
        assert np.isfinite(values).all(), name
        np.testing.assert_array_equal(values[:4], good[:4], err_msg=name)
        np.testing.assert_array_equal(values[lived], good[lived], err_msg=name)


INITIAL = ("initial observation", "initial physics")
"""Where a start goes bad."""


@pytest.mark.parametrize("spoilt", INITIAL)
def test_an_environment_that_cannot_start_ends_at_once_and_no_other_is_affected(spoilt: str) -> None:
    key, n = jax.random.key(3), 32
    starts = np.asarray(slider().reset(key, n).bodies.qpos)[:, 0]
    bad = starts < BAD_START
    assert 3 < bad.sum() < 20
    state = slider(spoilt).reset(key, n)
    np.testing.assert_array_equal(state.diverged, bad)
    np.testing.assert_array_equal(state.finished, bad)
    assert np.isfinite(state.observation).all()

    def act(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
        return -jnp.sign(observation[:, :1] + 1e-3)

    scores = evaluate(slider(spoilt), act, key, n)
    sound = evaluate(slider(), act, key, n)
    np.testing.assert_array_equal(scores.diverged, evaluated_bad := np.asarray(scores.steps) == 0)
    assert 0 < evaluated_bad.sum() < n
    for name in ("objective", "measures", "steps"):
        found, expected = np.asarray(getattr(scores, name)), np.asarray(getattr(sound, name))
        assert np.isfinite(found).all(), name
        np.testing.assert_array_equal(found[~evaluated_bad], expected[~evaluated_bad], err_msg=name)

    restarted = slider(spoilt).restart(state, jax.random.key(4))
    np.testing.assert_array_equal(restarted.observation[~bad], state.observation[~bad])
    assert not np.asarray(restarted.finished)[bad].all(), "most find a sound start"


@pytest.mark.parametrize("spoilt", INITIAL)
def test_learning_is_not_affected_by_environments_that_cannot_start(spoilt: str) -> None:
    """Whatever stands in for the step that was not taken: parameters and normalizers are the same."""
    vppo = VPPO(slider(spoilt), (4,), (4,), settings().ppo)
    policies = jax.vmap(vppo.init_policy)(jax.random.split(jax.random.key(0), 2))
    optimizer = jax.vmap(vppo.init_skill)(jax.random.split(jax.random.key(1), 2))
    returns: Any = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), Returns.unknown(2))
    agents, keys = Agent(policies, returns, optimizer), jax.random.split(jax.random.key(2), 2)
    _, seen = vppo.collect(agents, vppo.init_worlds(jax.random.key(3)), keys)
    taken = np.asarray(seen.active)
    assert 0 < (~taken).sum() < taken.size / 4
    np.testing.assert_array_equal(np.asarray(seen.diverged), ~taken)
    for name in ("observation", "rewards", "action", "returns"):
        assert np.isfinite(np.asarray(getattr(seen, name))).all(), name

    def elsewhere(values: Array) -> Array:
        there = taken.reshape(*taken.shape, *[1] * (values.ndim - 3))
        return jnp.where(there, values, 7.0)

    changed = ("observation", "noise", "action", "rewards", "returns")
    other = replace(seen, **{name: elsewhere(getattr(seen, name)) for name in changed})
    assert not np.array_equal(other.observation, seen.observation)
    weights = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    learned = [vppo.update(agents, one, weights, keys) for one in (seen, other)]
    jax.tree.map(np.testing.assert_array_equal, learned[0], learned[1])
    observed = [vppo.observe(agents, one) for one in (seen, other)]
    jax.tree.map(np.testing.assert_array_equal, observed[0], observed[1])
    for agent in range(2):  # the slow and obvious way
        rows = np.asarray(seen.observation)[agent][taken[agent]]
        np.testing.assert_allclose(observed[0].policy.observation.mean[agent], rows.mean(0), rtol=1e-4)
        np.testing.assert_allclose(observed[0].policy.observation.variance[agent], rows.var(0), rtol=1e-4)
        assert observed[0].policy.observation.count[agent] == len(rows)
        np.testing.assert_allclose(
            observed[0].returns.mean[agent], np.asarray(seen.returns)[agent][taken[agent]].mean(0), rtol=1e-4
        )


@pytest.mark.parametrize("algorithm", ["ppga", "map-elites", "pga-me", "pbt-me-sac"])
@pytest.mark.parametrize("spoilt", INITIAL)
def test_a_run_whose_environments_sometimes_cannot_start_continues(algorithm: str, spoilt: str) -> None:
    records: list[dict[str, Any]] = []
    outcome = ppga.train(
        slider(spoilt), settings(algorithm), budget=Budget(iterations=3),
        callbacks=[lambda iteration: records.append(iteration.record)],
    )  # fmt: skip
    assert records[-1]["nonfinite"] > 0
    assert len(outcome.archive) > 0
    for name, values in outcome.archive.elites.items():
        assert np.isfinite(values).all(), name
    if algorithm == "ppga":
        assert sum(sum(one["jacobian_nonfinite"]) for one in records) == 0, "no gradient is affected"
        assert sum(sum(one["jacobian_diverged"]) for one in records) > 0


def settings(algorithm: str = "ppga", **search: Any) -> ppga.PPGAConfig:
    config, _ = ppga.preset("smoke", slider(), algorithm)
    ppo = replace(config.ppo, environments=16, rollout_length=16)
    return replace(config, search=replace(config.search, **search), ppo=ppo)


def test_a_run_in_a_world_with_bad_places_goes_on_and_tells() -> None:
    output = io.StringIO()
    records: list[dict[str, Any]] = []
    outcome = ppga.train(
        slider("reward"), settings(), budget=Budget(iterations=8),
        callbacks=[lambda iteration: records.append(iteration.record)],
        display=Lines(Console(file=output, width=200)),
    )  # fmt: skip
    assert records[-1]["nonfinite"] > 0
    assert sum(sum(one["jacobian_diverged"]) for one in records) > 0
    assert sum(sum(one["jacobian_nonfinite"]) for one in records) == 0, "gradients never saw them"
    assert "not finite" in output.getvalue()
    assert len(outcome.archive) > 0
    for name, values in outcome.archive.elites.items():
        assert np.isfinite(values).all(), name


Injure = Callable[[Any], Any]


def _nan(tree: Any, row: int = 0) -> Any:
    """With one row of every array of numbers gone bad."""
    return jax.tree.map(
        lambda leaf: leaf.at[row].set(jnp.nan) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree
    )


def _part(part: str, name: str, row: int = 0) -> Injure:
    """Makes what a part of the state calls so bad, in one row."""

    def injure(state: Any) -> Any:
        whole = getattr(state, part)
        return replace(state, **{part: replace(whole, **{name: _nan(getattr(whole, name), row)})})

    return injure


INJURIES: dict[str, list[Injure]] = {
    "ppga": [
        _part("policies", "parameters", 1),
        _part("policies", "observation", 1),
        _part("skills", "critic", 1),
        _part("skills", "adam", 1),
        _part("returns", "covariance", 1),
    ],
    "td3ga": [_part("critics", "parameters"), lambda state: replace(state, theta=_nan(state.theta))],
    "pbt-me-sac": [_part("agents", "actor", 1), _part("agents", "critics", 1)],
}


@pytest.mark.parametrize("algorithm", INJURIES)
def test_a_learner_that_is_lost_begins_anew(algorithm: str) -> None:
    injuries = iter(INJURIES[algorithm])
    records: list[dict[str, Any]] = []

    def watch(iteration: Iteration) -> None:
        records.append(iteration.record)
        state = iteration.algorithm.search
        leaves = jax.tree.leaves([getattr(state, part) for part in iteration.algorithm.problem.learners])  # type: ignore[attr-defined]
        assert all(np.isfinite(leaf).all() for leaf in leaves), "what was lost is mended"
        if len(records) % 2:
            iteration.algorithm.search = next(injuries, lambda state: state)(state)

    config = settings(algorithm, emitters=2 if algorithm == "ppga" else 1)
    # no exchange, which may happen to replace the agent first
    config = replace(config, sac=replace(config.sac, worst=0.0, archived=0.0))
    budget = Budget(iterations=2 * len(INJURIES[algorithm]) + 1)
    outcome = ppga.train(slider(), config, budget=budget, callbacks=[watch])
    for before, injured in zip(records[::2], records[1::2], strict=False):
        assert injured["nonfinite"] > before["nonfinite"], "it is counted"
        if algorithm != "pbt-me-sac":
            assert injured["restarted"] >= 1
    assert np.isfinite(records[-1]["search_objective"]).all()
    assert records[-1]["evaluations"] > records[-2]["evaluations"]
    for name, values in outcome.archive.elites.items():
        assert np.isfinite(values).all(), name
