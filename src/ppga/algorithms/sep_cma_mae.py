"""CMA-MAE with separable CMA-ES (Tjanaka et al., RA-L 2023): evolution in the space of all parameters."""

from collections.abc import Callable
from typing import Any

import numpy as np
from ribs.emitters import EvolutionStrategyEmitter

from ppga.algorithms.emitters import WithEmitters, number_of
from ppga.algorithms.map_elites import deterministic_actor
from ppga.algorithms.policy_problem import PolicyProblem
from ppga.algorithms.problem import Problem
from ppga.storage import NumpyArray
from ppga.tasks import Environment


class SepCMAMAE(WithEmitters):
    """Separable CMA-ES emitters that climb what the soft archive gains."""

    name = "sep-cma-mae"
    soft = True
    summary = (
        "CMA-MAE with separable CMA-ES, pyribs' emitters (Fontaine & Nikolaidis, 2023; Tjanaka et al., 2023)"
    )

    @classmethod
    def on(cls, task: Environment, config: Any, progress: Callable[[], None]) -> Problem:
        """Nobody learns."""
        return PolicyProblem(task, config.search, deterministic_actor(task, config.network.actor), progress)

    def make_emitters(self, first: NumpyArray) -> list[Any]:
        """Each draws its share of the branches."""
        return [
            EvolutionStrategyEmitter(
                self.archives.soft,
                x0=place,
                sigma0=self.config.sigma0,
                ranker="imp",
                es="sep_cma_es",
                selection_rule="mu",
                restart_rule="basic",
                batch_size=max(2, self.config.branches // self.config.emitters),
                seed=number_of(self.seed, number),
            )
            for number, place in enumerate(first)
        ]

    def iterate(self) -> dict[str, Any]:
        """One generation."""
        with self.phase("ask"):
            offspring = np.stack([emitter.ask() for emitter in self.emitters])  # (m, n, d)
        judged = self.judge(offspring, self.key("evaluate"))
        with self.phase("archive"):
            rows = np.arange(offspring.shape[0] * offspring.shape[1]).reshape(offspring.shape[:2])
            guidance = self.guide(offspring, judged, rows)
        new_elites = self.keep(offspring, judged, self.key("confirm"))
        with self.phase("tell"):
            self.tell(offspring, judged, rows, guidance)
        return {
            "new_elites": int(new_elites.sum()),
            "soft_new": int(guidance.entered.sum()),
            "step_size": [float(emitter._opt.sigma) for emitter in self.emitters],
        }
