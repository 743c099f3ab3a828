"""What an algorithm searches in: the few things that are asked of a reinforcement-learning task or of any
other problem.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ppga.storage import NumpyArray


@dataclass(frozen=True)
class Judgement:
    """What n solutions are worth.

    Attributes:
        objective: (n,) mean over its episodes.
        measures: (n, k) likewise.
        spread: (n, k) their standard deviation over the episodes.
        env_steps: control steps it took to find out.
        policies: how many were judged.
        episodes: how many were played.
    """

    objective: NumpyArray
    measures: NumpyArray
    spread: NumpyArray
    env_steps: int
    policies: int
    episodes: int


@dataclass(frozen=True)
class Effort:
    """What a learning phase took, and how it went.

    Attributes:
        env_steps: control steps.
        nonfinite: gradient steps and episodes that were left out because something was not finite.
        metrics: named numbers for the record.
        warnings: what a user should know.
    """

    env_steps: int = 0
    nonfinite: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def sound(tree: Any) -> NumpyArray:
    """Which (n,) rows of all arrays (n, ...) are finite."""
    return np.asarray(_sound(tree))


@jax.jit
def _sound(tree: Any) -> jax.Array:
    rows = [jnp.isfinite(leaf).reshape(len(leaf), -1).all(axis=1) for leaf in jax.tree.leaves(tree)]
    return jnp.stack(rows).all(axis=0)


def effort_of(loss: NumpyArray, env_steps: int = 0, **metrics: Any) -> Effort:
    """What training critics took, with their mean losses (J,)."""
    lost = not np.isfinite(loss).all()
    return Effort(
        env_steps=env_steps,
        metrics={"critic_loss": loss.tolist(), **metrics},
        warnings=("a critic is lost (its loss is not finite)",) if lost else (),
    )


class Problem(Protocol):
    """A quality-diversity problem: solutions that can be judged.

    Its state is a pytree of arrays that holds everything that must survive a restart, but for what is kept
    `aside`.
    """

    @property
    def solution_size(self) -> int:
        """Numbers d in a solution."""
        ...

    @property
    def measure_names(self) -> tuple[str, ...]:
        """Names of the k measures."""
        ...

    @property
    def measure_ranges(self) -> tuple[tuple[float, float], ...]:
        """Bounds of each measure."""
        ...

    @property
    def archive_shape(self) -> tuple[int, ...]:
        """Default number of cells along each measure."""
        ...

    @property
    def qd_offset(self) -> float:
        """What is subtracted from every objective in the QD-score."""
        ...

    @property
    def start_steps(self) -> int:
        """Control steps that `start` takes."""
        ...

    @property
    def fields(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of what the archive keeps with each solution."""
        ...

    def describe(self) -> dict[str, Any]:
        """What a file must say so that its solutions can be used: `task`, and `network` or None."""
        ...

    def start(self, key: Any) -> Any:
        """The state at the beginning."""
        ...

    def random(self, key: Any, n: int) -> NumpyArray:
        """Solutions (n, d) to begin with."""
        ...

    def kept(self, state: Any) -> dict[str, NumpyArray]:
        """What the archive keeps with solutions found now: name -> (m, ...), for each emitter."""
        ...

    def judge(
        self,
        state: Any,
        solutions: NumpyArray,
        key: Any,
        episodes: int | None = None,
        playing: NumpyArray | None = None,
    ) -> Judgement:
        """Evaluate solutions (m, n, d), by so many episodes if told; the judgement is flat, (m n,).

        Of those that are not `playing` (m, n) nothing need be known; they are not counted.
        """
        ...

    def judge_elites(
        self, elites: Mapping[str, NumpyArray], key: Any, episodes: int, playing: NumpyArray
    ) -> Judgement:
        """Evaluate elites of the archive, all their fields (n, ...), as they were found; see `judge`."""
        ...

    @property
    def due(self) -> bool:
        """Whether a checkpoint must be written now, so that the run can be gone on with."""
        ...

    def open(self, folder: Path | None) -> None:
        """Keep what is too large for checkpoints in a run's folder; in memory without one."""
        ...

    def aside(self) -> dict[str, NumpyArray]:
        """What belongs to the state and is not in it."""
        ...

    def load_aside(self, aside: Mapping[str, NumpyArray]) -> None:
        """Go on from an `aside()`."""
        ...


class GradientProblem(Problem, Protocol):
    """A problem with gradients, and m search points, each an emitter's."""

    def solutions(self, state: Any) -> NumpyArray:
        """The search points theta (m, d)."""
        ...

    def jacobian(self, state: Any, key: Any) -> tuple[Any, NumpyArray, Effort]:
        """Directions (m, k+1, d) that raise the objective and each measure; of the first few, if told so."""
        ...

    def walk(
        self, state: Any, weights: NumpyArray, key: Any, updates: int | None = None
    ) -> tuple[Any, Effort]:
        """Move the search points along weighted sums (m, k+1) of objective and measures.

        By so many learning updates, if told.
        """
        ...

    def stir(self, state: Any, factors: NumpyArray) -> Any:
        """Multiply the noise that each search point (m,) explores with, where the archive rules it."""
        ...

    def place(self, state: Any, solutions: NumpyArray, key: Any) -> tuple[Any, Effort]:
        """Put the search points (m, d) elsewhere."""
        ...

    def move(self, state: Any, emitter: int, elite: dict[str, NumpyArray], key: Any) -> Any:
        """Put a search point at an elite of the archive."""
        ...


def unit_rows(jacobian: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
    """Rows (..., d) scaled to length 1 and their lengths before; a row of zeros stays."""
    length = np.linalg.norm(jacobian, axis=-1)
    return jacobian / np.maximum(length, 1e-12)[..., None], length
