"""Evaluation of many policies at once."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ppga.physics import Array
from ppga.policies.network import Network
from ppga.policies.policy import Policy
from ppga.rollouts.episodes import Scores, Transitions, episode_keys, play
from ppga.storage import NumpyArray
from ppga.tasks import Environment

MULTIPLE = 16
"""Environments are a multiple of this, the numbers in a CPU's vector. XLA rounds differently at the end of
arrays that do not fill their vectors, and scores must not depend on a policy's place in a batch."""


@dataclass(frozen=True)
class EvaluatorSettings:
    """What an evaluator plays and returns.

    Attributes:
        episodes: episodes of each policy.
        sample_actions: act with exploration noise; by the mean action otherwise.
        store_transitions: also return the transitions of all episodes.
    """

    episodes: int
    sample_actions: bool = False
    store_transitions: bool = False


class Evaluator:
    """Plays several episodes with each of many policies, all at once.

    If the physics engine supports several callers, threads share the policies, and each thread plays all
    episodes of its own ones. On CPUs, no thread then waits for the slowest one at every step, and each
    evaluates fewer networks, which fit in its cache. Scores do not depend on the number of threads.

    Args:
        task: the task.
        network: actor network of the policies.
        settings: what is played and returned.
    """

    def __init__(self, task: Environment, network: Network, settings: EvaluatorSettings) -> None:
        self.task, self.network, self.settings = task, network, settings
        self.episodes = settings.episodes
        self._compiled: dict[tuple[int, int], Any] = {}

    def __call__(
        self, policies: Policy, key: Array, active: NumpyArray | None = None
    ) -> tuple[Scores, Transitions | None]:
        """Evaluate policies.

        Args:
            policies: n policies, arrays (n, ...).
            key: random key of initial states and exploration noise.
            active: (n,) bool, which of them are evaluated; all by default. A varying number of policies in
                arrays of one size needs no new compilation.

        Returns:
            Scores (n, episodes, ...) and transitions (n, episodes, t, ...) or None, as arrays of NumPy.
        """
        n = len(policies.parameters)
        active = np.ones(n, bool) if active is None else active
        threads = min(n, self.task.callers(n * self.episodes))  # independent of the number of active policies
        # thread i has policies i, i + threads, ...; inactive copies of the last policy make the shares equal
        numbers = np.arange(threads * -(-n // threads)).reshape(-1, threads).T
        rows = np.minimum(numbers, n - 1)
        key_data = np.asarray(jax.random.key_data(episode_keys(key, n, self.episodes)))
        arguments = jax.tree.map(np.asarray, (policies, key_data, active))
        shares = [jax.tree.map(lambda leaf, own=own: leaf[own], arguments) for own in rows]
        shares = [(*share, mask & (own < n)) for (*share, mask), own in zip(shares, numbers, strict=True)]
        program = self._compiled.get(rows.shape) or self._compile(rows.shape, *shares[0])
        pool = ThreadPoolExecutor(threads)
        try:
            results = list(pool.map(lambda share: jax.tree.map(np.asarray, program(*share)), shares))
        finally:  # after an interrupt, do not wait for the threads; otherwise they have finished
            pool.shutdown(wait=False, cancel_futures=True)
        order = np.argsort(numbers.ravel())[:n]
        joined: tuple[Scores, Transitions | None] = jax.tree.map(
            lambda *parts: np.concatenate(parts)[order], *results
        )
        return joined

    def evaluate_traced(
        self, policies: Policy, keys: Array, active: Array
    ) -> tuple[Scores, Transitions | None]:
        """Evaluate policies inside jitted code, all in one loop.

        Args:
            policies: n policies, arrays (n, ...).
            keys: (n, episodes) random keys.
            active: (n,) bool, which policies are evaluated.

        Returns:
            Scores (n, episodes, ...) and transitions (n, episodes, t, ...) or None.
        """
        return self._evaluate(self.task, policies, keys, active)

    def _compile(
        self, shape: tuple[int, int], policies: Policy, key_data: NumpyArray, active: NumpyArray
    ) -> Any:
        """The program of one of `shape[0]` threads, each with `shape[1]` policies."""
        task = self.task.for_callers(shape[0])

        def evaluate_policies(
            policies: Policy, key_data: Array, active: Array
        ) -> tuple[Scores, Transitions | None]:
            return self._evaluate(task, policies, jax.random.wrap_key_data(key_data), active)

        compiled = self._compiled[shape] = (
            jax.jit(evaluate_policies).lower(policies, key_data, active).compile()
        )
        return compiled

    def _evaluate(
        self, task: Environment, policies: Policy, keys: Array, active: Array
    ) -> tuple[Scores, Transitions | None]:
        n, episodes = len(policies.parameters), self.episodes
        total = n * episodes
        surplus = -total % MULTIPLE  # environments without an episode

        def act(observation: Array, keys: Array, steps: Array) -> Array:  # noqa: ARG001
            by_policy = observation[:total].reshape(n, episodes, -1)
            action = jax.vmap(lambda policy, inputs: policy.mean_action(self.network, inputs))(
                policies, by_policy
            )
            action = jnp.pad(action.reshape(total, -1), ((0, surplus), (0, 0)))
            if self.settings.sample_actions:
                log_std = jnp.pad(jnp.repeat(policies.log_std, episodes, axis=0), ((0, surplus), (0, 0)))
                noise = jax.vmap(lambda key: jax.random.normal(key, action.shape[1:]))(keys)
                action += jnp.exp(log_std) * noise
            return action

        flat_keys = keys.reshape(total)[jnp.minimum(jnp.arange(total + surplus), total - 1)]
        flat_active = jnp.pad(jnp.repeat(active, episodes), (0, surplus))
        flat = play(task, act, flat_keys, total + surplus, flat_active, self.settings.store_transitions)
        by_policy: tuple[Scores, Transitions | None] = jax.tree.map(
            lambda rows: rows[:total].reshape(n, episodes, *rows.shape[1:]), flat
        )
        return by_policy
