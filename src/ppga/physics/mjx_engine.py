"""The mjx engine: MuJoCo's models simulated by JAX (MJX), for GPUs and TPUs.

Inactive bodies are computed like active ones, because an accelerator advances all rows together.
"""

import contextlib
import io
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import mujoco

from ppga.errors import InputError, check_choice, import_extra
from ppga.machine import installed
from ppga.physics.base import HUGE, Array, Bodies, Physics, select

IMPLEMENTATIONS = ("jax", "warp")
# On CPUs, jaxlib's batched Cholesky factorization distributes large batches (bodies * nv^3) over XLA threads
# and waits for them on one of these threads. Two factorizations at once, as in MJX, can deadlock: on two
# cores, 7e5 hung within seconds and 4e5 never did.
_CPU_FACTORIZATION = 200_000
_CARRIED = ("time", "qpos", "qvel", "act", "qacc_warmstart")


class MjxPhysics(Physics):
    """`mujoco.mjx` as an engine, in float32.

    Args:
        model: the compiled model.
        substeps: MuJoCo steps in one control step.
        derived: names of the MjData fields in `Bodies.derived`.
        changes: names of the MjData fields in `Bodies.change`.
        impl: implementation of MJX: "jax", or "warp" for NVIDIA GPUs, which this project has not tested yet.

    Raises:
        InputError: MJX or warp is not installed, or MJX does not support the model.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        substeps: int,
        derived: tuple[str, ...] = (),
        changes: tuple[str, ...] = (),
        impl: str = "jax",
    ) -> None:
        super().__init__(model, substeps, derived, changes)
        self.impl = check_choice("MJX implementation", impl, IMPLEMENTATIONS)
        with contextlib.redirect_stdout(io.StringIO()):  # it prints a message if warp is not installed
            self._mjx: Any = import_extra("mujoco.mjx", "mjx")
        if impl == "warp" and not installed("warp"):
            raise InputError("impl='warp' needs NVIDIA's warp: pip install 'mujoco-mjx[warp]'")
        try:
            device = jax.local_devices()[0]  # MJX's default is the first device of all processes
            self._model = self._mjx.put_model(model, device=device, impl=impl)
            self._template = self._mjx.make_data(model, device=device, impl=impl)
        except (NotImplementedError, ImportError, RuntimeError) as error:
            raise InputError(
                f"MJX cannot run this model ({error}). Use physics='mujoco', or integrator='fast'."
            ) from None
        if impl == "jax":
            from ppga.physics.mjx_contacts import turned_along_capsules

            self._contact_fix: Callable[[], AbstractContextManager[None]] = turned_along_capsules
        else:
            self._contact_fix = contextlib.nullcontext

    def _read(self, data: Any, name: str) -> Array:
        # some fields are attributes of the implementation's own data
        holder = data if name in type(data).__dataclass_fields__ else data._impl
        return jnp.asarray(getattr(holder, name))

    def _body(self, data: Any) -> Bodies:
        """One body, from one MJX simulation; `change` holds the fields' values, not yet their differences."""
        tracked = {name: self._read(data, name) for name in self.changes}
        carried = {name: getattr(data, name) for name in _CARRIED}
        return Bodies(
            state={**carried, "tracked": tracked},
            qpos=data.qpos,
            qvel=data.qvel,
            sensordata=data.sensordata,
            derived={name: self._read(data, name) for name in self.derived},
            change=tracked,
            diverged=jnp.zeros((), jnp.bool_),
        )

    def _map(self, function: Callable[..., Bodies], *rows: Any) -> Bodies:
        """Map a function over rows (n, ...); on a CPU, in chunks of work below `_CPU_FACTORIZATION`."""
        n = len(jax.tree.leaves(rows)[0])
        most = max(1, _CPU_FACTORIZATION // self.model.nv**3)
        chunks = math.ceil(n / most)
        chunk = math.ceil(n / chunks)
        # rows of each chunk; the last chunk is filled up with rows of the first
        order = jnp.arange(chunks * chunk).reshape(chunks, chunk) % n

        def at_once(*rows: Any) -> Bodies:
            bodies: Bodies = jax.vmap(function)(*rows)
            return bodies

        def in_chunks(*rows: Any) -> Bodies:
            chunked = jax.lax.map(
                lambda numbers: at_once(*jax.tree.map(lambda array: array[numbers], rows)), order
            )
            bodies: Bodies = jax.tree.map(
                lambda array: array.reshape(chunks * chunk, *array.shape[2:])[:n], chunked
            )
            return bodies

        if n <= most:
            return at_once(*rows)
        bodies: Bodies = jax.lax.platform_dependent(*rows, cpu=in_chunks, default=at_once)
        return bodies

    def reset(self, qpos: Array, qvel: Array, active: Array) -> Bodies:
        """See `Physics.reset`."""

        def place(qpos: Array, qvel: Array) -> Bodies:
            data = self._template.replace(qpos=qpos, qvel=qvel)
            placed = self._body(self._mjx.forward(self._model, data))
            return replace(placed, qpos=qpos)  # MJX has normalized quaternions, which MuJoCo does not do here

        with self._contact_fix():
            bodies = self._map(place, qpos, qvel)
        no_change = jax.tree.map(jnp.zeros_like, bodies.change)
        return replace(bodies, change=no_change, diverged=_diverged(bodies) & active)

    def step(self, bodies: Bodies, ctrl: Array, active: Array) -> Bodies:
        """See `Physics.step`."""

        def advance(state: dict[str, Any], ctrl: Array) -> Bodies:
            data = self._template.replace(ctrl=ctrl, **{name: state[name] for name in _CARRIED})
            data = jax.lax.fori_loop(
                0, self.substeps, lambda _, data: self._mjx.step(self._model, data), data
            )
            return self._body(data)

        valid = (jnp.abs(ctrl) < HUGE).all(axis=1)
        # as in MuJoCo; a NaN would also make the solver use all its iterations, for all bodies
        ctrl = jnp.where(valid[:, None], ctrl, 0.0)
        with self._contact_fix():
            after = self._map(advance, bodies.state, ctrl)
        diverged = active & (_diverged(after) | ~valid)
        change = jax.tree.map(jnp.subtract, after.change, bodies.state["tracked"])
        after = replace(after, change=change, diverged=diverged)
        stay = replace(bodies, change=jax.tree.map(jnp.zeros_like, change), diverged=diverged)
        return select(active & ~diverged, after, stay)


def _diverged(bodies: Bodies) -> Array:
    """Which (n,) bodies have diverged; the solver's warm start stands for the acceleration."""
    checked = (bodies.qpos, bodies.qvel, bodies.state["qacc_warmstart"])
    return ~jnp.stack([(jnp.abs(values) < HUGE).all(axis=1) for values in checked]).all(axis=0)
