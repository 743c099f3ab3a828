"""MAP-Elites (Mouret & Clune, 2015) with iso+line variation (Vassiliades & Mouret, 2018): everyone's zero
line.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from ribs.emitters.operators import IsoLineOperator

from ppga import random
from ppga.algorithms.base import Algorithm
from ppga.algorithms.policy_problem import PolicyProblem
from ppga.algorithms.problem import Problem
from ppga.networks import Network
from ppga.storage import NumpyArray
from ppga.tasks import Environment


class MAPElites(Algorithm):
    """Vary elites, judge what comes of it, keep what is better."""

    name = "map-elites"
    summary = "MAP-Elites with iso+line variation (Mouret & Clune, 2015; Vassiliades & Mouret, 2018)"

    alone = True

    @classmethod
    def on(cls, task: Environment, config: Any, progress: Callable[[], None]) -> Problem:
        """Nobody learns."""
        return PolicyProblem(task, config.search, deterministic_actor(task, config.network.actor), progress)

    def iterate(self) -> dict[str, Any]:
        """One generation."""
        with self.phase("vary"):
            offspring = self.offspring(self.key("offspring"))[None]  # (1, n, d)
        judged = self.judge(offspring, self.key("evaluate"))
        new_elites = self.keep(offspring, judged, self.key("confirm"))
        with self.phase("learn"):
            learnt = self.learn(self.key("learn"))
        return {"new_elites": int(new_elites.sum()), **learnt}

    def offspring(self, key: jax.Array) -> NumpyArray:
        """New solutions (n, d)."""
        if self.archives.result.empty:
            return self.problem.random(key, self.config.branches)
        return self.iso_line(self.config.branches)

    def learn(self, key: jax.Array) -> dict[str, Any]:  # noqa: ARG002
        """What a learner does with the experience; here there is none."""
        return {}

    def elites(self, n: int, stream: str) -> NumpyArray:
        """Solutions (n, d) of elites, every filled cell as likely, drawn by a named random stream."""
        return self.archives.random_elites(self.generator(stream), n)["solution"]

    def iso_line(self, n: int) -> NumpyArray:
        """Elites moved a little, and along the line to another: (n, d)."""
        return self.vary(np.stack([self.elites(n, "first parents"), self.elites(n, "second parents")]))

    def vary(self, parents: NumpyArray) -> NumpyArray:
        """Children (n, d) of parents (2, n, d)."""
        seed: Any = np.random.SeedSequence(random.entropy(self.seed, self.iteration, "variation"))
        return np.asarray(IsoLineOperator(self.config.iso_sigma, self.config.line_sigma, seed).ask(parents))


def deterministic_actor(task: Environment, hidden: tuple[int, ...]) -> Network:
    """A network that gives actions within [-1, 1]."""
    return Network((task.observation_size, *hidden, task.action_size), head="tanh")
