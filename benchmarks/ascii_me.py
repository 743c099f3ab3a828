"""ASCII-ME's variation operator (Mitsides et al., GECCO 2025) as an emitter of QDax' MAP-Elites.

It moves a policy toward the actions of another one where these led to higher returns in similar states. Our
own code, with the settings of the authors' (github.com/konstantinosmitsides/ASCII-ME).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ppga.physics import Array
from ppga.storage import NumpyArray

GAMMA = 0.99
"""Discount of the returns."""
LEAST_SIMILARITY = 0.25
"""Weight of states that are not similar."""


@dataclass(frozen=True)
class ASCIIEmitter:
    """Action sequence crossover with performance-informed interpolation.

    A trajectory is a dict: observation (t, o), action (t, a), return (t,) and taken (t,) bool. The repertoire
    stores that of each elite; the state of the emitter is those of the last generation (n, t, ...).

    Attributes:
        apply: (parameters, observations (t, o)) -> actions (t, a).
        batch_size: policies of a generation.
        steps: gradient steps of each policy.
        learning_rate: learning rate of Adam.
        clip: how far the ratio falls below 1 before worse actions are no longer avoided.
        std: standard deviation of the Gaussian around a policy's actions, whose density gives the ratio.
    """

    apply: Callable[[Any, Array], Array]
    batch_size: int
    steps: int
    learning_rate: float = 3e-3
    clip: float = 0.2
    std: float = 2.0
    use_all_data = True

    def init(self, *generation: Any) -> dict[str, Array]:
        """The state after the first generation; QDax passes its extra scores last."""
        return self.state_update(*generation)

    def state_update(self, *generation: Any) -> dict[str, Array]:
        """The state after a generation; QDax passes its extra scores last."""
        state: dict[str, Array] = jax.tree.map(jnp.asarray, generation[-1]["trajectory"])
        return state

    def emit(self, repertoire: Any, state: dict[str, Array], key: Array) -> tuple[Any, dict[str, Any]]:
        """Elites, each moved toward the actions of a random policy of the last generation."""
        elite_key, other_key = jax.random.split(key)
        elites = repertoire.select(elite_key, self.batch_size)
        rows = jax.random.randint(other_key, (self.batch_size,), 0, len(state["return"]))
        others = {name: values[rows] for name, values in state.items()}
        return jax.vmap(self.cross)(elites.genotypes, elites.extra_scores["trajectory"], others), {}

    def cross(self, parameters: Any, own: dict[str, Array], other: dict[str, Array]) -> Any:
        """Parameters moved toward the other trajectory's actions, or away from them where they were worse."""
        advantage = similarity(own["observation"], other["observation"]) * (other["return"] - own["return"])
        advantage *= other["taken"]
        optimizer = optax.adam(self.learning_rate)

        def loss(parameters: Any) -> Array:
            distance = jnp.square(self.apply(parameters, other["observation"]) - other["action"]).sum(axis=1)
            ratio = jnp.exp(-distance / (2 * self.std**2))  # 1 for the same action
            return -jnp.minimum(ratio * advantage, jnp.maximum(ratio, 1 - self.clip) * advantage).mean()

        def step(carry: Any, _: None) -> tuple[Any, None]:
            parameters, state = carry
            updates, state = optimizer.update(jax.grad(loss)(parameters), state)
            return (optax.apply_updates(parameters, updates), state), None

        start = parameters, optimizer.init(parameters)
        (parameters, _), _ = jax.lax.scan(step, start, None, length=self.steps)
        return parameters


def similarity(first: Array, second: Array) -> Array:
    """Cosine (t,) of the observations (t, o) of two trajectories at the same time, at least 0.25."""
    norms = jnp.linalg.norm(first, axis=1) * jnp.linalg.norm(second, axis=1)
    cosine = (first * second).sum(axis=1) / jnp.where(norms == 0, 1.0, norms)
    return jnp.maximum(cosine, LEAST_SIMILARITY)


def returns(rewards: NumpyArray) -> NumpyArray:
    """Discounted sums (n, t) of the rewards (n, t) from each step on."""
    sums = np.zeros_like(rewards)
    following = np.zeros(len(rewards), rewards.dtype)
    for step in reversed(range(rewards.shape[1])):
        following = sums[:, step] = rewards[:, step] + GAMMA * following
    return sums
