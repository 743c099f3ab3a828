"""QD-PG (Pierrot et al., GECCO 2022): policy gradients for quality and for diversity."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ppga.algorithms import pga_me
from ppga.algorithms.base import most_episodes
from ppga.algorithms.pga_me import PGAME, PGAMEConfig
from ppga.algorithms.presets import Preset, smoke
from ppga.config import common
from ppga.problems.novelty import Novelty, NoveltyProblem
from ppga.rollouts import Executor
from ppga.tasks import Environment


@dataclass(frozen=True)
class QDPGConfig(PGAMEConfig):
    """Settings of QD-PG; see `PGAMEConfig`.

    Attributes:
        gradient_share: fraction of the offspring made by policy gradients, half of them for quality and half
            for diversity, the two greedy actors included; iso+line makes the rest.
        novelty: what the second critic learns: steps (mean distance of a step's measure proxies to those of
            recorded steps) or archive (mean squared distance to the nearest entries of a novelty archive, as
            in QDax).
    """

    algorithm: ClassVar[str] = "qdpg"

    gradient_share: float = common(0.67)
    novelty: Novelty = "steps"


class QDPG(PGAME):
    """PGA-MAP-Elites with a second critic, of novelty, which varies a third of the new policies."""

    summary = "Quality and Diversity Policy Gradients, with TD3 (Pierrot et al., GECCO 2022)"

    @classmethod
    def make_problem(
        cls, task: Environment, config: Any, executor: Executor | None, progress: Callable[[], None]
    ) -> NoveltyProblem:
        """One learner maximizes the reward, another one the novelty of steps."""
        weights = np.eye(2 + len(task.measure_names))[[0, -1]]
        episodes = most_episodes(config, config.batch_size)
        return NoveltyProblem(
            task,
            config.td3,
            config.network,
            episodes,
            weights,
            executor,
            progress,
            novelty=config.novelty,
        )


def _config(preset: Preset) -> Preset:
    """A preset of PGA-MAP-Elites for QD-PG."""
    settings = {**vars(preset.config), "gradient_share": QDPGConfig.gradient_share}
    return replace(preset, config=QDPGConfig(**settings))


LAPTOP, PAPER = _config(pga_me.LAPTOP), _config(pga_me.PAPER)
PRESETS = {
    "laptop": LAPTOP,
    "paper": replace(PAPER, config=PAPER.config.replace(novelty="archive")),
    "smoke": smoke(LAPTOP, pga_me.SMOKE),
}
