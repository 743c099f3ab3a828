"""The same model on JAX itself (MJX), for GPUs and TPUs.

Every body costs the same whether it is active or not: on an accelerator all rows run in step.
"""

from typing import Any

import jax
import jax.numpy as jnp
import mujoco

from ppga.errors import InputError, choose, import_extra
from ppga.physics.base import HUGE, Array, Bodies, Physics, select

IMPLEMENTATIONS = ("jax", "warp")
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
        self._mjx: Any = import_extra("mujoco.mjx", "mjx")
        try:
            self._model = self._mjx.put_model(model, impl=impl)
            self._template = self._mjx.make_data(model, impl=impl)
        except (NotImplementedError, ImportError, RuntimeError) as error:
            raise InputError(
                f"MJX cannot run this model ({error}). Use physics='mujoco', or integrator='fast'."
            ) from None

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

    def reset(self, qpos: Array, qvel: Array, active: Array) -> Bodies:
        """See `Physics.reset`."""

        def place(qpos: Array, qvel: Array) -> Bodies:
            data = self._template.replace(qpos=qpos, qvel=qvel)
            return self._one(self._mjx.forward(self._model, data))

        bodies: Bodies = jax.vmap(place)(qpos, qvel)
        return _with(
            bodies, change=jax.tree.map(jnp.zeros_like, bodies.change), diverged=_bad(bodies) & active
        )

    def step(self, bodies: Bodies, ctrl: Array, active: Array) -> Bodies:
        """See `Physics.step`."""

        def advance(state: dict[str, Any], ctrl: Array) -> Bodies:
            data = self._template.replace(ctrl=ctrl, **{name: state[name] for name in _CARRIED})
            data = jax.lax.fori_loop(
                0, self.substeps, lambda _, data: self._mjx.step(self._model, data), data
            )
            return self._one(data)

        after: Bodies = jax.vmap(advance)(bodies.state, ctrl)
        diverged = active & _bad(after)
        change = jax.tree.map(jnp.subtract, after.change, bodies.state["tracked"])
        after = _with(after, change=change, diverged=diverged)
        stay = _with(bodies, change=jax.tree.map(jnp.zeros_like, change), diverged=diverged)
        return select(active & ~diverged, after, stay)


def _bad(bodies: Bodies) -> Array:
    """Which bodies (n,) have left the realm of numbers; acceleration is watched through the warm start."""
    watched = (bodies.qpos, bodies.qvel, bodies.state["qacc_warmstart"])
    return ~jnp.stack([(jnp.abs(values) < HUGE).all(axis=1) for values in watched]).all(axis=0)


def _with(bodies: Bodies, *, change: dict[str, Array], diverged: Array) -> Bodies:
    return Bodies(bodies.state, bodies.qpos, bodies.qvel, bodies.sensordata, bodies.derived, change, diverged)
