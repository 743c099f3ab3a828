"""Plain PPO on the reward: what one search policy reaches when nothing branches off it."""

from typing import Any

import jax
import numpy as np

from ppga.algorithms.base import Algorithm


class PPO(Algorithm):
    """Walk on the reward alone; judge the policy now and then."""

    name = "ppo"
    summary = "plain PPO (Schulman et al., 2017), judged after every walk"
    takes_gradients = False

    def iterate(self) -> dict[str, Any]:
        """Some updates, then a judgement."""
        walk_key, judge_key, confirm_key = jax.random.split(self.key(), 3)
        m, k = self.config.emitters, len(self.problem.measure_names)
        weights = np.zeros((m, 1 + k))
        weights[:, 0] = 1.0
        with self.phase("walk"):
            updates = self.config.first_updates or self.config.walk_updates
            self.search, walked = self.problem.walk(self.search, weights, walk_key, updates)
        self.count(walked)
        theta = self.problem.solutions(self.search)[:, None]
        with self.phase("judge"):
            judged = self.problem.judge(self.search, theta, judge_key)
        self.count(judged)
        with self.phase("archive"):
            guidance = self.guide(theta, judged, np.arange(m)[:, None])
        return {
            "new_elites": int(self.keep(theta, judged, confirm_key).sum()),
            "soft_new": int(guidance.entered.sum()),
            "search_objective": judged.objective.tolist(),
            "search_measures": judged.measures.tolist(),
            **{f"walk_{name}": value for name, value in walked.metrics.items()},
        }
