"""The mujoco engine: MuJoCo's C library on a thread pool, called from jitted code, with identical results.

JAX carries MuJoCo's float64 state from step to step, as pairs of uint32 because JAX computes in float32 here.
So calls are pure: the engine itself has no state between two steps.
"""

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from mujoco.batch import Batch, SimulationError

from ppga.machine import visible_cores
from ppga.physics.base import HUGE, Array, Bodies, Physics
from ppga.physics.host import HostArray, call_host

_STATE = mujoco.mjtState
# Parts of MuJoCo's state that change from step to step; applied forces, mocap poses and so on keep defaults
_CARRIED = (
    _STATE.mjSTATE_TIME
    | _STATE.mjSTATE_QPOS
    | _STATE.mjSTATE_QVEL
    | _STATE.mjSTATE_ACT
    | _STATE.mjSTATE_HISTORY
    | _STATE.mjSTATE_WARMSTART
)
_MEMORY = (
    "MuJoCo's memory is full in some simulations: {consequence}. The model has {kib:,} KiB; set a larger "
    'size in its MJCF, for example <size memory="{more}K"/>'
)
_WARNINGS = {
    mujoco.mjtWarning.mjWARN_CONTACTFULL: "contacts are left out",
    mujoco.mjtWarning.mjWARN_CNSTRFULL: "contacts, joint limits and other constraints have no effect there",
}
"""Warnings of MuJoCo after which a simulation can continue, with their consequences."""
_SILENT_LOCK = threading.Lock()
_handlers: list[Any] = []  # the handlers to restore, one for each active `silent` context
_BAD_STATE = slice(int(mujoco.mjtWarning.mjWARN_BADQPOS), int(mujoco.mjtWarning.mjWARN_BADCTRL) + 1)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """A context in which MuJoCo neither prints warnings nor writes a log file; it still counts them.

    MuJoCo's warning handler is global: the first active context replaces it, and the last one restores it.
    """
    with _SILENT_LOCK:
        _handlers.append(mujoco.get_mju_user_warning())
        if len(_handlers) == 1:
            mujoco.set_mju_user_warning(_ignore)
    try:
        yield
    finally:
        with _SILENT_LOCK:
            before = _handlers.pop()
            if not _handlers:
                mujoco.set_mju_user_warning(before)


def _ignore(_: str) -> None:
    pass


class _Simulations:
    """A Batch with references to its arrays: looking them up in every step costs more than copying them."""

    def __init__(self, model: mujoco.MjModel, n: int, threads: int, fields: tuple[str, ...]) -> None:
        self.batch = Batch(model, n, min(threads, n))
        # bound before the first call: a field that is bound after a call reads zero
        self.fields = {name: self.batch.bind(name) for name in fields}
        self.flat = {name: values.reshape(n, -1) for name, values in self.fields.items()}
        assert all(
            np.shares_memory(self.flat[name], values) for name, values in self.fields.items() if values.size
        )
        self.state, self.ctrl = self.batch.state, self.batch.bind("ctrl")
        self.moving = self.state[:, 1 : 1 + model.nq + model.nv]  # positions and velocities, after the time
        self.status, self.warnings = self.batch.status, self.batch.warning
        self.counts = self.warnings[:, :, 1]  # number of warnings of each kind


class MujocoPhysics(Physics):
    """`mujoco.batch` as an engine.

    Only active bodies are stepped, so a finished episode costs nothing. Results do not depend on the number
    of threads, on the batch size, or on the other bodies of the batch.

    The state of n bodies consists of two arrays: `rows` (n, words) uint32 with MuJoCo's float64 state and the
    float64 fields of `changes`, and `fields` (n, columns) float32 with all fields that tasks read.

    Args:
        model: the compiled model.
        substeps: MuJoCo steps in one control step.
        derived: names of the MjData fields in `Bodies.derived`.
        changes: names of the MjData fields in `Bodies.change`.
        threads: number of threads; all visible cores by default.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        substeps: int,
        derived: tuple[str, ...] = (),
        changes: tuple[str, ...] = (),
        threads: int | None = None,
    ) -> None:
        super().__init__(model, substeps, derived, changes)
        self.threads = threads or visible_cores()
        self._idle: dict[int, list[_Simulations]] = {}
        self._fields = ("qpos", "qvel", "sensordata", *derived)
        probe = self._new_simulations(1)
        # these parts come first in MuJoCo's state, but not before that of plugins: with plugins, carry it all
        carried = mujoco.mj_stateSize(model, int(_CARRIED))
        self._carried = carried if model.npluginstate == 0 else int(probe.batch.nstate)
        self._shapes = {name: values.shape[1:] for name, values in probe.fields.items()}
        # columns of the tracked fields in `rows` (as float64), and of all fields in `fields`
        self._tracked, self._row_width = self._columns(changes, self._carried)
        self._field_columns, width = self._columns(self._fields, 0)
        self._change_columns, self._field_width = self._columns(changes, width)

    def _columns(self, names: tuple[str, ...], start: int) -> tuple[dict[str, slice], int]:
        """Columns of named fields in a matrix whose first free column is `start`, and its new width."""
        columns = {}
        for name in names:
            end = start + math.prod(self._shapes[name])
            columns[name] = slice(start, end)
            start = end
        return columns, start

    def _new_simulations(self, n: int) -> _Simulations:
        return _Simulations(self.model, n, self.threads, (*self._fields, *self.changes))

    @contextlib.contextmanager
    def _simulations(self, n: int) -> Iterator[_Simulations]:
        """A context with simulations of n bodies that no other call uses; they are reused by later calls."""
        idle = self._idle.setdefault(n, [])
        try:
            simulations = idle.pop()  # atomic: two threads never get the same simulations
        except IndexError:
            simulations = self._new_simulations(n)
        try:
            yield simulations
        finally:
            idle.append(simulations)

    def callers(self, bodies: int) -> int:
        """See `Physics.callers`.

        One caller per thread, but fewer for few bodies: each call holds Python's global lock for about as
        long as stepping five bodies takes, so c callers with n / c bodies each are limited to 5 c <= n / c.
        """
        if jax.default_backend() != "cpu":
            return 1
        return max(1, min(self.threads, math.isqrt(bodies // 5)))

    def for_callers(self, callers: int) -> "MujocoPhysics":
        """See `Physics.for_callers`; each engine gets an equal share of the threads."""
        threads = max(1, self.threads // callers)
        engine = MujocoPhysics(self.model, self.substeps, self.derived, self.changes, threads)
        engine.warnings = self.warnings
        return engine

    def reset(self, qpos: Array, qvel: Array, active: Array) -> Bodies:
        """See `Physics.reset`."""
        return self._bodies(call_host(self._host_reset, self._outputs(len(qpos)), qpos, qvel, active))

    def step(self, bodies: Bodies, ctrl: Array, active: Array) -> Bodies:
        """See `Physics.step`."""
        rows, fields = bodies.state["rows"], bodies.state["fields"]
        return self._bodies(call_host(self._host_step, self._outputs(len(ctrl)), rows, fields, ctrl, active))

    def _outputs(self, n: int) -> list[tuple[tuple[int, ...], Any]]:
        """Shapes and types of the host functions' outputs: rows, fields, diverged."""
        return [
            ((n, 2 * self._row_width), np.uint32),
            ((n, self._field_width), np.float32),
            ((n,), np.bool_),
        ]

    def _bodies(self, outputs: list[Array]) -> Bodies:
        rows, fields, diverged = outputs

        def read(columns: dict[str, slice]) -> dict[str, Array]:
            return {
                name: fields[:, where].reshape(len(fields), *self._shapes[name])
                for name, where in columns.items()
            }

        named = read(self._field_columns)
        return Bodies(
            state={"rows": rows, "fields": fields},
            qpos=named.pop("qpos"),
            qvel=named.pop("qvel"),
            sensordata=named.pop("sensordata"),
            derived=named,
            change=read(self._change_columns),
            diverged=diverged,
        )

    # On the host. `which` selects simulations: an array of their numbers, or a slice for all of them.

    def _host_reset(self, out: list[HostArray], qpos: HostArray, qvel: HostArray, active: HostArray) -> None:
        out_rows, out_fields, diverged = out
        rows = out_rows.view(np.float64)
        for array in out:
            array[...] = 0
        if not active.any():
            return
        which = _which(active)
        with silent(), self._simulations(len(active)) as simulations:
            simulations.batch.reset(_ids(which), stage=mujoco.mjtStage.mjSTAGE_NONE.value)
            simulations.fields["qpos"][which] = qpos[which]
            simulations.fields["qvel"][which] = qvel[which]
            diverged[which] = self._run(simulations, which, simulations.batch.forward)
            self._copy_out(simulations, which, rows, rows, out_fields)
        for columns in self._change_columns.values():
            out_fields[:, columns] = 0  # there was no step before

    def _host_step(
        self, out: list[HostArray], rows: HostArray, fields: HostArray, ctrl: HostArray, active: HostArray
    ) -> None:
        out_rows, out_fields, diverged = out
        diverged[...] = False
        before, after = rows.view(np.float64), out_rows.view(np.float64)
        with silent(), self._simulations(len(active)) as simulations:
            which = _which(active)
            if active.any():
                simulations.state[which, : self._carried] = before[which, : self._carried]
                simulations.ctrl[which] = ctrl[which]
                step = functools.partial(simulations.batch.step, nstep=self.substeps)
                diverged[which] = self._run(simulations, which, step)
            moved = active & ~diverged
            if not moved.all():
                out_rows[...] = rows
                out_fields[...] = fields
                for columns in self._change_columns.values():
                    out_fields[:, columns] = 0
            if moved.any():
                self._copy_out(simulations, _which(moved), before, after, out_fields)

    def _run(self, simulations: _Simulations, which: Any, run: Callable[[Any], None]) -> HostArray | bool:
        """Run simulations; return which of them diverged, or False if none did.

        MuJoCo itself resets a simulation that diverges, and counts a warning.
        """
        try:
            run(_ids(which))
        except SimulationError as error:  # `status` marks the simulations that failed
            if "out of memory" in str(error):
                self._warn_of_memory("these count as diverged")
        moving, status = simulations.moving[which], simulations.status[which]
        counts = simulations.counts[which]
        if np.abs(moving).max(initial=0.0) < HUGE and not counts.any() and not status.any():
            return False
        too_large = ~(np.abs(moving) < HUGE).all(axis=1)  # also where it is NaN
        diverged: HostArray = too_large | counts[:, _BAD_STATE].any(axis=1) | (status != 0)
        for kind, consequence in _WARNINGS.items():
            if counts[:, int(kind)].any():
                self._warn_of_memory(consequence)
        simulations.warnings[...] = 0  # MuJoCo adds to these counts and never resets them
        return diverged

    def _warn_of_memory(self, consequence: str) -> None:
        kib = self.model.narena // 1024
        self.warnings.add(_MEMORY.format(consequence=consequence, kib=kib, more=2 * kib))

    def _copy_out(
        self, simulations: _Simulations, which: Any, before: HostArray, after: HostArray, fields: HostArray
    ) -> None:
        """Write simulations into rows (float64) and fields, with the changes since the rows `before`."""
        after[which, : self._carried] = simulations.state[which, : self._carried]
        for name, columns in self._field_columns.items():
            fields[which, columns] = simulations.flat[name][which]
        for name, columns in self._tracked.items():
            now = simulations.flat[name][which]
            fields[which, self._change_columns[name]] = now - before[which, columns]
            after[which, columns] = now

    # For tests, tools and viewers: conversion from and to MuJoCo's exact state.

    def pack(self, data: list[mujoco.MjData]) -> Array:
        """The array `rows` (n, words) for n bodies, from MjData after `mj_forward` or `mj_step`."""
        spec = int(_STATE.mjSTATE_INTEGRATION)
        rows = np.zeros((len(data), self._row_width))
        full_state = np.zeros(mujoco.mj_stateSize(self.model, spec))
        for row, simulation in zip(rows, data, strict=True):
            mujoco.mj_getState(self.model, simulation, full_state, spec)
            row[: self._carried] = full_state[: self._carried]
            for name, columns in self._tracked.items():
                row[columns] = np.ravel(getattr(simulation, name))
        return jnp.asarray(rows.view(np.uint32))

    def unpack(self, rows: Array) -> HostArray:
        """Float64 contents (n, width) of `rows`: MuJoCo's state of each body, then the tracked fields."""
        return np.array(rows).view(np.float64)


def _which(mask: HostArray) -> Any:
    return slice(None) if mask.all() else np.flatnonzero(mask)


def _ids(which: Any) -> Any:
    return None if isinstance(which, slice) else which
