"""Exponential natural evolution strategy (xNES), behind pyribs' interface.

Glasmachers, Schaul, Sun, Wierstra, Schmidhuber: "Exponential natural evolution strategies", GECCO 2010. The
search distribution is N(mean, A A^T) with A = scale * shape and det(shape) = 1. Each generation follows the
natural gradient of the expected rank-based utility, in coordinates where the distribution is standard normal.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from ribs.emitters.opt import EvolutionStrategyBase

from ppga.errors import InputError, check_count
from ppga.storage import check_arrays, like

FloatArray = np.ndarray[Any, np.dtype[np.float64]]

LARGEST_SCALE, LARGEST_CONDITION = 1e8, 1e14
"""Limits of the scale, in units of sigma0, and of the condition number; `check_stop` is True beyond them."""


class XNES(EvolutionStrategyBase):
    """xNES as an evolution strategy for pyribs' emitters (`es=XNES`).

    All ranked samples contribute to the update, the worst ones with negative weights; `num_parents` is not
    used. The samples of a generation depend on the seed and the generation's number only, so the state
    consists of plain arrays and numbers.

    Args:
        sigma0: initial scale.
        solution_dim: size d of the search space.
        batch_size: samples in a generation (lambda); 4 + 3 ln(d) by default.
        seed: seed of the samples.
        dtype: type of the returned samples; the arithmetic is float64.
        lower_bounds: must be infinite, because clipped or rejected samples would bias the natural gradient.
        upper_bounds: must be infinite, for the same reason.

    Attributes:
        mean: (d,) center of the distribution.
        scale: overall step size, sigma.
        shape: (d, d) factor of determinant 1, so that the covariance is (scale * shape) (scale * shape)^T.
        generation: generations so far, over all restarts.

    Raises:
        InputError: a setting that cannot work.
    """

    def __init__(
        self,
        sigma0: float,
        solution_dim: int,
        batch_size: int | None = None,
        seed: int | np.random.SeedSequence | None = None,
        dtype: DTypeLike = np.float64,
        lower_bounds: float | FloatArray = -np.inf,
        upper_bounds: float | FloatArray = np.inf,
    ) -> None:
        if not (np.isfinite(sigma0) and sigma0 > 0):
            raise InputError(f"sigma0 must be a positive number, got {sigma0!r}.")
        if np.isfinite(lower_bounds).any() or np.isfinite(upper_bounds).any():
            raise InputError(
                "xNES searches without bounds; got finite lower or upper bounds. Leave them at infinity."
            )
        self.solution_dim = check_count("solution_dim", int(solution_dim))
        default = 4 + int(3 * np.log(self.solution_dim))
        self.batch_size = check_count("batch_size", default if batch_size is None else int(batch_size))
        self.sigma0 = float(sigma0)
        self.dtype = np.dtype(dtype)
        if seed is None or isinstance(seed, np.random.SeedSequence):  # pyribs' emitters pass the latter
            seed = int((seed or np.random.SeedSequence()).generate_state(1, np.uint64)[0])
        self.seed = int(seed)
        self.generation = 0
        self._samples: FloatArray = np.zeros((0, self.solution_dim))
        self.reset(np.zeros(self.solution_dim))

    @property
    def learning_rate(self) -> float:
        """Learning rate of scale and shape; the mean's is 1."""
        d = self.solution_dim
        return float(0.6 * (3 + np.log(d)) / (d * np.sqrt(d)))

    @property
    def covariance(self) -> FloatArray:
        """(d, d) covariance of the distribution."""
        factor = self.scale * self.shape
        return np.asarray(factor @ factor.T)

    def reset(self, x0: Any) -> None:
        """Reset the distribution to N(x0, sigma0^2 I), but not the count of generations."""
        mean = np.array(x0, np.float64)
        if mean.shape != (self.solution_dim,):
            raise InputError(f"the mean must have shape {(self.solution_dim,)}, got {mean.shape}.")
        self.mean: FloatArray = mean
        self.scale = self.sigma0
        self.shape: FloatArray = np.eye(self.solution_dim)

    def ask(self, batch_size: Any = None) -> Any:
        """Draw samples (batch_size, d)."""
        n = self.batch_size if batch_size is None else check_count("batch_size", int(batch_size))
        rng = np.random.default_rng([self.seed, self.generation])
        self._samples = rng.standard_normal((n, self.solution_dim))
        self.generation += 1
        return (self.mean + self.scale * self._samples @ self.shape.T).astype(self.dtype)

    def tell(self, ranking_indices: Any, ranking_values: Any, num_parents: Any = None) -> None:  # noqa: ARG002
        """Adapt to the ranking of the last samples.

        Args:
            ranking_indices: numbers of the ranked samples, best first, without those that could not be
                evaluated.
            ranking_values: not used; xNES depends on the ranks alone.
            num_parents: not used.

        Raises:
            InputError: the indices are not different numbers of the last samples.
        """
        ranked = np.asarray(ranking_indices, np.intp)
        if ranked.ndim != 1 or len(np.unique(ranked)) != len(ranked):
            raise InputError(
                f"ranking_indices must be a vector of different numbers, got {ranking_indices!r}."
            )
        if len(ranked) and not (0 <= ranked.min() and ranked.max() < len(self._samples)):
            raise InputError(
                f"ranking_indices must lie in [0, {len(self._samples)}), got {ranking_indices!r}."
            )
        if len(ranked) < 2:
            return  # nothing to compare
        z = self._samples[ranked]
        u = utilities(len(ranked))
        d = self.solution_dim
        gradient_mean = u @ z
        gradient_factor = (z * u[:, None]).T @ z - u.sum() * np.eye(d)
        gradient_scale = np.trace(gradient_factor) / d
        gradient_shape = gradient_factor - gradient_scale * np.eye(d)
        half_rate = self.learning_rate / 2
        self.mean = self.mean + self.scale * self.shape @ gradient_mean
        self.scale = float(self.scale * np.exp(half_rate * gradient_scale))
        self.shape = self.shape @ _exp_symmetric(half_rate * gradient_shape)

    def check_stop(self, ranking_values: Any) -> bool:  # noqa: ARG002
        """Whether the distribution has degenerated: not finite, too wide, too narrow or ill-conditioned."""
        if not (np.isfinite(self.mean).all() and np.isfinite(self.scale) and np.isfinite(self.shape).all()):
            return True
        singular_values = np.linalg.svd(self.shape, compute_uv=False)
        largest, smallest = self.scale * singular_values[0], self.scale * singular_values[-1]
        vanished = smallest <= np.finfo(np.float64).eps * max(1.0, float(np.abs(self.mean).max()))
        return bool(
            largest > LARGEST_SCALE * self.sigma0 or vanished or largest > LARGEST_CONDITION * smallest
        )

    def state(self) -> dict[str, Any]:
        """Named arrays for checkpoints."""
        return {
            "mean": self.mean.copy(),
            "scale": np.array(self.scale),
            "shape": self.shape.copy(),
            "seed": np.array(self.seed, np.uint64),
            "generation": np.array(self.generation, np.int64),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a `state()`.

        Raises:
            InputError: it cannot be a state of this strategy.
        """
        check_arrays(state, {name: like(values) for name, values in self.state().items()})
        finite = all(np.isfinite(values).all() for values in state.values())
        if not finite or not (state["scale"] > 0 and state["generation"] >= 0):
            raise InputError(
                "the strategy's arrays must be finite, its scale above 0 and its generation at least 0; got "
                f"scale {state['scale']}, generation {state['generation']}."
            )
        self.mean, self.shape = state["mean"].copy(), state["shape"].copy()
        self.scale = float(state["scale"])
        self.seed, self.generation = int(state["seed"]), int(state["generation"])


def utilities(n: int) -> FloatArray:
    """Weights (n,) of the ranks, best first: logarithmic for the better half, equal for the rest, sum 0."""
    raw = np.maximum(0.0, np.log(n / 2 + 1) - np.log(np.arange(1, n + 1)))
    return np.asarray(raw / raw.sum() - 1 / n)


def _exp_symmetric(matrix: FloatArray) -> FloatArray:
    """Matrix exponential of a symmetric matrix (d, d), through its eigenvalues."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.exp(values)) @ vectors.T)
