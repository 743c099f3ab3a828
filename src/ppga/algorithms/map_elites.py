"""MAP-Elites (Mouret & Clune, 2015) with iso+line variation (Vassiliades & Mouret, 2018), a baseline."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from ribs.emitters.operators import IsoLineOperator

from ppga import random
from ppga.algorithms.base import Algorithm, AlgorithmConfig, check_policies
from ppga.algorithms.presets import EVALUATIONS, SHORT_CONFIRMATION, Preset, smoke
from ppga.config import check_range, common
from ppga.problems import Cost, PolicyProblem, Problem, deterministic_actor
from ppga.rollouts import Executor
from ppga.search import ConfirmationConfig
from ppga.storage import NumpyArray
from ppga.tasks import Environment


@dataclass(frozen=True)
class VariationConfig:
    """Iso+line variation of elites.

    Attributes:
        iso_sigma: standard deviation of the noise in each parameter.
        line_sigma: standard deviation of the step along the line to another elite, relative to its length.
    """

    iso_sigma: float = common(0.005)
    line_sigma: float = common(0.05)

    def check(self) -> None:
        """Raise an InputError for values that cannot work."""
        check_range("variation.iso_sigma", self.iso_sigma)
        check_range("variation.line_sigma", self.line_sigma)


@dataclass(frozen=True)
class MAPElitesConfig(AlgorithmConfig):
    """Settings of MAP-Elites.

    Attributes:
        batch_size: new policies in each iteration.
        variation: how elites are varied.
    """

    algorithm: ClassVar[str] = "map-elites"

    confirm: ConfirmationConfig | None = field(default_factory=lambda: SHORT_CONFIRMATION)
    batch_size: int = common(64)
    variation: VariationConfig = field(default_factory=VariationConfig)

    def check(self, measures: int) -> None:
        """Raise an InputError for settings that cannot work for a task with that many measures."""
        super().check(measures)
        check_policies("batch_size", self.batch_size, least=2)


class MAPElites(Algorithm):
    """Vary elites, evaluate the offspring, and keep whatever is better than the elite of its cell."""

    summary = "MAP-Elites with iso+line variation (Mouret & Clune, 2015; Vassiliades & Mouret, 2018)"
    supports_analytic_problems = True
    problem: Problem
    config: MAPElitesConfig

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

    def iterate(self) -> dict[str, Any]:
        """One generation."""
        with self.timed("vary"):
            offspring = self.offspring()  # (n, d)
        scores = self.evaluate(offspring)
        new_elites = self.add_elites(offspring, scores)
        with self.timed("learn"):
            learned = self.learn()
        return {"new_elites": new_elites, **learned}

    def offspring(self) -> NumpyArray:
        """New solutions (n, d)."""
        n = self.config.batch_size
        return self.problem.random(self.key("offspring"), n) if self.elites.empty else self.iso_line(n)

    def learn(self) -> dict[str, Any]:
        """Train on the replay buffer and return metrics; here there is no learner."""
        return {}

    def sample(self, n: int, stream: str) -> dict[str, NumpyArray]:
        """Elites (n, ...), each occupied cell equally likely, drawn from a named random stream."""
        return self.elites.sample(self.generator(stream), n)

    def iso_line(self, n: int) -> NumpyArray:
        """Elites (n, d) varied by iso+line."""
        streams = ("first parents", "second parents")
        return self.vary(np.stack([self.sample(n, stream)["solution"] for stream in streams]))

    def vary(self, parents: NumpyArray) -> NumpyArray:
        """Children (n, d) of parents (2, n, d)."""
        config = self.config.variation
        seed: Any = np.random.SeedSequence(random.entropy(self.config.seed, self.iteration, "variation"))
        children: NumpyArray = IsoLineOperator(config.iso_sigma, config.line_sigma, seed).ask(parents)
        return children


LAPTOP = Preset(MAPElitesConfig())
PAPER = Preset(MAPElitesConfig(confirm=None, batch_size=100), EVALUATIONS)
PRESETS = {"laptop": LAPTOP, "paper": PAPER, "smoke": smoke(LAPTOP, {"batch_size": 4})}
