"""Complete PPO updates, ppga's own and those of the preset paper-scripts, against a slow NumPy version."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ppga
from ppga import InputError, NetworkConfig
from ppga.learners.agent import Agent, ReturnStatistics, Trajectory
from ppga.learners.ppo import PPOConfig
from ppga.learners.vppo import VPPO
from ppga.policies.normalizer import NormalizerState
from ppga.problems import PPOProblem, PPOSearchState
from ppga.search import ObjectiveConfig
from ppga.tasks import make_task

from helpers import slow_ppo
from helpers.slow_ppo import Learner

ENVIRONMENTS, STEPS, OBJECTIVES = 4, 8, 3
SMALL: dict[str, Any] = {
    "environments": 3 * ENVIRONMENTS, "rollout_length": STEPS, "epochs": 3, "minibatches": 4,
    "learning_rate": 3e-3, "max_gradient_norm": 0.7,
}  # fmt: skip
OURS = replace(PPOConfig(), **SMALL)
AUTHORS = replace(ppga.preset("paper-scripts", "walker2d")[0].ppo, **SMALL)  # type: ignore[attr-defined]
VARIANTS = {"ours": OURS, "authors": AUTHORS}


@cache
def learner(variant: str, target_kl: float) -> VPPO:
    return VPPO(make_task("halfcheetah"), (8, 8), (8,), replace(VARIANTS[variant], target_kl=target_kl))


def random_agents(vppo: VPPO, count: int) -> Agent:
    """Agents whose networks, noise and normalizers are all different."""
    rng, keys = np.random.default_rng(0), jax.random.split(jax.random.key(0), count)
    size, objectives = vppo.task.observation_size, 1 if vppo.config.normalize == "returns" else OBJECTIVES
    mixing = rng.standard_normal((count, objectives, objectives))
    policies = jax.vmap(vppo.init_policy)(keys)
    policies = replace(
        policies,
        parameters=policies.parameters + 0.1 * rng.standard_normal(policies.parameters.shape),
        log_std=jnp.asarray(0.3 * rng.standard_normal(policies.log_std.shape), jnp.float32),
        normalizer=NormalizerState(
            jnp.asarray(rng.standard_normal((count, size)), jnp.float32),
            jnp.asarray(rng.uniform(0.5, 2, (count, size)), jnp.float32),
            jnp.full(count, 20.0),
        ),
    )
    statistics = ReturnStatistics(
        jnp.asarray(rng.standard_normal((count, objectives)), jnp.float32),
        jnp.asarray(mixing @ mixing.swapaxes(1, 2) + np.eye(objectives), jnp.float32),
        jnp.full(count, 30.0),
    )
    return Agent(policies, statistics, jax.vmap(vppo.init_learner)(keys))


def random_trajectory(vppo: VPPO, agents: Agent) -> Trajectory:
    """Rollouts of the agents on random observations and rewards; episodes end in all possible ways."""
    rng, count = np.random.default_rng(1), len(agents.policy.parameters)
    shape = (count, ENVIRONMENTS, STEPS)
    observation = rng.standard_normal((*shape[:2], STEPS + 1, vppo.task.observation_size)) + 0.5
    ends = rng.uniform(size=shape)
    terminated, truncated = ends < 0.1, ends > 0.9
    noise = rng.standard_normal((*shape, vppo.task.action_size))
    action = np.zeros_like(noise)
    for agent, slow in enumerate(slow_learners(vppo, agents)):
        normalized = slow_ppo.observed(vppo.config, slow, observation[agent])[:, :-1]
        mean = slow_ppo.forward(slow.actor, normalized.reshape(-1, normalized.shape[-1]))[-1]
        action[agent] = mean.reshape(action[agent].shape) + np.exp(slow.log_std) * noise[agent]
    rows: dict[str, Any] = {
        "active": np.ones(shape, bool),
        "observation": observation[:, :, :-1],
        "noise": noise,
        "action": action,
        "rewards": 3 * rng.standard_normal((*shape, OBJECTIVES)),
        "terminated": terminated,
        "finished": terminated | truncated,
        "diverged": np.zeros(shape, bool),
        "truncation_value": np.where(truncated, rng.standard_normal(shape), 0.0),
        "last_observation": observation[:, :, -1],
        "returns": np.zeros((*shape, OBJECTIVES)),
    }
    return Trajectory(**{
        name: jnp.asarray(values, jnp.float32 if values.dtype == float else bool)
        for name, values in rows.items()
    })  # fmt: skip


def slow_learners(vppo: VPPO, agents: Agent) -> list[Learner]:
    """The same agents for the slow version."""
    double: Any = jax.tree.map(lambda leaf: np.array(leaf, float), (agents.policy, agents.return_statistics))
    policy, returns = double
    joint = vppo.config.normalize == "returns"
    return [
        Learner(
            [(w.copy(), b.copy()) for w, b in vppo.actor.layers(policy.parameters[agent])],
            policy.log_std[agent].copy(),
            [
                (w.copy(), b.copy())
                for w, b in vppo.critic.layers(np.array(agents.learner.critic[agent], float))
            ],
            (
                policy.normalizer.mean[agent],
                policy.normalizer.variance[agent],
                policy.normalizer.count[agent],
            ),
            (
                returns.mean[agent][0] if joint else returns.mean[agent],
                returns.covariance[agent][0, 0] if joint else returns.covariance[agent],
                returns.count[agent],
            ),
        )
        for agent in range(len(policy.parameters))
    ]


def plain(trajectory: Trajectory, agent: int) -> dict[str, np.ndarray]:
    """The trajectory of an agent for the slow version."""
    rows = {name: np.array(values[agent]) for name, values in vars(trajectory).items()}
    rows = {
        name: values.astype(float) if values.dtype == np.float32 else values for name, values in rows.items()
    }
    last = rows["last_observation"][:, None]
    return rows | {"observations": np.concatenate([rows["observation"], last], axis=1)}


@pytest.mark.parametrize("agents", [1, OBJECTIVES])
@pytest.mark.parametrize(
    ("variant", "target_kl"), [("ours", 0.0), ("ours", 0.01), ("authors", 0.0), ("authors", 1e-3)]
)
def test_an_update_equals_the_slow_version(variant: str, target_kl: float, agents: int) -> None:
    vppo = learner(variant, target_kl)
    before = random_agents(vppo, agents)
    trajectory = random_trajectory(vppo, before)
    weights = jnp.asarray(np.eye(OBJECTIVES) if agents > 1 else [[1.0, -0.5, 2.0]], jnp.float32)
    keys = jax.random.split(jax.random.key(3), agents)
    after, report, _ = vppo.update(before, trajectory, weights, keys)

    config, size = vppo.config, ENVIRONMENTS * STEPS
    orders = [
        np.concatenate([jax.random.permutation(each, size) for each in jax.random.split(key, config.epochs)])
        for key in keys
    ]
    slow = slow_learners(vppo, before)
    steps, limits = slow_ppo.update(
        config, slow, [plain(trajectory, agent) for agent in range(agents)], np.asarray(weights, float),
        [order.reshape(config.epochs * config.minibatches, -1) for order in orders],
    )  # fmt: skip
    complete = config.epochs * config.minibatches
    np.testing.assert_allclose(report.minibatches_used, np.array(steps) / complete)
    assert limits, "gradients are clipped"
    assert all(0 < used < complete for used in steps) if target_kl else set(steps) == {complete}
    for agent, expected in enumerate(slow):
        for computed, reference in (
            (after.policy.parameters, vppo.actor.flatten(expected.actor)),
            (after.policy.log_std, expected.log_std),
            (after.learner.critic, vppo.critic.flatten(expected.critic)),
        ):
            np.testing.assert_allclose(computed[agent], reference, atol=1e-4)
        if config.normalize == "returns":
            mean, variance, count = expected.returns
            np.testing.assert_allclose(after.return_statistics.mean[agent, 0], mean, rtol=1e-4)
            np.testing.assert_allclose(after.return_statistics.covariance[agent, 0, 0], variance, rtol=1e-4)
            assert after.return_statistics.count[agent] == count
    moved = np.abs(np.asarray(after.policy.parameters - before.policy.parameters)).max(axis=1)
    assert (moved > 3e-3).all()


ROLLOUT = 8 * 6
"""Steps of a rollout of the problem below."""


@cache
def problem() -> PPOProblem:
    """Hopper with the PPO of paper-scripts: two gradient learners, and two steps in an update."""
    small = {"environments": 8, "rollout_length": 6, "epochs": 1, "minibatches": 2, "target_kl": 0.0}
    task = make_task("hopper", episode_length=5)
    return PPOProblem(task, replace(AUTHORS, **small), NetworkConfig((8,), (8,)))


@cache
def initial_state() -> PPOSearchState:
    return problem().init(jax.random.key(0))


def new_state() -> PPOSearchState:
    """A copy of the initial state; a rollout donates the environments' buffers."""
    state: PPOSearchState = jax.tree.map(jnp.copy, initial_state())
    return state


def test_policies_act_on_observations_normalized_up_to_their_step() -> None:
    vppo, state, keys = problem().vppo, new_state(), jax.random.split(jax.random.key(5), 1)
    agents = problem()._walking_agent(state)
    _, trajectory = vppo.collect(agents, state.envs, keys)
    (slow,), rows = slow_learners(vppo, agents), plain(trajectory, 0)
    normalized = slow_ppo.observed(vppo.config, slow, rows["observations"])[:, :-1]
    mean = slow_ppo.forward(slow.actor, normalized.reshape(ROLLOUT, -1))[-1].reshape(rows["action"].shape)
    np.testing.assert_allclose(rows["action"], mean + np.exp(slow.log_std) * rows["noise"], atol=1e-4)
    raw = slow_ppo.forward(slow.actor, rows["observation"].reshape(ROLLOUT, -1))[-1]
    assert np.abs(raw.reshape(mean.shape) - mean).max() > 1e-3
    updated = vppo.update_normalizers(agents, trajectory).policy.normalizer
    pooled = slow_ppo.moved(slow.observations, rows["observation"].reshape(ROLLOUT, -1))
    for computed, expected in zip(vars(updated).values(), pooled, strict=True):
        np.testing.assert_allclose(computed[0], expected, rtol=1e-3, atol=1e-4)


def test_gradient_learners_have_normalizers_of_their_own() -> None:
    state = new_state()
    other = replace(
        new_state(),
        policy=replace(
            state.policy, normalizer=state.policy.normalizer.updated(jnp.eye(11), jnp.ones(11, bool))
        ),
        return_statistics=ReturnStatistics(jnp.ones(1) * 9, jnp.ones((1, 1)) * 4, jnp.float32(7.0)),
    )
    (after, jacobian, _), (_, same, _) = (problem().jacobian(s, jax.random.key(1), 2) for s in (state, other))
    np.testing.assert_array_equal(jacobian, same)
    assert (np.linalg.norm(jacobian, axis=1) > 1e-4).all()
    jax.tree.map(np.testing.assert_array_equal, after.policy, initial_state().policy)
    assert after.return_statistics.count == after.policy.normalizer.count == 1.0


def test_a_walk_counts_all_observations_and_targets() -> None:
    after, _ = problem().walk(new_state(), np.array([1.0, 0.5]), jax.random.key(1), 2, scaled=False)
    assert after.policy.normalizer.count == 1 + 2 * ROLLOUT
    assert after.return_statistics.count == 1 + 2 * ROLLOUT


def test_only_the_actors_forget_their_optimizer() -> None:
    state = new_state()
    for number in range(2):
        state, _, _ = problem().jacobian(state, jax.random.key(number), 1)
    parts = state.learners.optimizer.inner_states
    counts = {
        name: leaf for name in parts for leaf in jax.tree.leaves(parts[name]) if leaf.dtype == jnp.int32
    }
    assert counts["actor"].tolist() == [2, 2, 0], "the third learner is that of the walk"
    assert counts["critic"].tolist() == [4, 4, 0]


def test_every_learning_phase_has_new_environments() -> None:
    vppo, envs, agents = problem().vppo, new_state().envs, problem()._walking_agent(new_state())
    starts = []
    for number in range(2):
        _, fresh = vppo.begin(agents, envs, jax.random.split(jax.random.key(number), 1))
        assert not np.asarray(fresh.state.steps).any()
        starts.append(np.asarray(fresh.state.observation))
    assert (starts[0] != starts[1]).any()
    assert (starts[0] != np.asarray(envs.state.observation)).any()


def test_returns_that_are_normalized_cannot_be_scaled_too() -> None:
    config = ppga.preset("paper", "hopper")[0].replace(objective=ObjectiveConfig())
    with pytest.raises(InputError, match=r"--objective.scaling raw"):
        config.check(1)
