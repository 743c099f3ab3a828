"""A task as a problem with gradients, by PPO: hopper with small networks and episodes of ten steps."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ppga
from ppga import NetworkConfig, PPGAConfig, PPOConfig
from ppga.algorithms import PPGA
from ppga.archives import EliteArchive, SoftArchiveConfig
from ppga.learners.agent import ReturnStatistics
from ppga.learners.ppo_config import StdMode
from ppga.policies.policy import Policy
from ppga.problems import PPOProblem, PPOSearchState
from ppga.problems.ppo import objective_scales
from ppga.runs.results import to_archive
from ppga.search import Confirmation, ConfirmationConfig, StochasticEvaluationConfig
from ppga.strategies import StrategyConfig
from ppga.tasks import make_task
from ppga.tasks.locomotion import Hopper

NETWORK = NetworkConfig((8,), (8,))
PPO = PPOConfig(environments=8, rollout_length=6, epochs=1, minibatches=2, initial_std=0.5, target_kl=0.0)
ROLLOUT = 8 * 6
"""Steps of a rollout."""
CONFIG = PPGAConfig(
    evaluation=StochasticEvaluationConfig(episodes=2),
    confirm=None,
    archive=SoftArchiveConfig(),
    network=NETWORK,
    branches=3,
    jacobian_updates=1,
    walk_updates=2,
    strategy=StrategyConfig(sigma0=0.5),
    ppo=PPO,
    objective=None,
    phases=None,
    legs=None,
)
CONFIRMATION = ConfirmationConfig(episodes=2, max_measure_std=0.0, recheck=0)


@cache
def problem(std: StdMode = "learned") -> PPOProblem:
    return PPOProblem(make_task("hopper", episode_length=10), replace(PPO, std=std), NETWORK)


@cache
def initial_state() -> PPOSearchState:
    return problem().init(jax.random.key(0))


def new_state() -> PPOSearchState:
    """A copy of the initial state; a rollout donates the environments' buffers."""
    state: PPOSearchState = jax.tree.map(jnp.copy, initial_state())
    return state


def new_algorithm(confirm: ConfirmationConfig | None = None) -> PPGA:
    elites = EliteArchive(
        problem().solution_size,
        problem().archive_shape,
        problem().measure_ranges,
        problem().fields,
        0.0,
        CONFIG.archive,
    )
    algorithm = PPGA(problem(), replace(CONFIG, confirm=confirm), elites)
    algorithm.problem_state = new_state()
    return algorithm


def walk(state: PPOSearchState, weights: Any, scaled: bool = False) -> tuple[PPOSearchState, Any]:
    return problem().walk(state, np.array(weights), jax.random.key(1), 2, scaled)


def changed_critics(after: PPOSearchState, before: PPOSearchState) -> list[bool]:
    """Which critics have changed: those of the reward, of the measure, and of the walk."""
    change = np.asarray(after.learners.critic) - before.learners.critic
    return [bool(changed) for changed in np.abs(change).max(axis=1) > 0]


def test_a_rollout_initializes_the_normalizers() -> None:
    state = new_state()
    assert problem().solution(state).shape == (problem().solution_size,)
    other = problem().init(jax.random.key(1))
    assert (problem().solution(state) != problem().solution(other)).any()
    assert state.policy.normalizer.count == ROLLOUT
    assert state.return_statistics.count == ROLLOUT


def test_the_jacobian_does_not_change_the_search_policy() -> None:
    before = jax.tree.map(np.asarray, new_state())
    after, jacobian, report = problem().jacobian(new_state(), jax.random.key(1), 1)
    assert jacobian.shape == (2, problem().solution_size)
    assert (np.linalg.norm(jacobian, axis=1) > 1e-4).all()
    assert not np.allclose(jacobian[0], jacobian[1]), "each objective has its own gradient"
    jax.tree.map(
        np.testing.assert_array_equal,
        (after.policy, after.return_statistics, after.envs),  # agents learn in copies of the environments
        (before.policy, before.return_statistics, before.envs),
    )
    assert changed_critics(after, before) == [True, True, False]
    assert report.env_steps == ROLLOUT


@pytest.mark.parametrize("weights", [[1.0, 0.0], [0.5, -2.0]])
def test_a_walk_moves_the_search_policy_and_updates_its_normalizers(weights: list[float]) -> None:
    before = jax.tree.map(np.asarray, new_state())
    after, report = walk(new_state(), weights)
    assert np.abs(problem().solution(after) - before.policy.parameters).max() > 1e-4
    assert after.policy.normalizer.count == before.policy.normalizer.count + 2 * ROLLOUT
    assert after.return_statistics.count == before.return_statistics.count + 2 * ROLLOUT
    assert changed_critics(after, before) == [False, False, True]
    assert report.env_steps == 2 * ROLLOUT


@pytest.mark.parametrize(
    ("covariance", "weights", "std"),
    [
        ([[4.0, 0.1], [0.1, 0.25]], [1.0, 0.5], [2.0, 0.5]),
        ([[1.0, 0.0], [0.0, 9.0]], [1.0, -1.0], [1.0, 3.0]),
    ],
)
def test_a_scaled_walk_divides_weights_by_the_stds_of_returns(
    covariance: list[list[float]], weights: list[float], std: list[float]
) -> None:
    """A raw walk with the weights divided by the standard deviations is the scaled walk."""

    def state() -> PPOSearchState:
        statistics = ReturnStatistics(jnp.ones(2), jnp.array(covariance), jnp.float32(24.0))
        return replace(new_state(), return_statistics=statistics)

    scaled, _ = walk(state(), weights, scaled=True)
    same, _ = walk(state(), np.divide(weights, std))
    np.testing.assert_allclose(problem().solution(scaled), problem().solution(same), atol=1e-6)
    raw, _ = walk(state(), weights)
    assert not np.allclose(problem().solution(scaled), problem().solution(raw), atol=1e-6)


@pytest.mark.parametrize(
    ("mean", "variances", "scales"),
    [([50.0, 50.0], [4.0, 1e-12], [0.5, 0.0]), ([0.0, 50.0], [1.0, 0.04], [1.0, 0.0])],
)
def test_an_objective_that_never_varied_has_no_weight_in_a_scaled_walk(
    mean: list[float], variances: list[float], scales: list[float]
) -> None:
    statistics = ReturnStatistics(jnp.array(mean), jnp.diag(jnp.array(variances)), jnp.float32(24.0))
    np.testing.assert_allclose(objective_scales(statistics), scales)


@pytest.mark.parametrize(("std", "changes"), [("reset", True), ("fixed", False)])
def test_modes_of_the_exploration_noise(std: StdMode, changes: bool) -> None:
    moved, _ = problem(std).walk(new_state(), np.array([1.0, 0.0]), jax.random.key(1), 2, False)
    noise = np.exp(moved.policy.log_std)
    assert (np.abs(noise - 0.5).max() > 1e-4) == changes
    after, _, _ = problem(std).jacobian(moved, jax.random.key(2), 1)
    np.testing.assert_allclose(np.exp(after.policy.log_std), 0.5, rtol=1e-6)


def test_the_exploration_noise_is_scaled_within_bounds() -> None:
    state = new_state()
    for factor in (1.1, 1 / 1.1):
        scaled = problem().scale_exploration_noise(state, factor, 0.1, 1.0)
        change = scaled.policy.log_std - state.policy.log_std
        np.testing.assert_allclose(change, np.log([factor] * 3), rtol=1e-4)
    for factor, bound in ((1e3, 1.0), (1e-3, 0.1)):
        scaled = problem().scale_exploration_noise(state, factor, 0.1, 1.0)
        np.testing.assert_allclose(np.exp(scaled.policy.log_std), [bound] * 3, rtol=1e-5)


def test_an_evaluation_counts_its_policies_episodes_and_steps() -> None:
    solutions = np.stack([problem().solution(new_state())] * 4)
    scores = problem().evaluate(new_state(), solutions, jax.random.key(3), 2)
    again = problem().evaluate(new_state(), solutions, jax.random.key(3), 2)
    np.testing.assert_array_equal(scores.objective, again.objective)
    assert scores.objective.shape == (4,)
    assert scores.measures.shape == scores.measures_std.shape == (4, 1)
    np.testing.assert_array_equal(scores.length, np.full(4, 10), "a hopper does not fall within ten steps")
    np.testing.assert_array_equal(scores.survival, np.ones(4))
    assert scores.policies == 4
    assert scores.episodes == 4 * 2
    assert 0 < scores.env_steps <= 8 * 10
    active = np.array([True, False, True, False])
    half = problem().evaluate(new_state(), solutions, jax.random.key(3), 2, active)
    np.testing.assert_array_equal(half.objective[active], scores.objective[active])
    assert (half.policies, half.episodes) == (2, 2 * 2)


def test_policies_that_are_not_finite_are_rejected_and_others_are_not() -> None:
    algorithm = new_algorithm()
    theta = problem().solution(algorithm.problem_state)
    solutions = np.stack([theta, theta + 0.01, theta * np.nan] * 2)
    scores = algorithm.evaluate(solutions)
    bad = np.array([False, False, True] * 2)
    assert np.isnan(scores.objective[bad]).all()
    assert np.isfinite(scores.objective[~bad]).all()
    added = algorithm.soft.add(solutions, scores.objective, scores.measures)
    assert algorithm.add_elites(solutions, scores) > 0
    assert algorithm.nonfinite == 2
    assert np.isnan(added.improvement[bad]).all()
    assert not added.entered[bad].any()
    assert np.isfinite(to_archive(algorithm).elites["solution"]).all()


def test_elites_are_stored_with_everything_that_their_policies_need() -> None:
    algorithm = new_algorithm()
    algorithm.step()
    assert problem().stored_fields(algorithm.problem_state)["log_std"].shape == (3,)
    algorithm.step()
    archive = to_archive(algorithm)
    assert len(archive)
    observation = np.random.default_rng(0).standard_normal((5, 11)).astype(np.float32) * 3
    for cell in archive.elites["index"]:
        policy = Policy.of_elite(archive.elite(int(cell)))
        expected = np.clip(policy.mean_action(problem().vppo.actor, jnp.asarray(observation)), -1, 1)
        np.testing.assert_allclose(archive.policy(int(cell))(observation), expected, atol=1e-5)
    # normalizers of the search policy at the time of branching
    assert archive.elites["observation_count"].max() in (ROLLOUT, ROLLOUT + 2 * ROLLOUT)


def test_an_elite_from_a_file_reproduces_its_scores(tmp_path: Path) -> None:
    """From a fixed start, and with mean actions, its scores are exact."""

    class FixedStart(Hopper):
        name = "fixed-start"

        def initial(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:  # noqa: ARG002
            return jnp.asarray(self.model.qpos0, jnp.float32), jnp.zeros(self.model.nv)

    config, budget = ppga.preset("smoke", "hopper")
    task = FixedStart(episode_length=20)
    ppga.train(task, config, budget=budget, output=tmp_path / "run")
    archive = ppga.load_archive(tmp_path / "run")
    for cell in archive.elites["index"][:3]:
        elite, act = archive.elite(int(cell)), archive.policy(int(cell))
        state, step = jax.jit(lambda key: task.reset(key, 1))(jax.random.key(0)), jax.jit(task.step)
        reward, contact = 0.0, 0.0
        while not state.finished[0]:
            state = step(state, jnp.asarray(act(np.asarray(state.observation)), jnp.float32))
            reward, contact = reward + float(state.reward[0]), contact + float(state.proxies[0, 0])
        np.testing.assert_allclose(elite["objective"], reward, rtol=1e-3)
        np.testing.assert_allclose(elite["measures"][0], contact / float(state.steps[0]), atol=1e-6)


def test_reevaluated_elites_have_the_mean_scores_of_all_their_episodes() -> None:
    algorithm = new_algorithm(CONFIRMATION)
    algorithm.step()
    episodes = CONFIRMATION.episodes
    cells = algorithm.elites.least_evaluated(3)
    before = {int(cell): dict(to_archive(algorithm).elite(int(cell))) for cell in cells}
    key, old = algorithm.key("re-evaluate"), algorithm.elites.elites(cells)
    candidate = {name: values[:1] for name, values in old.items() if name in ("solution", *problem().fields)}
    size = 1 + len(before)  # of the batch
    padded = {name: np.resize(values, (size, *values.shape[1:])) for name, values in old.items()}
    again = problem().evaluate_elites(
        padded, jax.random.fold_in(key, 0), episodes, np.arange(size) < len(before)
    )
    steps, played = algorithm.env_steps, algorithm.episodes
    config = replace(CONFIRMATION, recheck=3)
    confirmation = Confirmation(config, 2, problem(), algorithm.elites, algorithm.count)
    rejected = replace(again.rows(slice(1)), objective=np.array([np.nan], np.float32))
    confirmation.confirm(candidate, rejected, key)
    moved = confirmation.moved
    assert algorithm.env_steps == steps + again.env_steps
    assert algorithm.episodes == played + len(before) * episodes
    after = to_archive(algorithm)
    count = 0
    for row, elite in enumerate(before.values()):
        objective = (elite["objective"] + again.objective[row]) / 2
        same = np.isclose(after.elites["objective"], objective, rtol=1e-5)
        same &= (after.elites["solution"] == elite["solution"]).all(axis=1)
        assert not same.any() or after.elites["episodes"][same] == 2 * episodes
        count += int(same.any())
    assert count >= len(before) - moved


def test_a_search_policy_restarted_at_an_elite_equals_the_elite() -> None:
    algorithm = new_algorithm()
    algorithm.step()
    archive = to_archive(algorithm)
    elite = archive.elite(archive.best())
    assert (np.asarray(algorithm.problem_state.envs.state.steps) > 0).any()
    restarted = problem().restart(algorithm.problem_state, elite, jax.random.key(7))
    assert (np.asarray(restarted.envs.state.steps) == 0).all(), "in new environments"
    fields = problem().stored_fields(restarted)
    np.testing.assert_array_equal(problem().solution(restarted), elite["solution"])
    for name in problem().fields:
        np.testing.assert_array_equal(fields[name], elite[name])


def test_a_placed_search_policy_keeps_its_learners_and_updates_its_normalizers() -> None:
    before = jax.tree.map(np.asarray, new_state())
    solution = problem().solution(new_state()) + 0.1
    after, report = problem().place(new_state(), solution, jax.random.key(7))
    np.testing.assert_array_equal(problem().solution(after), solution)
    jax.tree.map(np.testing.assert_array_equal, after.learners, before.learners)
    np.testing.assert_array_equal(after.policy.log_std, before.policy.log_std)
    assert after.policy.normalizer.count == before.policy.normalizer.count + ROLLOUT
    assert after.return_statistics.count == before.return_statistics.count + ROLLOUT
    assert report.env_steps == ROLLOUT
