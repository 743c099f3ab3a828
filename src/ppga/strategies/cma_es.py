"""CMA-ES over gradient coefficients, as CMA-MAEGA has it: pyribs' own, in the place of xNES."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from ribs.emitters.opt import CMAEvolutionStrategy

from ppga.strategies.plain import load_plain_state, plain_state


class CMAES(CMAEvolutionStrategy):
    """The same questions and answers as `XNES`; the better half of the samples are parents."""

    mean: Any
    sigma: Any
    cov: Any

    def __init__(self, sigma0: float, solution_dim: int, batch_size: int, seed: Any) -> None:
        super().__init__(sigma0, solution_dim, batch_size, seed, np.float64)
        self.reset(np.zeros(solution_dim))

    @property
    def scale(self) -> float:
        """Overall step size, sigma."""
        return float(self.sigma)

    def tell(self, ranking_indices: Any, ranking_values: Any, num_parents: Any = None) -> None:  # noqa: ARG002
        """Adapt to the ranking of the last draws; those left out do not count."""
        if len(ranking_indices) >= 2:
            super().tell(np.asarray(ranking_indices), ranking_values, len(ranking_indices) // 2)

    def check_stop(self, ranking_values: Any) -> bool:
        """Whether the distribution has become useless: not finite, too narrow, or nothing to rank."""
        known = (self.mean, self.sigma, self.cov.cov)
        if not all(np.isfinite(values).all() for values in known):
            return True
        return bool(super().check_stop(np.asarray(ranking_values)))

    def state(self) -> dict[str, Any]:
        """All that is needed to go on, as plain arrays."""
        return plain_state(self)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state()`."""
        load_plain_state(self, state)
