"""Executors: where rollouts and updates run. A problem gets its executor as an argument."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import jax

from ppga.policies.network import Network
from ppga.policies.policy import Policy
from ppga.rollouts.episodes import Scores, Transitions
from ppga.rollouts.evaluator import Evaluator, EvaluatorSettings
from ppga.storage import NumpyArray
from ppga.tasks import Environment

Evaluate = Callable[[Policy, Any, NumpyArray | None], tuple[Scores, Transitions | None]]
"""n policies, a key, and a mask (n,) of the active ones -> scores (n, episodes, ...) and, if they are
stored, transitions (n, episodes, t, ...)."""


@dataclass(frozen=True)
class LearnerFunctions:
    """Functions of a vectorized on-policy learner, to be compiled.

    Attributes:
        init_envs: key -> environments.
        collect: agents, environments, keys (A,) -> environments, trajectories (A, e, T, ...).
        update: agents, trajectories, weights (A, k+1), keys (A,) -> agents, report, None.
        update_recorded: the same, with the parameters between the minibatch steps in place of None.
        update_normalizers: agents, trajectories -> agents.
    """

    init_envs: Callable[..., Any]
    collect: Callable[..., Any]
    update: Callable[..., Any]
    update_recorded: Callable[..., Any]
    update_normalizers: Callable[..., Any]


@dataclass(frozen=True)
class Work:
    """Description of a run for its executor: for checks, and for workers that build the problem.

    Attributes:
        task: name of the task for workers: a registered name or FILE.py:NAME.
        config: the run's config as JSON values.
        build: makes the problem on a worker, from `task` and `config`; an importable function.
        physics: simulator of the task, `Environment.physics_name`.
        replay: whether a learner uses a replay buffer.
        shares: number of shares that the largest part of an iteration is cut into; more workers have no work.
    """

    task: str
    config: dict[str, Any]
    build: Callable[[str, dict[str, Any]], Any]
    physics: str
    replay: bool
    shares: int


class Executor(Protocol):
    """Where rollouts and updates run: in this process, on Ray's workers, or on several devices.

    Attributes:
        devices: devices that share the environments and average their gradients; 1 if there is only one.
        axis: name of the devices' axis inside compiled programs; empty for one device.
    """

    devices: int
    axis: str

    def evaluator(self, task: Environment, network: Network, settings: EvaluatorSettings) -> Evaluate:
        """A function that evaluates policies; see `Evaluator` for the arguments."""
        ...

    def compile(self, functions: LearnerFunctions, task: Environment, agent_envs: int) -> LearnerFunctions:
        """Compiled programs of a learner.

        Args:
            functions: the learner's functions. Inside a program with a devices' axis, `collect` gets the
                environments of one device, and `update` averages over the axis.
            task: the task of the environments.
            agent_envs: the smallest number of environments of an agent, on all devices together.
        """
        ...

    def open(self, work: Work, say: Callable[[str], None]) -> AbstractContextManager[None]:
        """Make the executor ready for a run, and release its resources in the end.

        Args:
            work: the run.
            say: shows a message to the user.

        Raises:
            InputError: the executor cannot do this work.
        """
        ...

    def metrics(self) -> dict[str, Any]:
        """Metrics of the last iteration."""
        ...


class LocalExecutor:
    """Runs everything in this process, on one device."""

    devices = 1
    axis = ""

    def evaluator(self, task: Environment, network: Network, settings: EvaluatorSettings) -> Evaluate:
        """See `Executor`."""
        return Evaluator(task, network, settings)

    def compile(
        self,
        functions: LearnerFunctions,
        task: Environment,  # noqa: ARG002
        agent_envs: int,  # noqa: ARG002
    ) -> LearnerFunctions:
        """See `Executor`."""
        return LearnerFunctions(
            init_envs=jax.jit(functions.init_envs),
            collect=jax.jit(functions.collect, donate_argnums=1),
            update=jax.jit(functions.update),
            update_recorded=jax.jit(functions.update_recorded),
            update_normalizers=jax.jit(functions.update_normalizers),
        )

    def open(
        self,
        work: Work,  # noqa: ARG002
        say: Callable[[str], None],  # noqa: ARG002
    ) -> AbstractContextManager[None]:
        """See `Executor`."""
        return nullcontext()

    def metrics(self) -> dict[str, Any]:
        """See `Executor`."""
        return {}
