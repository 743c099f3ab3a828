"""MuJoCo's C library on a thread pool, called from jitted code and exact to the bit.

The state that JAX carries from step to step is MuJoCo's own float64 state, as opaque pairs of uint32
(JAX computes in float32 here), so calls are pure: no simulation lives in the engine between two steps.
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
# What changes from step to step. Applied forces, mocap poses and the like keep the model's defaults.
_CARRIED = (
    _STATE.mjSTATE_TIME
    | _STATE.mjSTATE_QPOS
    | _STATE.mjSTATE_QVEL
    | _STATE.mjSTATE_ACT
    | _STATE.mjSTATE_HISTORY
    | _STATE.mjSTATE_WARMSTART
)
_MEMORY = (
    "MuJoCo's memory is full in some simulations: {consequence}. The model has {kib:,} KiB; give it more in "
    'its MJCF, for example <size memory="{more}K"/>'
)
_WARNINGS = {
    mujoco.mjtWarning.mjWARN_CONTACTFULL: "contacts are left out",
    mujoco.mjtWarning.mjWARN_CNSTRFULL: "contacts, joint limits and other constraints have no effect there",
}
"""Warnings of MuJoCo that leave a simulation's numbers sound, and what follows from them."""
_QUIET = threading.Lock()
_silenced: list[Any] = []  # what to warn by again, once for each caller that wants silence
_BAD_STATE = slice(int(mujoco.mjtWarning.mjWARN_BADQPOS), int(mujoco.mjtWarning.mjWARN_BADCTRL) + 1)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Keep MuJoCo from printing and from writing a log file: what it warns of is counted and reported.

    The handler belongs to the process: the first caller in here replaces it, the last one puts it back.
    """
    with _QUIET:
        _silenced.append(mujoco.get_mju_user_warning())
        if len(_silenced) == 1:
            mujoco.set_mju_user_warning(_say_nothing)
    try:
        yield
    finally:
        with _QUIET:
            before = _silenced.pop()
            if not _silenced:
                mujoco.set_mju_user_warning(before)


def _say_nothing(_: str) -> None:
    pass


class _Simulations:
    """A Batch with its arrays at hand: looking them up at every step would cost more than copying them."""

    def __init__(self, model: mujoco.MjModel, n: int, threads: int, fields: tuple[str, ...]) -> None:
        self.batch = Batch(model, n, min(threads, n))
        # bound before the first call: a field bound after it stays zero until the next
        self.fields = {name: self.batch.bind(name) for name in fields}
        self.flat = {name: values.reshape(n, -1) for name, values in self.fields.items()}
        assert all(
            np.shares_memory(self.flat[name], values) for name, values in self.fields.items() if values.size
        )
        self.state, self.ctrl = self.batch.state, self.batch.bind("ctrl")
        self.moving = self.state[:, 1 : 1 + model.nq + model.nv]  # positions and velocities, after the time
        self.status, self.warnings = self.batch.status, self.batch.warning
        self.counts = self.warnings[:, :, 1]  # how often, of each kind


class MujocoPhysics(Physics):
    """`mujoco.batch` behind the common interface.

    Only active bodies are stepped, so a finished episode costs nothing. Results do not depend on the number
    of threads, on the batch size, or on which other bodies are stepped.

    The engine's state of n bodies is two arrays: `rows` (n, words) uint32, the float64 MuJoCo state and the
    fields whose change is wanted; and `fields` (n, columns) float32, all that tasks read.
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
        # the carried components come first in MuJoCo's state, except a plugin's: then carry everything
        carried = mujoco.mj_stateSize(model, int(_CARRIED))
        self._carried = carried if model.npluginstate == 0 else int(probe.batch.nstate)
        self._shapes = {name: values.shape[1:] for name, values in probe.fields.items()}
        # columns of the rows (as float64) that hold the tracked fields, then of the float32 fields
        self._tracked, self._row_width = self._columns(changes, self._carried)
        self._field_columns, width = self._columns(self._fields, 0)
        self._change_columns, self._field_width = self._columns(changes, width)

    def _columns(self, names: tuple[str, ...], start: int) -> tuple[dict[str, slice], int]:
        """Where each named field lies in a matrix whose first free column is `start`, and its new width."""
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
        """Simulations of n bodies that nobody else uses meanwhile; kept for the next call."""
        idle = self._idle.setdefault(n, [])
        try:
            found = idle.pop()  # a single operation: two threads never get the same one
        except IndexError:
            found = self._new_simulations(n)
        try:
            yield found
        finally:
            idle.append(found)

    def callers(self, bodies: int) -> int:
        """See `Physics.callers`: a thread each, unless they would spend their time waiting for Python.

        A call holds Python's lock for about as long as five bodies take to step, so of n bodies, c callers
        with n / c each may make 5 c bodies wait.
        """
        if jax.default_backend() != "cpu":
            return 1
        return max(1, min(self.threads, math.isqrt(bodies // 5)))

    def for_callers(self, callers: int) -> "MujocoPhysics":
        """See `Physics.for_callers`: the threads are shared out."""
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
        """Shapes and dtypes of what the host hands back: rows, fields, diverged."""
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

    # On the host. `which` picks simulations: an array of their numbers, or a slice for all of them.

    def _host_reset(self, out: list[HostArray], qpos: HostArray, qvel: HostArray, active: HostArray) -> None:
        out_rows, out_fields, diverged = out
        rows = out_rows.view(np.float64)
        for array in out:
            array[...] = 0
        if not active.any():
            return
        which = _which(active)
        with silent(), self._simulations(len(active)) as found:
            found.batch.reset(_ids(which), stage=mujoco.mjtStage.mjSTAGE_NONE.value)
            found.fields["qpos"][which] = qpos[which]
            found.fields["qvel"][which] = qvel[which]
            diverged[which] = self._run(found, which, found.batch.forward)
            self._copy_out(found, which, rows, rows, out_fields)
        for columns in self._change_columns.values():
            out_fields[:, columns] = 0  # nothing came before

    def _host_step(
        self, out: list[HostArray], rows: HostArray, fields: HostArray, ctrl: HostArray, active: HostArray
    ) -> None:
        out_rows, out_fields, diverged = out
        diverged[...] = False
        before, after = rows.view(np.float64), out_rows.view(np.float64)
        with silent(), self._simulations(len(active)) as found:
            which = _which(active)
            if active.any():
                found.state[which, : self._carried] = before[which, : self._carried]
                found.ctrl[which] = ctrl[which]
                step = functools.partial(found.batch.step, nstep=self.substeps)
                diverged[which] = self._run(found, which, step)
            moved = active & ~diverged
            if not moved.all():  # the others stay as they are
                out_rows[...] = rows
                out_fields[...] = fields
                for columns in self._change_columns.values():
                    out_fields[:, columns] = 0
            if moved.any():
                self._copy_out(found, _which(moved), before, after, out_fields)

    def _run(self, found: _Simulations, which: Any, run: Callable[[Any], None]) -> HostArray | bool:
        """Run the simulations and say which went bad, if any; MuJoCo resets those itself, silently."""
        try:
            run(_ids(which))
        except SimulationError as error:  # the simulations it names are marked by their status
            if "out of memory" in str(error):
                self._warn_of_memory("these count as diverged")
        moving, counts, status = found.moving[which], found.counts[which], found.status[which]
        if np.abs(moving).max(initial=0.0) < HUGE and not counts.any() and not status.any():
            return False
        insane = ~(np.abs(moving) < HUGE).all(axis=1)  # NaN is not below anything
        bad: HostArray = insane | counts[:, _BAD_STATE].any(axis=1) | (status != 0)
        for kind, consequence in _WARNINGS.items():
            if counts[:, int(kind)].any():
                self._warn_of_memory(consequence)
        found.warnings[...] = 0  # they add up: what is counted next time belongs to that time
        return bad

    def _warn_of_memory(self, consequence: str) -> None:
        kib = self.model.narena // 1024
        self.warnings.add(_MEMORY.format(consequence=consequence, kib=kib, more=2 * kib))

    def _copy_out(
        self, found: _Simulations, which: Any, before: HostArray, after: HostArray, fields: HostArray
    ) -> None:
        """Write the simulations `which` into rows (float64) and fields, with what changed since `before`."""
        after[which, : self._carried] = found.state[which, : self._carried]
        for name, columns in self._field_columns.items():
            fields[which, columns] = found.flat[name][which]
        for name, columns in self._tracked.items():
            now = found.flat[name][which]
            fields[which, self._change_columns[name]] = now - before[which, columns]
            after[which, columns] = now

    # For tests, tools and viewers: the exact state as MuJoCo knows it.

    def pack(self, data: list[mujoco.MjData]) -> Array:
        """`rows` of bodies that stand as these MjData do after `mj_forward` or `mj_step`."""
        spec = int(_STATE.mjSTATE_INTEGRATION)
        rows = np.zeros((len(data), self._row_width))
        whole = np.zeros(mujoco.mj_stateSize(self.model, spec))
        for row, one in zip(rows, data, strict=True):
            mujoco.mj_getState(self.model, one, whole, spec)
            row[: self._carried] = whole[: self._carried]
            for name, columns in self._tracked.items():
                row[columns] = np.ravel(getattr(one, name))
        return jnp.asarray(rows.view(np.uint32))

    def unpack(self, rows: Array) -> HostArray:
        """What rows hold: MuJoCo's float64 state of each body, then the tracked fields, (n, width)."""
        return np.array(rows).view(np.float64)


def _which(mask: HostArray) -> Any:
    return slice(None) if mask.all() else np.flatnonzero(mask)


def _ids(which: Any) -> Any:
    return None if isinstance(which, slice) else which
