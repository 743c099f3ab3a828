"""Rollouts on Ray's workers; updates run in this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ppga.distributed.cluster import Cluster
from ppga.distributed.ray_pool import RayPool, ray_pool
from ppga.distributed.shares import (
    Pool,
    environments_per_share,
    pad_policies,
    policies_per_share,
    to_numpy,
)
from ppga.errors import InputError
from ppga.learners.agent import Agent, Trajectory
from ppga.learners.vppo import EnvBatch
from ppga.physics import Array
from ppga.policies.network import Network
from ppga.policies.policy import Policy
from ppga.rollouts import Evaluator, EvaluatorSettings, Scores, Transitions
from ppga.rollouts.executor import Evaluate, LearnerFunctions, LocalExecutor, Work
from ppga.storage import NumpyArray
from ppga.tasks import Environment


class RayExecutor:
    """Runs rollouts on the workers of a Ray cluster. See `Executor`.

    Args:
        cluster: the cluster; one on this machine by default.

    Attributes:
        pool: the workers, while the executor is open.
    """

    devices = 1
    axis = ""

    def __init__(self, cluster: Cluster | None = None) -> None:
        self.cluster = cluster or Cluster()
        self.pool: Pool | None = None

    def evaluator(self, task: Environment, network: Network, settings: EvaluatorSettings) -> Evaluate:
        """See `Executor`."""
        return RayEvaluator(self, task, network, settings)

    def compile(self, functions: LearnerFunctions, task: Environment, agent_envs: int) -> LearnerFunctions:
        """See `Executor`."""
        local = LocalExecutor().compile(functions, task, agent_envs)
        return replace(local, collect=RayRollout(self, task, environments_per_share(agent_envs)))

    @contextmanager
    def open(self, work: Work, say: Callable[[str], None]) -> Iterator[None]:
        """Start the workers, and stop them in the end. See `Executor`."""
        if self.cluster.rank is not None:
            raise InputError("--rank belongs to --cluster jax; Ray numbers its workers itself.")
        if work.config["simulation"]["physics"] != "mujoco":
            raise InputError(
                "--cluster ray runs simulations on CPUs, and this run has none: choose --simulation.physics "
                "mujoco; or --cluster jax, for accelerators."
            )
        if work.config.get("ppo", {}).get("normalizers") == "fresh":
            raise InputError(
                "--ppo.normalizers fresh, as in the presets paper and paper-scripts, updates normalizers in "
                "every control step from all environments, which Ray's workers do not share: choose "
                "--ppo.normalizers shared."
            )
        with ray_pool(self.cluster, work, say) as self.pool:
            try:
                yield
            finally:
                self.pool = None

    def metrics(self) -> dict[str, Any]:
        """See `RayPool.metrics`."""
        return self.pool.metrics() if isinstance(self.pool, RayPool) else {}

    def run(
        self, task: Environment, kind: str, shared: list[Any], jobs: list[tuple[int, tuple[Any, ...]]]
    ) -> list[Any]:
        """Results of jobs, see `Pool.run`; the workers' simulation warnings are added to those of `task`."""
        if self.pool is None:
            raise RuntimeError("a RayExecutor has workers only while it is open")
        answers = self.pool.run(kind, shared, jobs)
        task.simulation_warnings.update(*(warnings for _, warnings in answers))
        return [result for result, _ in answers]


class RayRollout:
    """A rollout of all agents in shares, in place of `VPPO.collect`.

    Args:
        executor: has the workers.
        task: the task.
        size: environments in a share.
    """

    def __init__(self, executor: RayExecutor, task: Environment, size: int) -> None:
        self.executor, self.task, self.size = executor, task, size

    def __call__(self, agents: Agent, envs: EnvBatch, keys: Array) -> tuple[EnvBatch, Trajectory]:
        """The environments after a rollout, and trajectories (A, e, T, ...)."""
        count, environments = len(keys), len(envs.returns)
        shares = environments // count // self.size  # of each agent
        sent = to_numpy(_without_optimizer(agents))
        shared = [jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], sent) for i in range(count)]
        share_keys = jax.vmap(lambda key: jax.random.split(key, shares))(keys).reshape(count * shares)
        all_envs, key_data = to_numpy(envs), np.asarray(jax.random.key_data(share_keys))
        jobs = []
        for number in range(count * shares):
            rows = slice(number * self.size, (number + 1) * self.size)
            share = jax.tree.map(lambda leaf, rows=rows: leaf[rows], all_envs)
            jobs.append((number // shares, (share, key_data[number])))
        results = self.executor.run(self.task, "collect", shared, jobs)
        after: EnvBatch = _concatenate([envs for envs, _ in results])
        trajectory: Trajectory = _concatenate([trajectory for _, trajectory in results])
        # (shares, size, ...) -> (A, e, ...)
        trajectory = jax.tree.map(
            lambda leaf: leaf.reshape(count, shares * self.size, *leaf.shape[2:]), trajectory
        )
        result: tuple[EnvBatch, Trajectory] = jax.tree.map(jnp.asarray, (after, trajectory))
        return result


class RayEvaluator(Evaluator):
    """An `Evaluator` that evaluates policies in shares.

    Args:
        executor: has the workers.
        task, network, settings: see `Evaluator`.
    """

    def __init__(
        self, executor: RayExecutor, task: Environment, network: Network, settings: EvaluatorSettings
    ) -> None:
        super().__init__(task, network, settings)
        self.executor = executor

    def __call__(
        self, policies: Policy, key: Array, active: NumpyArray | None = None
    ) -> tuple[Scores, Transitions | None]:
        """See `Evaluator`."""
        n, size = len(policies.parameters), policies_per_share(self.episodes)
        total = -(-n // size) * size
        padded = pad_policies(policies, key, self.episodes, active, total)
        jobs: list[tuple[int, tuple[Any, ...]]] = []
        for first in range(0, total, size):
            rows = slice(first, first + size)
            jobs.append((0, jax.tree.map(lambda leaf, rows=rows: leaf[rows], padded)))
        results = _concatenate(self.executor.run(self.task, "evaluate", [self.settings], jobs))
        scores: tuple[Scores, Transitions | None] = jax.tree.map(lambda leaf: leaf[:n], results)
        return scores


def _concatenate(trees: list[Any]) -> Any:
    """One tree, with arrays concatenated along their first axis."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *trees)


def _without_optimizer(agents: Agent) -> Agent:
    """Agents without the state that a rollout does not need."""
    return replace(agents, learner=replace(agents.learner, optimizer=()))
