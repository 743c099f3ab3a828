"""A task as a problem whose solutions all come from one policy that is conditioned on target measures."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from ppga import random
from ppga.learners.agent import Agent, LearnerState, ReturnStatistics, Trajectory
from ppga.learners.conditioned import ConditionedPPO, WeightedTrajectory
from ppga.learners.multipliers import MultiplierConfig, Multipliers, MultiplierState
from ppga.learners.ppo import PPOConfig
from ppga.learners.vppo import VPPO, EnvBatch
from ppga.physics import Array
from ppga.policies.network import Network
from ppga.policies.policy import Policy
from ppga.problems.base import Cost, LearningReport
from ppga.problems.policy import NetworkConfig, PolicyProblem
from ppga.problems.ppo import learning_cost, learning_report
from ppga.rollouts.executor import Executor
from ppga.storage import NumpyArray, whole
from ppga.tasks import Environment
from ppga.tasks.conditioned import ConditionedTask, TargetedBodies, target_inputs


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ConditionedState:
    """State of a `ConditionedProblem`.

    Attributes:
        agent: (1, ...) the conditioned policy with its learner.
        envs: all environments.
        multipliers: values of the multipliers.
    """

    agent: Agent
    envs: EnvBatch
    multipliers: MultiplierState


class ConditionedProblem(PolicyProblem):
    """A task whose solutions are policies folded from a single, conditioned one.

    A fixed target adds a constant to the first layer of the conditioned policy. With the constant in the
    biases, the policy for that target is one like those of all other algorithms.

    Args:
        task: the task.
        ppo: settings of PPO.
        network: hidden layers of actor and critic.
        multipliers: settings of the multipliers.
        reward_share: share of the environments whose policy maximizes the reward alone.
        sample_actions: evaluate with exploration noise; by the mean action otherwise.
        executor: where rollouts and updates run.
        progress: called after every PPO update, for a display.
    """

    learner_parts = ("agent",)
    several_learners = False

    def __init__(
        self,
        task: Environment,
        ppo: PPOConfig,
        network: NetworkConfig,
        multipliers: MultiplierConfig,
        reward_share: float = 0.0,
        sample_actions: bool = False,
        executor: Executor | None = None,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        self.conditioned = ConditionedTask(task)
        self.vppo = VPPO(
            self.conditioned, network.actor, network.critic, ppo, executor, learner=ConditionedPPO
        )
        actor = Network((task.observation_size, *network.actor, task.action_size))
        super().__init__(task, actor, sample_actions, executor, progress)
        self.ppo, self.rollout_environments = ppo, ppo.environments
        self.warmup_steps = ppo.environments * ppo.rollout_length
        self.multipliers = Multipliers(multipliers, len(task.measure_names))
        self.reward_environments = round(reward_share * ppo.environments)
        self._weigh = jax.jit(self._weighted)
        self._keep_target_inputs = jax.jit(self._with_target_inputs)
        self._fold = jax.jit(self._folded)

    def init(self, key: Array) -> ConditionedState:
        """A new policy and critic, and environments in the middle of their episodes.

        Episodes that all end at the same time would change all targets at once.
        """
        policy_key, learner_key, env_key, steps_key, rollout_key = jax.random.split(key, 5)
        policies = jax.vmap(self.vppo.init_policy)(jax.random.split(policy_key, 1))
        learners: LearnerState = jax.vmap(self.vppo.init_learner)(jax.random.split(learner_key, 1))
        statistics = ReturnStatistics.initial(self.vppo.objectives)
        agent = Agent(policies, jax.tree.map(lambda leaf: leaf[None], statistics), learners)
        envs = self.vppo.init_envs(env_key)
        steps = jax.random.randint(steps_key, envs.state.steps.shape, 0, self.task.episode_length)
        envs = replace(envs, state=replace(envs.state, steps=steps.astype(envs.state.steps.dtype)))
        envs, trajectory = self.vppo.collect(agent, envs, jax.random.split(rollout_key, 1))
        agent = self._keep_target_inputs(self.vppo.update_normalizers(agent, trajectory))
        return ConditionedState(agent, envs, self.multipliers.initial())

    def cost(self, policies: int, updates: int) -> Cost:
        """Cost of evaluating that many policies and of that many updates."""
        return learning_cost(self.vppo, policies, updates, self.solution_size)

    def policy(self, state: ConditionedState) -> Policy:
        """The conditioned policy without the inputs for its target: normalizer and exploration noise."""
        policy: Policy = jax.tree.map(lambda leaf: leaf[0], state.agent.policy)
        size, normalizer = self.task.observation_size, policy.normalizer
        return replace(
            policy,
            normalizer=replace(normalizer, mean=normalizer.mean[:size], variance=normalizer.variance[:size]),
        )

    def fold(self, state: ConditionedState, targets: NumpyArray) -> NumpyArray:
        """Parameters (n, d) of the policies for targets (n, k)."""
        return np.asarray(self._fold(state.agent.policy.parameters[0], jnp.asarray(targets, jnp.float32)))

    def train(
        self, state: ConditionedState, targets: NumpyArray, key: Array
    ) -> tuple[ConditionedState, LearningReport]:
        """Alternate rollouts and updates of the conditioned policy.

        Args:
            state: before.
            targets: (updates, E, k) targets of the episodes that start in each rollout. In the first
                `reward_environments` environments the policy maximizes the reward alone.
            key: random key.

        Returns:
            The state after the updates, and cost and metrics: target_error is the mean distance of a measure
            from its target, in units of its range.
        """
        agent, envs, multipliers = state.agent, state.envs, state.multipliers
        reports, errors = [], []
        for number, next_targets in enumerate(targets):
            collect_key, update_key = random.split_each(jax.random.fold_in(key, number)[None])
            bodies: TargetedBodies = replace(envs.state.bodies, next_target=jnp.asarray(next_targets))
            current = np.array(whole(bodies.target))  # a rollout donates the environments
            envs = replace(envs, state=replace(envs.state, bodies=bodies))
            envs, trajectory = self.vppo.collect(agent, envs, collect_key)
            weighted, multipliers, error = self._weigh(trajectory, current, next_targets, multipliers)
            agent, report, _ = self.vppo.update(agent, weighted, jnp.zeros((1, 1)), update_key)
            agent = self._keep_target_inputs(self.vppo.update_normalizers(agent, trajectory))
            reports.append(report)
            errors.append(error)
            report.kl.block_until_ready()
            self.progress()
        report = jax.tree.map(lambda *values: np.mean(values, axis=0), *reports)
        learned = learning_report(self.vppo, report, len(targets), ("the policy",))
        metrics = {name: values[0] for name, values in learned.metrics.items()}
        weights = self.multipliers.at(multipliers, jnp.asarray(self.multipliers.points))
        metrics |= {
            "target_error": float(np.mean(errors)),
            "multipliers": float(jnp.linalg.norm(weights, axis=1).mean()),
            "std": float(jnp.exp(agent.policy.log_std).mean()),
        }
        return ConditionedState(agent, envs, multipliers), replace(learned, metrics=metrics)

    def start_at(
        self,
        state: ConditionedState,
        elite: Mapping[str, NumpyArray],
        key: Array,  # noqa: ARG002
    ) -> ConditionedState:
        """Use the normalizer of an elite of another run."""
        size = self.task.observation_size
        given, policy = Policy.of_elite(elite).normalizer, state.agent.policy
        normalizer = replace(
            policy.normalizer,
            mean=policy.normalizer.mean.at[0, :size].set(given.mean),
            variance=policy.normalizer.variance.at[0, :size].set(given.variance),
            count=given.count[None],
        )
        return replace(state, agent=replace(state.agent, policy=replace(policy, normalizer=normalizer)))

    # Inside compiled programs.

    def _folded(self, parameters: Array, targets: Array) -> Array:
        (weights, biases), *rest = self.vppo.actor.layers(parameters)
        size = self.task.observation_size
        shifts = target_inputs(targets) @ weights[size:]
        return jnp.asarray(
            jax.vmap(lambda shift: self.actor.flatten([(weights[:size], biases + shift), *rest]))(shifts)
        )

    def _with_target_inputs(self, agent: Agent) -> Agent:
        """The agent whose normalizer leaves the inputs for the target as they are."""
        normalizer, size = agent.policy.normalizer, self.task.observation_size
        normalizer = replace(
            normalizer,
            mean=normalizer.mean.at[:, size:].set(0.0),
            variance=normalizer.variance.at[:, size:].set(1.0),
        )
        return replace(agent, policy=replace(agent.policy, normalizer=normalizer))

    def _weighted(
        self, trajectory: Trajectory, current: Array, following: Array, state: MultiplierState
    ) -> tuple[WeightedTrajectory, MultiplierState, Array]:
        """A rollout with the weights of its objectives, the multipliers after it, and the mean error.

        Args:
            trajectory: (1, E, T, ...).
            current: (E, k) targets until the end of each environment's first episode.
            following: (E, k) targets from then on.
            state: of the multipliers.
        """
        finished = trajectory.finished[0]  # (E, T)
        environments, length = finished.shape
        later = (jnp.cumsum(finished, axis=1) - finished) > 0
        targets = jnp.concatenate([current, following])  # (2 E, k)
        free = jnp.tile(jnp.arange(environments) < self.reward_environments, 2)
        multipliers = jnp.where(free[:, None], 0.0, self.multipliers.at(state, targets))
        weights = jnp.concatenate([jnp.ones_like(multipliers[:, :1]), multipliers], axis=1)
        weights /= jnp.linalg.norm(weights, axis=1, keepdims=True)
        by_step = jnp.where(later[..., None], weights[environments:, None], weights[:environments, None])

        active = trajectory.active[0]
        steps = jnp.concatenate([active & ~later, active & later])  # (2 E, T) of each target
        count = steps.sum(axis=1)
        proxies = jnp.tile(trajectory.rewards[0, ..., 1:], (2, 1, 1))
        mean = jnp.where(steps[..., None], proxies, 0.0).sum(axis=1) / jnp.maximum(count, 1)[:, None]
        # the measures of an episode that goes on like this part of it
        total = self.task.episode_length * mean
        measures = self.task.measures(total, jnp.full(len(total), self.task.episode_length))
        low, high = jnp.asarray(self.measure_ranges, jnp.float32).T
        errors = (targets + 1) / 2 - (measures - low) / (high - low)
        amounts = jnp.where(free, 0.0, count / length)
        state = self.multipliers.updated(state, targets, errors, amounts)
        error = (jnp.abs(errors).mean(axis=1) * amounts).sum() / jnp.maximum(amounts.sum(), 1e-6)
        return WeightedTrajectory(**vars(trajectory), weights=by_step[None]), state, error
