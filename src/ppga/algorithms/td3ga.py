"""TD3GA: PPGA with TD3 in the place of PPO, an ablation of Batra et al., ICLR 2024, appendix.

A critic for each objective and one for the walk live as long as the run. What the search policy learns with
is a copy of itself, its target reset in every iteration; the gradient is how that copy changes in N1 steps.
Judged policies put one episode each into the replay buffer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ppga.algorithms.base import Cost
from ppga.algorithms.off_policy import OffPolicy
from ppga.algorithms.ppga import PPGA
from ppga.algorithms.problem import Effort, Problem
from ppga.learners.td3 import Critics
from ppga.physics import Array
from ppga.policies import Moments
from ppga.storage import NumpyArray
from ppga.tasks import Environment


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TD3GAState:
    """All that learning carries on.

    Attributes:
        observation: how observations are normalised.
        theta: (m, d) search policies.
        critics: (m, k+2) of the reward, of each measure, and of the walk.
    """

    observation: Moments
    theta: Array
    critics: Critics


class TD3Search(OffPolicy):
    """A task as a problem with gradients, by TD3."""

    learners = ("theta", "critics")

    def start(self, key: Array) -> TD3GAState:
        """New critics, and policies that do something."""
        m, k1 = self.search.emitters, len(self.weights)
        actor_key, critic_key, look_key = jax.random.split(key, 3)
        critics = jax.vmap(jax.vmap(self.td3.init_critics))(jax.random.split(critic_key, (m, k1 + 1)))
        return TD3GAState(self.look(look_key), self.draw(actor_key, m), critics)

    def solutions(self, state: TD3GAState) -> NumpyArray:
        """The search policies (m, d)."""
        return np.asarray(state.theta)

    def jacobian(self, state: TD3GAState, key: Array) -> tuple[TD3GAState, NumpyArray, Effort]:
        """How k+1 copies of each search policy change when each learns one objective: (m, k+1, d)."""
        m, k1 = len(state.theta), len(self.weights)
        weights = jnp.tile(self.weights[None], (m, 1, 1))
        actors, critics, effort = self._learn(
            state, jnp.arange(k1), weights, key, self.search.jacobian_updates
        )
        return replace(state, critics=critics), actors - self.solutions(state)[:, None], effort

    def walk(
        self, state: TD3GAState, weights: NumpyArray, key: Array, updates: int | None = None
    ) -> tuple[TD3GAState, Effort]:
        """Let each search policy learn its weighted sum (m, k+1) of reward and measure proxies."""
        spread_key, learn_key = jax.random.split(key)
        mixed = weights / (self._spread(state, spread_key) if self.search.mix == "scaled" else 1.0)
        mixed[~mixed.any(axis=1), 0] = 1.0
        mixed = mixed / np.linalg.norm(mixed, axis=1, keepdims=True)
        actors, critics, effort = self._learn(
            state,
            jnp.array([len(self.weights)]),
            jnp.asarray(mixed, jnp.float32)[:, None],
            learn_key,
            updates or self.search.walk_updates,
        )
        return replace(state, theta=jnp.asarray(actors[:, 0]), critics=critics), effort

    def _learn(
        self, state: TD3GAState, which: Array, weights: Array, key: Array, steps: int
    ) -> tuple[NumpyArray, Critics, Effort]:
        """Copies of the search policies (m, j, d) after some steps with the critics named (j,)."""
        m, j = weights.shape[:2]
        critics: Critics = jax.tree.map(
            lambda leaf: leaf[:, which].reshape(m * j, *leaf.shape[2:]), state.critics
        )
        actors = jax.vmap(self.td3.init_actor)(jnp.repeat(state.theta, j, axis=0))
        critics, actors, effort = self.train(state, critics, actors, weights.reshape(m * j, -1), key, steps)
        whole: Critics = jax.tree.map(
            lambda old, new: old.at[:, which].set(new.reshape(m, j, *new.shape[1:])), state.critics, critics
        )
        return np.asarray(actors.parameters).reshape(m, j, -1), whole, effort

    def _spread(self, state: TD3GAState, key: Array) -> NumpyArray:
        """How much what a step gives (k+1,) varies over all that is remembered."""
        (rows,) = self.samples(state, key, 1, 4096)
        spread = np.asarray(self.layout.split(rows[0]).gains).std(axis=0)
        return np.where(spread > 1e-3, spread, np.inf)  # what does not vary has no say

    def stir(self, state: TD3GAState, factors: NumpyArray) -> TD3GAState:  # noqa: ARG002
        """There is no noise."""
        return state

    def place(self, state: TD3GAState, solutions: NumpyArray, key: Array) -> tuple[TD3GAState, Effort]:  # noqa: ARG002
        """Put the search policies (m, d) elsewhere."""
        return replace(state, theta=jnp.asarray(solutions, jnp.float32)), Effort()

    def move(self, state: TD3GAState, emitter: int, elite: dict[str, NumpyArray], key: Array) -> TD3GAState:  # noqa: ARG002
        """Put a search policy at an elite."""
        return replace(state, theta=state.theta.at[emitter].set(jnp.asarray(elite["solution"])))


class TD3GA(PPGA):
    """PPGA on a problem whose gradients TD3 tells."""

    td3_steps: ClassVar[tuple[str, ...]] = (
        "search.jacobian_updates", "search.walk_updates", "search.first_updates",
    )  # fmt: skip

    name = "td3ga"
    summary = "ablation: PPGA with TD3 in place of PPO (Batra et al., ICLR 2024, appendix)"
    sections: ClassVar[tuple[str, ...]] = ("td3",)
    anywhere = False

    @classmethod
    def on(cls, task: Environment, config: Any, progress: Callable[[], None]) -> Problem:
        """TD3 learns every objective."""
        search = config.search
        judged = search.emitters * (1 + search.branches) * 2  # the first iteration judges twice
        weights = np.eye(1 + len(task.measure_names))
        return TD3Search(task, search, config.td3, config.network, judged, weights, progress)

    def cost(self) -> Cost:
        """What an iteration takes."""
        config, problem = self.config, self.problem
        assert isinstance(problem, TD3Search)
        steps = len(problem.weights) * config.jacobian_updates + config.walk_updates
        return problem.cost(config.emitters * (1 + config.branches), config.emitters * steps)

    def start(self, elites: Mapping[str, NumpyArray] | None = None) -> None:
        """Judge random policies first, so that there is experience to learn from."""
        super().start(elites)
        m, n = self.config.emitters, self.config.branches
        policies = self.problem.random(self.key("first solutions"), m * n).reshape(m, n, -1)
        self.keep(policies, self.judge(policies, self.key("evaluate")), self.key("confirm"))
