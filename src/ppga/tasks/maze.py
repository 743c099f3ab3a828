"""A maze: a point that is paid for being near a goal which the straight way does not lead to."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from ppga.physics import Array, Bodies
from ppga.tasks.base import Task

START, GOAL = (-0.7, -0.75), (0.7, 0.75)


class PointMaze(Task):
    """Three corridors, one above the other; from the first to the goal in the third is an S.

    Measured by where the point ends up. The reward is deceptive: going straight for the goal ends at a wall.
    """

    name = "point-maze"
    substeps = 5
    usual_length = 200
    worst_idle_reward = -3.0  # the whole diagonal away
    mjcf: ClassVar = f"""
    <mujoco model="point maze">
      <option timestep="0.01" gravity="0 0 0"/>
      <default>
        <geom condim="1" rgba="0.55 0.6 0.66 1"/>
        <default class="wall"><geom type="box"/></default>
      </default>
      <worldbody>
        <geom name="floor" type="plane" size="1.2 1.2 0.1" contype="0" conaffinity="0" rgba="0.9 0.9 0.9 1"/>
        <geom class="wall" pos="-1.05 0 0.1" size="0.05 1.1 0.1"/>
        <geom class="wall" pos="1.05 0 0.1" size="0.05 1.1 0.1"/>
        <geom class="wall" pos="0 -1.05 0.1" size="1.1 0.05 0.1"/>
        <geom class="wall" pos="0 1.05 0.1" size="1.1 0.05 0.1"/>
        <geom class="wall" pos="-0.3 -0.35 0.1" size="0.7 0.05 0.1"/>
        <geom class="wall" pos="0.3 0.35 0.1" size="0.7 0.05 0.1"/>
        <site name="goal" pos="{GOAL[0]} {GOAL[1]} 0.01" size="0.08" rgba="0.2 0.7 0.3 1"/>
        <body name="point" pos="0 0 0.1">
          <joint name="x" type="slide" axis="1 0 0"/>
          <joint name="y" type="slide" axis="0 1 0"/>
          <geom name="point" type="sphere" size="0.06" mass="1" rgba="0.15 0.27 0.51 1"/>
        </body>
      </worldbody>
      <actuator>
        <velocity joint="x" kv="10" ctrlrange="-1 1"/>
        <velocity joint="y" kv="10" ctrlrange="-1 1"/>
      </actuator>
    </mujoco>
    """

    def initial(self, key: Array) -> tuple[Array, Array]:
        """Always the same place, moving a little."""
        return jnp.array(START), 0.05 * jax.random.normal(key, (2,))

    def observe(self, body: Bodies) -> Array:
        """Place and speed."""
        return jnp.concatenate([body.qpos, body.qvel])

    def reward(self, body: Bodies, ctrl: Array) -> Array:  # noqa: ARG002
        """Minus the distance to the goal, through all walls."""
        return -jnp.hypot(*(body.qpos - jnp.array(GOAL)))

    @property
    def measure_names(self) -> tuple[str, ...]:
        """Where it is in the end."""
        return ("final x", "final y")

    @property
    def measure_ranges(self) -> tuple[tuple[float, float], ...]:
        """The maze."""
        return ((-1.0, 1.0),) * 2

    @property
    def archive_shape(self) -> tuple[int, ...]:
        """Squares of a tenth."""
        return (20, 20)

    def proxies(self, body: Bodies) -> Array:
        """Speed along x and y."""
        return body.change["qpos"] / self.control_dt

    def measures(self, total: Array, steps: Array) -> Array:  # noqa: ARG002
        """From the start, as far as the speeds have carried it."""
        return jnp.array(START) + total * self.control_dt
