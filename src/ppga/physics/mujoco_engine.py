"""MuJoCo's C library on a thread pool, called from jitted code and exact to the bit.

The state that JAX carries from step to step is MuJoCo's own float64 state, as opaque pairs of uint32
(JAX computes in float32 here), so calls are pure: no simulation lives in the engine between two steps.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from mujoco.batch import Batch, SimulationError

from ppga.physics.base import HUGE, Array, Bodies, Physics, select

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
_BAD_STATE = [
    int(warning)
    for warning in (
        mujoco.mjtWarning.mjWARN_BADQPOS,
        mujoco.mjtWarning.mjWARN_BADQVEL,
        mujoco.mjtWarning.mjWARN_BADQACC,
        mujoco.mjtWarning.mjWARN_BADCTRL,
    )
]
HostArray = np.ndarray[Any, np.dtype[Any]]


def visible_cores() -> int:
    """CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Keep MuJoCo from printing and from writing a log file: what it warns of is counted and reported."""
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
        self._lock = threading.Lock()  # XLA may run two callbacks at once, a Batch must not
        self._batches: dict[int, Batch] = {}
        probe = self._batch(1)
        prefix = mujoco.mj_stateSize(model, int(_CARRIED))
        # the carried components come first in MuJoCo's state, except a plugin's: then carry everything
        self._width = prefix if model.npluginstate == 0 else int(probe.nstate)
        self._change_shapes = {name: getattr(probe, name).shape[1:] for name in changes}
        self._tracked = [int(np.prod(shape)) for shape in self._change_shapes.values()]
        self._fields = ("qpos", "qvel", "sensordata", *derived)
        self._field_shapes = {name: getattr(probe, name).shape[1:] for name in self._fields}

    def _batch(self, n: int) -> Batch:
        if n not in self._batches:
            self._batches[n] = Batch(self.model, n, min(self.threads, n))
        return self._batches[n]

    def _result_shapes(self, n: int) -> tuple[Any, ...]:
        """Shapes of what the host hands back: rows, fields, changes, diverged."""

        def shaped(dtype: Any, *shape: int) -> Any:
            return jax.ShapeDtypeStruct((n, *shape), dtype)  # type: ignore[no-untyped-call]

        return (
            shaped(jnp.uint32, 2 * (self._width + sum(self._tracked))),
            {name: shaped(jnp.float32, *shape) for name, shape in self._field_shapes.items()},
            {name: shaped(jnp.float32, *shape) for name, shape in self._change_shapes.items()},
            shaped(jnp.bool_),
        )

    def _bodies(self, result: tuple[Any, ...]) -> Bodies:
        rows, fields, change, diverged = result
        derived = {name: fields[name] for name in self.derived}
        return Bodies(rows, fields["qpos"], fields["qvel"], fields["sensordata"], derived, change, diverged)

    def _collect(self, batch: Batch, rows: HostArray, ids: HostArray, diverged: HostArray) -> tuple[Any, ...]:
        """Write the batch's states `ids` into rows, and copy out what tasks read."""
        n = len(rows)
        tracked = [getattr(batch, name)[ids].reshape(len(ids), -1) for name in self.changes]
        change = {name: np.zeros((n, *shape), np.float32) for name, shape in self._change_shapes.items()}
        start = self._width
        for name, after in zip(self.changes, tracked, strict=True):
            before = rows[ids, start : start + after.shape[1]]
            change[name][ids] = (after - before).reshape(-1, *self._change_shapes[name])
            start += after.shape[1]
        rows[ids] = np.concatenate([batch.state[ids, : self._width], *tracked], axis=1)
        fields = {name: np.zeros((n, *shape), np.float32) for name, shape in self._field_shapes.items()}
        for name in self._fields:
            fields[name][ids] = getattr(batch, name)[ids]
        return rows.view(np.uint32), fields, change, diverged

    def _host_reset(self, qpos: Any, qvel: Any, active: Any) -> tuple[Any, ...]:
        n = len(np.asarray(active))
        ids = np.flatnonzero(np.asarray(active))
        rows = np.zeros((n, self._width + sum(self._tracked)))
        diverged = np.zeros(n, np.bool_)
        with self._lock, silent():
            batch = self._batch(n)
            if ids.size:
                batch.reset(ids, stage=mujoco.mjtStage.mjSTAGE_NONE.value)
                batch.qpos[ids] = np.asarray(qpos)[ids]
                batch.qvel[ids] = np.asarray(qvel)[ids]
                self._run(batch, ids, diverged, batch.forward)
            rows, fields, change, diverged = self._collect(batch, rows, ids, diverged)
        change = {name: np.zeros_like(value) for name, value in change.items()}  # nothing came before
        return rows, fields, change, diverged

    def _host_step(self, rows: Any, ctrl: Any, active: Any) -> tuple[Any, ...]:
        rows = np.array(rows).view(np.float64)
        n = len(rows)
        ids = np.flatnonzero(np.asarray(active))
        diverged = np.zeros(n, np.bool_)
        with self._lock, silent():
            batch = self._batch(n)
            if ids.size:
                batch.state[ids, : self._width] = rows[ids, : self._width]
                batch.ctrl[ids] = np.asarray(ctrl)[ids]
                self._run(batch, ids, diverged, lambda some: batch.step(some, nstep=self.substeps))
            return self._collect(batch, rows, ids[~diverged[ids]], diverged)

    def _run(self, batch: Batch, ids: HostArray, diverged: HostArray, run: Any) -> None:
        """Run the simulations and mark those that went bad; MuJoCo resets them itself, silently."""
        batch.warning[ids] = 0
        with contextlib.suppress(SimulationError):  # the simulations it names are marked by their status
            run(ids)
        bad = batch.warning[ids][:, _BAD_STATE, 1].any(axis=1) | (batch.status[ids] != 0)
        for values in (batch.qpos[ids], batch.qvel[ids]):
            bad |= ~(np.abs(values) < HUGE).all(axis=1)
        diverged[ids] = bad

    def reset(self, qpos: Array, qvel: Array, active: Array) -> Bodies:
        """See `Physics.reset`."""
        shapes = self._result_shapes(len(qpos))
        return self._bodies(
            jax.pure_callback(self._host_reset, shapes, qpos, qvel, active, vmap_method="sequential")
        )

    def step(self, bodies: Bodies, ctrl: Array, active: Array) -> Bodies:
        """See `Physics.step`."""
        shapes = self._result_shapes(len(ctrl))
        after = self._bodies(
            jax.pure_callback(self._host_step, shapes, bodies.state, ctrl, active, vmap_method="sequential")
        )
        moved = active & ~after.diverged
        kept = Bodies(
            after.state,  # the host left the rows of those that did not move as they were
            bodies.qpos,
            bodies.qvel,
            bodies.sensordata,
            bodies.derived,
            after.change,  # zero where nothing moved
            after.diverged,
        )
        return select(moved, after, kept)

    # For tests, tools and viewers: the exact state as MuJoCo knows it.

    def pack(self, data: list[mujoco.MjData]) -> Array:
        """The engine's state for simulations that stand as these MjData do, `mj_forward` done: (n, words)."""
        rows = [
            np.concatenate(
                [_get_state(self.model, one)[: self._width]]
                + [np.ravel(getattr(one, name)) for name in self.changes]
            )
            for one in data
        ]
        return jnp.asarray(np.stack(rows).view(np.uint32))

    def unpack(self, state: Array) -> HostArray:
        """MuJoCo's float64 state of each body: (n, size of the carried state)."""
        return np.array(state).view(np.float64)[:, : self._width]


def _get_state(model: mujoco.MjModel, data: mujoco.MjData) -> HostArray:
    spec = int(_STATE.mjSTATE_INTEGRATION)
    out = np.zeros(mujoco.mj_stateSize(model, spec))
    mujoco.mj_getState(model, data, out, spec)
    return out
