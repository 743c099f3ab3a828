"""What a task is: a model, and a few functions of one body that say what is seen, rewarded and measured."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from ppga.errors import InputError, at_least_one
from ppga.physics import Array, Bodies, make_physics, prepare_model, select
from ppga.physics.models import contact_sensor


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TaskState:
    """n environments after a step (or a reset).

    Attributes:
        bodies: the simulations.
        observation: (n, observation_size) what the policy sees next; at the end of an episode the last
            observation before any reset.
        reward: (n,) of the last step; 0 where none was taken.
        proxies: (n, k) Markovian measure proxies delta_i of the last step; 0 where none was taken.
        terminated: (n,) bool, the episode ended by the task's rule or because its physics diverged.
        truncated: (n,) bool, the episode ended at the time limit, and only there.
        diverged: (n,) bool, the episode ended because its physics diverged; that step does not count.
        steps: (n,) int32, control steps lived in this episode.
    """

    bodies: Bodies
    observation: Array
    reward: Array
    proxies: Array
    terminated: Array
    truncated: Array
    diverged: Array
    steps: Array

    @property
    def finished(self) -> Array:
        """(n,) bool, the episode is over."""
        return self.terminated | self.truncated


class Task:
    """Base class of all tasks; `docs/adding-a-task.md` walks through writing one.

    The functions a task defines (`initial`, `observe`, `reward`, `terminated`, and `proxies` if feet are not
    what it measures) are written for **one** body, in JAX; the base class maps them over all environments.

    Args:
        physics: engine, "mujoco" or "mjx".
        episode_length: control steps until an episode is truncated.
        integrator: "fast" (Euler, Newton solver) or "gymnasium" (as the model file says).
        threads: threads of the mujoco engine; all visible cores by default.
        impl: MJX implementation, "jax" or "warp".
    """

    name: ClassVar[str]
    """What `make_task` knows it by."""
    substeps: ClassVar[int]
    """MuJoCo steps in one control step."""
    feet: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Measure name -> names of the geoms that count as that foot."""
    floor: ClassVar[str] = "floor"
    """Name of the geom that feet touch."""
    derived: ClassVar[tuple[str, ...]] = ()
    """MjData fields (of those a step computes) that the task reads in `body.derived`."""
    changes: ClassVar[tuple[str, ...]] = ("qpos",)
    """MjData fields of which `body.change` holds the exact change over the last control step."""
    worst_idle_reward: ClassVar[float] = 0.0
    """The least reward a step can give a body that does not move backwards; makes the QD-score offset."""

    def __init__(
        self,
        physics: str = "mujoco",
        episode_length: int = 1000,
        integrator: str = "fast",
        threads: int | None = None,
        impl: str = "jax",
    ) -> None:
        self.episode_length = at_least_one("episode_length", episode_length)
        if threads is not None:
            at_least_one("threads", threads)
        self.integrator = integrator
        self.model: mujoco.MjModel = prepare_model(self.spec(), integrator, self.feet, self.floor)
        self.physics_name = physics
        self.physics = make_physics(
            physics, self.model, self.substeps, self.derived, self.changes, threads, impl
        )
        low, high = self.model.actuator_ctrlrange.T
        limited = self.model.actuator_ctrllimited.astype(bool)
        if not limited.all():
            names = [self.model.actuator(i).name or str(i) for i in np.flatnonzero(~limited)]
            raise InputError(
                f"actuators without a control range: {', '.join(names)}. Policies act in [-1, 1], which is "
                "scaled to that range: give each a ctrlrange."
            )
        self._ctrl_middle = jnp.asarray((low + high) / 2, jnp.float32)
        self._ctrl_half = jnp.asarray((high - low) / 2, jnp.float32)
        self._foot_sensors = [
            [int(self.model.sensor(contact_sensor(geom)).adr[0]) for geom in geoms]
            for geoms in self.feet.values()
        ]
        self.action_size = int(self.model.nu)
        self.observation_size = self._check_functions()

    def _check_functions(self) -> int:
        """Trace the task's functions, so that a wrong shape shows here; return the observations' size."""
        key = jax.random.key(0)
        qpos, qvel = jax.eval_shape(self.initial, key)
        wanted = (self.model.nq,), (self.model.nv,)
        if (qpos.shape, qvel.shape) != wanted:
            raise InputError(
                f"{self.name}: initial() must return positions {wanted[0]} and velocities {wanted[1]}, "
                f"got {qpos.shape} and {qvel.shape}."
            )
        state = jax.eval_shape(lambda key: self.reset(key, 1), key)
        body = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), state.bodies)
        k = len(self.measure_names)
        for name, shape, result in (
            ("observe", state.observation.shape[1:2], jax.eval_shape(self.observe, body)),
            ("reward", (), jax.eval_shape(self.reward, body, jnp.zeros(self.action_size))),
            ("terminated", (), jax.eval_shape(self.terminated, body)),
            ("proxies", (k,), jax.eval_shape(self.proxies, body)),
        ):
            if result.shape != shape:
                raise InputError(
                    f"{self.name}: {name}() must return shape {shape} for one body, got {result.shape}."
                )
        return int(state.observation.shape[1])

    # What a task says of itself.

    def spec(self) -> mujoco.MjSpec:
        """The robot and its world."""
        raise NotImplementedError(f"{type(self).__name__} does not define spec()")

    def initial(self, key: Array) -> tuple[Array, Array]:
        """A random start: qpos (nq,), qvel (nv,)."""
        raise NotImplementedError(f"{type(self).__name__} does not define initial()")

    def observe(self, body: Bodies) -> Array:
        """What the policy sees of a body: (observation_size,)."""
        raise NotImplementedError(f"{type(self).__name__} does not define observe()")

    def reward(self, body: Bodies, ctrl: Array) -> Array:
        """Reward () of the step that brought the body here under the controls (nu,)."""
        raise NotImplementedError(f"{type(self).__name__} does not define reward()")

    def terminated(self, body: Bodies) -> Array:  # noqa: ARG002
        """Whether () the episode ends here for good; never, unless the task says so."""
        return jnp.zeros((), jnp.bool_)

    def proxies(self, body: Bodies) -> Array:
        """Markovian measure proxies delta (k,): does foot i touch the floor, 0 or 1.

        As every sensor, contact is that of the state before the last substep, on both engines.
        """
        if not self._foot_sensors:
            return jnp.zeros(0)
        touching = [(body.sensordata[jnp.asarray(sensors)] > 0).any() for sensors in self._foot_sensors]
        return jnp.stack(touching).astype(jnp.float32)

    @property
    def measure_names(self) -> tuple[str, ...]:
        """Names of the k measures."""
        return tuple(self.feet)

    @property
    def measure_ranges(self) -> tuple[tuple[float, float], ...]:
        """Lower and upper bound of each measure; a share of time lies in [0, 1]."""
        return ((0.0, 1.0),) * len(self.measure_names)

    @property
    def archive_shape(self) -> tuple[int, ...]:
        """Default number of archive cells along each measure: 10, as in the paper."""
        return (10,) * len(self.measure_names)

    @property
    def qd_offset(self) -> float:
        """What is subtracted from every objective before summing the QD-score.

        The return of an episode spent on the spot in the costliest way, so that every elite that does not run
        backwards adds to the score. A constant of the task; to be reported beside every QD-score.
        """
        return self.episode_length * min(0.0, self.worst_idle_reward)

    @property
    def control_dt(self) -> float:
        """Seconds of simulated time in one control step."""
        return float(self.substeps * self.model.opt.timestep)

    # What the rest of the program does with a task.

    def for_callers(self, callers: int) -> "Task":
        """The same task, for so many threads that step environments of their own at the same time."""
        if callers == 1:
            return self
        shared = copy.copy(self)
        shared.physics = self.physics.for_callers(callers)
        return shared

    def reset(self, key: Array, n: int) -> TaskState:
        """Place n environments at random starts, by one key or by (n,) keys, one for each."""
        at_least_one("the number of environments", n)
        return self._place(key, jnp.ones(n, jnp.bool_))

    def _place(self, key: Array, where: Array) -> TaskState:
        n = len(where)
        qpos, qvel = jax.vmap(self.initial)(key if key.ndim else jax.random.split(key, n))
        bodies = self.physics.reset(qpos, qvel, where)
        no = jnp.zeros(n, jnp.bool_)
        return TaskState(
            bodies=bodies,
            observation=jax.vmap(self.observe)(bodies),
            reward=jnp.zeros(n),
            proxies=jnp.zeros((n, len(self.measure_names))),
            terminated=bodies.diverged,
            truncated=no,
            diverged=bodies.diverged,
            steps=jnp.zeros(n, jnp.int32),
        )

    def controls(self, action: Array) -> Array:
        """Controls (n, nu) for actions (n, nu): clipped to [-1, 1], scaled to the actuators' range."""
        return self._ctrl_middle + self._ctrl_half * jnp.clip(action, -1.0, 1.0)

    def step(self, state: TaskState, action: Array) -> TaskState:
        """One control step under actions (n, action_size) in [-1, 1].

        Finished environments stay as they are, with reward and proxies 0, until `restart`.
        """
        action = jnp.asarray(action)
        expected = (len(state.steps), self.action_size)
        if action.shape != expected:
            raise InputError(f"{self.name} takes actions of shape {expected}, got {action.shape}.")
        active = ~state.finished
        ctrl = self.controls(action)
        bodies = self.physics.step(state.bodies, ctrl, active)
        moved = active & ~bodies.diverged
        steps = state.steps + moved
        terminated = jax.vmap(self.terminated)(bodies) | bodies.diverged
        after = TaskState(
            bodies=bodies,
            observation=jax.vmap(self.observe)(bodies),
            reward=jax.vmap(self.reward)(bodies, ctrl),
            proxies=jax.vmap(self.proxies)(bodies),
            terminated=terminated,
            truncated=(steps >= self.episode_length) & ~terminated,
            diverged=bodies.diverged,
            steps=steps,
        )
        still = replace(
            state,
            bodies=bodies,  # the engine has left these where they were
            reward=jnp.zeros_like(state.reward),
            proxies=jnp.zeros_like(state.proxies),
            terminated=state.terminated | bodies.diverged,
            diverged=state.diverged | bodies.diverged,
        )
        return select(moved, after, still)

    def restart(self, state: TaskState, key: Array) -> TaskState:
        """Finished environments at new random starts, the others as they are.

        Args:
            state: of n environments.
            key: one for all, or (n,), one for each.
        """

        def fresh(state: TaskState) -> TaskState:
            return select(state.finished, self._place(key, state.finished), state)

        restarted: TaskState = jax.lax.cond(state.finished.any(), fresh, lambda state: state, state)
        return restarted
