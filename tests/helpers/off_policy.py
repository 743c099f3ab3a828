"""Random transitions, and a problem whose best policy is known: x' = clip(x + 0.3 a) with reward -x'^2."""

import jax
import jax.numpy as jnp
import numpy as np

from ppga.learners.td3 import Layout
from ppga.physics import Array
from ppga.policies.network import Network

LAYOUT = Layout(observation=2, action=1, gains=2)
LINE = Layout(observation=1, action=1, gains=1)
REACH = 0.3
"""Largest distance that the point moves in a step."""
STEPS = 8
"""Steps of an episode."""


def random_rows(*shape: int, seed: int = 0) -> Array:
    """Random transitions (*shape, width), a fifth of which end their episode."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(*shape, LAYOUT.width)).astype(np.float32)
    rows[..., 2] = np.tanh(rows[..., 2])  # actions
    rows[..., 5] = rows[..., 5] > 0.8  # terminated
    return jnp.asarray(rows)


def line_batches(*shape: int) -> Array:
    """Transitions (*shape, width) of random actions on the line."""
    n = 4000
    position = jax.random.uniform(jax.random.key(0), (n, 1), minval=-1)
    action = jax.random.uniform(jax.random.key(1), (n, 1), minval=-1)
    after = _move(position, action)
    rows = jnp.concatenate([position, action, after, jnp.zeros((n, 1)), -(after**2)], axis=1)
    return rows[np.random.default_rng(2).integers(0, n, shape)]


def line_return(actor: Network, parameters: Array) -> float:
    """Mean return of a policy (d,) over episodes from all positions."""
    position, total = _starts(), 0.0
    for _ in range(STEPS):
        position = _move(position, actor(parameters, position))
        total += float(-(position**2).mean())
    return total


def best_line_return() -> float:
    """Mean return of the best policy."""
    position, total = np.asarray(_starts()), 0.0
    for _ in range(STEPS):
        position = position - np.clip(position, -REACH, REACH)
        total += float(-np.square(position).mean())
    return total


def _starts() -> Array:
    return jnp.linspace(-1, 1, 41)[:, None]


def _move(position: Array, action: Array) -> Array:
    return jnp.clip(position + REACH * jnp.clip(action, -1, 1), -1, 1)
