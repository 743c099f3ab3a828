"""Exploration noise that the archive controls: more noise while the search policy adds few elites."""

from dataclasses import dataclass

from ppga.config import check_positive, check_range
from ppga.errors import InputError


@dataclass(frozen=True)
class NoiseConfig:
    """Exploration noise that the archive controls; needs `ppo.std` fixed.

    Attributes:
        low_yield: new elites per branch below which the noise grows; above, it shrinks.
        factor: factor by which the standard deviation changes per iteration.
        min_std: smallest standard deviation.
        max_std: largest standard deviation.
    """

    low_yield: float = 0.05
    factor: float = 1.1
    min_std: float = 0.1
    max_std: float = 1.0

    def check(self) -> None:
        """Raise an InputError for values that cannot work."""
        check_range("noise.low_yield", self.low_yield)
        check_range("noise.factor", self.factor, 1.0)
        check_positive("noise.min_std", self.min_std)
        if not self.min_std <= self.max_std:
            raise InputError(
                f"--noise.max-std must be at least --noise.min-std, {self.min_std}, got {self.max_std}."
            )


def noise_factor(config: NoiseConfig, new_elites: int, branches: int) -> float:
    """Factor of the exploration noise after an iteration with that many new elites."""
    return config.factor if new_elites < config.low_yield * branches else 1 / config.factor
