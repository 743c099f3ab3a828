"""PPO with an archive: an ablation of Batra et al., ICLR 2024. Nothing looks for diversity; what PPO passes
through is judged.
"""

from typing import Any

import numpy as np

from ppga.algorithms.policy_search import PolicySearch
from ppga.algorithms.ppo import PPO


class PPOArchive(PPO):
    """Walk on the reward; judge the policies between the minibatch steps of the walk's last update."""

    name = "ppo-archive"
    summary = (
        "ablation: plain PPO, the policies between its minibatch steps archived (Batra et al., ICLR 2024)"
    )
    anywhere = False
    problem: PolicySearch

    def judged(self) -> int:
        """As many as there are minibatch steps in an update, or branches if those are fewer."""
        ppo = self.problem.ppo
        return min(ppo.epochs * ppo.minibatches, self.config.branches)

    def iterate(self) -> dict[str, Any]:
        """Some updates, the last one step by step, then a judgement."""
        weights = np.zeros((self.config.emitters, 1 + len(self.problem.measure_names)))
        weights[:, 0] = 1.0
        alone = self.config.walk_updates == 1
        with self.phase("walk"):
            if not alone:
                self.search, walked = self.problem.walk(
                    self.search, weights, self.key("walk"), self.config.walk_updates - 1
                )
                self.count(walked)
            before, after, way, watched = self.problem.watch(
                self.search, weights, self.key("last update"), alone
            )
        self.count(watched)
        # evenly spaced, the last one among them
        chosen = np.linspace(way.shape[1] - 1, 0, self.judged()).round().astype(int)[::-1]
        passed = way[:, chosen]
        self.search = before
        judged = self.judge(passed, self.key("evaluate"))
        new_elites = self.keep(passed, judged, self.key("confirm"))
        self.search = after
        last = (1 + np.arange(len(passed))) * len(chosen) - 1
        return {
            "new_elites": int(new_elites.sum()),
            "search_objective": judged.objective[last].tolist(),
            "search_measures": judged.measures[last].tolist(),
            **{f"walk_{name}": value for name, value in watched.metrics.items()},
        }
