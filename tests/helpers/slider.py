"""The smallest tasks, for tests that need one in a moment."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

import ppga
from ppga.physics import Array, Bodies

BAD = 0.05
"""Numbers of a corrupted slider are not finite beyond this place."""
BAD_START = -0.004
"""Starts below this place are not finite where starts are corrupted: a quarter of them."""


class Slider(ppga.Task):
    """A box that is pushed along a line.

    Attributes:
        corrupted: where numbers are sometimes not finite: initial physics, initial observation, observation,
            reward or proxies; nowhere by default.
    """

    name = "slider"
    substeps = 2
    usual_length = 20
    measure_names = ("place",)
    measure_ranges = ((-1.0, 1.0),)
    corrupted = ""
    mjcf = """<mujoco><worldbody><body><joint name="x" type="slide" axis="1 0 0" damping="1"/>
    <geom name="box" size="0.1"/></body></worldbody>
    <actuator><motor joint="x" ctrlrange="-1 1" gear="200"/></actuator></mujoco>"""

    def initial(self, key: Array) -> tuple[Array, Array]:
        place = jax.random.uniform(key, (1,), minval=-0.02, maxval=0.045)
        bad = (place < BAD_START) & (self.corrupted == "initial physics")
        return jnp.where(bad, jnp.nan, place), jnp.zeros(1)

    def observe(self, body: Bodies) -> Array:
        observation = jnp.concatenate([body.qpos, body.qvel])
        # the velocity is exactly zero only at a start
        bad = (body.qpos < BAD_START) & (body.qvel == 0) & (self.corrupted == "initial observation")
        return self._corrupt("observation", body, jnp.where(bad, jnp.nan, observation))

    def reward(self, body: Bodies, ctrl: Array) -> Array:
        return self._corrupt("reward", body, 1 - jnp.square(ctrl).sum())

    def proxies(self, body: Bodies) -> Array:
        return self._corrupt("proxies", body, jnp.clip(body.qpos, -1, 1))

    def _corrupt(self, what: str, body: Bodies, value: Array) -> Array:
        bad = (body.qpos[0] > BAD) & (what == self.corrupted)
        return jnp.where(bad, jnp.inf if what == "proxies" else jnp.nan, value)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gliding:
    """State of a `Glider` in the form that Brax uses."""

    obs: Array
    reward: Array
    done: Array


class Glider:
    """A box on a line, computed by JAX alone, with the interface of a Brax environment."""

    observation_size, action_size = 2, 1

    def reset(self, rng: Array) -> Gliding:
        place = jax.random.uniform(rng, minval=-0.02, maxval=0.045)
        return Gliding(jnp.stack([place, jnp.zeros(())]), jnp.zeros(()), jnp.zeros(()))

    def step(self, state: Gliding, action: Array) -> Gliding:
        speed = 0.9 * state.obs[1] + 0.5 * action[0]
        place = state.obs[0] + 0.1 * speed
        return Gliding(jnp.stack([place, speed]), 1 - jnp.square(action).sum(), jnp.zeros(()))


def glider(episode_length: int = 20) -> ppga.Environment:
    """The glider as a task."""
    return ppga.from_brax(
        Glider(), lambda state: jnp.clip(state.obs[:1], -1, 1), name="glider", measure_names=["place"],
        measure_ranges=[(-1.0, 1.0)], episode_length=episode_length,
    )  # fmt: skip
