"""State and data of an on-policy agent that learns one objective.

An objective is a weighted sum of k+1 quantities: the reward f and the k measure proxies delta_i. Axes of
arrays, in this order: agents A, environments e, time T, features.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import optax

from ppga.physics import Array
from ppga.policies.network import VARIANCE_EPSILON
from ppga.policies.normalizer import NormalizerState
from ppga.policies.policy import Policy

RETURN_CLIP = 5.0
"""Normalized returns are clipped to this many standard deviations."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ReturnStatistics:
    """Running moments of the discounted returns of all k+1 objectives.

    Their covariance determines the standard deviation of any weighted sum of the returns. Where critics
    predict normalized returns, it has a single objective: what the agent learns.

    Attributes:
        mean: (k+1,) mean of the returns.
        covariance: (k+1, k+1) covariance of the returns.
        count: () number of samples, float32.
    """

    mean: Array
    covariance: Array
    count: Array

    @staticmethod
    def initial(objectives: int) -> "ReturnStatistics":
        """Statistics before the first sample: mean 0, covariance 1, count 0."""
        return ReturnStatistics(jnp.zeros(objectives), jnp.eye(objectives), jnp.zeros(()))

    @staticmethod
    def fresh() -> "ReturnStatistics":
        """Statistics of one objective that PPGA's authors start with: one return of 1, with variance 1."""
        return ReturnStatistics(jnp.ones(1), jnp.ones((1, 1)), jnp.ones(()))

    def updated(self, values: Array, counted: Array) -> "ReturnStatistics":
        """Statistics after a batch of returns.

        Args:
            values: (n, k+1) returns.
            counted: (n,) bool, which of them are used.
        """
        n = counted.sum(dtype=jnp.float32)
        total = self.count + n
        share = n / jnp.maximum(total, 1)
        mean = values.sum(axis=0, where=counted[:, None]) / jnp.maximum(n, 1)
        centered = jnp.where(counted[:, None], values - mean, 0.0)
        covariance = centered.T @ centered / jnp.maximum(n, 1)
        step = mean - self.mean
        between = jnp.outer(step, step) * share * (1 - share)
        return ReturnStatistics(
            self.mean + share * step, self.covariance * (1 - share) + covariance * share + between, total
        )

    def std(self, weights: Array) -> Array:
        """Standard deviation () of the sum of the returns with these weights (k+1,)."""
        return jnp.sqrt(jnp.maximum(weights @ self.covariance @ weights, 1e-8))

    def denormalized(self, values: Array) -> Array:
        """Returns for normalized returns, which are clipped to [-5, 5]; of a single objective."""
        clipped = jnp.clip(values, -RETURN_CLIP, RETURN_CLIP)
        return self.mean[0] + jnp.sqrt(self.covariance[0, 0]) * clipped

    def normalized_targets(
        self, targets: Array, counted: Array, axis: str = ""
    ) -> tuple["ReturnStatistics", Array]:
        """Statistics after the value targets of a rollout, and the normalized targets (e, T).

        The targets of each control step are normalized by the statistics up to that step, and clipped.

        Args:
            targets: (e, T) in e environments.
            counted: (e, T) bool, which of them are used.
            axis: name of the axis of devices that each have a part of the environments, or empty.
        """

        def step(state: NormalizerState, row: tuple[Array, Array]) -> tuple[NormalizerState, Array]:
            state = state.updated(row[0][:, None], row[1], axis)
            return state, (row[0] - state.mean) / jnp.sqrt(state.variance + VARIANCE_EPSILON)

        start = NormalizerState(self.mean, self.covariance[0], self.count)
        end, normalized = jax.lax.scan(step, start, (targets.T, counted.T))
        statistics = ReturnStatistics(end.mean, end.variance[None], end.count)
        return statistics, jnp.clip(normalized.T, -RETURN_CLIP, RETURN_CLIP)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LearnerState:
    """State of an agent's learning, besides the policy.

    Attributes:
        critic: (c,) parameters of the critic network.
        optimizer: Adam's moments of all `Parameters`.
        learning_rate: () current learning rate.
    """

    critic: Array
    optimizer: optax.OptState
    learning_rate: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Agent:
    """One agent; with a leading axis on every array, A agents.

    Attributes:
        policy: the policy.
        return_statistics: normalizer of the rewards, or of the returns that the critic predicts.
        learner: critic, optimizer state and learning rate.
    """

    policy: Policy
    return_statistics: ReturnStatistics
    learner: LearnerState


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Trajectory:
    """Rollout of one agent in e environments over T control steps.

    Attributes:
        active: (e, T) bool, the episode had not ended before the step; false if the environment failed to
            start. Other steps are neither learned from nor counted by normalizers.
        observation: (e, T, o) before the step, not normalized.
        noise: (e, T, a) standard normal samples; action = mean + std * noise.
        action: (e, T, a) action of the policy.
        rewards: (e, T, k+1) reward and measure proxies, not normalized.
        terminated: (e, T) bool, the episode ended in this step, and not at the time limit.
        finished: (e, T) bool, the episode ended in this step, also at the time limit.
        diverged: (e, T) bool, the episode ended because a number was not finite.
        truncation_value: (e, T) predicted value of the last observation of an episode that the time limit
            ended in this step; 0 for other steps.
        last_observation: (e, o) after the last step.
        returns: (e, T, k+1) running sum of discounted rewards, as in Gymnasium's NormalizeReward.
    """

    active: Array
    observation: Array
    noise: Array
    action: Array
    rewards: Array
    terminated: Array
    finished: Array
    diverged: Array
    truncation_value: Array
    last_observation: Array
    returns: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class UpdateReport:
    """Metrics of an agent's update, each ().

    Attributes:
        policy_loss, value_loss: means over the minibatches used.
        entropy: differential entropy of the exploration noise after the update.
        kl: largest KL divergence of a minibatch from the policy before the update.
        explained_variance: share of the value targets' variance that the critic explains before the update.
        minibatches_used: share of the minibatches used before the KL limit.
        nonfinite: gradient steps that were skipped because they were not finite.
        diverged: episodes that ended because a number was not finite.
        learning_rate: learning rate of the next update.
        reward: mean weighted reward of a step, not normalized.
    """

    policy_loss: Array
    value_loss: Array
    entropy: Array
    kl: Array
    explained_variance: Array
    minibatches_used: Array
    nonfinite: Array
    diverged: Array
    learning_rate: Array
    reward: Array


def update_normalizers(agent: Agent, trajectory: Trajectory, rewards: bool = True) -> Agent:
    """The agent whose normalizers have the observations of a trajectory and, if asked, its rewards."""
    active = trajectory.active.ravel()
    observation = trajectory.observation.reshape(-1, trajectory.observation.shape[-1])
    returns = trajectory.returns.reshape(-1, trajectory.returns.shape[-1])
    policy = replace(agent.policy, normalizer=agent.policy.normalizer.updated(observation, active))
    statistics = agent.return_statistics.updated(returns, active) if rewards else agent.return_statistics
    return replace(agent, policy=policy, return_statistics=statistics)
