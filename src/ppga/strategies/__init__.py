"""Evolution strategies: they adapt the distribution of gradient coefficients to the archive's improvement."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from ppga.config import check_positive, common
from ppga.storage import NumpyArray
from ppga.strategies.cma_es import CMAES
from ppga.strategies.xnes import XNES


class Strategy(Protocol):
    """Interface of a strategy: that of pyribs' `EvolutionStrategyBase`, with a mean, a scale and a state."""

    mean: Any
    """(d,) mean of the search distribution."""
    solution_dim: Any

    @property
    def scale(self) -> float:
        """Overall step size."""
        ...

    def reset(self, x0: Any) -> None:
        """Reset the distribution to its initial scale, around a mean (d,)."""
        ...

    def ask(self, batch_size: Any = None) -> Any:
        """Draw samples (n, d)."""
        ...

    def tell(self, ranking_indices: Any, ranking_values: Any, num_parents: Any = None) -> None:
        """Adapt to the ranking of the last samples, best first."""
        ...

    def check_stop(self, ranking_values: Any) -> bool:
        """Whether the distribution has degenerated, so that the strategy must be reset."""
        ...

    def state(self) -> dict[str, Any]:
        """Named arrays for checkpoints."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a `state()`."""
        ...


STRATEGIES: dict[str, Callable[..., Strategy]] = {"xnes": XNES, "cma-es": CMAES}


@dataclass(frozen=True)
class StrategyConfig:
    """The search distribution of the gradient coefficients.

    Attributes:
        kind: evolution strategy that adapts the gradient coefficients: xnes, or cma-es as in CMA-MAEGA.
        sigma0: step size of the evolution strategy at the start and after a restart.
        mean: mean at the start and after a restart: zero, or random (uniform in [0, 2] for the reward and in
            [-2, 2] for each measure).
    """

    kind: Literal["xnes", "cma-es"] = "xnes"
    sigma0: float = common(2.0)
    mean: Literal["zero", "random"] = "zero"

    def check(self) -> None:
        """Raise an InputError for values that cannot work."""
        check_positive("strategy.sigma0", self.sigma0)

    def initial_mean(self, size: int, rng: np.random.Generator) -> NumpyArray:
        """Mean (size,) of the coefficients, the reward's first, at the start and after a restart."""
        if self.mean == "random":
            return np.concatenate([rng.uniform(0, 2, 1), rng.uniform(-2, 2, size - 1)])
        return np.zeros(size)


def make_strategy(config: StrategyConfig, size: int, samples: int, seed: int) -> Strategy:
    """A strategy for `size` coefficients that draws `samples` of them in an iteration."""
    return STRATEGIES[config.kind](config.sigma0, size, samples, seed=np.random.SeedSequence([seed, 0]))


__all__ = ["CMAES", "STRATEGIES", "XNES", "Strategy", "StrategyConfig", "make_strategy"]
