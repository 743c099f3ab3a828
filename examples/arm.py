"""A planar arm: an archive of positions of its hand.

ppga train examples/arm.py:Arm --minutes 4 --output runs/arm
ppga view runs/arm --task examples/arm.py:Arm
"""

import jax
import jax.numpy as jnp

import ppga

ARM = """
<mujoco model="arm">
  <option timestep="0.01" gravity="0 0 0"/>
  <default>
    <joint axis="0 0 1" armature="0.05" damping="0.4" range="-150 150"/>
    <geom contype="0" conaffinity="0" rgba="0.2 0.35 0.6 1"/>
    <default class="link"><geom type="capsule" fromto="0 0 0 0.25 0 0" size="0.03"/></default>
    <motor gear="1" ctrlrange="-1 1"/>
  </default>
  <worldbody>
    <light pos="0 0 4"/>
    <geom name="floor" type="plane" size="1.5 1.5 0.1" pos="0 0 -0.1" rgba="0.9 0.9 0.9 1"/>
    <body><joint name="j1"/><geom class="link"/>
      <body pos="0.25 0 0"><joint name="j2"/><geom class="link"/>
        <body pos="0.25 0 0"><joint name="j3"/><geom class="link"/>
          <body pos="0.25 0 0"><joint name="j4"/><geom class="link"/>
            <site name="hand" pos="0.25 0 0" size="0.04" rgba="0.8 0.3 0.1 1"/>
          </body>
        </body>
      </body>
    </body>
  </worldbody>
  <sensor><framepos name="hand" objtype="site" objname="hand"/></sensor>
  <actuator><motor joint="j1"/><motor joint="j2"/><motor joint="j3"/><motor joint="j4"/></actuator>
</mujoco>
"""


class Arm(ppga.Task):
    """Move the hand to a position and hold it there; the measures are the mean position."""

    name = "arm"
    mjcf = ARM
    substeps = 4
    usual_length = 100  # 4 seconds
    worst_idle_reward = -1.0

    @property
    def measure_names(self):
        """Names of the measures."""
        return ("hand x", "hand y")

    @property
    def measure_ranges(self):
        """Lower and upper bounds in meters: the reach of the arm."""
        return ((-1.0, 1.0), (-1.0, 1.0))

    def initial(self, key):
        """Stretched out along x, with small random angles."""
        return 0.1 * jax.random.normal(key, (4,)), jnp.zeros(4)

    def observe(self, body):
        """Sines and cosines of the joint angles, and angular velocities."""
        return jnp.concatenate([jnp.sin(body.qpos), jnp.cos(body.qpos), body.qvel])

    def reward(self, body, ctrl):
        """1 for a resting arm, less for fast joints and large controls."""
        return 1 - 0.05 * jnp.square(body.qvel).sum() - 0.1 * jnp.square(ctrl).sum()

    def proxies(self, body):
        """Position of the hand; its mean over an episode is the measure."""
        return body.sensordata[:2]
