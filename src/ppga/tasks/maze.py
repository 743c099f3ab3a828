"""A maze with a deceptive reward: the direct path to the goal ends at a wall."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from ppga.physics import Array, Bodies
from ppga.tasks.base import Task

START, GOAL = (-0.7, -0.75), (0.7, 0.75)


class PointMaze(Task):
    """A point in three corridors, one above the other; the path to the goal has the form of an S.

    The measures are the final position. The reward is minus the distance to the goal, regardless of walls.
    """

    name = "point-maze"
    substeps = 5
    usual_length = 200
    worst_idle_reward = -3.0  # more than the diagonal of the maze
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
        """The same position always, with a small random velocity."""
        return jnp.array(START), 0.05 * jax.random.normal(key, (2,))

    def observe(self, body: Bodies) -> Array:
        """Position and velocity."""
        return jnp.concatenate([body.qpos, body.qvel])

    def reward(self, body: Bodies, ctrl: Array) -> Array:  # noqa: ARG002
        """Minus the straight-line distance to the goal."""
        return -jnp.hypot(*(body.qpos - jnp.array(GOAL)))

    @property
    def measure_names(self) -> tuple[str, ...]:
        """Names of the k measures."""
        return ("final x", "final y")

    @property
    def measure_ranges(self) -> tuple[tuple[float, float], ...]:
        """Bounds of the maze."""
        return ((-1.0, 1.0),) * 2

    @property
    def archive_shape(self) -> tuple[int, ...]:
        """Cells of 0.1 by 0.1."""
        return (20, 20)

    def proxies(self, body: Bodies) -> Array:
        """Velocity along x and y."""
        return body.change["qpos"] / self.control_dt

    def measures(self, total: Array, steps: Array) -> Array:  # noqa: ARG002
        """Final position: the start plus the integral of the velocities."""
        return jnp.array(START) + total * self.control_dt
