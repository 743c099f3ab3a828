"""Algorithms that search with pyribs' emitters on the soft archive: CMA-MAE and CMA-MAEGA."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ppga import random
from ppga.algorithms.base import Algorithm, AlgorithmConfig, Component
from ppga.archives import EliteArchive, RibsSoftArchive, SoftAddition
from ppga.problems import Evaluation
from ppga.storage import NumpyArray
from ppga.strategies.ribs_state import RibsState


class EmitterAlgorithm(Algorithm):
    """Base class of algorithms that tell pyribs' emitters the improvement of the soft archive."""

    soft_archive = RibsSoftArchive
    soft: RibsSoftArchive

    def __init__(self, problem: Any, config: AlgorithmConfig, elites: EliteArchive) -> None:
        super().__init__(problem, config, elites)
        self.emitters = self.make_emitters(np.zeros((self.emitter_count, problem.solution_size), np.float32))

    @property
    def emitter_count(self) -> int:
        """Number of emitters."""
        return 1

    def make_emitters(self, x0: NumpyArray) -> list[Any]:
        """New emitters, one for each of the initial solutions (m, d)."""
        raise NotImplementedError

    def start(self, elites: Mapping[str, NumpyArray] | None = None) -> None:
        """Start at random solutions."""
        super().start(elites)
        self.emitters = self.make_emitters(self.first_solutions())

    def first_solutions(self) -> NumpyArray:
        """Solutions (m, d) that the emitters start at, random ones."""
        return np.asarray(self.problem.random(self.key("first solutions"), self.emitter_count))

    def tell(self, solutions: NumpyArray, scores: Evaluation, added: SoftAddition) -> None:
        """Tell every emitter the results of its solutions.

        Emitters need scores of all their solutions: one whose scores are not finite gets an improvement below
        all finite ones, and measures in the middle of their ranges.

        Args:
            solutions: (m n, d), n of each of m emitters, one emitter after the other.
            scores: their evaluation.
            added: what adding them to the soft archive gave.
        """
        finite = np.isfinite(added.improvement)
        worst = added.improvement[finite].min(initial=0.0) - 1.0
        middle = np.array(self.problem.measure_ranges, np.float32).mean(axis=1)
        rows = {
            "solution": solutions,
            "objective": np.where(finite, scores.objective, scores.objective[finite].min(initial=0.0)),
            "measures": np.where(finite[:, None], scores.measures, middle),
        }
        info = {
            "status": added.entered.astype(np.int32),
            "value": np.where(finite, added.improvement, worst),
        }
        restarts = sum(emitter.restarts for emitter in self.emitters)
        # the archive draws the solution that an emitter restarts at
        self.soft.reseed(random.entropy(self.config.seed, self.iteration, "restart"))
        n = len(solutions) // len(self.emitters)
        for number, emitter in enumerate(self.emitters):
            part = slice(number * n, (number + 1) * n)
            emitter.tell(
                **{name: values[part] for name, values in rows.items()},
                add_info={name: values[part] for name, values in info.items()},
            )
        self.restarts += sum(emitter.restarts for emitter in self.emitters) - restarts

    def components(self) -> dict[str, Component]:
        """Parts with a state of their own."""
        emitters = {f"emitter/{number}": RibsState(emitter) for number, emitter in enumerate(self.emitters)}
        return super().components() | {"soft": self.soft} | emitters


def emitter_seed(seed: int, emitter: int) -> int:
    """Seed of an emitter."""
    return int(np.random.SeedSequence([seed, emitter]).generate_state(1)[0])
