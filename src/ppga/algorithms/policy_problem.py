"""Policies of a task, to be judged by playing: what learners of all kinds build upon."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ppga.algorithms.base import SearchConfig
from ppga.algorithms.problem import Judgement, sound
from ppga.learners.replay import Replay
from ppga.networks import Network
from ppga.physics import Array, select
from ppga.policies import CLIP, Moments, Policy, init_mlp
from ppga.rollouts import Judge, Transitions, explore
from ppga.storage import NumpyArray, check_arrays
from ppga.tasks import Environment

LOOK = (64, 100)
"""Bodies, and control steps of each, that show what there is to be seen."""
HARDLY = -7.0
"""Logarithm of the action noise of policies that act without any; files keep a number."""


@dataclass(frozen=True)
class NetworkConfig:
    """Hidden units of the networks' layers.

    Attributes:
        actor: of the policies.
        critic: of the value functions.
    """

    actor: tuple[int, ...] = (128, 128)
    critic: tuple[int, ...] = (256, 256)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Sight:
    """What is carried on where nobody learns: how observations are normalised."""

    observation: Moments


class PolicyProblem:
    """A task as a `Problem` whose solutions are policies; by itself, one that nobody learns in.

    Its policies see observations normalised by what acting at random has shown, once and for all, and act
    without noise; those of learners may not.

    Args:
        task: what the policies do.
        search: how they are judged.
        actor: their network.
        progress: called now and then, for a display.
    """

    start_steps = LOOK[0] * LOOK[1]
    replay: Replay | None = None
    """What a learner off policy remembers."""
    learners: tuple[str, ...] = ()
    """Of its state, the parts whose rows (n, ...) learn: those of one learner go together."""
    make_judge: Callable[..., Judge] = Judge
    """Who judges, made of task, network, episodes, whether to sample, and whether to watch."""

    def __init__(
        self,
        task: Environment,
        search: SearchConfig,
        actor: Network,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        self.task, self.search, self.actor, self.progress = task, search, actor, progress
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
        self._judges: dict[tuple[int, bool], Judge] = {}  # by how many episodes, and whether watched

    def describe(self) -> dict[str, Any]:
        """Task and network, for files."""
        task = self.task
        return {
            "task": {
                "name": task.name,
                "physics": task.physics_name,
                "episode_length": task.episode_length,
                "integrator": task.integrator,
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

    def start(self, key: Array) -> Any:
        """How to see."""
        return Sight(self.look(key))

    def look(self, key: Array) -> Moments:
        """Moments of what some bodies see that act at random."""
        environments, steps = LOOK

        def act(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
            return jax.random.uniform(key, (environments, self.task.action_size), minval=-1.0)

        def play(key: Array) -> Moments:
            start_key, act_key = jax.random.split(key)
            _, film = explore(self.task, act, self.task.reset(start_key, environments), act_key, steps)
            seen = film.observation.reshape(environments * steps, -1)
            return Moments.unknown(seen.shape[1]).updated(seen, film.active.ravel())

        seen: Moments = jax.jit(play)(key)
        return seen

    def mend(self, state: Any, key: Array) -> tuple[Any, NumpyArray]:
        """New learners in the places of those that have learnt what is not finite; which (n,) those are."""
        parts = {name: getattr(state, name) for name in self.learners}
        lost = ~sound(parts) if parts else np.zeros(0, bool)
        if lost.any():
            fresh = self.start(key)
            new = {name: getattr(fresh, name) for name in parts}
            state = replace(state, **select(jnp.asarray(lost), new, parts))
        return state, lost

    def policies(self, state: Any) -> Policy:
        """How policies see and sway, m of them; their parameters are not looked at."""
        one = Policy(jnp.zeros(0), jnp.full(self.task.action_size, HARDLY), state.observation)
        few: Policy = jax.tree.map(lambda leaf: jnp.stack([leaf] * self.search.emitters), one)
        return few

    def random(self, key: Array, n: int) -> NumpyArray:
        """New policies (n, d) that do something."""
        return np.asarray(self.draw(key, n))

    def draw(self, key: Array, n: int) -> Array:
        """The same for JAX."""

        def one(key: Array) -> Array:
            return jnp.asarray(self.actor.flatten(init_mlp(key, self.actor.sizes)))

        return jnp.asarray(jax.vmap(one)(jax.random.split(key, n)))

    def kept(self, state: Any) -> dict[str, NumpyArray]:
        """Action noise and normalisers (m, ...)."""
        policies = self.policies(state)
        return {
            "log_std": np.asarray(policies.log_std),
            "observation_mean": np.asarray(policies.observation.mean),
            "observation_variance": np.asarray(policies.observation.variance),
            "observation_count": np.asarray(policies.observation.count),
        }

    def judge(
        self,
        state: Any,
        solutions: NumpyArray,
        key: Array,
        episodes: int | None = None,
        playing: NumpyArray | None = None,
    ) -> Judgement:
        """Play episodes with policies (m, n, d), which see and sway as `policies` says."""
        m, n, d = solutions.shape

        seeing = replace(self.policies(state), parameters=jnp.zeros((m, 0)))
        policies: Any = jax.tree.map(lambda leaf: np.repeat(leaf, n, axis=0), seeing)  # Judge deals them out
        policies = replace(policies, parameters=solutions.reshape(m * n, d))
        who = None if playing is None else playing.reshape(m * n)
        return self._play(policies, key, episodes, who)

    def judge_elites(
        self, elites: Mapping[str, NumpyArray], key: Array, episodes: int, playing: NumpyArray
    ) -> Judgement:
        """Play episodes with elites, all their fields (n, ...), which see as they did when found."""
        return self._play(Policy.of_elite(elites), key, episodes, playing)

    def _play(
        self, policies: Policy, key: Array, episodes: int | None, playing: NumpyArray | None
    ) -> Judgement:
        """Judge n policies; without a number of episodes by as many as usual, which are remembered."""
        watch, episodes = episodes is None and self.remembers, episodes or self.search.episodes
        judge = self._judges.setdefault(
            (episodes, watch),
            self.make_judge(self.task, self.actor, episodes, self.search.judge == "sample", watch),
        )
        scores, film = judge(policies, key, playing)  # (n, episodes)
        if film is not None:
            self.remember(film)
        diverged = scores.diverged.any(axis=1)
        objective = scores.objective.mean(axis=1)
        self.progress()
        played = len(objective) if playing is None else int(playing.sum())
        return Judgement(
            objective=np.where(diverged, np.nan, objective).astype(np.float32),
            measures=np.asarray(scores.measures.mean(axis=1)),
            spread=np.asarray(scores.measures.std(axis=1)),
            env_steps=int(scores.steps.sum()),
            policies=played,
            episodes=played * episodes,
        )

    # For learners off policy.

    remembers = False
    """Whether what judged policies go through is to be remembered."""

    def remember(self, film: Transitions) -> None:
        """Take in what judged policies went through."""

    @property
    def due(self) -> bool:
        """Whether the replay buffer needs a checkpoint now."""
        return self.replay is not None and self.replay.due

    def open(self, folder: Path | None) -> None:
        """Open the replay buffer, in a run's folder or in memory."""
        if self.replay is not None:
            self.replay.open(folder)

    def aside(self) -> dict[str, NumpyArray]:
        """How far the replay buffer was written."""
        return {} if self.replay is None else {"replay": self.replay.state()}

    def load_aside(self, aside: Mapping[str, NumpyArray]) -> None:
        """Find what the replay buffer held."""
        check_arrays(aside, {} if self.replay is None else {"replay": (np.dtype(np.int64), ())})
        if self.replay is not None:
            self.replay.load_state(aside["replay"])
