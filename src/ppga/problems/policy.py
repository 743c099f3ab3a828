"""A task as a problem whose solutions are policies; the base of the problems with learners."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ppga.errors import check_count
from ppga.learners.replay import Replay
from ppga.physics import Array, select
from ppga.policies.network import Network
from ppga.policies.normalizer import CLIP, NormalizerState
from ppga.policies.policy import Policy, init_mlp
from ppga.problems.base import Evaluation
from ppga.rollouts import EvaluatorSettings, Scores, explore
from ppga.rollouts.executor import Evaluate, Executor, LocalExecutor
from ppga.storage import NumpyArray, check_arrays, finite_rows
from ppga.tasks import Environment

WARMUP = (64, 100)
"""Environments, and control steps in each, whose observations initialize the normalizer."""
DETERMINISTIC_LOG_STD = -7.0
"""Log std that is stored with policies without exploration noise; files need a number."""


@dataclass(frozen=True)
class PolicyNetworkConfig:
    """Hidden layers of the policies.

    Attributes:
        actor: units of each hidden layer of the policies.
    """

    actor: tuple[int, ...] = (128, 128)

    def check(self) -> None:
        """Raise an InputError for values that cannot work."""
        for name, sizes in vars(self).items():
            for size in sizes:
                check_count(f"hidden units of --network.{name}", size)


@dataclass(frozen=True)
class NetworkConfig(PolicyNetworkConfig):
    """Hidden layers of the policies and of the value functions.

    Attributes:
        critic: units of each hidden layer of the value functions.
    """

    critic: tuple[int, ...] = (128, 128)


def deterministic_actor(task: Environment, hidden: tuple[int, ...]) -> Network:
    """An actor network whose actions lie within [-1, 1]."""
    return Network((task.observation_size, *hidden, task.action_size), head="tanh")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FrozenState:
    """State of a problem without a learner: the normalizer, initialized once."""

    normalizer: NormalizerState


class PolicyProblem:
    """A task as a `Problem` whose solutions are policies; by itself, one without a learner.

    Its policies normalize observations by what random actions have shown, and act without noise; problems
    with learners may do otherwise.

    Args:
        task: the task.
        actor: network of the policies.
        sample_actions: evaluate with exploration noise; by the mean action otherwise.
        executor: where rollouts run.
        progress: called now and then, for a display.
    """

    warmup_steps = WARMUP[0] * WARMUP[1]
    rollout_environments = 0
    """Environments of a learner's rollouts that an executor may share out; 0 without such rollouts."""
    rollout_agents = 1
    """Agents that share these environments."""
    replay: Replay | None = None
    """Replay buffer of an off-policy learner."""
    learner_parts: tuple[str, ...] = ()
    """Names of the state's parts that learn."""
    several_learners = True
    """Whether these parts are arrays (n, ...) of n independent learners."""

    def __init__(
        self,
        task: Environment,
        actor: Network,
        sample_actions: bool = False,
        executor: Executor | None = None,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        self.task, self.actor, self.sample_actions = task, actor, sample_actions
        self.executor, self.progress = executor or LocalExecutor(), progress
        self.solution_size = actor.parameters
        self.measure_names = task.measure_names
        self.measure_ranges = task.measure_ranges
        self.archive_shape = task.archive_shape
        self.qd_offset = task.qd_offset
        self.fields: dict[str, tuple[int, ...]] = {
            "log_std": (task.action_size,),
            "observation_mean": (task.observation_size,),
            "observation_variance": (task.observation_size,),
            "observation_count": (),
        }
        self._evaluators: dict[EvaluatorSettings, Evaluate] = {}

    def describe(self) -> dict[str, Any]:
        """Task and network, for files."""
        task = self.task
        return {
            "task": {
                "name": task.name,
                "physics": task.physics_name,
                "episode_length": task.episode_length,
                "integrator": task.integrator,
                "clip": task.clip,
                "observation_size": task.observation_size,
                "action_size": task.action_size,
                "control_dt": None if math.isnan(task.control_dt) else task.control_dt,
                "control_range": [list(pair) for pair in task.control_range],
                "measure_names": list(task.measure_names),
                "measure_ranges": [list(pair) for pair in task.measure_ranges],
                "archive_shape": list(task.archive_shape),
                "qd_offset": task.qd_offset,
            },
            "network": {
                **self.actor.describe(),
                "observation_clip": CLIP,
                "action_range": [-1.0, 1.0],
            },
        }

    @property
    def simulation_warnings(self) -> set[str]:
        """See `Environment.simulation_warnings`."""
        return self.task.simulation_warnings

    def init(self, key: Array) -> Any:
        """The normalizer."""
        return FrozenState(self.init_normalizer(key))

    def init_normalizer(self, key: Array) -> NormalizerState:
        """Observation statistics of random actions in a few environments."""
        environments, steps = WARMUP

        def act(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
            return jax.random.uniform(key, (environments, self.task.action_size), minval=-1.0)

        def warm_up(key: Array) -> NormalizerState:
            start_key, act_key = jax.random.split(key)
            _, transitions = explore(self.task, act, self.task.reset(start_key, environments), act_key, steps)
            observations = transitions.observation.reshape(environments * steps, -1)
            initial = NormalizerState.initial(observations.shape[1])
            return initial.updated(observations, transitions.active.ravel())

        normalizer: NormalizerState = jax.jit(warm_up)(key)
        return normalizer

    def start_at(self, state: Any, elite: Mapping[str, NumpyArray], key: Array) -> Any:  # noqa: ARG002
        """Use the normalizer of an elite of another run, with which new policies can continue from it."""
        return replace(state, normalizer=Policy.of_elite(elite).normalizer)

    def reset_nonfinite(self, state: Any, key: Array) -> tuple[Any, NumpyArray]:
        """Reinitialize learners whose parameters are not finite; also returns which (n,) they are."""
        parts = {name: getattr(state, name) for name in self.learner_parts}
        if not parts:
            return state, np.zeros(0, bool)
        leaves = jax.tree.leaves(parts)
        reset = ~finite_rows(leaves if self.several_learners else (leaf[None] for leaf in leaves))
        if reset.any():
            fresh = self.init(key)
            new = {name: getattr(fresh, name) for name in parts}
            mask = jnp.asarray(reset)
            chosen = select(mask, new, parts) if self.several_learners else new
            state = replace(state, **chosen)
        return state, reset

    def policy(self, state: Any) -> Policy:
        """The search policy, with the normalizer and exploration noise of this state.

        Here, without a search policy, it has no parameters.
        """
        return Policy(jnp.zeros(0), jnp.full(self.task.action_size, DETERMINISTIC_LOG_STD), state.normalizer)

    def random(self, key: Array, n: int) -> NumpyArray:
        """Parameters (n, d) of randomly initialized policies."""
        return np.asarray(self.random_parameters(key, n))

    def random_parameters(self, key: Array, n: int) -> Array:
        """Parameters (n, d) of randomly initialized policies, as an array of JAX."""

        def one(key: Array) -> Array:
            return jnp.asarray(self.actor.flatten(init_mlp(key, self.actor.sizes)))

        return jnp.asarray(jax.vmap(one)(jax.random.split(key, n)))

    def stored_fields(self, state: Any) -> dict[str, NumpyArray]:
        """Exploration noise and normalizer."""
        policy = self.policy(state)
        return {
            "log_std": np.asarray(policy.log_std),
            "observation_mean": np.asarray(policy.normalizer.mean),
            "observation_variance": np.asarray(policy.normalizer.variance),
            "observation_count": np.asarray(policy.normalizer.count),
        }

    def evaluate(
        self,
        state: Any,
        solutions: NumpyArray,
        key: Array,
        episodes: int,
        active: NumpyArray | None = None,
    ) -> Evaluation:
        """Evaluate policies (n, d) with the state's normalizer and exploration noise; see `Problem`."""
        n = len(solutions)
        shared = replace(self.policy(state), parameters=jnp.zeros(0))
        policies: Any = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf)[None], n, axis=0), shared)
        policies = replace(policies, parameters=solutions)
        return self._evaluate(policies, key, episodes, active)

    def evaluate_elites(
        self, elites: Mapping[str, NumpyArray], key: Array, episodes: int, active: NumpyArray
    ) -> Evaluation:
        """Evaluate elites or candidates, all their fields (n, ...), with their own normalizers."""
        return self._evaluate(Policy.of_elite(elites), key, episodes, active)

    def _evaluate(self, policies: Policy, key: Array, episodes: int, active: NumpyArray | None) -> Evaluation:
        scores = self.play(policies, key, episodes, active)  # (n, episodes)
        diverged = scores.diverged.any(axis=1)
        objective = scores.objective.mean(axis=1)
        self.progress()
        count = len(objective) if active is None else int(active.sum())
        return Evaluation(
            objective=np.where(diverged, np.nan, objective).astype(np.float32),
            objective_std=np.asarray(scores.objective.std(axis=1)),
            measures=np.asarray(scores.measures.mean(axis=1)),
            measures_std=np.asarray(scores.measures.std(axis=1)),
            length=np.asarray(scores.steps.mean(axis=1, dtype=np.float32)),
            survival=np.asarray((~scores.terminated).mean(axis=1, dtype=np.float32)),
            env_steps=int(scores.steps.sum()),
            policies=count,
            episodes=count * episodes,
        )

    def play(self, policies: Policy, key: Array, episodes: int, active: NumpyArray | None) -> Scores:
        """Scores (n, episodes, ...) of policies (n, ...); those that are not active have no steps."""
        return self.evaluator(EvaluatorSettings(episodes, self.sample_actions))(policies, key, active)[0]

    def evaluator(self, settings: EvaluatorSettings) -> Evaluate:
        """The evaluator with these settings, compiled once."""
        if settings not in self._evaluators:
            self._evaluators[settings] = self.executor.evaluator(self.task, self.actor, settings)
        return self._evaluators[settings]

    # Replay buffers of off-policy learners.

    @property
    def checkpoint_due(self) -> bool:
        """Whether the replay buffer needs a checkpoint now."""
        return self.replay is not None and self.replay.due

    def open(self, folder: Path | None) -> None:
        """Open the replay buffer, in a run's folder or in memory."""
        if self.replay is not None:
            self.replay.open(folder)

    def external_state(self) -> dict[str, NumpyArray]:
        """Position of the replay buffer."""
        return {} if self.replay is None else {"replay": self.replay.state()}

    def load_external_state(self, state: Mapping[str, NumpyArray]) -> None:
        """Restore the replay buffer up to its position in a checkpoint."""
        check_arrays(state, {} if self.replay is None else {"replay": (np.dtype(np.int64), ())})
        if self.replay is not None:
            self.replay.load_state(state["replay"])
