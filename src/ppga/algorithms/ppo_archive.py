"""An ablation of Batra et al., ICLR 2024: PPO whose policies between minibatch steps are archived."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ppga.algorithms import ppo
from ppga.algorithms.ppga_config import SMOKE_PPO
from ppga.algorithms.ppo import PPO, PPOAlgorithmConfig
from ppga.algorithms.presets import Preset, smoke
from ppga.config import check_whole, common
from ppga.problems import Cost, PPOProblem


@dataclass(frozen=True)
class PPOArchiveConfig(PPOAlgorithmConfig):
    """Settings of PPO with an archive.

    Attributes:
        walk_updates: PPO updates in each iteration.
        recorded_updates: the last updates of a walk, of which the policies after all minibatch steps are
            evaluated.
    """

    algorithm: ClassVar[str] = "ppo-archive"

    recorded_updates: int = common(1)

    def check(self, measures: int) -> None:
        """Raise an InputError for settings that cannot work for a task with that many measures."""
        super().check(measures)
        check_whole("recorded_updates", self.recorded_updates, most=self.walk_updates)


class PPOArchive(PPO):
    """Walk on the reward, and evaluate the policies after all minibatch steps of its last updates."""

    summary = (
        "ablation: plain PPO, the policies between its minibatch steps archived (Batra et al., ICLR 2024)"
    )
    supports_analytic_problems = False
    problem: PPOProblem
    config: PPOArchiveConfig

    def cost(self) -> Cost:
        """Cost of an iteration."""
        ppo = self.config.ppo
        policies = self.config.recorded_updates * ppo.epochs * ppo.minibatches
        return self.problem.cost(policies, self.config.walk_updates)

    def iterate(self) -> dict[str, Any]:
        """Some updates, the last ones recorded, each of which is followed by an evaluation."""
        weights = np.eye(1, 1 + len(self.problem.measure_names))[0]
        recorded = self.config.recorded_updates
        updates = self.config.walk_updates - recorded
        if updates:
            with self.timed("walk"):
                self.problem_state, walked = self.problem.walk(
                    self.problem_state, weights, self.key("walk"), updates, scaled=False
                )
            self.count(walked)
        new_elites = 0
        for number in range(recorded):
            with self.timed("walk"):
                before, after, policies, walked = self.problem.walk_recorded(
                    self.problem_state, weights, self.key(f"update {number}"), first=updates + number == 0
                )
            self.count(walked)
            self.problem_state = before  # with the normalizer of these policies
            scores = self.evaluate(policies, f"evaluate {number}")
            new_elites += self.add_elites(policies, scores, f"confirm {number}")
            self.problem_state = after
        return {
            "new_elites": new_elites,
            "search_objective": float(scores.objective[-1]),
            "search_measures": scores.measures[-1].tolist(),
            **{f"walk_{name}": value for name, value in walked.metrics.items()},
        }


def _with_archive(preset: Preset) -> Preset:
    """A preset of plain PPO for this ablation."""
    return replace(preset, config=PPOArchiveConfig(**vars(preset.config)))


LAPTOP, PAPER = _with_archive(ppo.LAPTOP), _with_archive(ppo.PAPER)
PRESETS = {
    "laptop": LAPTOP,
    "paper": replace(PAPER, config=PAPER.config.replace(recorded_updates=10)),
    "smoke": smoke(LAPTOP, {"walk_updates": 1, **SMOKE_PPO}),
}
