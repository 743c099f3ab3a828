"""A task as a problem with gradients: VPPO estimates the Jacobian and walks the search policy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ppga import random
from ppga.learners.agent import Agent, LearnerState, ReturnStatistics, UpdateReport
from ppga.learners.ppo import PPOConfig
from ppga.learners.vppo import VPPO, EnvBatch
from ppga.physics import Array
from ppga.policies.normalizer import NormalizerState
from ppga.policies.policy import Policy
from ppga.problems.base import Cost, LearningReport, nonzero_weights
from ppga.problems.policy import NetworkConfig, PolicyProblem
from ppga.rollouts.executor import Executor
from ppga.storage import NumpyArray
from ppga.tasks import Environment

DIVERGED_VALUE_LOSS = 100.0
"""A value loss (of normalized returns) above this means that the critic has diverged."""
REPORTED = (
    "policy_loss", "value_loss", "kl", "minibatches_used", "explained_variance", "entropy", "nonfinite",
    "diverged", "learning_rate",
)  # fmt: skip
"""Fields of an `UpdateReport` that go into the record."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PPOSearchState:
    """State of a `PPOProblem`.

    Attributes:
        policy: the search policy.
        learners: (k+2, ...) of the reward, of each measure, and of the walk.
        return_statistics: of all k+1 objectives, or of the one that the search policy learned last.
        envs: all environments.
    """

    policy: Policy
    learners: LearnerState
    return_statistics: ReturnStatistics
    envs: EnvBatch


class PPOProblem(PolicyProblem):
    """A task as a `GradientProblem`, by VPPO.

    Args:
        task: the task.
        ppo: settings of PPO.
        network: hidden layers of actor and critics.
        sample_actions: evaluate with exploration noise; by the mean action otherwise.
        executor: where rollouts and updates run.
        progress: called after every PPO update, for a display.
        gradient_count: number of rows of the Jacobian, the reward first; k+1 by default.
    """

    learner_parts = ("policy", "learners", "return_statistics")
    several_learners = False

    def __init__(
        self,
        task: Environment,
        ppo: PPOConfig,
        network: NetworkConfig,
        sample_actions: bool = False,
        executor: Executor | None = None,
        progress: Callable[[], None] = lambda: None,
        gradient_count: int | None = None,
    ) -> None:
        self.objectives = k1 = 1 + len(task.measure_names)
        self.gradient_count = k1 if gradient_count is None else gradient_count
        self.vppo = VPPO(task, network.actor, network.critic, ppo, executor, self.gradient_count)
        super().__init__(task, self.vppo.actor, sample_actions, executor, progress)
        self.ppo = ppo
        self.rollout_environments, self.rollout_agents = ppo.environments, self.gradient_count
        self.fresh = ppo.normalizers == "fresh"
        self.warmup_steps = 0 if self.fresh else ppo.environments * ppo.rollout_length
        initial = self._initial_statistics()
        self.fields |= {f"returns_{name}": values.shape for name, values in vars(initial).items()}
        self._copies = jax.jit(self._make_copies)  # one program instead of one for each small step

    def init(self, key: Array) -> PPOSearchState:
        """New policy, critics and environments; a first rollout initializes normalizers that are shared."""
        k1 = self.objectives
        policy_key, learner_key, env_key, rollout_key = jax.random.split(key, 4)
        # not in one program: several of LAPACK's factorizations at once can deadlock XLA's threads
        policies = jax.vmap(self.vppo.init_policy)(jax.random.split(policy_key, 1))
        learners = jax.vmap(self.vppo.init_learner)(jax.random.split(learner_key, k1 + 1))
        agents = Agent(policies, _one_agent(self._initial_statistics()), _one_agent(_row(learners, k1)))
        envs = self.vppo.init_envs(env_key)
        if self.fresh:
            policy = replace(_row(policies, 0), normalizer=NormalizerState.fresh(self.task.observation_size))
            return PPOSearchState(policy, learners, self._initial_statistics(), envs)
        envs, trajectory = self.vppo.collect(agents, envs, jax.random.split(rollout_key, 1))
        agents = self.vppo.update_normalizers(agents, trajectory)
        return PPOSearchState(_row(agents.policy, 0), learners, _row(agents.return_statistics, 0), envs)

    def cost(self, policies: int, updates: int = 0) -> Cost:
        """Cost of evaluating that many policies and of that many updates."""
        return learning_cost(self.vppo, policies, updates, self.solution_size)

    def policy(self, state: PPOSearchState) -> Policy:
        """The search policy."""
        return state.policy

    def solution(self, state: PPOSearchState) -> NumpyArray:
        """Parameters (d,) of the search policy."""
        return np.asarray(state.policy.parameters)

    def stored_fields(self, state: PPOSearchState) -> dict[str, NumpyArray]:
        """Exploration noise and normalizers."""
        statistics = state.return_statistics
        return super().stored_fields(state) | {
            "returns_mean": np.asarray(statistics.mean),
            "returns_covariance": np.asarray(statistics.covariance),
            "returns_count": np.asarray(statistics.count),
        }

    def jacobian(
        self, state: PPOSearchState, key: Array, updates: int
    ) -> tuple[PPOSearchState, NumpyArray, LearningReport]:
        """Change (k+1, d) of k+1 copies of the search policy that each learn one objective.

        They start in the situations that the search policy has reached; its own environments are not changed.
        """
        state = self._with_initial_noise(state)
        agents, weights, keys = self._copies(state.policy, state.return_statistics, state.learners, key)
        envs = _copied(state.envs)  # a rollout donates its buffers
        learned, _, report = self.vppo.train(agents, envs, weights, updates, keys, self.fresh, self.progress)
        change = np.asarray(learned.policy.parameters) - self.solution(state)
        names = ("reward", *self.measure_names)[: self.gradient_count]
        learners = _with_first_rows(state.learners, learned.learner)
        state = replace(state, learners=learners)
        return state, change, learning_report(self.vppo, report, updates, names)

    def walk(
        self, state: PPOSearchState, weights: NumpyArray, key: Array, updates: int, scaled: bool
    ) -> tuple[PPOSearchState, LearningReport]:
        """Let the search policy learn a weighted sum (k+1,) of proxies; see `GradientProblem.walk`."""
        state = self._with_initial_noise(state)
        weights = weights * objective_scales(state.return_statistics) if scaled else weights
        weights = nonzero_weights(weights)
        if self.ppo.normalize != "returns":  # statistics of returns are of one scale of the objective
            weights = weights / np.linalg.norm(weights)
        learned, envs, report = self.vppo.train(
            self._walking_agent(state),
            state.envs,
            jnp.asarray(weights, jnp.float32)[None],
            updates,
            jax.random.split(key, 1),
            True,
            self.progress,
        )
        return self._with_agent(state, learned, envs), self._walk_report(report, updates)

    def walk_recorded(
        self, state: PPOSearchState, weights: NumpyArray, key: Array, first: bool
    ) -> tuple[PPOSearchState, PPOSearchState, NumpyArray, LearningReport]:
        """One update of a walk that also returns the policies between its minibatch steps.

        Args:
            state: before the update.
            weights: (k+1,) of reward and measure proxies.
            key: random key.
            first: whether this is the first update of a walk.

        Returns:
            The state before and after the update, the policies (steps, d), whose normalizers are those of the
            state before, and a report.
        """
        state = self._with_initial_noise(state) if first else state
        agents, envs, keys = self._walking_agent(state), state.envs, jax.random.split(key, 1)
        if first:
            agents, envs = self.vppo.begin(agents, envs, keys)
        collect_keys, update_keys = random.split_each(keys)
        envs, trajectory = self.vppo.collect(agents, envs, collect_keys)
        learned, report, policies = self.vppo.update_recorded(
            agents, trajectory, jnp.asarray(weights, jnp.float32)[None], update_keys
        )
        after = self._with_agent(state, self.vppo.update_normalizers(learned, trajectory), envs)
        return (
            replace(state, envs=envs),
            after,
            np.asarray(policies)[0],
            self._walk_report(report, 1),
        )

    def scale_exploration_noise(
        self, state: PPOSearchState, factor: float, low: float, high: float
    ) -> PPOSearchState:
        """Multiply the std of the exploration noise, which stays within [low, high]."""
        log_std = jnp.clip(state.policy.log_std + jnp.log(jnp.float32(factor)), np.log(low), np.log(high))
        return replace(state, policy=replace(state.policy, log_std=log_std))

    def place(
        self, state: PPOSearchState, solution: NumpyArray, key: Array
    ) -> tuple[PPOSearchState, LearningReport]:
        """Set the search policy (d,); a rollout updates its normalizers."""
        policy = replace(state.policy, parameters=jnp.asarray(solution, jnp.float32))
        agents = self._walking_agent(replace(state, policy=policy))
        envs, trajectory = self.vppo.collect(agents, state.envs, jax.random.split(key, 1))
        agents = self.vppo.update_normalizers(agents, trajectory)
        state = replace(
            state,
            policy=_row(agents.policy, 0),
            return_statistics=_row(agents.return_statistics, 0),
            envs=envs,
        )
        return state, LearningReport(env_steps=self.ppo.environments * self.ppo.rollout_length)

    def restart(self, state: PPOSearchState, elite: Mapping[str, NumpyArray], key: Array) -> PPOSearchState:
        """Continue from an elite, with its exploration noise and normalizers, in new environments."""
        statistics = ReturnStatistics(
            jnp.asarray(elite["returns_mean"]),
            jnp.asarray(elite["returns_covariance"]),
            jnp.asarray(elite["returns_count"]),
        )
        envs = self.vppo.init_envs(key)
        return replace(state, policy=Policy.of_elite(elite), return_statistics=statistics, envs=envs)

    def start_at(self, state: PPOSearchState, elite: Mapping[str, NumpyArray], key: Array) -> PPOSearchState:
        """Continue from an elite of another run."""
        return self.restart(state, elite, key)

    def _walking_agent(self, state: PPOSearchState) -> Agent:
        """The search policy as the only agent, with the critic of the walk."""
        walking = _row(state.learners, self.objectives)
        agent: Agent = _one_agent(Agent(state.policy, state.return_statistics, walking))
        return agent

    def _with_agent(self, state: PPOSearchState, agents: Agent, envs: EnvBatch) -> PPOSearchState:
        """The state after the only agent has learned."""
        agent = _row(agents, 0)
        learners = _with_row(state.learners, agent.learner, self.objectives)
        return PPOSearchState(agent.policy, learners, agent.return_statistics, envs)

    def _make_copies(
        self, policy: Policy, statistics: ReturnStatistics, learners: LearnerState, key: Array
    ) -> tuple[Agent, Array, Array]:
        """An agent for each gradient, their objectives and their keys."""
        count = self.gradient_count
        if self.fresh:
            policy = replace(policy, normalizer=NormalizerState.fresh(self.task.observation_size))
            statistics = self._initial_statistics()
        policies, statistics = jax.tree.map(
            lambda leaf: jnp.repeat(leaf[None], count, axis=0), (policy, statistics)
        )
        learners = jax.tree.map(lambda leaf: leaf[:count], learners)
        return (
            Agent(policies, statistics, learners),
            jnp.eye(count, self.objectives),
            jax.random.split(key, count),
        )

    def _initial_statistics(self) -> ReturnStatistics:
        """Statistics of returns at the start: of what the critic predicts, or of all objectives."""
        if self.ppo.normalize == "returns":
            return ReturnStatistics.fresh()
        return ReturnStatistics.initial(self.objectives)

    def _with_initial_noise(self, state: PPOSearchState) -> PPOSearchState:
        """The state that learning starts from in each iteration: exploration noise is reset if configured."""
        if self.ppo.std != "reset":
            return state
        log_std = jnp.full_like(state.policy.log_std, np.log(self.ppo.initial_std))
        return replace(state, policy=replace(state.policy, log_std=log_std))

    def _walk_report(self, report: UpdateReport, updates: int) -> LearningReport:
        """Report of the only agent, whose metrics are numbers."""
        walked = learning_report(self.vppo, report, updates, ("the walk",))
        return replace(walked, metrics={name: values[0] for name, values in walked.metrics.items()})


def learning_cost(vppo: VPPO, policies: int, updates: int, solution_size: int) -> Cost:
    """Cost of evaluating that many policies and of that many updates."""
    ppo, task = vppo.config, vppo.task
    steps = ppo.environments * ppo.rollout_length
    row = 2 * task.observation_size + 2 * task.action_size + 2 * vppo.objectives + 8
    networks = vppo.actor.parameters + vppo.critic.parameters
    return Cost(
        policies,
        learning_steps=updates * steps,
        multiplications=3 * networks * ppo.epochs * updates * steps,  # one forward, two backward
        memory=4 * (steps * row + policies * solution_size),
    )


def learning_report(vppo: VPPO, report: UpdateReport, updates: int, names: tuple[str, ...]) -> LearningReport:
    """Cost and metrics of a learning phase.

    Args:
        vppo: the learner.
        report: of A agents, averaged over the updates.
        updates: number of updates.
        names: of the agents, for warnings.
    """
    skipped = np.asarray(report.nonfinite + report.diverged).sum()  # of an update, on average
    losses = np.asarray(report.value_loss)
    return LearningReport(
        env_steps=updates * vppo.config.environments * vppo.config.rollout_length,
        nonfinite=round(updates * float(skipped)),
        metrics={name: np.asarray(getattr(report, name)).tolist() for name in REPORTED},
        warnings=tuple(
            f"the critic of {name} has diverged (value loss {loss:.3g})"
            for name, loss in zip(names, losses, strict=True)
            if not loss < DIVERGED_VALUE_LOSS
        ),
    )


def objective_scales(statistics: ReturnStatistics) -> NumpyArray:
    """Factors (k+1,) that make the objectives comparable: 1 / standard deviation of their returns.

    The factor of an objective that hardly varies is 0: nothing is known about how to change it, and a small
    std would amplify what is constant in it.
    """
    std = np.sqrt(np.diagonal(np.asarray(statistics.covariance)))
    varies = std > np.maximum(1e-3, 0.01 * np.abs(np.asarray(statistics.mean)))
    return np.where(varies, 1 / np.where(varies, std, 1.0), 0.0)


def _one_agent(tree: Any) -> Any:
    """Arrays with an axis of one agent in front."""
    return jax.tree.map(lambda leaf: leaf[None], tree)


@jax.jit
def _row(tree: Any, number: int) -> Any:
    """One row of all arrays."""
    return jax.tree.map(lambda leaf: leaf[number], tree)


@jax.jit
def _with_row(tree: Any, row: Any, number: int) -> Any:
    """Arrays with one row replaced."""
    return jax.tree.map(lambda old, new: old.at[number].set(new), tree, row)


@jax.jit
def _with_first_rows(tree: Any, rows: Any) -> Any:
    """Arrays with the first rows replaced."""
    return jax.tree.map(lambda old, new: old.at[: len(new)].set(new), tree, rows)


@jax.jit
def _copied(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)
