"""A task with experience that is remembered, and TD3 to learn from it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ppga.algorithms.base import Cost, SearchConfig
from ppga.algorithms.map_elites import deterministic_actor
from ppga.algorithms.policy_problem import NetworkConfig, PolicyProblem
from ppga.algorithms.problem import Effort, effort_of
from ppga.learners.replay import Replay, draws_of
from ppga.learners.td3 import TD3, Actor, Critics, Layout, TD3Config
from ppga.physics import Array
from ppga.policies import Moments
from ppga.rollouts import Transitions
from ppga.storage import NumpyArray
from ppga.tasks import Environment

GRADIENT_BATCHES = 16
"""Batches that a single gradient is averaged over."""
LARGEST_SAMPLE = 2**26
"""Numbers that are taken from the replay buffer at a time."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Learners:
    """All that learning carries on.

    Attributes:
        observation: how observations are normalised.
        critics: J of them.
        actors: J of them, each greedy for what its critics expect.
    """

    observation: Moments
    critics: Critics
    actors: Actor


class OffPolicy(PolicyProblem):
    """Policies whose first episodes, when judged, fill a replay buffer; and J learners on it.

    Args:
        task: what the policies do.
        search: how they are judged.
        td3: how is learnt.
        network: sizes of actor and critics.
        judged: policies that are judged, and so remembered, in an iteration at most.
        weights: (J, k+1 or more) what each learner is to raise, of reward, measure proxies and `more`.
        progress: called now and then, for a display.
    """

    remembers = True
    replay: Replay
    learners: tuple[str, ...] = ("critics", "actors")

    def __init__(
        self,
        task: Environment,
        search: SearchConfig,
        td3: TD3Config,
        network: NetworkConfig,
        judged: int,
        weights: NumpyArray,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(task, search, deterministic_actor(task, network.actor), progress)
        self.layout = Layout(task.observation_size, task.action_size, 1 + len(task.measure_names))
        self.td3 = TD3(self.layout, self.actor, network.critic, td3)
        self.replay = Replay(td3.buffer, (self.layout.width,), judged * task.episode_length)
        self.weights = jnp.asarray(weights, jnp.float32)

    def start(self, key: Array) -> Any:
        """New critics and actors."""
        actor_key, critic_key, look_key = jax.random.split(key, 3)
        count = len(self.weights)
        critics = jax.vmap(self.td3.init_critics)(jax.random.split(critic_key, count))
        actors = jax.vmap(self.td3.init_actor)(self.draw(actor_key, count))
        return Learners(self.look(look_key), critics, actors)

    def cost(self, policies: int, trained: int = 0, climbed: int = 0) -> Cost:
        """What judging policies, steps of training critics and of climbing by them take."""
        row = 3 * self.td3.config.batch  # forwards, and twice backwards
        both = self.actor.parameters + 2 * self.td3.twins.network.parameters
        one = self.actor.parameters + self.td3.twins.network.parameters
        return Cost(policies, 0, row * (trained * both + climbed * one), self.replay.bytes)

    def learn(self, state: Learners, key: Array) -> tuple[Learners, Effort]:
        """Critics and their greedy actors learn from what is remembered."""
        critics, actors, effort = self.train(
            state, state.critics, state.actors, self.weights, key, self.td3.config.critic_steps
        )
        return Learners(state.observation, critics, actors), effort

    def train(
        self, state: Any, critics: Critics, actors: Actor, weights: Array, key: Array, steps: int
    ) -> tuple[Critics, Actor, Effort]:
        """Some gradient steps of critics and actors (J, ...) for weights (J, k+1 or more)."""
        total = np.zeros(len(weights))
        sample_key, noise_key = jax.random.split(key)
        for number, rows in enumerate(self.samples(state, sample_key, steps)):
            keys = jax.random.split(jax.random.fold_in(noise_key, number), len(weights))
            critics, actors, loss = self.td3.train(critics, actors, rows, weights, keys)
            total += len(rows) * np.asarray(loss)
            self.progress()
        return critics, actors, effort_of(total / steps, remembered=len(self.replay))

    def climb(self, state: Learners, policies: NumpyArray, which: NumpyArray, key: Array) -> NumpyArray:
        """Policies (n, d) after some gradient steps up the critics (n,) that are named for each."""
        chosen: Critics = jax.tree.map(lambda leaf: leaf[jnp.asarray(which)], state.critics)
        for rows in self.samples(state, key, self.td3.config.policy_steps):
            policies = np.asarray(self.td3.climb(jnp.asarray(policies), chosen, rows))
            self.progress()
        return policies

    def greedy(self, state: Learners) -> NumpyArray:
        """The actors that learn along (J, d)."""
        return np.asarray(state.actors.parameters)

    def gradient(self, state: Learners, which: int, solution: NumpyArray, key: Array) -> NumpyArray:
        """How to change a policy (d,) so that a learner's critic expects more, over a large sample."""
        critics: Critics = jax.tree.map(lambda leaf: leaf[which], state.critics)
        (rows,) = self.samples(state, key, 1, GRADIENT_BATCHES * self.td3.config.batch)
        observation = self.layout.split(rows[0]).observation
        return np.asarray(self.td3.gradient(jnp.asarray(solution), critics, observation))

    # Experience.

    def samples(self, state: Any, key: Array, steps: int, batch: int | None = None) -> Iterator[Array]:
        """Rows for so many gradient steps, seen as policies see, in pieces (some steps, batch, width or
        more).
        """
        draws = draws_of(key)
        batch = batch or self.td3.config.batch
        delay = self.td3.config.delay
        most = max(delay, LARGEST_SAMPLE // (batch * self.layout.width) // delay * delay)
        for first in range(0, steps, most):
            rows = self.replay.sample(draws, (min(most, steps - first), batch))
            yield self.layout.seen(jnp.asarray(self.with_more(rows, draws)), state.observation)

    def with_more(self, rows: NumpyArray, draws: np.random.Generator) -> NumpyArray:  # noqa: ARG002
        """Rows with further things that a step gave, for learners to raise."""
        return rows

    def remember(self, film: Transitions) -> None:
        """Put what judged policies went through into the replay buffer."""
        self.replay.add(self.layout.rows(film))
