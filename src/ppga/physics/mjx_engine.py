"""The same model on JAX itself (MJX), for GPUs and TPUs.

Every body costs the same whether it is active or not: on an accelerator all rows run in step.
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

from ppga.errors import InputError, choose, import_extra
from ppga.machine import installed
from ppga.physics.base import HUGE, Array, Bodies, Physics, select

IMPLEMENTATIONS = ("jax", "warp")
# Above some amount of work (bodies * nv^3) the batched Cholesky of jaxlib on CPUs spreads over XLA threads
# and waits for them on one of those threads; two at once, as in MJX, can wait for each other for ever. On
# two cores 7e5 hung within seconds, 4e5 never did.
_CPU_FACTORISATION = 200_000
_CARRIED = ("time", "qpos", "qvel", "act", "qacc_warmstart")


class MjxPhysics(Physics):
    """`mujoco.mjx` behind the common interface, in float32.

    `impl="warp"` (NVIDIA GPUs) is passed through to MJX; it has not been tried by this project yet.
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
        self.impl = choose("MJX implementation", impl, IMPLEMENTATIONS)
        with contextlib.redirect_stdout(io.StringIO()):  # it prints that it has no warp, which few have
            self._mjx: Any = import_extra("mujoco.mjx", "mjx")
        if impl == "warp" and not installed("warp"):
            raise InputError("impl='warp' needs NVIDIA's warp: pip install 'mujoco-mjx[warp]'")
        try:
            here = jax.local_devices()[0]  # by itself, MJX takes the first one of all processes
            self._model = self._mjx.put_model(model, device=here, impl=impl)
            self._template = self._mjx.make_data(model, device=here, impl=impl)
        except (NotImplementedError, ImportError, RuntimeError) as error:
            raise InputError(
                f"MJX cannot run this model ({error}). Use physics='mujoco', or integrator='fast'."
            ) from None
        if impl == "jax":
            from ppga.physics.mjx_contacts import turned_along_capsules

            self._as_in_mujoco: Callable[[], AbstractContextManager[None]] = turned_along_capsules
        else:
            self._as_in_mujoco = contextlib.nullcontext

    def _read(self, data: Any, name: str) -> Array:
        # a few fields live with the implementation only
        holder = data if name in type(data).__dataclass_fields__ else data._impl
        return jnp.asarray(getattr(holder, name))

    def _one(self, data: Any) -> Bodies:
        """What is handed out of one MJX simulation; `change` holds the fields themselves until compared."""
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
        """`function` of every row (n, ...); on a CPU in chunks that stay below `_CPU_FACTORISATION`."""
        n = len(jax.tree.leaves(rows)[0])
        most = max(1, _CPU_FACTORISATION // self.model.nv**3)
        chunks = math.ceil(n / most)
        chunk = math.ceil(n / chunks)
        # which rows go into which chunk; a few go twice, to fill the last one
        order = jnp.arange(chunks * chunk).reshape(chunks, chunk) % n

        def at_once(*rows: Any) -> Bodies:
            bodies: Bodies = jax.vmap(function)(*rows)
            return bodies

        def in_chunks(*rows: Any) -> Bodies:
            done = jax.lax.map(lambda some: at_once(*jax.tree.map(lambda array: array[some], rows)), order)
            bodies: Bodies = jax.tree.map(
                lambda array: array.reshape(chunks * chunk, *array.shape[2:])[:n], done
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
            placed = self._one(self._mjx.forward(self._model, data))
            return replace(placed, qpos=qpos)  # MJX normalises quaternions here, MuJoCo leaves them as given

        with self._as_in_mujoco():
            bodies = self._map(place, qpos, qvel)
        nothing = jax.tree.map(jnp.zeros_like, bodies.change)
        return replace(bodies, change=nothing, diverged=_bad(bodies) & active)

    def step(self, bodies: Bodies, ctrl: Array, active: Array) -> Bodies:
        """See `Physics.step`."""

        def advance(state: dict[str, Any], ctrl: Array) -> Bodies:
            data = self._template.replace(ctrl=ctrl, **{name: state[name] for name in _CARRIED})
            data = jax.lax.fori_loop(
                0, self.substeps, lambda _, data: self._mjx.step(self._model, data), data
            )
            return self._one(data)

        sane = (jnp.abs(ctrl) < HUGE).all(axis=1)
        # as MuJoCo does; a NaN would also keep the solver busy until its last iteration, for everyone
        ctrl = jnp.where(sane[:, None], ctrl, 0.0)
        with self._as_in_mujoco():
            after = self._map(advance, bodies.state, ctrl)
        diverged = active & (_bad(after) | ~sane)
        change = jax.tree.map(jnp.subtract, after.change, bodies.state["tracked"])
        after = replace(after, change=change, diverged=diverged)
        stay = replace(bodies, change=jax.tree.map(jnp.zeros_like, change), diverged=diverged)
        return select(active & ~diverged, after, stay)


def _bad(bodies: Bodies) -> Array:
    """Which bodies (n,) have left the realm of numbers; acceleration is watched through the warm start."""
    watched = (bodies.qpos, bodies.qvel, bodies.state["qacc_warmstart"])
    return ~jnp.stack([(jnp.abs(values) < HUGE).all(axis=1) for values in watched]).all(axis=0)
