"""MuJoCo's C library on a thread pool, called from jitted code and exact to the bit.

The state that JAX carries from step to step is MuJoCo's own float64 state, as opaque pairs of uint32
(JAX computes in float32 here), so calls are pure: no simulation lives in the engine between two steps.
"""

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

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
_ONE_AT_A_TIME = threading.RLock()
# bad positions, velocities, accelerations, controls: MuJoCo's last four warnings
_BAD_STATE = slice(int(mujoco.mjtWarning.mjWARN_BADQPOS), int(mujoco.mjtWarning.mjWARN_BADCTRL) + 1)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Keep MuJoCo from printing and from writing a log file: what it warns of is counted and reported.

    The handler belongs to the process, so one thread at a time may be in here. That also keeps two of XLA's
    threads out of one Batch.
    """
    with _ONE_AT_A_TIME:
        before = mujoco.get_mju_user_warning()
        mujoco.set_mju_user_warning(lambda _: None)
        try:
            yield
        finally:
            mujoco.set_mju_user_warning(before)


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
        self._batches: dict[int, Batch] = {}
        self._fields = ("qpos", "qvel", "sensordata", *derived)
        probe = self._batch(1)
        # the carried components come first in MuJoCo's state, except a plugin's: then carry everything
        carried = mujoco.mj_stateSize(model, int(_CARRIED))
        self._carried = carried if model.npluginstate == 0 else int(probe.nstate)
        self._shapes = {name: getattr(probe, name).shape[1:] for name in (*self._fields, *changes)}
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

    def _batch(self, n: int) -> Batch:
        if n not in self._batches:
            batch = Batch(self.model, n, min(self.threads, n))
            for name in (*self._fields, *self.changes):
                batch.bind(name)  # before the first call: a field bound after it stays zero until the next
            self._batches[n] = batch
        return self._batches[n]

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
        with silent():
            batch = self._batch(len(active))
            batch.reset(_ids(which), stage=mujoco.mjtStage.mjSTAGE_NONE.value)
            batch.qpos[which] = qpos[which]
            batch.qvel[which] = qvel[which]
            diverged[which] = self._run(batch, which, batch.forward)
            self._copy_out(batch, which, rows, rows, out_fields)
        for columns in self._change_columns.values():
            out_fields[:, columns] = 0  # nothing came before

    def _host_step(
        self, out: list[HostArray], rows: HostArray, fields: HostArray, ctrl: HostArray, active: HostArray
    ) -> None:
        out_rows, out_fields, diverged = out
        diverged[...] = False
        before, after = rows.view(np.float64), out_rows.view(np.float64)
        with silent():
            which = _which(active)
            if active.any():
                batch = self._batch(len(active))
                batch.state[which, : self._carried] = before[which, : self._carried]
                batch.ctrl[which] = ctrl[which]
                diverged[which] = self._run(batch, which, lambda ids: batch.step(ids, nstep=self.substeps))
            moved = active & ~diverged
            if not moved.all():  # the others stay as they are
                out_rows[...] = rows
                out_fields[...] = fields
                for columns in self._change_columns.values():
                    out_fields[:, columns] = 0
            if moved.any():
                self._copy_out(batch, _which(moved), before, after, out_fields)

    def _run(self, batch: Batch, which: Any, run: Callable[[Any], None]) -> HostArray | bool:
        """Run the simulations and say which went bad, if any; MuJoCo resets those itself, silently."""
        with contextlib.suppress(SimulationError):  # the simulations it names are marked by their status
            run(_ids(which))
        moving = np.abs(batch.state[which, 1 : 1 + self.model.nq + self.model.nv])  # after the time
        warnings = batch.warning[which, _BAD_STATE, 1]
        if moving.max(initial=0.0) < HUGE and not warnings.any() and not batch.status[which].any():
            return False
        insane = ~(moving < HUGE).all(axis=1)  # NaN is not below anything
        bad: HostArray = insane | warnings.any(axis=1) | (batch.status[which] != 0)
        batch.warning[...] = 0  # they add up: what is counted next time belongs to that time
        return bad

    def _copy_out(
        self, batch: Batch, which: Any, before: HostArray, after: HostArray, fields: HostArray
    ) -> None:
        """Write the simulations `which` into rows (float64) and fields, with what changed since `before`."""
        after[which, : self._carried] = batch.state[which, : self._carried]
        for name, columns in self._field_columns.items():
            fields[which, columns] = _flat(getattr(batch, name)[which])
        for name, columns in self._tracked.items():
            now = _flat(getattr(batch, name)[which])
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


def _flat(values: HostArray) -> HostArray:
    return values.reshape(len(values), -1)
