"""Evolution strategies that adapt gradient coefficients to what the archive gains."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ppga.strategies.cma_es import CMAES
from ppga.strategies.xnes import XNES


class Strategy(Protocol):
    """What PPGA asks of a strategy; pyribs' `EvolutionStrategyBase` with a mean, a scale and a state."""

    mean: Any
    """(d,) where it is."""
    solution_dim: Any

    @property
    def scale(self) -> float:
        """How far it looks."""
        ...

    def reset(self, x0: Any) -> None:
        """Begin again."""
        ...

    def ask(self, batch_size: Any = None) -> Any:
        """Draw samples (n, d)."""
        ...

    def tell(self, ranking_indices: Any, ranking_values: Any, num_parents: Any = None) -> None:
        """Adapt to their ranking, best first."""
        ...

    def check_stop(self, ranking_values: Any) -> bool:
        """Whether it has become useless."""
        ...

    def state(self) -> dict[str, Any]:
        """All that is needed to go on."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on."""
        ...


STRATEGIES: dict[str, Callable[..., Strategy]] = {"xnes": XNES, "cma-es": CMAES}

__all__ = ["CMAES", "STRATEGIES", "XNES", "Strategy"]
