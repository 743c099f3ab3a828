"""The interface of the engines: advance n bodies by one control step, inside jitted JAX code."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import mujoco

Array = jax.Array
Tree = TypeVar("Tree")

# A simulation has diverged if a position, velocity or acceleration exceeds this, MuJoCo's mjMAXVAL.
HUGE = 1e10


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Bodies:
    """n simulated bodies. Tasks read the float32 copies; only the engine reads `state`.

    Inside a task's functions there is no leading axis n: they are written for one body and mapped over all.

    Attributes:
        state: exact state from which the engine continues; its contents depend on the engine.
        qpos: (n, nq) joint positions.
        qvel: (n, nv) joint velocities.
        sensordata: (n, nsensordata) of the state *before* the last substep, as MuJoCo computes sensors.
        derived: further MjData fields that the task has requested, (n, ...) each, also of the state before
            the last substep.
        change: change of MjData fields over the last control step, (n, ...) each. The difference is taken
            before rounding to float32, so velocities computed from it are accurate at any distance from the
            origin.
        diverged: (n,) bool, the simulation diverged in the last step; the body keeps its state before it.
    """

    state: Any
    qpos: Array
    qvel: Array
    sensordata: Array
    derived: dict[str, Array]
    change: dict[str, Array]
    diverged: Array


def select(mask: Array, yes: Tree, no: Tree) -> Tree:
    """Rows of `yes` where `mask` (n,) holds and of `no` elsewhere, for every leaf (n, ...)."""

    def pick(a: Array, b: Array) -> Array:
        return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - 1)), a, b)

    picked: Tree = jax.tree.map(pick, yes, no)
    return picked


class Physics(ABC):
    """One MuJoCo model, stepped for many bodies at once.

    Attributes:
        model: the compiled model.
        substeps: MuJoCo steps in one control step.
        derived: names of the MjData fields in `Bodies.derived`.
        changes: names of the MjData fields in `Bodies.change`.
        warnings: warnings for the user about the simulations so far, one sentence each; shared with the
            engines that `for_callers` returns.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        substeps: int,
        derived: tuple[str, ...] = (),
        changes: tuple[str, ...] = (),
    ) -> None:
        self.model = model
        self.substeps = substeps
        self.derived = derived
        self.changes = changes
        self.warnings: set[str] = set()

    @abstractmethod
    def reset(self, qpos: Array, qvel: Array, active: Array) -> Bodies:
        """Bodies with new positions and velocities, and otherwise MuJoCo's initial state.

        Args:
            qpos: (n, nq).
            qvel: (n, nv).
            active: (n,) bool, which bodies are used; the others have arbitrary values.
        """

    @abstractmethod
    def step(self, bodies: Bodies, ctrl: Array, active: Array) -> Bodies:
        """Advance active bodies by one control step.

        Bodies that are not active keep their state. So do bodies whose simulation diverges; their `diverged`
        flag is set.

        Args:
            bodies: n bodies.
            ctrl: (n, nu) controls.
            active: (n,) bool, which bodies to advance.
        """

    def callers(self, bodies: int) -> int:  # noqa: ARG002
        """Number of threads that step that many bodies fastest, if each thread steps a share of them."""
        return 1

    def for_callers(self, callers: int) -> "Physics":  # noqa: ARG002
        """An engine with the same results, to be called from that many threads at the same time."""
        return self
