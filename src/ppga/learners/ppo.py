"""Proximal policy optimization (PPO; Schulman et al., 2017) as functions of one agent.

`VPPO` maps these functions over many agents. Axes of arrays, in this order: environments e, time T, features.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ppga.learners.agent import (
    Agent,
    LearnerState,
    ReturnStatistics,
    Trajectory,
    UpdateReport,
)
from ppga.learners.ppo_config import PPOConfig, check_agents
from ppga.physics import Array
from ppga.policies.network import Network
from ppga.policies.normalizer import NormalizerState
from ppga.policies.policy import log_density
from ppga.tasks import TaskState

__all__ = [
    "PPO",
    "Batch",
    "PPOConfig",
    "Parameters",
    "UpdateData",
    "UpdateState",
    "advantages",
    "check_agents",
]

DECREASE, INCREASE, MIN_LEARNING_RATE = 0.7, 1.2, 0.01
"""Factors of the learning rate: after an update that ended early, after a complete one, and at least."""
AGENTS = "agents"
"""Name of the axis of the agents that are updated together, inside compiled programs."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Parameters:
    """The parameters that gradients change: actor (d,), log std of the noise (a,), critic (c,)."""

    actor: Array
    log_std: Array
    critic: Array

    @staticmethod
    def of(agent: Agent) -> "Parameters":
        """The parameters of an agent."""
        return Parameters(agent.policy.parameters, agent.policy.log_std, agent.learner.critic)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """Data of one agent's update, arrays (n, ...) with n = e T.

    The weight of a step is 0 if the step was not taken, and 1 in the mean.
    """

    observation: Array
    action: Array
    log_density: Array
    advantage: Array
    target: Array
    value: Array
    weight: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class UpdateState:
    """One agent between two minibatch steps: what it learns, and sums () over the minibatches so far.

    Attributes:
        parameters: actor, exploration noise and critic.
        optimizer: Adam's moments.
        learning_rate: () constant during an update.
        active: () bool, the KL limit has not been exceeded.
        used: () number of minibatches used.
        policy_loss, value_loss: () sums over them.
        kl: () largest KL divergence of a minibatch.
        nonfinite: () number of gradients that were skipped because they were not finite.
    """

    parameters: Parameters
    optimizer: optax.OptState
    learning_rate: Array
    active: Array
    used: Array
    policy_loss: Array
    value_loss: Array
    kl: Array
    nonfinite: Array

    @staticmethod
    def of(agent: Agent) -> "UpdateState":
        """The state before the first minibatch step."""
        zero, learner = jnp.zeros(()), agent.learner
        return UpdateState(
            Parameters.of(agent), learner.optimizer, learner.learning_rate, jnp.bool_(True),
            zero, zero, zero, zero, zero,
        )  # fmt: skip


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class UpdateData:
    """Data of one agent's update before its first minibatch step.

    Attributes:
        batch: what the minibatches are taken from.
        start: state before the first minibatch step.
        return_statistics: those of the agent, with these returns if the critic predicts normalized returns.
        explained_variance: () see `UpdateReport`.
        reward: () see `UpdateReport`.
    """

    batch: Batch
    start: UpdateState
    return_statistics: ReturnStatistics
    explained_variance: Array
    reward: Array


@dataclass(frozen=True)
class PPO:
    """PPO of one agent: networks and settings, and pure functions that use them.

    An update is `prepare`, then `minibatch_step` for each row of `minibatches`, then `finish`. A joint update
    needs a mapped axis of all agents, named AGENTS, around `minibatch_step`.

    Attributes:
        actor: network of the mean action.
        critic: network of the value.
        config: settings.
        devices: devices that each have a share of the agent's environments.
        axis: name of the devices' axis inside compiled programs; empty for one device.
    """

    actor: Network
    critic: Network
    config: PPOConfig
    devices: int = 1
    axis: str = ""

    @staticmethod
    def heads(objectives: int) -> int:  # noqa: ARG004
        """Number of values that the critic predicts for an observation."""
        return 1

    def predict(self, critic: Array, inputs: Array) -> Array:
        """Values (...) that a critic with these parameters (c,) predicts for normalized inputs (..., o)."""
        return jnp.asarray(self.critic(critic, inputs)[..., 0])

    def needs_value(self, after: TaskState) -> Array:
        """Which (n,) environments' episodes have just ended in a state whose value counts."""
        return after.truncated

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """Gradient clipping and Adam, without the learning rate."""
        largest, adam = self.config.max_gradient_norm, optax.scale_by_adam(eps=1e-5)
        if not self.joint:
            return optax.chain(optax.clip_by_global_norm(largest), adam)
        part = optax.chain(clip_joint_norm(largest), adam)
        labels: Any = Parameters("actor", "actor", "critic")  # type: ignore[arg-type]
        return optax.partition({"actor": part, "critic": part}, labels)

    @property
    def joint(self) -> bool:
        """Whether all agents are updated together."""
        return self.config.update == "joint"

    def reset_optimizer(self, agent: Agent) -> Agent:
        """The agent with initial optimizer states; in a joint update, its critic keeps its own."""
        old, new = agent.learner.optimizer, self.optimizer.init(Parameters.of(agent))
        if self.joint:
            new = optax.PartitionState({**old.inner_states, "actor": new.inner_states["actor"]})
        return replace(agent, learner=replace(agent.learner, optimizer=new))

    def value(self, agent: Agent, observation: Array) -> Array:
        """Values (n,) that the critic predicts for observations (n, o)."""
        return self.predict(agent.learner.critic, agent.policy.normalizer.normalize(observation))

    def updated_normalizer(
        self, normalizer: NormalizerState, observation: Array, counted: Array
    ) -> NormalizerState:
        """A normalizer after those observations (n, o) of all devices that are counted (n,)."""
        return normalizer.updated(observation, counted, self.axis)

    def prepare(self, agent: Agent, trajectory: Trajectory, weights: Array) -> UpdateData:
        """Advantages and value targets for an update.

        Args:
            agent: before the update.
            trajectory: its rollout.
            weights: (k+1,) of the objectives.
        """
        config, statistics = self.config, agent.return_statistics
        reward = trajectory.rewards @ weights
        scale = statistics.std(weights) if config.normalize == "rewards" else 1.0
        normalized = self.normalized_observations(agent, trajectory)
        predicted = self.predict(agent.learner.critic, normalized)
        values, truncation_value = predicted, trajectory.truncation_value
        if config.normalize == "returns":
            values, truncation_value = map(statistics.denormalized, (values, truncation_value))
        terminated = trajectory.terminated if config.bootstrap_truncated else trajectory.finished
        advantage = advantages(
            reward / scale, values[:, :-1], values[:, -1], terminated, trajectory.finished,
            truncation_value, config.gamma, config.gae_lambda,
        )  # fmt: skip
        target, error = advantage + values[:, :-1], advantage
        if config.normalize == "returns":
            statistics, target = statistics.normalized_targets(target, trajectory.active, self.axis)
            error = target - predicted[:, :-1]
        weight = self.step_weights(trajectory)
        _, error_std = self.moments(error, weight)
        explained = 1 - error_std**2 / jnp.maximum(self.moments(target, weight)[1] ** 2, 1e-8)
        batch = Batch(
            observation=normalized[:, :-1],
            action=trajectory.action,
            log_density=log_density(trajectory.noise, agent.policy.log_std),
            advantage=advantage if self.joint else self.standardized(advantage, weight),
            target=target,
            value=predicted[:, :-1],
            weight=weight,
        )
        mean_reward = self.mean_over_devices((reward * weight).mean())
        return UpdateData(flat_batch(batch), UpdateState.of(agent), statistics, explained, mean_reward)

    def step_weights(self, trajectory: Trajectory) -> Array:
        """Weights (e, T) of the steps: 0 for those that were not taken, 1 in the mean."""
        active = trajectory.active.astype(jnp.float32)
        return active / jnp.maximum(self.mean_over_devices(active.mean()), 1e-8)

    def normalized_observations(self, agent: Agent, trajectory: Trajectory) -> Array:
        """Normalized observations (e, T + 1, o) as the policy observed them, and the last one."""
        observation = jnp.concatenate([trajectory.observation, trajectory.last_observation[:, None]], axis=1)
        normalizer = agent.policy.normalizer
        if self.config.normalizers == "shared":
            return normalizer.normalize(observation)
        counted = jnp.pad(trajectory.active, ((0, 0), (0, 1)), constant_values=True)
        return normalizer.running(observation, counted, self.axis)

    def minibatches(self, key: Array, size: int) -> Array:
        """Rows (epochs * minibatches, size / minibatches) of a batch of that size.

        They are in random order; in a joint update, all of one environment follow those of the one before.
        """
        config = self.config
        if self.joint:
            return jnp.tile(jnp.arange(size).reshape(config.minibatches, -1), (config.epochs, 1))
        epochs = [jax.random.permutation(key, size) for key in jax.random.split(key, config.epochs)]
        return jnp.concatenate(epochs).reshape(config.epochs * config.minibatches, size // config.minibatches)

    def minibatch_step(self, state: UpdateState, batch: Batch, rows: Array, epoch_ends: Array) -> UpdateState:
        """One gradient step on the minibatch of these rows (m,), unless the KL limit has been exceeded.

        `epoch_ends` () tells whether this is the last minibatch of an epoch.
        """
        config = self.config
        minibatch: Batch = jax.tree.map(lambda values: values[rows], batch)
        if self.joint:
            advantage = self.standardized(minibatch.advantage, minibatch.weight)
            minibatch = replace(minibatch, advantage=advantage)
        gradient, (kl, policy_loss, value_loss) = self.mean_over_devices(
            jax.grad(self.loss, has_aux=True)(state.parameters, minibatch)
        )
        if config.std == "fixed":
            gradient = replace(gradient, log_std=jnp.zeros_like(gradient.log_std))
        finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient)]).all()
        if self.joint:  # the gradient of the mean loss of all agents
            kl, finite = over_agents(kl), over_agents(finite.astype(jnp.float32)) == 1.0
            gradient = jax.tree.map(lambda leaf: leaf / jax.lax.axis_size(AGENTS), gradient)
        change, optimizer = self.optimizer.update(gradient, state.optimizer)
        within_limit = (kl <= config.target_kl) if config.target_kl else jnp.bool_(True)
        active = state.active & (within_limit | ~finite | (self.joint & ~epoch_ends))
        used = (state.active if self.joint else active) & finite
        parameters = jax.tree.map(
            lambda old, step: old - state.learning_rate * step, state.parameters, change
        )

        def chosen(new: Array, old: Array) -> Array:
            return jnp.where(used, new, old)

        return UpdateState(
            parameters=jax.tree.map(chosen, parameters, state.parameters),
            optimizer=jax.tree.map(chosen, optimizer, state.optimizer),
            learning_rate=state.learning_rate,
            active=active,
            used=state.used + used,
            policy_loss=state.policy_loss + jnp.where(used, policy_loss, 0.0),
            value_loss=state.value_loss + jnp.where(used, value_loss, 0.0),
            kl=jnp.where(state.active & finite, jnp.maximum(state.kl, kl), state.kl),
            nonfinite=state.nonfinite + (active & ~finite),
        )

    def loss(self, parameters: Parameters, batch: Batch) -> tuple[Array, tuple[Array, Array, Array]]:
        """Loss () on a minibatch; with it KL divergence (), policy loss () and value loss ()."""
        config = self.config
        log_std = parameters.log_std
        noise = (batch.action - self.actor(parameters.actor, batch.observation)) * jnp.exp(-log_std)
        log_ratio = log_density(noise, log_std) - batch.log_density
        ratio = jnp.exp(log_ratio)
        clipped = jnp.clip(ratio, 1 - config.clip, 1 + config.clip)
        surrogate = jnp.minimum(ratio * batch.advantage, clipped * batch.advantage)
        policy_loss = -(batch.weight * surrogate).mean()
        value = self.predict(parameters.critic, batch.observation)
        error = jnp.square(value - batch.target)
        if config.clip_values:
            clipped_value = batch.value + jnp.clip(value - batch.value, -config.clip, config.clip)
            error = jnp.maximum(error, jnp.square(clipped_value - batch.target))
        error = error.reshape(len(batch.weight), -1).mean(axis=1)  # over the values of an observation
        value_loss = 0.5 * (batch.weight * error).mean()
        loss = (
            policy_loss
            + config.value_coefficient * value_loss
            - config.entropy_coefficient * log_std.sum()  # the entropy without its constant
        )
        kl = (batch.weight * (ratio - 1 - log_ratio)).mean()
        return loss, (kl, policy_loss, value_loss)

    def finish(
        self, agent: Agent, end: UpdateState, trajectory: Trajectory, data: UpdateData
    ) -> tuple[Agent, UpdateReport]:
        """The agent after its last minibatch step, and a report."""
        share = end.used / (self.config.epochs * self.config.minibatches)
        parameters, learning_rate = end.parameters, self._next_learning_rate(end.learning_rate, share)
        log_std = parameters.log_std
        if self.config.min_std:
            log_std = jnp.maximum(log_std, math.log(self.config.min_std))
        policy = replace(agent.policy, parameters=parameters.actor, log_std=log_std)
        learner = LearnerState(parameters.critic, end.optimizer, learning_rate)
        used = jnp.maximum(end.used, 1.0)
        report = UpdateReport(
            policy_loss=end.policy_loss / used,
            value_loss=end.value_loss / used,
            entropy=(log_std + 0.5 * jnp.log(2 * jnp.pi * jnp.e)).sum(),
            kl=end.kl,
            explained_variance=data.explained_variance,
            minibatches_used=share,
            nonfinite=end.nonfinite,
            diverged=self.devices * self.mean_over_devices(trajectory.diverged.sum().astype(jnp.float32)),
            learning_rate=learning_rate,
            reward=data.reward,
        )
        agent = replace(agent, policy=policy, return_statistics=data.return_statistics, learner=learner)
        return agent, report

    def _next_learning_rate(self, learning_rate: Array, used: Array) -> Array:
        """Learning rate () after an update that used a share () of its minibatches."""
        if not (self.config.target_kl and self.config.adaptive_learning_rate):
            return learning_rate
        factor = jnp.where(used < 0.5, DECREASE, jnp.where(used >= 1.0, INCREASE, 1.0))
        largest = self.config.learning_rate
        return jnp.clip(learning_rate * factor, MIN_LEARNING_RATE * largest, largest)

    def mean_over_devices(self, tree: Any) -> Any:
        """The mean over all devices."""
        return jax.lax.pmean(tree, self.axis) if self.axis else tree  # type: ignore[no-untyped-call]

    def moments(self, values: Array, weight: Array) -> tuple[Array, Array]:
        """Weighted mean and standard deviation of the values of all devices."""
        mean = self.mean_over_devices((weight * values).mean())
        return mean, jnp.sqrt(self.mean_over_devices((weight * jnp.square(values - mean)).mean()))

    def standardized(self, values: Array, weight: Array) -> Array:
        """Values with weighted mean 0 and standard deviation 1; in a joint update, over all agents."""
        mean, std = self.moments(values, weight)
        if self.joint:
            own, mean = mean, over_agents(mean)
            std = jnp.sqrt(over_agents(std**2 + (own - mean) ** 2))
        return (values - mean) / (std + 1e-8)


def over_agents(values: Array) -> Array:
    """The mean of values over the agents of a joint update."""
    return jnp.asarray(jax.lax.pmean(values, AGENTS))  # type: ignore[no-untyped-call]


def clip_joint_norm(largest: float) -> optax.GradientTransformation:
    """Scale gradients down so that their norm over all parameters and all agents is at most `largest`."""

    def update(gradient: Any, state: optax.EmptyState, _: Any = None) -> tuple[Any, optax.EmptyState]:
        agents = jax.lax.axis_size(AGENTS)
        norm = jnp.sqrt(agents * over_agents(optax.tree.norm(gradient, squared=True)))
        scale = jnp.minimum(1.0, largest / jnp.maximum(norm, 1e-12))
        return jax.tree.map(lambda leaf: leaf * scale, gradient), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def flat_batch(batch: Batch) -> Batch:
    """A batch of e environments and T steps as one with arrays (e T, ...)."""
    flat: Batch = jax.tree.map(lambda rows: rows.reshape(-1, *rows.shape[2:]), batch)
    return flat


def advantages(
    rewards: Array, values: Array, last_value: Array, terminated: Array, finished: Array,
    truncation_value: Array, gamma: float, gae_lambda: float,
) -> Array:  # fmt: skip
    """Generalized advantage estimation (GAE): advantages (e, T).

    Args:
        rewards: (e, T).
        values: (e, T) of the observations before the steps.
        last_value: (e,) of the observation after the last step.
        terminated: (e, T) bool, the episode ended, and the value after the step is 0.
        finished: (e, T) bool, the episode ended, also at the time limit; the next step is of another episode.
        truncation_value: (e, T) of the last observation of an episode that the time limit ended.
        gamma: discount factor.
        gae_lambda: lambda.
    """
    next_values = jnp.concatenate([values[:, 1:], last_value[:, None]], axis=1)
    next_values = jnp.where(finished, truncation_value, next_values) * ~terminated
    td_errors = rewards + gamma * next_values - values

    def back(advantage: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        td_error, finished = step
        advantage = td_error + gamma * gae_lambda * advantage * ~finished
        return advantage, advantage

    _, backwards = jax.lax.scan(back, jnp.zeros_like(last_value), (td_errors.T, finished.T), reverse=True)
    return jnp.asarray(backwards.T)
