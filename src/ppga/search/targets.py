"""Target measures for a policy that is conditioned on them, chosen by the archive."""

from dataclasses import dataclass

import numpy as np

from ppga.archives import EliteArchive
from ppga.config import check_range, common
from ppga.storage import NumpyArray


@dataclass(frozen=True)
class TargetConfig:
    """Which measures a conditioned policy is trained to reach.

    Attributes:
        uniform: share of targets drawn from all measures; the others are near the measures of elites.
        radius: largest distance from the elite's measures, as a share of each measure's range.
        min_length: targets are near elites whose episodes last at least this share of the longest.
        reward_share: share of the environments in which the policy maximizes the reward alone; their target
            is the measures of the best elite.
    """

    uniform: float = common(1.0)
    radius: float = 0.15
    min_length: float = 0.5
    reward_share: float = common(0.0)

    def check(self) -> None:
        """Raise an InputError for values that cannot work."""
        for name in ("uniform", "radius", "min_length", "reward_share"):
            check_range(f"targets.{name}", getattr(self, name), 0.0, 1.0)


def scaled_measures(measures: NumpyArray, ranges: tuple[tuple[float, float], ...]) -> NumpyArray:
    """Measures (n, k) scaled from their ranges to [-1, 1], and clipped to them."""
    low, high = np.array(ranges).T
    scaled: NumpyArray = np.clip(2 * (measures - low) / (high - low) - 1, -1, 1)
    return scaled


def sample_targets(
    config: TargetConfig, elites: EliteArchive, rng: np.random.Generator, n: int
) -> NumpyArray:
    """Targets (n, k), each measure scaled from its range to [-1, 1]; all of them if there is no elite."""
    targets = rng.uniform(-1, 1, (n, len(elites.ranges)))
    if not elites.empty:
        fields = elites.elites()
        long = fields["length"] >= config.min_length * fields["length"].max()
        places = scaled_measures(fields["measures"][long], elites.ranges)
        near = places[rng.integers(len(places), size=n)] + config.radius * 2 * rng.uniform(
            -1, 1, targets.shape
        )
        targets = np.where(rng.random((n, 1)) < config.uniform, targets, np.clip(near, -1, 1))
    return targets.astype(np.float32)
