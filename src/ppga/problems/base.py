"""Protocols between algorithms and problems: a reinforcement-learning task, or any other search problem."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ppga.archives.statistics import STATISTICS
from ppga.storage import NumpyArray


@dataclass(frozen=True)
class Evaluation:
    """Scores of n solutions.

    Attributes:
        objective: (n,) mean return over the episodes; NaN if the physics diverged in one of them.
        objective_std: (n,) standard deviation over the episodes.
        measures: (n, k) mean over the episodes.
        measures_std: (n, k) standard deviation over the episodes.
        length: (n,) mean number of control steps.
        survival: (n,) share of the episodes that did not end early, by the task's rule or by divergence.
        env_steps: control steps that the evaluation took.
        policies: number of evaluated solutions.
        episodes: number of episodes, all solutions together.
    """

    objective: NumpyArray
    objective_std: NumpyArray
    measures: NumpyArray
    measures_std: NumpyArray
    length: NumpyArray
    survival: NumpyArray
    env_steps: int
    policies: int
    episodes: int

    def arrays(self) -> dict[str, NumpyArray]:
        """The scores by name, arrays (n, ...)."""
        return {name: np.asarray(getattr(self, name)) for name in ("objective", "measures", *STATISTICS)}

    def rows(self, part: slice) -> "Evaluation":
        """The scores of some of the solutions; the counts stay those of all."""
        changes: dict[str, Any] = {name: values[part] for name, values in self.arrays().items()}
        return replace(self, **changes)


@dataclass(frozen=True)
class LearningReport:
    """Cost and metrics of a learning phase.

    Attributes:
        env_steps: control steps.
        nonfinite: gradient steps and episodes that were skipped because a number was not finite.
        metrics: named numbers for the record.
        warnings: messages for the user.
    """

    env_steps: int = 0
    nonfinite: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cost:
    """Approximate cost of a usual iteration, if no episode ends early.

    Left out are the longer walks of reward phases, and the episodes that confirm candidates or re-evaluate
    elites.

    Attributes:
        policies: evaluated policies.
        learning_steps: control steps of learning, evaluation not included.
        multiplications: multiplications of the learner's updates.
        memory: bytes that learning needs.
    """

    policies: int
    learning_steps: int = 0
    multiplications: int = 0
    memory: int = 0


class Problem(Protocol):
    """A quality-diversity problem: solutions that can be evaluated.

    Its state is a pytree of arrays with everything that a checkpoint must hold, except for `external_state`.
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
        """Subtracted from every objective in the QD-score."""
        ...

    @property
    def warmup_steps(self) -> int:
        """Control steps that `init` takes."""
        ...

    @property
    def fields(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of what the archive stores with each solution."""
        ...

    def describe(self) -> dict[str, Any]:
        """Description in files with which solutions can be used: `task`, and `network` or None."""
        ...

    def init(self, key: Any) -> Any:
        """The initial state."""
        ...

    def random(self, key: Any, n: int) -> NumpyArray:
        """Random solutions (n, d)."""
        ...

    def stored_fields(self, state: Any) -> dict[str, NumpyArray]:
        """Fields that the archive stores with each solution evaluated in this state: name -> (...)."""
        ...

    def evaluate(
        self,
        state: Any,
        solutions: NumpyArray,
        key: Any,
        episodes: int,
        active: NumpyArray | None = None,
    ) -> Evaluation:
        """Evaluate solutions with the normalizers of the state.

        Here and in `evaluate_elites`, an off-policy learner adds all transitions to its replay buffer.

        Args:
            state: the problem's state.
            solutions: (n, d).
            key: random key.
            episodes: number of episodes of each solution.
            active: (n,) bool, which solutions to evaluate; scores of the others are arbitrary. The program is
                compiled once for all masks. All by default.
        """
        ...

    def evaluate_elites(
        self, elites: Mapping[str, NumpyArray], key: Any, episodes: int, active: NumpyArray
    ) -> Evaluation:
        """Evaluate elites, or candidates with the fields (n, ...) of elites, with their own normalizers."""
        ...

    def start_at(self, state: Any, elite: Mapping[str, NumpyArray], key: Any) -> Any:
        """Initialize a new run from an elite of another run, with the normalizers stored with it.

        Without a search point, only the normalizers are used; with one, see `GradientProblem`.
        """
        ...

    def reset_nonfinite(self, state: Any, key: Any) -> tuple[Any, NumpyArray]:
        """Reinitialize learners whose parameters are not finite; also returns which (n,) they are."""
        ...

    @property
    def simulation_warnings(self) -> Collection[str]:
        """Warnings of the simulator since the start of the run."""
        ...

    @property
    def checkpoint_due(self) -> bool:
        """Whether a checkpoint must be written now, so that the run can be resumed."""
        ...

    def open(self, folder: Path | None) -> None:
        """Open files in a run's folder for what is too large for checkpoints; None keeps it in memory."""
        ...

    def external_state(self) -> dict[str, NumpyArray]:
        """Arrays of a checkpoint that are not part of the state."""
        ...

    def load_external_state(self, state: Mapping[str, NumpyArray]) -> None:
        """Restore an `external_state()`."""
        ...


class GradientProblem(Problem, Protocol):
    """A problem with gradients, and a search point theta_mu in its state: the search policy.

    Besides walks, three methods move the search point; none of them resets the learners:

    - `start_at`, once, before a run that starts from another run's elites: to its best elite, with all
      normalizers stored with the elite, also those that do not change during a run.
    - `restart`, to an elite of the run's own archive, with those stored normalizers that change during a run.
    - `place`, to a point that is no elite, such as a mean of branches: normalizers stay, and may be updated.
    """

    def cost(self, policies: int, updates: int = 0, /) -> Cost:
        """Cost of evaluating that many solutions and of that many learning updates."""
        ...

    def solution(self, state: Any) -> NumpyArray:
        """The search point (d,)."""
        ...

    def jacobian(self, state: Any, key: Any, updates: int) -> tuple[Any, NumpyArray, LearningReport]:
        """Estimate the gradients of the objective and of the measures at the search point.

        Args:
            state: the problem's state.
            key: random key.
            updates: number of learning updates, N1.

        Returns:
            The state; the Jacobian (gradient_count, d), whose rows increase the objective (first) and each
            measure, where gradient_count is k+1, or 1 for the objective alone; and cost and metrics.
        """
        ...

    def walk(
        self, state: Any, weights: NumpyArray, key: Any, updates: int, scaled: bool
    ) -> tuple[Any, LearningReport]:
        """Move the search point along a weighted sum of objective and measures.

        Args:
            state: the problem's state.
            weights: (k+1,).
            key: random key.
            updates: number of learning updates, N2.
            scaled: first divide objective and measures by the standard deviations of their returns.
        """
        ...

    def scale_exploration_noise(self, state: Any, factor: float, low: float, high: float) -> Any:
        """Multiply the standard deviation of the exploration noise, which stays within [low, high]."""
        ...

    def place(self, state: Any, solution: NumpyArray, key: Any) -> tuple[Any, LearningReport]:
        """Move the search point to a new point (d,), and report the cost of updating its normalizers."""
        ...

    def restart(self, state: Any, elite: Mapping[str, NumpyArray], key: Any) -> Any:
        """Move the search point to an elite of the archive, with the normalizers stored with it."""
        ...


def unit_rows(jacobian: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
    """Rows (..., d) scaled to length 1, and their lengths before; a row of zeros stays."""
    length = np.linalg.norm(jacobian, axis=-1)
    return jacobian / np.maximum(length, 1e-12)[..., None], length


def nonzero_weights(weights: NumpyArray) -> NumpyArray:
    """Weights (k+1,) of objective and measures; the objective alone if all of them are zero."""
    return weights if weights.any() else np.eye(1, len(weights), dtype=weights.dtype)[0]


def critic_report(loss: NumpyArray, env_steps: int = 0, **metrics: Any) -> LearningReport:
    """Report of training critics with mean losses (J,)."""
    finite = np.isfinite(loss).all()
    return LearningReport(
        env_steps=env_steps,
        metrics={"critic_loss": loss.tolist(), **metrics},
        warnings=() if finite else ("the loss of a critic is not finite",),
    )
