"""What a robot's task is: a model, and functions of one body that say what is seen, rewarded and measured."""

import copy
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from ppga.errors import InputError, at_least_one
from ppga.limits import LONGEST_EPISODE
from ppga.physics import Array, Bodies, make_physics, prepare_model
from ppga.physics.models import contact_sensor
from ppga.physics.mujoco_engine import silent
from ppga.tasks.environment import Environment, TaskState


class Task(Environment):
    """Base class of all robots in MuJoCo; `docs/adding-a-task.md` walks through writing one.

    The functions a task defines (`initial`, `observe`, `reward`, `terminated`, and `proxies` if feet are not
    what it measures) are written for **one** body, in JAX; the base class maps them over all environments.

    Args:
        physics: engine, "mujoco" or "mjx".
        episode_length: control steps until an episode is truncated; the task's own by default.
        integrator: "fast" (Euler, Newton solver) or "gymnasium" (as the model file says).
        threads: threads of the mujoco engine; all visible cores by default.
        impl: MJX implementation, "jax" or "warp".
    """

    name: str
    """What `make_task` knows it by."""
    mjcf: ClassVar[str | Path | mujoco.MjSpec | None] = None
    """The robot and its world: MJCF text, a file of it, beside that of the class, or an `MjSpec`; or define
    `spec`.
    """
    usual_length: ClassVar[int] = 1000
    """Control steps of an episode, unless told otherwise."""
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
        episode_length: int | None = None,
        integrator: str = "fast",
        threads: int | None = None,
        impl: str = "jax",
    ) -> None:
        self.episode_length = at_least_one(
            "episode_length",
            self.usual_length if episode_length is None else episode_length,
            LONGEST_EPISODE,
        )
        if threads is not None:
            at_least_one("threads", threads)
        self.integrator, self.threads, self.impl = integrator, threads, impl
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
        self.control_dt = float(self.substeps * self.model.opt.timestep)
        self.control_range = tuple((float(least), float(most)) for least, most in zip(low, high, strict=True))
        self.observation_size = self._check_functions()

    def _check_functions(self) -> int:
        """Trace the task's functions, so that a wrong shape shows here; return the observations' size."""
        key = jax.random.key(0)
        wanted = ((self.model.nq,), (self.model.nv,))
        start = jax.eval_shape(self.initial, key)
        shapes = tuple(map(_shape, start)) if isinstance(start, tuple | list) else _shape(start)
        if shapes != wanted:
            raise InputError(
                f"{self.name}: initial() must return positions {wanted[0]} and velocities {wanted[1]}, "
                f"got {shapes}."
            )
        body = self._sample()
        seen = _shape(jax.eval_shape(self.observe, body))
        some = seen if isinstance(seen, tuple) and len(seen) == 1 else ("any number",)
        functions: dict[str, tuple[tuple[object, ...], Callable[[Bodies], object]]] = {
            "observe": (some, self.observe),
            "reward": ((), lambda body: self.reward(body, jnp.zeros(self.action_size))),
            "terminated": ((), self.terminated),
            "proxies": ((len(self.measure_names),), self.proxies),
        }
        for name, (shape, function) in functions.items():
            got = _shape(jax.eval_shape(function, body))
            if got != shape:
                values = jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), function(body))
                raise InputError(
                    f"{self.name}: {name}() must return shape {shape} for one body, got {got}: {values}."
                )
        self._check_start(body)
        return int(jax.eval_shape(lambda key: self.reset(key, 1), key).observation.shape[1])

    def _check_start(self, body: Bodies) -> None:
        """Raise an InputError unless what is seen and measured at a start are numbers, in their ranges."""
        proxies, seen = (np.asarray(values, float) for values in (self.proxies(body), self.observe(body)))
        if not np.isfinite(seen).all():
            raise InputError(f"{self.name}: observe() gives {seen.tolist()} at the start.")
        found = np.asarray(self.measures(jnp.asarray(proxies)[None], jnp.ones(1)))
        self.check_measures(found[0] if found.ndim else found, "at the start")

    def _sample(self) -> Bodies:
        """One body at a start, by plain MuJoCo."""
        data = mujoco.MjData(self.model)
        data.qpos, data.qvel = self.initial(jax.random.key(0))
        with silent():
            mujoco.mj_forward(self.model, data)

        def read(name: str) -> Array:
            return jnp.asarray(getattr(data, name), jnp.float32)

        return Bodies(
            state=None,
            qpos=read("qpos"),
            qvel=read("qvel"),
            sensordata=read("sensordata"),
            derived={name: read(name) for name in self.derived},
            change={name: jnp.zeros_like(read(name)) for name in self.changes},
            diverged=jnp.zeros((), jnp.bool_),
        )

    # What a task says of itself.

    def spec(self) -> mujoco.MjSpec:
        """The robot and its world; from `mjcf`, unless the task makes it otherwise."""
        if self.mjcf is None:
            raise InputError(f"{type(self).__name__} has no robot: give it an mjcf, or define spec().")
        if isinstance(self.mjcf, mujoco.MjSpec):
            return self.mjcf.copy()  # what is made of it gets sensors
        text = str(self.mjcf)
        try:
            if text.lstrip().startswith("<"):
                return mujoco.MjSpec.from_string(text)
            beside = Path(inspect.getfile(type(self))).parent  # unless the path is absolute
            return mujoco.MjSpec.from_file(str(beside / text))
        except (OSError, TypeError, ValueError) as error:
            raise InputError(f"{self.name}: MuJoCo cannot read the robot: {error}") from None

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
    def qd_offset(self) -> float:
        """What is subtracted from every objective before summing the QD-score.

        The return of an episode spent on the spot in the costliest way, so that every elite that does not run
        backwards adds to the score. A constant of the task; to be reported beside every QD-score.
        """
        return self.episode_length * min(0.0, self.worst_idle_reward)

    # What the rest of the program does with a task.

    @property
    def simulation_warnings(self) -> set[str]:
        """The engine's warnings."""
        return self.physics.warnings

    def callers(self, n: int) -> int:
        """As many as the engine says."""
        return self.physics.callers(n)

    def for_callers(self, callers: int) -> "Task":
        """The same task, on an engine for so many callers."""
        if callers == 1:
            return self
        shared = copy.copy(self)
        shared.physics = self.physics.for_callers(callers)
        return shared

    @property
    def has_feet(self) -> bool:
        """If the measures are those that `feet` names."""
        return bool(self.feet) and self.measure_names == tuple(self.feet)

    def pose(self, state: TaskState) -> Array:
        """Joint positions (n, nq)."""
        return jnp.asarray(state.bodies.qpos)

    def controls(self, action: Array) -> Array:
        """Controls (n, nu) for actions (n, nu): clipped to [-1, 1], scaled to the actuators' range."""
        return self._ctrl_middle + self._ctrl_half * jnp.clip(action, -1.0, 1.0)

    def _place(self, keys: Array, before: TaskState | None) -> TaskState:
        where = jnp.ones(len(keys), jnp.bool_) if before is None else before.finished
        qpos, qvel = jax.vmap(self.initial)(keys)
        bodies = self.physics.reset(qpos, qvel, where)
        return self.started(bodies, jax.vmap(self.observe)(bodies), bodies.diverged)

    def _step(self, state: TaskState, action: Array) -> TaskState:
        ctrl = self.controls(action)
        bodies = self.physics.step(state.bodies, ctrl, ~state.finished)
        return self.moved(
            state,
            bodies,
            observation=jax.vmap(self.observe)(bodies),
            reward=jax.vmap(self.reward)(bodies, ctrl),
            proxies=jax.vmap(self.proxies)(bodies),
            terminated=jax.vmap(self.terminated)(bodies),
            failed=bodies.diverged,
            stay=bodies,  # the engine has left these where they were
        )


def _shape(made: object) -> object:
    """Shape of what a function gives; what kind of thing it is, if it is no array."""
    return getattr(made, "shape", type(made).__name__)
