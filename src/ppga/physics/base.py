"""What both engines promise: advance n bodies by one control step, inside jitted JAX code."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import mujoco

Array = jax.Array
Tree = TypeVar("Tree")

# A position, velocity or acceleration beyond this is MuJoCo's own idea of a diverged simulation (mjMAXVAL).
HUGE = 1e10


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Bodies:
    """n simulated bodies. Tasks read the float32 copies; `state` belongs to the engine.

    Inside a task's functions there is no leading n: they are written for one body and mapped over all.

    Attributes:
        state: what the engine needs to go on, exactly; opaque to everyone else.
        qpos: (n, nq) joint positions.
        qvel: (n, nv) joint velocities.
        sensordata: (n, nsensordata) of the state *before* the last substep, as MuJoCo computes sensors.
        derived: the other MjData fields the task asked for, (n, ...) each, of that same state.
        change: by how much a field changed over the last control step, (n, ...) each, subtracted before
            rounding to float32: a velocity taken from it is exact however far the body has walked.
        diverged: (n,) bool, the last step left the realm of numbers; the body stays where it was before.
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
        derived: names of the MjData fields handed out beside positions, velocities and sensors.
        changes: names of the MjData fields whose change over a control step is handed out.
        warnings: what a user should know of the simulations so far, a sentence each; shared by the engines
            that `for_callers` makes.
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
        """Put bodies at qpos (n, nq), qvel (n, nv), at rest otherwise; only rows with `active` (n,) count."""

    @abstractmethod
    def step(self, bodies: Bodies, ctrl: Array, active: Array) -> Bodies:
        """Advance the `active` (n,) bodies by one control step under ctrl (n, nu); the others stay.

        A body whose simulation diverges stays as it was too, with its `diverged` flag set.
        """

    def callers(self, bodies: int) -> int:  # noqa: ARG002
        """How many threads should share that many bodies, each stepping its own, to step them fastest."""
        return 1

    def for_callers(self, callers: int) -> "Physics":  # noqa: ARG002
        """An engine with the same results, for so many callers at the same time."""
        return self
