"""A quadruped: an archive of gaits by the height of the body and the speed.

ppga train examples/quadruped.py:Quadruped --minutes 6 --output runs/quadruped
ppga view runs/quadruped --task examples/quadruped.py:Quadruped
"""

import jax
import jax.numpy as jnp

import ppga

LEG = """
<body name="{name} leg" pos="{x} {y} 0">
  <joint name="{name} hip" axis="0 1 0" range="-70 70"/>
  <geom type="capsule" fromto="0 0 0 0 0 -0.2" size="0.03"/>
  <body pos="0 0 -0.2">
    <joint name="{name} knee" axis="0 1 0" range="-5 120"/>
    <geom type="capsule" fromto="0 0 0 0 0 -0.2" size="0.022"/>
    <geom name="{name} foot" type="sphere" pos="0 0 -0.2" size="0.03"/>
  </body>
</body>
"""
LEGS = {"fl": (0.22, 0.14), "fr": (0.22, -0.14), "bl": (-0.22, 0.14), "br": (-0.22, -0.14)}
BODIES = "".join(LEG.format(name=name, x=x, y=y) for name, (x, y) in LEGS.items())
MOTORS = "".join(
    f'<position joint="{name} hip" ctrlrange="-1.2 1.2"/><position joint="{name} knee" ctrlrange="0 2"/>'
    for name in LEGS
)
ROBOT = f"""
<mujoco model="quadruped">
  <option timestep="0.005"/>
  <default>
    <joint armature="0.02" damping="0.5"/>
    <geom density="600" friction="1 0.02 0.02" rgba="0.2 0.35 0.6 1"/>
    <position kp="25" kv="0.5" forcerange="-15 15"/>
  </default>
  <worldbody>
    <light pos="0 0 4"/>
    <geom name="floor" type="plane" size="40 40 1" rgba="0.9 0.9 0.9 1"/>
    <body name="body" pos="0 0 0.42">
      <freejoint/>
      <geom type="box" size="0.28 0.1 0.05"/>
      {BODIES}
    </body>
  </worldbody>
  <actuator>{MOTORS}</actuator>
</mujoco>
"""


class Quadruped(ppga.Task):
    """Stay upright with slow joints; the measures are the mean height and speed."""

    name = "quadruped"
    mjcf = ROBOT
    substeps = 4
    usual_length = 300  # 6 seconds
    worst_idle_reward = -0.1  # upright, with all joints at full speed

    @property
    def measure_names(self):
        """Names of the measures."""
        return ("height", "speed")

    @property
    def measure_ranges(self):
        """Lower and upper bounds, in meters and meters per second."""
        return ((0.1, 0.5), (-1.0, 2.0))

    def initial(self, key):
        """Standing, with small random joint angles."""
        qpos = jnp.asarray(self.model.qpos0).at[7:].set(0.1 * jax.random.normal(key, (8,)))
        return qpos, jnp.zeros(self.model.nv)

    def observe(self, body):
        """Height, orientation and joint angles, then all velocities."""
        return jnp.concatenate([body.qpos[2:], body.qvel])

    def upright(self, body):
        """1 if the robot is upright, -1 if it lies on its back."""
        _, x, y, _ = body.qpos[3:7]
        return 1 - 2 * (x * x + y * y)

    def reward(self, body, ctrl):
        """High if the robot is upright and its joints are slow."""
        return self.upright(body) - 0.002 * jnp.square(body.qvel[6:]).sum()

    def terminated(self, body):
        """The robot has rolled over."""
        return self.upright(body) < 0.3

    def proxies(self, body):
        """Height and speed of the body; their means over an episode are the measures."""
        return jnp.array([body.qpos[2], body.change["qpos"][0] / self.control_dt])
