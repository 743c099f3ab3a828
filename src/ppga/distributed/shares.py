"""Rollouts cut into shares of a fixed size, so that results do not depend on which worker computes a share.

XLA rounds differently for another batch shape and for another number of visible cores. A share therefore
always has the same shape, is computed on the same number of cores, and has its own random keys.
"""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ppga.learners.agent import Agent, Trajectory
from ppga.learners.vppo import EnvBatch
from ppga.physics import Array
from ppga.policies.policy import Policy
from ppga.problems.conditioned import ConditionedProblem
from ppga.problems.policy import PolicyProblem
from ppga.problems.ppo import PPOProblem
from ppga.rollouts import Evaluator, EvaluatorSettings, Scores, Transitions, episode_keys
from ppga.storage import NumpyArray

MAX_ENVIRONMENTS = 32
"""Environments in a share, at most: enough to keep a core busy between two calls."""


class Pool(Protocol):
    """Workers that compute shares."""

    def run(self, kind: str, shared: list[Any], jobs: list[tuple[int, tuple[Any, ...]]]) -> list[Any]:
        """Results of jobs, in their order.

        Args:
            kind: kind of the jobs, a method of `Worker`.
            shared: arguments that several jobs have in common; each is sent to a worker once.
            jobs: of each job, the number of its shared argument, and its own arguments; arrays of NumPy.
        """
        ...


def policies_per_share(episodes: int) -> int:
    """Number of policies in a share, with this many episodes of each."""
    return max(1, MAX_ENVIRONMENTS // episodes)


def environments_per_share(agent_envs: int) -> int:
    """Number of environments in a share: the largest divisor of an agent's environments that fits."""
    return max(size for size in range(1, min(agent_envs, MAX_ENVIRONMENTS) + 1) if agent_envs % size == 0)


def count_shares(policies: int, episodes: int, environments: int = 0, agents: int = 1) -> int:
    """Number of shares of the larger part of an iteration, evaluation or learning.

    Args:
        policies: policies evaluated at once.
        episodes: episodes of each.
        environments: environments in which agents learn; 0 without such a learner.
        agents: agents that share them.
    """
    evaluation = -(-policies // policies_per_share(episodes))
    if not environments:
        return evaluation
    return max(evaluation, environments // environments_per_share(environments // agents))


def pad_policies(
    policies: Policy, key: Array, episodes: int, active: NumpyArray | None, total: int
) -> tuple[Policy, NumpyArray, NumpyArray]:
    """Policies for a fixed batch size: inactive copies of the last one are appended.

    Args:
        policies: n policies.
        key: random key of all episodes.
        episodes: episodes of each policy.
        active: (n,) bool, which policies are evaluated; all by default.
        total: number of policies to return.

    Returns:
        The policies (total, ...), the data of their episodes' keys (total, episodes, ...), and which of them
        are evaluated (total,), as arrays of NumPy.
    """
    n = len(policies.parameters)
    rows = np.minimum(np.arange(total), n - 1)
    mask = np.zeros(total, bool)
    mask[:n] = True if active is None else active
    key_data = np.asarray(jax.random.key_data(episode_keys(key, n, episodes)))[rows]
    return jax.tree.map(lambda leaf: leaf[rows], to_numpy(policies)), key_data, mask


def to_numpy(tree: Any) -> Any:
    """The tree with arrays of NumPy."""
    return jax.tree.map(np.asarray, tree)


class Worker:
    """Computes shares, in any process; it stores compiled programs, and no state of a run.

    The result of a job is a pair: the result itself, and the simulation warnings of the worker so far.

    Args:
        problem: the problem, with a `LocalExecutor`.
    """

    def __init__(self, problem: PolicyProblem) -> None:
        self.problem = problem
        self._evaluators: dict[EvaluatorSettings, Any] = {}

    def collect(
        self, agent: Agent, envs: EnvBatch, key_data: NumpyArray
    ) -> tuple[tuple[EnvBatch, Trajectory], set[str]]:
        """A rollout of one agent (1, ...) in a share of its environments; trajectories (1, size, T, ...)."""
        assert isinstance(self.problem, PPOProblem | ConditionedProblem)
        keys = jax.random.wrap_key_data(jnp.asarray(key_data))[None]
        envs = jax.tree.map(jnp.array, envs)  # a copy, because a rollout donates the buffers
        result: tuple[EnvBatch, Trajectory] = to_numpy(self.problem.vppo.collect(agent, envs, keys))
        return result, self.problem.simulation_warnings

    def evaluate(
        self,
        settings: EvaluatorSettings,
        policies: Policy,
        key_data: NumpyArray,
        active: NumpyArray,
    ) -> tuple[tuple[Scores, Transitions | None], set[str]]:
        """Scores (n, episodes, ...) of a share of policies, and their transitions (n, episodes, t, ...) or
        None.

        Args:
            settings: see `Evaluator`.
            policies: n policies.
            key_data: (n, episodes, ...) data of the episodes' keys.
            active: (n,) bool, which policies are evaluated.
        """
        if settings not in self._evaluators:
            evaluator = Evaluator(self.problem.task, self.problem.actor, settings)
            self._evaluators[settings] = jax.jit(evaluator.evaluate_traced)
        keys = jax.random.wrap_key_data(jnp.asarray(key_data))
        result: tuple[Scores, Transitions | None] = to_numpy(
            self._evaluators[settings](policies, keys, active)
        )
        return result, self.problem.simulation_warnings
