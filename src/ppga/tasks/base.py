"""The base class of robot tasks: a model, and functions of one body for observation, reward and measures."""

import copy
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from ppga.errors import InputError, check_count
from ppga.limits import LONGEST_EPISODE
from ppga.physics import Array, Bodies, make_physics, prepare_model
from ppga.physics.models import contact_sensor
from ppga.physics.mujoco_engine import silent
from ppga.tasks.environment import Environment, TaskState


class Task(Environment):
    """Base class of robot tasks in MuJoCo; `docs/adding-a-task.md` explains how to write one.

    A task defines the functions `initial`, `observe`, `reward`, optionally `terminated`, and `proxies` if its
    measures are not the contacts of feet. They are written for **one** body, in JAX; the base class maps them
    over all environments.

    Args:
        physics: engine, "mujoco" or "mjx".
        episode_length: control steps until an episode is truncated; `usual_length` by default.
        integrator: "fast" (Euler integrator, Newton solver) or "gymnasium" (those of the model file).
        threads: threads of the mujoco engine; all visible cores by default.
        impl: implementation of the mjx engine, "jax" or "warp".
        clip: observations and rewards are clipped to [-clip, clip]; None for no limit.

    Raises:
        InputError: an option that cannot work, or a function whose values have a wrong shape or range.
    """

    name: str
    """Name of the task for `make_task`, options and files."""
    mjcf: ClassVar[str | Path | mujoco.MjSpec | None] = None
    """The robot and its surroundings: MJCF text, the path of an MJCF file (relative to the file of the
    class), or an `MjSpec`. Tasks without it define `spec`.
    """
    usual_length: ClassVar[int] = 1000
    """Default number of control steps until an episode is truncated."""
    substeps: ClassVar[int]
    """MuJoCo steps in one control step."""
    feet: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Measure name -> names of the geoms of that foot."""
    floor: ClassVar[str] = "floor"
    """Name of the floor's geom."""
    derived: ClassVar[tuple[str, ...]] = ()
    """Further MjData fields that the task reads in `body.derived`, of those that a step computes."""
    changes: ClassVar[tuple[str, ...]] = ("qpos",)
    """MjData fields whose change over the last control step the task reads in `body.change`."""
    worst_idle_reward: ClassVar[float] = 0.0
    """Smallest reward of a step of a body that does not move backwards; determines the QD-score offset."""

    def __init__(
        self,
        physics: str = "mujoco",
        episode_length: int | None = None,
        integrator: str = "fast",
        threads: int | None = None,
        impl: str = "jax",
        clip: float | None = None,
    ) -> None:
        self.episode_length = check_count(
            "episode_length",
            self.usual_length if episode_length is None else episode_length,
            LONGEST_EPISODE,
        )
        if threads is not None:
            check_count("threads", threads)
        self.integrator, self.threads, self.impl, self.clip = integrator, threads, impl, clip
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
                f"actuators without a control range: {', '.join(names)}. Actions in [-1, 1] are scaled to "
                "that range: give each actuator a ctrlrange in the MJCF."
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
        """Check the shapes of the task's functions and their values at an initial state.

        Returns:
            The size of an observation.
        """
        key = jax.random.key(0)
        expected = ((self.model.nq,), (self.model.nv,))
        initial = jax.eval_shape(self.initial, key)
        shapes = tuple(map(_shape, initial)) if isinstance(initial, tuple | list) else _shape(initial)
        if shapes != expected:
            raise InputError(
                f"{self.name}: initial() must return positions {expected[0]} and velocities {expected[1]}, "
                f"got {shapes}."
            )
        body = self._initial_body()
        observed = _shape(jax.eval_shape(self.observe, body))
        vector = observed if isinstance(observed, tuple) and len(observed) == 1 else ("any number",)
        functions: dict[str, tuple[tuple[object, ...], Callable[[Bodies], object]]] = {
            "observe": (vector, self.observe),
            "reward": ((), lambda body: self.reward(body, jnp.zeros(self.action_size))),
            "terminated": ((), self.terminated),
            "proxies": ((len(self.measure_names),), self.proxies),
        }
        for name, (shape, function) in functions.items():
            returned = _shape(jax.eval_shape(function, body))
            if returned != shape:
                values = jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), function(body))
                raise InputError(
                    f"{self.name}: {name}() must return shape {shape} for one body, got {returned}: {values}."
                )
        self._check_values(body)
        return int(jax.eval_shape(lambda key: self.reset(key, 1), key).observation.shape[1])

    def _check_values(self, body: Bodies) -> None:
        """Raise an InputError unless observation and measures are finite and measures lie in their ranges."""
        proxies, observation = (
            np.asarray(values, float) for values in (self.proxies(body), self.observe(body))
        )
        if not np.isfinite(observation).all():
            raise InputError(
                f"{self.name}: observe() must return finite numbers, got {observation.tolist()} at the start."
            )
        measures = np.asarray(self.measures(jnp.asarray(proxies)[None], jnp.ones(1)))
        self.check_measures(measures[0] if measures.ndim else measures, "at the start")

    def _initial_body(self) -> Bodies:
        """One body at an initial state, computed by MuJoCo without an engine."""
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

    # Functions that define a task.

    def spec(self) -> mujoco.MjSpec:
        """Description of the robot and its surroundings; from `mjcf` by default."""
        if self.mjcf is None:
            raise InputError(f"{type(self).__name__} has no robot: give it an mjcf, or define spec().")
        if isinstance(self.mjcf, mujoco.MjSpec):
            return self.mjcf.copy()  # sensors are added to the copy
        text = str(self.mjcf)
        try:
            if text.lstrip().startswith("<"):
                return mujoco.MjSpec.from_string(text)
            folder = Path(inspect.getfile(type(self))).parent
            return mujoco.MjSpec.from_file(str(folder / text))
        except (OSError, TypeError, ValueError) as error:
            raise InputError(f"{self.name}: MuJoCo cannot read the robot's MJCF: {error}") from None

    def initial(self, key: Array) -> tuple[Array, Array]:
        """A random initial state: positions (nq,) and velocities (nv,)."""
        raise NotImplementedError(f"{type(self).__name__} does not define initial()")

    def observe(self, body: Bodies) -> Array:
        """Observation (observation_size,) of a body."""
        raise NotImplementedError(f"{type(self).__name__} does not define observe()")

    def reward(self, body: Bodies, ctrl: Array) -> Array:
        """Reward () of the last control step, from the body after it and the controls (nu,) during it."""
        raise NotImplementedError(f"{type(self).__name__} does not define reward()")

    def terminated(self, body: Bodies) -> Array:  # noqa: ARG002
        """Whether () the episode ends in this state, other than by the time limit; never by default."""
        return jnp.zeros((), jnp.bool_)

    def proxies(self, body: Bodies) -> Array:
        """Markovian measure proxies delta (k,) of a body; by default 1 for each foot on the floor, else 0.

        Like all sensors, contacts are those of the state before the last substep, on both engines.
        """
        if not self._foot_sensors:
            return jnp.zeros(0)
        contacts = [(body.sensordata[jnp.asarray(sensors)] > 0).any() for sensors in self._foot_sensors]
        return jnp.stack(contacts).astype(jnp.float32)

    @property
    def measure_names(self) -> tuple[str, ...]:
        """Names of the k measures."""
        return tuple(self.feet)

    @property
    def qd_offset(self) -> float:
        """Subtracted from every objective in the QD-score; report it together with the score.

        This is the return of a robot that stands still at the highest cost, or 0 if that is positive. So
        every elite that does not run backwards adds to the score. It depends on the task and the episode
        length only.
        """
        return self.episode_length * min(0.0, self.worst_idle_reward)

    # The interface `Environment`.

    @property
    def simulation_warnings(self) -> set[str]:
        """Warnings of the engine for the user, one sentence each."""
        return self.physics.warnings

    def callers(self, n: int) -> int:
        """See `Environment.callers`; the engine decides."""
        return self.physics.callers(n)

    def for_callers(self, callers: int) -> "Task":
        """The same task, with an engine that can be called from that many threads at the same time."""
        if callers == 1:
            return self
        shared = copy.copy(self)
        shared.physics = self.physics.for_callers(callers)
        return shared

    @property
    def has_feet(self) -> bool:
        """Whether the measures are the contacts of `feet`."""
        return bool(self.feet) and self.measure_names == tuple(self.feet)

    def pose(self, state: TaskState) -> Array:
        """Joint positions (n, nq)."""
        return jnp.asarray(state.bodies.qpos)

    def controls(self, action: Array) -> Array:
        """Controls (n, nu) for actions (n, nu): clipped to [-1, 1] and scaled to the control ranges."""
        return self._ctrl_middle + self._ctrl_half * jnp.clip(action, -1.0, 1.0)

    def _clipped(self, values: Array) -> Array:
        """Observations or rewards within the limit, if there is one; NaN stays NaN."""
        return values if self.clip is None else jnp.clip(values, -self.clip, self.clip)

    def _place(self, keys: Array, before: TaskState | None) -> TaskState:
        active = jnp.ones(len(keys), jnp.bool_) if before is None else before.finished
        qpos, qvel = jax.vmap(self.initial)(keys)
        bodies = self.physics.reset(qpos, qvel, active)
        return self.first_state(bodies, self._clipped(jax.vmap(self.observe)(bodies)), bodies.diverged)

    def _step(self, state: TaskState, action: Array) -> TaskState:
        ctrl = self.controls(action)
        bodies = self.physics.step(state.bodies, ctrl, ~state.finished)
        return self.next_state(
            state,
            bodies,
            observation=self._clipped(jax.vmap(self.observe)(bodies)),
            reward=self._clipped(jax.vmap(self.reward)(bodies, ctrl)),
            proxies=jax.vmap(self.proxies)(bodies),
            terminated=jax.vmap(self.terminated)(bodies),
            failed=bodies.diverged,
            fallback=bodies,  # the engine keeps the state of bodies that it does not advance
        )


def _shape(value: object) -> object:
    """Shape of an array; of anything else, the name of its type."""
    return getattr(value, "shape", type(value).__name__)
