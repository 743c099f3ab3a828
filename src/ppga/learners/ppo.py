"""Proximal policy optimization (PPO; Schulman et al., 2017) as functions of one agent.

`VPPO` maps these functions over many agents. Axes of arrays, in this order: environments e, time T, features.
"""

import typing
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from ppga.config import check_range, check_whole, common
from ppga.errors import InputError, check_choice
from ppga.learners.agent import (
    Agent,
    LearnerState,
    Trajectory,
    UpdateReport,
)
from ppga.physics import Array
from ppga.policies.network import Network
from ppga.policies.policy import log_density

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
StdMode = Literal["learned", "reset", "fixed"]


@dataclass(frozen=True)
class PPOConfig:
    """Settings of PPO.

    Attributes:
        environments: parallel environments, divided among the k+1 gradient learners; the walk uses all.
        rollout_length: control steps in every environment between two updates.
        epochs: passes of an update over its data.
        minibatches: minibatches of an epoch, with one gradient step each.
        learning_rate: learning rate of Adam.
        gamma: discount factor.
        gae_lambda: lambda of generalized advantage estimation.
        clip: the probability ratio is clipped to [1 - clip, 1 + clip].
        clip_values: also clip how far an update changes the predicted values.
        value_coefficient: weight of the value loss.
        entropy_coefficient: weight of the entropy bonus.
        max_gradient_norm: gradients are scaled down to this norm.
        target_kl: stop an agent's update when its KL divergence exceeds this; 0 for no limit.
        adaptive_learning_rate: lower an agent's learning rate while its updates end early, and raise it up to
            `learning_rate` while they do not.
        reset_optimizer: reset Adam's moments at the start of every learning phase.
        normalize_rewards: divide rewards by the standard deviation of their discounted returns.
        std: standard deviation of the exploration noise: learned; reset (learned, but reset to initial_std in
            every iteration); or fixed.
        initial_std: initial standard deviation of the exploration noise.
    """

    environments: int = common(192)
    rollout_length: int = common(128)
    epochs: int = 4
    minibatches: int = 8
    learning_rate: float = common(1e-3)
    gamma: float = common(0.99)
    gae_lambda: float = 0.95
    clip: float = 0.2
    clip_values: bool = False
    value_coefficient: float = 2.0
    entropy_coefficient: float = 0.0
    max_gradient_norm: float = 1.0
    target_kl: float = common(0.008)
    adaptive_learning_rate: bool = True
    reset_optimizer: bool = False
    normalize_rewards: bool = True
    std: StdMode = "learned"
    initial_std: float = 1.0

    def check(self) -> None:
        """Raise an InputError for values that cannot work."""
        for name in ("environments", "rollout_length", "epochs", "minibatches"):
            check_whole(f"ppo.{name}", getattr(self, name))
        for name in (
            "learning_rate", "clip", "value_coefficient", "entropy_coefficient", "max_gradient_norm",
            "target_kl",
        ):  # fmt: skip
            check_range(f"ppo.{name}", getattr(self, name))
        check_range("ppo.gamma", self.gamma, 0.0, 1.0)
        check_range("ppo.gae_lambda", self.gae_lambda, 0.0, 1.0)
        check_range("ppo.initial_std", self.initial_std, 1e-6)
        check_choice("value of --ppo.std", self.std, typing.get_args(StdMode))


def check_agents(config: PPOConfig, agents: int, description: str = "", devices: int = 1) -> None:
    """Raise an InputError unless that many agents can share the environments, and a single agent can use all.

    Args:
        config: settings.
        agents: agents that learn at once.
        description: what the agents are, for the message.
        devices: devices that share the environments of each agent.
    """
    of_agents = f" ({description})" if description else ""
    on_devices = "" if devices == 1 else f" on each of {devices} devices"
    unit = agents * devices
    if config.environments % unit:
        low, high = config.environments // unit * unit, -(-config.environments // unit) * unit
        raise InputError(
            f"{config.environments} environments cannot be shared by {agents} agents{of_agents}{on_devices}; "
            f"--ppo.environments {f'{low} or ' if low else ''}{high} can."
        )
    for count in (agents, 1):
        environments = config.environments // (count * devices)
        steps = environments * config.rollout_length
        if steps % config.minibatches:
            raise InputError(
                f"the {steps} steps ({environments} environments x {config.rollout_length} steps) that one "
                f"of {count} agents takes{on_devices} cannot be cut into {config.minibatches} minibatches; "
                "change --ppo.environments, --ppo.rollout-length or --ppo.minibatches."
            )


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


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class UpdateData:
    """Data of one agent's update before its first minibatch step.

    Attributes:
        batch: what the minibatches are taken from.
        start: state before the first minibatch step.
        explained_variance: () see `UpdateReport`.
        reward: () see `UpdateReport`.
    """

    batch: Batch
    start: UpdateState
    explained_variance: Array
    reward: Array


@dataclass(frozen=True)
class PPO:
    """PPO of one agent: networks and settings, and pure functions that use them.

    An update is `prepare`, then `minibatch_step` for each row of `minibatches`, then `finish`.

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

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """Gradient clipping and Adam, without the learning rate."""
        return optax.chain(
            optax.clip_by_global_norm(self.config.max_gradient_norm), optax.scale_by_adam(eps=1e-5)
        )

    def value(self, agent: Agent, observation: Array) -> Array:
        """Values (n,) that the critic predicts for observations (n, o)."""
        normalized = agent.policy.normalizer.normalize(observation)
        return jnp.asarray(self.critic(agent.learner.critic, normalized)[:, 0])

    def prepare(self, agent: Agent, trajectory: Trajectory, weights: Array) -> UpdateData:
        """Advantages and value targets for an update.

        Args:
            agent: before the update.
            trajectory: its rollout.
            weights: (k+1,) of the objectives.
        """
        config = self.config
        reward = trajectory.rewards @ weights
        scale = agent.return_statistics.std(weights) if config.normalize_rewards else 1.0
        normalized = agent.policy.normalizer.normalize(
            jnp.concatenate([trajectory.observation, trajectory.last_observation[:, None]], axis=1)
        )
        values = self.critic(agent.learner.critic, normalized)[..., 0]
        advantage = advantages(
            reward / scale, values[:, :-1], values[:, -1], trajectory.terminated, trajectory.finished,
            trajectory.truncation_value, config.gamma, config.gae_lambda,
        )  # fmt: skip
        target = advantage + values[:, :-1]
        active = trajectory.active.astype(jnp.float32)
        weight = active / jnp.maximum(self._mean(active.mean()), 1e-8)
        mean, std = self._moments(advantage, weight)
        explained = 1 - std**2 / jnp.maximum(self._moments(target, weight)[1] ** 2, 1e-8)
        batch = Batch(
            observation=normalized[:, :-1],
            action=trajectory.action,
            log_density=log_density(trajectory.noise, agent.policy.log_std),
            advantage=(advantage - mean) / (std + 1e-8),
            target=target,
            value=values[:, :-1],
            weight=weight,
        )
        flat: Batch = jax.tree.map(lambda rows: rows.reshape(-1, *rows.shape[2:]), batch)
        zero, learner = jnp.zeros(()), agent.learner
        start = UpdateState(
            Parameters.of(agent), learner.optimizer, learner.learning_rate, jnp.bool_(True),
            zero, zero, zero, zero, zero,
        )  # fmt: skip
        return UpdateData(flat, start, explained, self._mean((reward * weight).mean()))

    def minibatches(self, key: Array, size: int) -> Array:
        """Rows (epochs * minibatches, size / minibatches) of a batch of that size, in random order."""
        config = self.config
        epochs = [jax.random.permutation(key, size) for key in jax.random.split(key, config.epochs)]
        return jnp.concatenate(epochs).reshape(config.epochs * config.minibatches, size // config.minibatches)

    def minibatch_step(self, state: UpdateState, batch: Batch, rows: Array) -> UpdateState:
        """One gradient step on the minibatch of these rows (m,), unless the KL limit has been exceeded."""
        config = self.config
        minibatch: Batch = jax.tree.map(lambda values: values[rows], batch)
        gradient, (kl, policy_loss, value_loss) = self._mean(
            jax.grad(self.loss, has_aux=True)(state.parameters, minibatch)
        )
        if config.std == "fixed":
            gradient = replace(gradient, log_std=jnp.zeros_like(gradient.log_std))
        change, optimizer = self.optimizer.update(gradient, state.optimizer)
        finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient)]).all()
        within_limit = (kl <= config.target_kl) if config.target_kl else jnp.bool_(True)
        active = state.active & (within_limit | ~finite)
        used = active & finite
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
        value = self.critic(parameters.critic, batch.observation)[:, 0]
        error = jnp.square(value - batch.target)
        if config.clip_values:
            clipped_value = batch.value + jnp.clip(value - batch.value, -config.clip, config.clip)
            error = jnp.maximum(error, jnp.square(clipped_value - batch.target))
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
        policy = replace(agent.policy, parameters=parameters.actor, log_std=parameters.log_std)
        learner = LearnerState(parameters.critic, end.optimizer, learning_rate)
        used = jnp.maximum(end.used, 1.0)
        report = UpdateReport(
            policy_loss=end.policy_loss / used,
            value_loss=end.value_loss / used,
            entropy=(parameters.log_std + 0.5 * jnp.log(2 * jnp.pi * jnp.e)).sum(),
            kl=end.kl,
            explained_variance=data.explained_variance,
            minibatches_used=share,
            nonfinite=end.nonfinite,
            diverged=self.devices * self._mean(trajectory.diverged.sum().astype(jnp.float32)),
            learning_rate=learning_rate,
            reward=data.reward,
        )
        return replace(agent, policy=policy, learner=learner), report

    def _next_learning_rate(self, learning_rate: Array, used: Array) -> Array:
        """Learning rate () after an update that used a share () of its minibatches."""
        if not (self.config.target_kl and self.config.adaptive_learning_rate):
            return learning_rate
        factor = jnp.where(used < 0.5, DECREASE, jnp.where(used >= 1.0, INCREASE, 1.0))
        largest = self.config.learning_rate
        return jnp.clip(learning_rate * factor, MIN_LEARNING_RATE * largest, largest)

    def _mean(self, tree: Any) -> Any:
        """The mean over all devices."""
        return jax.lax.pmean(tree, self.axis) if self.axis else tree  # type: ignore[no-untyped-call]

    def _moments(self, values: Array, weight: Array) -> tuple[Array, Array]:
        """Weighted mean and standard deviation of the values of all devices."""
        mean = self._mean((weight * values).mean())
        return mean, jnp.sqrt(self._mean((weight * jnp.square(values - mean)).mean()))


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
