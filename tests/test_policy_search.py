"""A robot as a problem to search in: hopper, tiny nets, episodes of ten steps."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ppga
from ppga import ArchiveConfig, NetworkConfig, PPOConfig, SearchConfig
from ppga.algorithms import PPGA, PolicySearch
from ppga.algorithms.base import AT_ONCE
from ppga.algorithms.policy_search import SearchState, scales
from ppga.archives import ArchivePair
from ppga.archives.pair import elites_of
from ppga.learners.vppo import Returns, StdMode
from ppga.policies import Policy
from ppga.runs.loop import to_archive
from ppga.tasks import make_task
from ppga.tasks.locomotion import Hopper

SEARCH = SearchConfig(branches=3, episodes=2, jacobian_updates=1, walk_updates=2, emitters=2, sigma0=0.5)
PPO = PPOConfig(environments=8, rollout_length=6, epochs=1, minibatches=2, initial_std=0.5, target_kl=0.0)


@cache
def problem(std: StdMode = "learnt") -> PolicySearch:
    task = make_task("hopper", episode_length=10)
    return PolicySearch(task, SEARCH, replace(PPO, std=std), NetworkConfig((8,), (8,)))


@cache
def start() -> SearchState:
    return problem().start(jax.random.key(0))


def fresh() -> SearchState:
    """The start; rollouts give the environments' memory away, so they get a copy."""
    state: SearchState = jax.tree.map(jnp.copy, start())
    return state


def algorithm() -> PPGA:
    archives = ArchivePair(
        problem().solution_size,
        problem().archive_shape,
        problem().measure_ranges,
        problem().fields,
        0.0,
        ArchiveConfig(),
    )
    one = PPGA(problem(), SEARCH, archives, 0)
    one.search = fresh()
    return one


def test_the_start_has_seen_one_rollout() -> None:
    state = fresh()
    assert problem().solutions(state).shape == (2, problem().solution_size)
    assert (problem().solutions(state)[0] != problem().solutions(state)[1]).any()
    np.testing.assert_array_equal(state.policies.observation.count, [4 * 6, 4 * 6])
    np.testing.assert_array_equal(state.returns.count, [4 * 6, 4 * 6])


def test_gradients_leave_the_search_policies_as_they_are() -> None:
    before = jax.tree.map(np.asarray, fresh())
    after, jacobian, effort = problem().jacobian(fresh(), jax.random.key(1))
    assert jacobian.shape == (2, 2, problem().solution_size)
    assert (np.linalg.norm(jacobian, axis=2) > 1e-4).all()
    assert not np.allclose(jacobian[0, 0], jacobian[0, 1]), "each objective has its own"
    jax.tree.map(
        np.testing.assert_array_equal, (after.policies, after.returns), (before.policies, before.returns)
    )
    for mine, theirs in zip(jax.tree.leaves(after.worlds), jax.tree.leaves(before.worlds), strict=True):
        np.testing.assert_array_equal(mine, theirs, err_msg="gradients are taken aside")
    changed = np.abs(np.asarray(after.skills.critic) - before.skills.critic).max(axis=2) > 0
    np.testing.assert_array_equal(changed, [[True, True, False]] * 2)
    assert effort.env_steps == 8 * 6


def test_a_walk_moves_policies_and_teaches_normalisers() -> None:
    before = jax.tree.map(np.asarray, fresh())
    after, effort = problem().walk(fresh(), np.array([[1.0, 0.0], [0.5, -2.0]]), jax.random.key(1))
    assert (np.abs(problem().solutions(after) - before.policies.parameters).max(axis=1) > 1e-4).all()
    np.testing.assert_array_equal(
        after.policies.observation.count, before.policies.observation.count + 2 * 4 * 6
    )
    np.testing.assert_array_equal(after.returns.count, before.returns.count + 2 * 4 * 6)
    changed = np.abs(np.asarray(after.skills.critic) - before.skills.critic).max(axis=2) > 0
    np.testing.assert_array_equal(changed, [[False, False, True]] * 2)
    assert effort.env_steps == 2 * 8 * 6


def test_a_scaled_walk_weighs_terms_by_the_spread_of_their_returns() -> None:
    """Raw weights divided by the spreads, walked raw, are the scaled walk."""
    raw = PolicySearch(problem().task, replace(SEARCH, mix="raw"), PPO, NetworkConfig((8,), (8,)))
    raw.vppo = problem().vppo  # what is compiled already
    weights = np.array([[1.0, 0.5], [1.0, -1.0]])

    def state() -> SearchState:
        covariance = jnp.array([[[4.0, 0.1], [0.1, 0.25]], [[1.0, 0.0], [0.0, 9.0]]])
        return replace(fresh(), returns=Returns(jnp.ones((2, 2)), covariance, jnp.full(2, 24.0)))

    scaled, _ = problem().walk(state(), weights, jax.random.key(1))
    same, _ = raw.walk(state(), weights / [[2.0, 0.5], [1.0, 3.0]], jax.random.key(1))
    np.testing.assert_allclose(problem().solutions(scaled), problem().solutions(same), atol=1e-6)
    other, _ = raw.walk(state(), weights, jax.random.key(1))
    assert not np.allclose(problem().solutions(scaled), problem().solutions(other), atol=1e-6)


def test_an_objective_that_never_varied_has_no_say_in_the_walk() -> None:
    covariance = jnp.array([[[4.0, 0.0], [0.0, 1e-12]], [[1.0, 0.0], [0.0, 0.04]]])
    returns = Returns(jnp.array([[50.0, 50.0], [0.0, 50.0]]), covariance, jnp.full(2, 24.0))
    np.testing.assert_allclose(scales(returns), [[0.5, 0.0], [1.0, 0.0]])


@pytest.mark.parametrize(("std", "changes"), [("reset", True), ("fixed", False)])
def test_modes_of_the_action_noise(std: StdMode, changes: bool) -> None:
    search = problem(std)
    walked, _ = search.walk(fresh(), np.array([[1.0, 0.0], [1.0, 0.0]]), jax.random.key(1))
    noise = np.exp(walked.policies.log_std)
    assert (np.abs(noise - 0.5).max() > 1e-4) == changes
    again, _, _ = search.jacobian(walked, jax.random.key(2))
    np.testing.assert_allclose(np.exp(again.policies.log_std), 0.5, rtol=1e-6)


def test_a_judgement_counts_what_was_lived() -> None:
    solutions = np.stack([problem().solutions(fresh())] * 2, axis=1)
    judged = problem().judge(fresh(), solutions, jax.random.key(3))
    again = problem().judge(fresh(), solutions, jax.random.key(3))
    np.testing.assert_array_equal(judged.objective, again.objective)
    assert judged.objective.shape == (4,)
    assert judged.measures.shape == (4, 1)
    assert judged.episodes == 4 * 2
    assert 0 < judged.env_steps <= 8 * 10


def test_a_policy_that_is_not_finite_is_rejected_and_the_others_are_not_touched() -> None:
    one = algorithm()
    theta = problem().solutions(one.search)
    solutions = np.stack([theta, theta + 0.01, theta * np.nan], axis=1)
    judged = one.judge(solutions, jax.random.key(3))
    bad = np.array([False, False, True] * 2)
    assert np.isnan(judged.objective[bad]).all()
    assert np.isfinite(judged.objective[~bad]).all()
    added = one.guide(solutions, judged, np.arange(6).reshape(2, 3))
    assert one.keep(solutions, judged, jax.random.key(4)).sum() > 0
    assert one.nonfinite == 2
    assert np.isnan(added.improvement[bad]).all()
    assert not added.entered[bad].any()
    assert np.isfinite(to_archive(one).elites["solution"]).all()


def test_the_archive_rules_the_action_noise_where_told() -> None:
    state = fresh()
    assert problem().stir(state, np.array([2.0, 0.5])) is state, "it is learnt"
    ruled = problem("archive")
    stirred = ruled.stir(state, np.array([1.1, 1 / 1.1])).policies.log_std
    np.testing.assert_allclose(
        stirred - state.policies.log_std, np.log([[1.1] * 3, [1 / 1.1] * 3]), rtol=1e-4
    )
    wild = ruled.stir(state, np.array([1e3, 1e-3])).policies.log_std
    np.testing.assert_allclose(np.exp(wild), [[1.0] * 3, [0.1] * 3], rtol=1e-5)


def test_elites_carry_all_they_need() -> None:
    one = algorithm()
    one.step()
    before = problem().kept(one.search)
    one.step()
    archive = to_archive(one)
    assert len(archive)
    for cell in archive.elites["index"]:
        elite = archive.elite(int(cell))
        policy = Policy.of_elite(elite)
        seen = np.random.default_rng(0).standard_normal((5, 11)).astype(np.float32) * 3
        expected = np.clip(policy.mean_action(problem().vppo.actor, jnp.asarray(seen)), -1, 1)
        np.testing.assert_allclose(archive.policy(int(cell))(seen), expected, atol=1e-5)
    assert before["log_std"].shape == (2, 3)
    newest = archive.elites["observation_count"].max()
    assert newest in (4 * 6, 4 * 6 + 2 * 4 * 6), "normalisers of the search policy at the time of branching"


def test_an_elite_does_alone_what_it_was_archived_with(tmp_path: Path) -> None:
    """From a fixed start, and judged by its mean action, an elite's score is its own: played from its
    file.
    """

    class Same(Hopper):
        name = "same"

        def initial(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:  # noqa: ARG002
            return jnp.asarray(self.model.qpos0, jnp.float32), jnp.zeros(self.model.nv)

    config, budget = ppga.preset("smoke", "hopper")
    task = Same(episode_length=20)
    ppga.train(task, config, budget=budget, output=tmp_path / "run")
    archive = ppga.load_archive(tmp_path / "run")
    for cell in archive.elites["index"][:3]:
        elite, act = archive.elite(int(cell)), archive.policy(int(cell))
        state, step = jax.jit(lambda key: task.reset(key, 1))(jax.random.key(0)), jax.jit(task.step)
        total, touched = 0.0, 0.0
        while not state.finished[0]:
            state = step(state, jnp.asarray(act(np.asarray(state.observation)), jnp.float32))
            total, touched = total + float(state.reward[0]), touched + float(state.proxies[0, 0])
        np.testing.assert_allclose(elite["objective"], total, rtol=1e-3)
        np.testing.assert_allclose(elite["measures"][0], touched / float(state.steps[0]), atol=1e-6)


def test_elites_judged_again_have_the_mean_of_all_their_episodes() -> None:
    one = algorithm()
    one.step()
    one.config = replace(one.config, recheck=3)
    before = {int(cell): dict(to_archive(one).elite(int(cell))) for cell in one.archives.doubtful(3)}
    elites = elites_of(one.archives.result, np.array(list(before)))
    key, episodes = one.key("re-evaluate"), one.config.confirm or one.config.episodes
    slots = AT_ONCE // episodes
    padded = {name: np.resize(values, (slots, *values.shape[1:])) for name, values in elites.items()}
    again = problem().judge_elites(padded, key, episodes, np.arange(slots) < len(before))
    steps, played = one.env_steps, one.episodes
    moved = one.recheck()
    assert one.env_steps == steps + again.env_steps
    assert one.episodes == played + len(before) * episodes
    after = to_archive(one)
    found = 0
    for row, old in enumerate(before.values()):
        objective = (old["objective"] + again.objective[row]) / 2
        same = np.isclose(after.elites["objective"], objective, rtol=1e-5)
        same &= (after.elites["solution"] == old["solution"]).all(axis=1)
        assert not same.any() or after.elites["episodes"][same] == 2 * episodes
        found += int(same.any())
    assert found >= len(before) - moved


def test_a_search_policy_put_at_an_elite_is_that_elite() -> None:
    one = algorithm()
    one.step()
    archive = to_archive(one)
    elite = archive.elite(archive.best())
    worlds = jax.tree.map(np.asarray, one.search.worlds)
    moved = problem().move(one.search, 1, elite, jax.random.key(7))
    steps = np.asarray(moved.worlds.state.steps)
    np.testing.assert_array_equal(steps[:4], worlds.state.steps[:4])
    assert (steps[4:] == 0).all(), "its own environments begin anew"
    assert (worlds.state.steps > 0).any()
    kept = problem().kept(moved)
    np.testing.assert_array_equal(problem().solutions(moved)[1], elite["solution"])
    for name in problem().fields:
        np.testing.assert_array_equal(kept[name][1], elite[name])
    np.testing.assert_array_equal(problem().solutions(moved)[0], problem().solutions(one.search)[0])
