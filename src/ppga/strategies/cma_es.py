"""CMA-ES over gradient coefficients, as in CMA-MAEGA: pyribs' implementation, with the interface of xNES."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from ribs.emitters.opt import CMAEvolutionStrategy

from ppga.strategies.ribs_state import load_plain_state, plain_state


class CMAES(CMAEvolutionStrategy):
    """CMA-ES with the interface of `Strategy`; the better half of the ranked samples are the parents.

    Args:
        sigma0: initial step size.
        solution_dim: size d of the search space.
        batch_size: samples in a generation.
        seed: seed of the samples.
    """

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
        """Adapt to the ranking of the last samples.

        Args:
            ranking_indices: numbers of the ranked samples, best first, without those that could not be
                evaluated.
            ranking_values: (lambda,) values of all samples, in their order.
            num_parents: not used.
        """
        if len(ranking_indices) >= 2:
            super().tell(np.asarray(ranking_indices), ranking_values, len(ranking_indices) // 2)

    def check_stop(self, ranking_values: Any) -> bool:
        """Whether the distribution has degenerated: not finite, too narrow, or all ranked values equal."""
        parameters = (self.mean, self.sigma, self.cov.cov)
        if not all(np.isfinite(values).all() for values in parameters):
            return True
        return bool(super().check_stop(np.asarray(ranking_values)))

    def state(self) -> dict[str, Any]:
        """Named arrays for checkpoints."""
        return plain_state(self)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a `state()`; raises an InputError if it cannot be one."""
        load_plain_state(self, state)
