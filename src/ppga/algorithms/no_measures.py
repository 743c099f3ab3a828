"""PPGA without measures, an ablation of Batra et al., ICLR 2024, appendix."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ppga.algorithms import ppga_config
from ppga.algorithms.ppga import PPGA
from ppga.algorithms.ppga_config import PPGAConfig
from ppga.algorithms.presets import Preset, smoke
from ppga.config import replace_nested
from ppga.search import ObjectiveConfig


@dataclass(frozen=True)
class NoMeasuresConfig(PPGAConfig):
    """Settings of PPGA without measures; see `PPGAConfig`."""

    algorithm: ClassVar[str] = "ppga-no-measures"


class NoMeasures(PPGA):
    """PPGA that branches along the gradient of the reward only, and walks up that gradient."""

    summary = "ablation: PPGA with the gradient of the reward alone (Batra et al., ICLR 2024, appendix)"

    @classmethod
    def count_gradients(cls, measures: int) -> int:  # noqa: ARG003
        """One, of the reward; rows of the measures, as the sphere has them, are not used."""
        return 1


def _without_measures(preset: Preset, changes: dict[str, Any]) -> Preset:
    """A preset of PPGA for this ablation."""
    config = NoMeasuresConfig(**vars(preset.config))
    return replace(preset, config=replace_nested(config, changes))


# The reward alone steers every walk, so all walks have one length and none may go against the reward.
WALK = 20
LAPTOP = _without_measures(
    ppga_config.LAPTOP, {"walk_updates": WALK, "phases.updates": WALK, "objective.clip_reward": True}
)
UPHILL = {"objective": ObjectiveConfig(scaling="raw", clip_reward=True)}
PRESETS = {
    "laptop": LAPTOP,
    "paper": _without_measures(ppga_config.PAPER, UPHILL),
    "paper-scripts": _without_measures(ppga_config.PAPER_SCRIPTS, UPHILL),
    "smoke": smoke(LAPTOP, {**ppga_config.SMOKE, **ppga_config.SMOKE_PPO}),
}
