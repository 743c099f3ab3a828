"""Locomotion robots, with the observations, rewards, terminations and initial states of Gymnasium's v5 tasks.

Gymnasium's contact forces are left out throughout (`include_cfrc_ext_in_observation=False`,
`contact_cost_weight=0`). Numbers without a comment are Gymnasium's defaults.
"""

from importlib.resources import files
from typing import ClassVar

import jax
import jax.numpy as jnp
import mujoco

from ppga.physics import Array, Bodies
from ppga.tasks.base import Task

_ASSETS = files("gymnasium") / "envs" / "mujoco" / "assets"


class LocomotionTask(Task):
    """A robot whose reward is its speed along x, plus a bonus for being healthy, minus a cost of controls.

    Attributes:
        model_file: name of Gymnasium's MJCF file.
        noise: size of the noise of initial positions and velocities.
        gaussian_velocities: the noise of velocities is Gaussian; otherwise uniform.
        hidden_positions: number of leading positions that are not observed: x (and y), on which a gait does
            not depend.
        forward_weight: weight of the speed along x.
        control_weight: weight of the squared controls.
        healthy_bonus: reward of a step in which the robot is healthy.
    """

    model_file: ClassVar[str]
    noise: ClassVar[float]
    gaussian_velocities: ClassVar[bool] = False
    hidden_positions: ClassVar[int] = 1
    forward_weight: ClassVar[float] = 1.0
    control_weight: ClassVar[float]
    healthy_bonus: ClassVar[float] = 0.0

    def spec(self) -> mujoco.MjSpec:
        """Gymnasium's own model file, from the installed package."""
        return mujoco.MjSpec.from_file(str(_ASSETS / self.model_file))

    def initial(self, key: Array) -> tuple[Array, Array]:
        """The model's default pose, with noise on every position and velocity."""
        position_key, velocity_key = jax.random.split(key)
        qpos0 = jnp.asarray(self.model.qpos0, jnp.float32)
        qpos = qpos0 + jax.random.uniform(position_key, qpos0.shape, minval=-self.noise, maxval=self.noise)
        shape = (self.model.nv,)
        if self.gaussian_velocities:
            return qpos, self.noise * jax.random.normal(velocity_key, shape)
        return qpos, jax.random.uniform(velocity_key, shape, minval=-self.noise, maxval=self.noise)

    def observe(self, body: Bodies) -> Array:
        """Positions without the first `hidden_positions`, then velocities."""
        return jnp.concatenate([body.qpos[self.hidden_positions :], body.qvel])

    def progress(self, body: Bodies) -> Array:
        """Distance () moved along x in the last control step, in meters."""
        return body.change["qpos"][0]

    def healthy(self, body: Bodies) -> Array:  # noqa: ARG002
        """Whether () the robot is healthy, as Gymnasium defines it; always by default."""
        return jnp.ones((), jnp.bool_)

    def reward(self, body: Bodies, ctrl: Array) -> Array:
        """Weighted speed along x, plus the bonus if healthy, minus weighted squared controls."""
        forward = self.forward_weight * self.progress(body) / self.control_dt
        bonus = self.healthy_bonus * self.healthy(body)
        return forward + bonus - self.control_weight * jnp.square(ctrl).sum()

    def terminated(self, body: Bodies) -> Array:
        """The robot is not healthy."""
        return ~self.healthy(body)


class HalfCheetah(LocomotionTask):
    """A cheetah in the plane; it can always get up, so episodes never end early."""

    name = "halfcheetah"
    model_file = "half_cheetah.xml"
    substeps = 5
    noise = 0.1
    gaussian_velocities = True
    control_weight = 0.1
    feet: ClassVar = {"back foot": ("bfoot",), "front foot": ("ffoot",)}
    worst_idle_reward = -0.6  # six motors at full torque: 0.1 * 6


class Walker2d(LocomotionTask):
    """A two-legged walker in the plane."""

    name = "walker2d"
    model_file = "walker2d_v5.xml"
    substeps = 4
    noise = 5e-3
    control_weight = 1e-3
    healthy_bonus = 1.0
    feet: ClassVar = {"right foot": ("foot_geom",), "left foot": ("foot_left_geom",)}
    worst_idle_reward = 0.0  # being healthy pays more (1) than six motors can cost (0.006)

    def observe(self, body: Bodies) -> Array:
        """Positions without x, then velocities clipped to [-10, 10]."""
        return jnp.concatenate([body.qpos[self.hidden_positions :], jnp.clip(body.qvel, -10.0, 10.0)])

    def healthy(self, body: Bodies) -> Array:
        """Torso high enough and upright."""
        height, angle = body.qpos[1], body.qpos[2]
        return (0.8 < height) & (height < 2.0) & (-1.0 < angle) & (angle < 1.0)


class Hopper(Walker2d):
    """A one-legged hopper in the plane."""

    name = "hopper"
    model_file = "hopper.xml"
    feet: ClassVar = {"foot": ("foot_geom",)}
    worst_idle_reward = 0.0  # being healthy pays more (1) than three motors can cost (0.003)

    def healthy(self, body: Bodies) -> Array:
        """Torso high enough and upright, and no position or velocity of 100 or more."""
        state = jnp.concatenate([body.qpos, body.qvel])[2:]
        bounded = ((-100.0 < state) & (state < 100.0)).all()
        return bounded & (0.7 < body.qpos[1]) & (-0.2 < body.qpos[2]) & (body.qpos[2] < 0.2)


class Ant(LocomotionTask):
    """A four-legged ant in three dimensions."""

    name = "ant"
    model_file = "ant.xml"
    substeps = 5
    noise = 0.1
    gaussian_velocities = True
    hidden_positions = 2
    control_weight = 0.5
    healthy_bonus = 1.0
    changes = ("xpos",)
    feet: ClassVar = {  # by their positions as the ant walks along x, which differ from the model's names
        "front left": ("left_ankle_geom",),
        "back left": ("right_ankle_geom",),
        "back right": ("third_ankle_geom",),
        "front right": ("fourth_ankle_geom",),
    }
    worst_idle_reward = -3.0  # being healthy pays 1, eight motors at full torque cost 0.5 * 8

    def progress(self, body: Bodies) -> Array:
        """Distance of the torso along x by the kinematics before the last substep, as in Gymnasium."""
        return body.change["xpos"][1, 0]

    def healthy(self, body: Bodies) -> Array:
        """Torso neither on the floor nor high in the air."""
        return (0.2 <= body.qpos[2]) & (body.qpos[2] <= 1.0)


class Humanoid(LocomotionTask):
    """A humanoid in three dimensions that observes its positions and velocities only."""

    name = "humanoid"
    model_file = "humanoid.xml"
    substeps = 5
    noise = 1e-2
    hidden_positions = 2
    forward_weight = 1.25
    control_weight = 0.1
    healthy_bonus = 5.0
    changes = ("subtree_com",)
    feet: ClassVar = {"right foot": ("right_foot",), "left foot": ("left_foot",)}
    worst_idle_reward = 0.0  # being healthy pays more (5) than seventeen motors at 0.4 can cost (0.27)

    def progress(self, body: Bodies) -> Array:
        """Distance of the center of mass along x."""
        return body.change["subtree_com"][0, 0]

    def healthy(self, body: Bodies) -> Array:
        """Torso at walking height."""
        return (1.0 < body.qpos[2]) & (body.qpos[2] < 2.0)


class HumanoidFull(Humanoid):
    """The humanoid with all of Gymnasium's observations except contact forces.

    The additional observations are functions of positions and velocities; the input is six times as large.
    """

    name = "humanoid-full"
    derived = ("cinert", "cvel", "qfrc_actuator")

    def observe(self, body: Bodies) -> Array:
        """Positions, velocities, inertia and velocity of each body about the center of mass, motor forces."""
        return jnp.concatenate(
            [
                super().observe(body),
                body.derived["cinert"][1:].ravel(),  # without the world body
                body.derived["cvel"][1:].ravel(),
                body.derived["qfrc_actuator"][6:],  # without the free joint
            ]
        )


class AntOmni(Ant):
    """The ant without a reward for speed; its measures are its final position."""

    name = "ant-omni"
    usual_length = 250
    feet: ClassVar = {}
    forward_weight = 0.0

    @property
    def measure_names(self) -> tuple[str, ...]:
        """Names of the k measures."""
        return ("final x", "final y")

    @property
    def measure_ranges(self) -> tuple[tuple[float, float], ...]:
        """In meters from the start; an ant that always runs at 2.4 m/s reaches the edge."""
        return ((-30.0, 30.0),) * 2

    @property
    def archive_shape(self) -> tuple[int, ...]:
        """Cells of 3 m by 3 m."""
        return (20, 20)

    def proxies(self, body: Bodies) -> Array:
        """Velocity of the torso along x and y."""
        return body.change["xpos"][1, :2] / self.control_dt

    def measures(self, total: Array, steps: Array) -> Array:  # noqa: ARG002
        """Final position relative to the start: the integral of the velocities."""
        return total * self.control_dt
