"""A task whose evaluations fill a replay buffer, and TD3 learners on it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ppga.learners.replay import MAX_SAMPLE_SIZE, Replay, draws_of, equal_share
from ppga.learners.td3 import TD3, Actor, Critics, Layout, TD3Config
from ppga.physics import Array
from ppga.policies.normalizer import NormalizerState
from ppga.policies.policy import Policy
from ppga.problems.base import Cost, LearningReport, critic_report
from ppga.problems.policy import NetworkConfig, PolicyProblem, deterministic_actor
from ppga.rollouts import EvaluatorSettings, Scores
from ppga.rollouts.executor import Executor
from ppga.storage import NumpyArray
from ppga.tasks import Environment

LARGEST_RECORDING = 2**27
"""Bytes of transitions that an evaluation holds at a time, unless those of a single policy need more."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OffPolicyState:
    """State of an `OffPolicyProblem`.

    Attributes:
        normalizer: of observations, initialized once.
        critics: J twin critics.
        actors: J actors, each greedy with respect to its critics.
    """

    normalizer: NormalizerState
    critics: Critics
    actors: Actor


class OffPolicyProblem(PolicyProblem):
    """Policies whose episodes, whenever they are evaluated, fill a replay buffer; and J TD3 learners on it.

    Args:
        task: the task.
        td3: settings of TD3.
        network: hidden layers of actors and critics.
        max_episodes: most episodes of an iteration.
        weights: (J, k+1 or more) what each learner maximizes: reward, measure proxies and `extra_gains`.
        executor: where rollouts run.
        progress: called now and then, for a display.
    """

    replay: Replay
    learner_parts: tuple[str, ...] = ("critics", "actors")

    def __init__(
        self,
        task: Environment,
        td3: TD3Config,
        network: NetworkConfig,
        max_episodes: int,
        weights: NumpyArray,
        executor: Executor | None = None,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        actor = deterministic_actor(task, network.actor)
        super().__init__(task, actor, executor=executor, progress=progress)
        self.layout = Layout(task.observation_size, task.action_size, 1 + len(task.measure_names))
        self.td3 = TD3(self.layout, self.actor, network.critic, td3)
        self.replay = Replay(td3.buffer_size, (self.layout.width,), max_episodes * task.episode_length)
        self.weights = jnp.asarray(weights, jnp.float32)

    def init(self, key: Array) -> Any:
        """New critics and actors."""
        actor_key, critic_key, normalizer_key = jax.random.split(key, 3)
        count = len(self.weights)
        critics = jax.vmap(self.td3.init_critics)(jax.random.split(critic_key, count))
        actors = jax.vmap(self.td3.init_actor)(self.random_parameters(actor_key, count))
        return OffPolicyState(self.init_normalizer(normalizer_key), critics, actors)

    def cost(self, policies: int, critic_steps: int = 0, policy_steps: int = 0) -> Cost:
        """Cost of evaluating policies, training critics with their actors, and policy-gradient steps."""
        row = 3 * self.td3.config.batch_size  # one forward, two backward
        both = self.actor.parameters + 2 * self.td3.twins.network.parameters
        one = self.actor.parameters + self.td3.twins.network.parameters
        memory = self.replay.bytes + min(LARGEST_RECORDING, policies * self._episode_bytes)
        return Cost(policies, 0, row * (critic_steps * both + policy_steps * one), memory)

    def learn(self, state: OffPolicyState, key: Array, steps: int) -> tuple[OffPolicyState, LearningReport]:
        """Train critics and their greedy actors by some gradient steps."""
        critics, actors, report = self.train(state, state.critics, state.actors, self.weights, key, steps)
        return OffPolicyState(state.normalizer, critics, actors), report

    def train(
        self, state: Any, critics: Critics, actors: Actor, weights: Array, key: Array, steps: int
    ) -> tuple[Critics, Actor, LearningReport]:
        """Train critics and actors (J, ...) for weights (J, k+1 or more) by some gradient steps."""
        losses: list[Array] = []
        sample_key, noise_key = jax.random.split(key)
        group = self.td3.group
        batches = steps // self.td3.config.policy_delay * group
        for number, rows in enumerate(self.samples(state, sample_key, batches, group)):
            if losses:  # these rows were sampled while the critics learned from those before
                losses[-1].block_until_ready()
            keys = jax.random.split(jax.random.fold_in(noise_key, number), len(weights))
            critics, actors, loss = self.td3.train(critics, actors, rows, weights, keys)
            losses.append(loss)
            self.progress()
        return critics, actors, critic_report(np.mean(losses, axis=0), buffer_size=len(self.replay))

    def policy_gradient_steps(
        self, state: OffPolicyState, policies: NumpyArray, critics: NumpyArray, key: Array, steps: int
    ) -> NumpyArray:
        """Policies (n, d) after some gradient steps, each on the critics with its number (n,).

        All policies share their transitions.
        """
        places = [np.flatnonzero(critics == number) for number in range(len(self.weights))]
        most = max(map(len, places))
        if not most:
            return policies
        # copies make the numbers of policies equal, so that one program varies those of each critic
        parents = [policies[np.resize(own if len(own) else 0, most)] for own in places]
        ascents = [self.td3.init_ascent(jnp.asarray(own)) for own in parents]
        first = state.critics.parameters[:, 0]  # (J, p), of each pair of critics
        for rows in self.samples(state, key, steps):
            ascents = [
                self.td3.ascend(ascent, critic, rows) for ascent, critic in zip(ascents, first, strict=True)
            ]
            self.progress()
        varied = np.empty_like(policies)
        for own, ascent in zip(places, ascents, strict=True):
            varied[own] = ascent.policies[: len(own)]
        return varied

    def greedy(self, state: OffPolicyState) -> NumpyArray:
        """Parameters (J, d) of the greedy actors."""
        return np.asarray(state.actors.parameters)

    def gradient(
        self, state: OffPolicyState, number: int, solution: NumpyArray, key: Array, batches: int
    ) -> NumpyArray:
        """Gradient (d,) of a critic's value with respect to a policy (d,), mean over some batches."""
        parameters, critic = jnp.asarray(solution), state.critics.parameters[number, 0]
        gradients = []
        for rows in self.samples(state, key, batches):
            observation = self.layout.split(rows.reshape(-1, rows.shape[-1])).observation
            gradients.append(np.asarray(self.td3.gradient(parameters, critic, observation)))
        return np.asarray(np.mean(gradients, axis=0))

    # Replay buffer.

    def samples(self, state: Any, key: Array, batches: int, group: int = 1) -> Iterator[Array]:
        """Some batches of transitions, normalized, in chunks (batches, batch, width or more) of equal size.

        Args:
            state: the problem's state.
            key: random key.
            batches: number of batches, a multiple of `group`.
            group: batches that stay in one chunk.
        """
        rng, batch = draws_of(key), self.td3.config.batch_size
        groups = batches // group
        chunk = equal_share(groups, MAX_SAMPLE_SIZE // (group * batch * self.layout.width))
        for _ in range(groups // chunk):
            rows = self.replay.sample(rng, (chunk * group, batch))
            yield self.layout.normalize(jnp.asarray(self.with_extra_gains(rows, rng)), state.normalizer)

    def with_extra_gains(self, rows: NumpyArray, rng: np.random.Generator) -> NumpyArray:  # noqa: ARG002
        """Transitions with further numbers that learners can maximize; none here."""
        return rows

    @property
    def _episode_bytes(self) -> int:
        """Bytes of the transitions of an episode."""
        return 4 * self.layout.width * self.task.episode_length

    def play(self, policies: Policy, key: Array, episodes: int, active: NumpyArray | None) -> Scores:
        """Scores (n, episodes, ...) of policies; all their transitions enter the replay buffer.

        Policies are evaluated in groups of one size, so that few transitions are in memory at a time.
        """
        n = len(policies.parameters)
        size = -(-n // min(n, -(-n * episodes * self._episode_bytes // LARGEST_RECORDING)))
        evaluate = self.evaluator(EvaluatorSettings(episodes, self.sample_actions, store_transitions=True))
        active = np.ones(n, bool) if active is None else active
        parts = []
        for number, start in enumerate(range(0, n, size)):
            places = np.arange(start, start + size)
            rows = np.minimum(places, n - 1)
            group = jax.tree.map(lambda leaf, rows=rows: np.asarray(leaf)[rows], policies)
            scores, transitions = evaluate(
                group, jax.random.fold_in(key, number), active[rows] & (places < n)
            )
            assert transitions is not None
            self.record(self.layout.rows(transitions))
            parts.append(scores)
        joined: Scores = jax.tree.map(lambda *leaves: np.concatenate(leaves)[:n], *parts)
        return joined

    def record(self, rows: NumpyArray) -> None:
        """Add transitions (n, width) to the replay buffer."""
        self.replay.add(rows)
