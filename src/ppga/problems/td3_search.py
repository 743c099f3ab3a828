"""A task as a problem with gradients, by TD3: the ablation TD3GA of Batra et al., ICLR 2024, appendix.

Each objective and the walk have twin critics, which last for the run. The actor that learns from them is a
copy of the search policy, whose target network is reset in each iteration; the gradient is the change of that
copy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from ppga.learners.td3 import Critics
from ppga.physics import Array
from ppga.policies.normalizer import NormalizerState
from ppga.problems.base import LearningReport, nonzero_weights
from ppga.problems.off_policy import OffPolicyProblem
from ppga.storage import NumpyArray

SCALE_SAMPLE = 4096
"""Transitions from which the standard deviation of each objective is estimated, at least."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TD3SearchState:
    """State of a `TD3SearchProblem`.

    Attributes:
        normalizer: of observations, initialized once.
        theta: (d,) search policy.
        critics: (k+2, ...) twin critics of the reward, of each measure, and of the walk.
    """

    normalizer: NormalizerState
    theta: jax.Array
    critics: Critics


class TD3SearchProblem(OffPolicyProblem):
    """A task as a `GradientProblem`, by TD3; see `OffPolicyProblem` for the arguments."""

    learner_parts = ("theta", "critics")
    several_learners = False

    def init(self, key: Array) -> TD3SearchState:
        """New critics and a random search policy."""
        actor_key, critic_key, normalizer_key = jax.random.split(key, 3)
        critics = jax.vmap(self.td3.init_critics)(jax.random.split(critic_key, len(self.weights) + 1))
        theta = self.random_parameters(actor_key, 1)[0]
        return TD3SearchState(self.init_normalizer(normalizer_key), theta, critics)

    def solution(self, state: TD3SearchState) -> NumpyArray:
        """The search policy (d,)."""
        return np.asarray(state.theta)

    def jacobian(
        self, state: TD3SearchState, key: Array, updates: int
    ) -> tuple[TD3SearchState, NumpyArray, LearningReport]:
        """Change (k+1, d) of k+1 copies of the search policy that each learn one objective."""
        numbers = jnp.arange(len(self.weights))
        actors, critics, report = self._learn(state, numbers, self.weights, key, updates)
        return replace(state, critics=critics), actors - self.solution(state), report

    def walk(
        self, state: TD3SearchState, weights: NumpyArray, key: Array, updates: int, scaled: bool
    ) -> tuple[TD3SearchState, LearningReport]:
        """Let the search policy learn a weighted sum (k+1,) of reward and measure proxies."""
        scale_key, learn_key = jax.random.split(key)
        weights = weights / (self._stds(state, scale_key) if scaled else 1.0)
        weights = nonzero_weights(weights)
        weights = weights / np.linalg.norm(weights)
        actors, critics, report = self._learn(
            state,
            jnp.array([len(self.weights)]),
            jnp.asarray(weights, jnp.float32)[None],
            learn_key,
            updates,
        )
        return replace(state, theta=jnp.asarray(actors[0]), critics=critics), report

    def _learn(
        self, state: TD3SearchState, numbers: Array, weights: Array, key: Array, steps: int
    ) -> tuple[NumpyArray, Critics, LearningReport]:
        """Copies of the search policy (j, d) after some steps with the critics of the given numbers (j,)."""
        critics: Critics = jax.tree.map(lambda leaf: leaf[numbers], state.critics)
        actors = jax.vmap(self.td3.init_actor)(jnp.repeat(state.theta[None], len(weights), axis=0))
        critics, actors, report = self.train(state, critics, actors, weights, key, steps)
        merged: Critics = jax.tree.map(lambda old, new: old.at[numbers].set(new), state.critics, critics)
        return np.asarray(actors.parameters), merged, report

    def _stds(self, state: TD3SearchState, key: Array) -> NumpyArray:
        """Standard deviation (k+1,) of reward and measure proxies; infinite for those that hardly vary."""
        batches = -(-SCALE_SAMPLE // self.td3.config.batch_size)
        gains = [np.asarray(self.layout.split(rows).gains) for rows in self.samples(state, key, batches)]
        std = np.concatenate(gains).std(axis=(0, 1))
        return np.where(std > 1e-3, std, np.inf)

    def scale_exploration_noise(
        self,
        state: TD3SearchState,
        factor: float,  # noqa: ARG002
        low: float,  # noqa: ARG002
        high: float,  # noqa: ARG002
    ) -> TD3SearchState:
        """There is no noise."""
        return state

    def place(
        self,
        state: TD3SearchState,
        solution: NumpyArray,
        key: Array,  # noqa: ARG002
    ) -> tuple[TD3SearchState, LearningReport]:
        """Set the search policy (d,)."""
        return replace(state, theta=jnp.asarray(solution, jnp.float32)), LearningReport()

    def restart(
        self,
        state: TD3SearchState,
        elite: Mapping[str, NumpyArray],
        key: Array,  # noqa: ARG002
    ) -> TD3SearchState:
        """Continue from an elite."""
        return replace(state, theta=jnp.asarray(elite["solution"]))

    def start_at(self, state: TD3SearchState, elite: Mapping[str, NumpyArray], key: Array) -> TD3SearchState:
        """Continue from an elite of another run, with its normalizer."""
        return self.restart(super().start_at(state, elite, key), elite, key)
