"""The objective of a walk: the mean gradient coefficients c_mu, optionally changed in favor of the reward."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ppga.config import check_range
from ppga.problems import nonzero_weights
from ppga.storage import NumpyArray


@dataclass(frozen=True)
class ObjectiveConfig:
    """Changes to the objective of a walk, c_mu . (f, delta).

    Attributes:
        scaling: scaled (divide reward and measure proxies by the standard deviations of their returns first)
            or raw.
        clip_reward: count a negative coefficient of the reward as 0, so that no walk goes against the reward.
        min_reward_share: lower bound of the reward's coefficient, in units of the length of the measures'
            coefficients; 0 for none.
    """

    scaling: Literal["scaled", "raw"] = "scaled"
    clip_reward: bool = False
    min_reward_share: float = 0.0

    def check(self) -> None:
        """Raise an InputError for values that cannot work."""
        check_range("objective.min_reward_share", self.min_reward_share)


def walk_weights(mean: NumpyArray, config: ObjectiveConfig | None, reward_only: bool = False) -> NumpyArray:
    """Weights (k+1,) of the objectives in a walk.

    Args:
        mean: (k+1,) mean gradient coefficients c_mu, of the reward first.
        config: changes to them; None for none.
        reward_only: ignore the coefficients and walk along the reward.

    Returns:
        The weights; the reward alone if all of them are zero.
    """
    weights = np.zeros_like(mean) if reward_only else mean.copy()
    if config is not None:
        if config.clip_reward:
            weights[0] = max(weights[0], 0.0)
        if config.min_reward_share:
            weights[0] = max(weights[0], config.min_reward_share * np.linalg.norm(weights[1:]))
    return nonzero_weights(weights)
