"""An ablation of Batra et al., ICLR 2024: PPO whose policies between minibatch steps are archived."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ppga.algorithms import ppo
from ppga.algorithms.ppga_config import SMOKE_PPO
from ppga.algorithms.ppo import PPO, PPOAlgorithmConfig
from ppga.algorithms.presets import Preset, smoke
from ppga.problems import Cost, PPOProblem


@dataclass(frozen=True)
class PPOArchiveConfig(PPOAlgorithmConfig):
    """Settings of PPO with an archive.

    Attributes:
        walk_updates: PPO updates in each iteration; the policies between the minibatch steps of the last one
            are evaluated.
    """

    algorithm: ClassVar[str] = "ppo-archive"


class PPOArchive(PPO):
    """Walk on the reward, and evaluate the policies after all minibatch steps of the walk's last update."""

    summary = (
        "ablation: plain PPO, the policies between its minibatch steps archived (Batra et al., ICLR 2024)"
    )
    supports_analytic_problems = False
    problem: PPOProblem

    def cost(self) -> Cost:
        """Cost of an iteration."""
        ppo = self.config.ppo
        return self.problem.cost(ppo.epochs * ppo.minibatches, self.config.walk_updates)

    def iterate(self) -> dict[str, Any]:
        """Some updates, the last one recorded, then an evaluation."""
        weights = np.eye(1, 1 + len(self.problem.measure_names))[0]
        updates = self.config.walk_updates - 1
        with self.timed("walk"):
            if updates:
                self.problem_state, walked = self.problem.walk(
                    self.problem_state, weights, self.key("walk"), updates, scaled=False
                )
                self.count(walked)
            before, after, policies, recorded = self.problem.walk_recorded(
                self.problem_state, weights, self.key("last update"), first=not updates
            )
        self.count(recorded)
        self.problem_state = before  # with the normalizer of these policies
        scores = self.evaluate(policies)
        new_elites = self.add_elites(policies, scores)
        self.problem_state = after
        return {
            "new_elites": new_elites,
            "search_objective": float(scores.objective[-1]),
            "search_measures": scores.measures[-1].tolist(),
            **{f"walk_{name}": value for name, value in recorded.metrics.items()},
        }


def _with_archive(preset: Preset) -> Preset:
    """A preset of plain PPO for this ablation."""
    return replace(preset, config=PPOArchiveConfig(**vars(preset.config)))


LAPTOP = _with_archive(ppo.LAPTOP)
PRESETS = {
    "laptop": LAPTOP,
    "paper": _with_archive(ppo.PAPER),
    "smoke": smoke(LAPTOP, {"walk_updates": 1, **SMOKE_PPO}),
}
