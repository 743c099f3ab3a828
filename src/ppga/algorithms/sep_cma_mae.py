"""CMA-MAE with separable CMA-ES (Tjanaka et al., RA-L 2023): evolution in the space of all parameters."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from ribs.emitters import EvolutionStrategyEmitter

from ppga.algorithms.base import AlgorithmConfig, check_policies
from ppga.algorithms.emitters import EmitterAlgorithm, emitter_seed
from ppga.algorithms.presets import (
    CMA_MAE_THRESHOLDS,
    EVALUATIONS,
    HALFCHEETAH_THRESHOLD,
    SHORT_CONFIRMATION,
    Preset,
    smoke,
)  # fmt: skip
from ppga.archives import SoftArchiveConfig
from ppga.config import check_positive, check_whole, common
from ppga.errors import InputError
from ppga.problems import Cost, PolicyProblem, Problem, deterministic_actor
from ppga.rollouts import Executor
from ppga.search import ConfirmationConfig
from ppga.storage import NumpyArray
from ppga.tasks import Environment


@dataclass(frozen=True)
class SepCMAMAEConfig(AlgorithmConfig):
    """Settings of separable CMA-MAE.

    Attributes:
        archive: cells of the archive, and thresholds of the soft archive.
        batch_size: new policies in each iteration, over all emitters.
        emitters: number of emitters, each with its own separable CMA-ES.
        sigma0: initial step size of CMA-ES.
        same_start: begin with one random policy for all emitters; with one for each otherwise.
    """

    algorithm: ClassVar[str] = "sep-cma-mae"

    confirm: ConfirmationConfig | None = field(default_factory=lambda: SHORT_CONFIRMATION)
    archive: SoftArchiveConfig = field(default_factory=SoftArchiveConfig)
    batch_size: int = common(64)
    emitters: int = common(2)
    sigma0: float = common(0.02)
    same_start: bool = False

    def check(self, measures: int) -> None:
        """Raise an InputError for settings that cannot work for a task with that many measures."""
        super().check(measures)
        check_policies("batch_size", self.batch_size, least=2)
        check_whole("emitters", self.emitters)
        if self.batch_size // self.emitters < 2:
            raise InputError(
                f"--batch-size {self.batch_size} is divided among --emitters {self.emitters}; each needs at "
                "least 2 policies."
            )
        check_positive("sigma0", self.sigma0)


class SepCMAMAE(EmitterAlgorithm):
    """Separable CMA-ES emitters that maximize the improvement of the soft archive."""

    summary = (
        "CMA-MAE with separable CMA-ES, pyribs' emitters (Fontaine & Nikolaidis, 2023; Tjanaka et al., 2023)"
    )
    supports_analytic_problems = True
    config: SepCMAMAEConfig

    @classmethod
    def make_problem(
        cls, task: Environment, config: Any, executor: Executor | None, progress: Callable[[], None]
    ) -> Problem:
        """Policies without a learner."""
        actor = deterministic_actor(task, config.network.actor)
        return PolicyProblem(task, actor, executor=executor, progress=progress)

    def cost(self) -> Cost:
        """Cost of an iteration."""
        return Cost(self.config.batch_size)

    @property
    def emitter_count(self) -> int:
        """Number of emitters."""
        return self.config.emitters

    def first_solutions(self) -> NumpyArray:
        """Solutions (m, d) that the emitters start at."""
        solutions = super().first_solutions()
        return np.repeat(solutions[:1], len(solutions), axis=0) if self.config.same_start else solutions

    def make_emitters(self, x0: NumpyArray) -> list[Any]:
        """New emitters, one for each of the initial solutions (m, d)."""
        config = self.config
        return [
            EvolutionStrategyEmitter(
                self.soft,
                x0=solution,
                sigma0=config.sigma0,
                ranker="imp",
                es="sep_cma_es",
                selection_rule="mu",
                restart_rule="basic",
                batch_size=config.batch_size // config.emitters,
                seed=emitter_seed(config.seed, number),
            )
            for number, solution in enumerate(x0)
        ]

    def iterate(self) -> dict[str, Any]:
        """One generation."""
        with self.timed("ask"):
            offspring = np.concatenate([emitter.ask() for emitter in self.emitters])  # (n, d)
        scores = self.evaluate(offspring)
        with self.timed("archive"):
            added = self.soft.add(offspring, scores.objective, scores.measures)
        new_elites = self.add_elites(offspring, scores)
        with self.timed("tell"):
            self.tell(offspring, scores, added)
        return {
            "new_elites": new_elites,
            "soft_entries": int(added.entered.sum()),
            "step_size": [float(emitter._opt.sigma) for emitter in self.emitters],
        }


LAPTOP = Preset(SepCMAMAEConfig(), tasks={"halfcheetah": HALFCHEETAH_THRESHOLD})
PAPER = Preset(
    SepCMAMAEConfig(
        confirm=None,
        archive=SoftArchiveConfig(alpha=0.001, threshold_min=0.0),
        batch_size=200,
        emitters=5,
        same_start=True,
    ),
    EVALUATIONS,
    tasks=CMA_MAE_THRESHOLDS,
)
PRESETS = {"laptop": LAPTOP, "paper": PAPER, "smoke": smoke(LAPTOP, {"batch_size": 4})}
