"""PPO of a policy that is conditioned on target measures, with a value for each of the k+1 objectives.

For each target z the policy maximizes the reward f subject to E[delta_i] = z_i. The Lagrange multipliers
c_i(z) of these constraints weigh the advantages of the measure proxies, as PPGA's coefficients do.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from ppga.learners.agent import Agent, Trajectory
from ppga.learners.ppo import PPO, Batch, UpdateData, UpdateState, advantages, flat_batch
from ppga.physics import Array
from ppga.policies.policy import log_density
from ppga.tasks import TaskState


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class WeightedTrajectory(Trajectory):
    """A rollout with the weights of the objectives in each step.

    Attributes:
        weights: (e, T, k+1) weights of the advantages of the reward and of the measure proxies.
    """

    weights: Array


class ConditionedPPO(PPO):
    """PPO whose critic predicts the returns of all objectives, and whose steps have weights of their own."""

    @staticmethod
    def heads(objectives: int) -> int:
        """See `PPO.heads`."""
        return objectives

    def predict(self, critic: Array, inputs: Array) -> Array:
        """Values (..., k+1); see `PPO.predict`."""
        return jnp.asarray(self.critic(critic, inputs))

    def needs_value(self, after: TaskState) -> Array:
        """All ends of episodes; see `PPO.needs_value` and `prepare`."""
        return after.finished

    def prepare(self, agent: Agent, trajectory: Trajectory, weights: Array) -> UpdateData:  # noqa: ARG002
        """Advantages and value targets for an update.

        A measure is a mean over the steps of an episode, so the end of the episode does not change it: values
        of proxies are bootstrapped there. Otherwise it would pay to fall where a proxy is hard to reach.

        Args:
            agent: before the update.
            trajectory: its rollout, a `WeightedTrajectory`.
            weights: not used.
        """
        assert isinstance(trajectory, WeightedTrajectory)
        statistics = agent.return_statistics
        rewards = trajectory.rewards / jnp.sqrt(jnp.maximum(jnp.diagonal(statistics.covariance), 1e-8))
        normalized = self.normalized_observations(agent, trajectory)
        values = self.predict(agent.learner.critic, normalized)  # (e, T + 1, k+1)
        never = jnp.zeros_like(trajectory.terminated)
        terminated = jnp.stack([trajectory.terminated] + [never] * (rewards.shape[-1] - 1), axis=-1)

        def of_objective(rewards: Array, values: Array, terminated: Array, final: Array) -> Array:
            return advantages(
                rewards, values[:, :-1], values[:, -1], terminated, trajectory.finished, final,
                self.config.gamma, self.config.gae_lambda,
            )  # fmt: skip

        each = jax.vmap(of_objective, in_axes=-1, out_axes=-1)(
            rewards, values, terminated, trajectory.truncation_value
        )
        values = values[:, :-1]
        weight = self.step_weights(trajectory)
        _, error_std = self.moments(each[..., 0], weight)
        _, target_std = self.moments((each + values)[..., 0], weight)
        batch = Batch(
            observation=normalized[:, :-1],
            action=trajectory.action,
            log_density=log_density(trajectory.noise, agent.policy.log_std),
            advantage=self.standardized((each * trajectory.weights).sum(axis=-1), weight),
            target=each + values,
            value=values,
            weight=weight,
        )
        explained = 1 - error_std**2 / jnp.maximum(target_std**2, 1e-8)
        mean_reward = self.mean_over_devices((trajectory.rewards[..., 0] * weight).mean())
        return UpdateData(flat_batch(batch), UpdateState.of(agent), statistics, explained, mean_reward)
