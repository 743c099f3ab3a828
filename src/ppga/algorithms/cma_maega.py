"""CMA-MAEGA (TD3, ES) (Tjanaka et al., GECCO 2022; Fontaine & Nikolaidis, 2023): gradient arborescence where
TD3 tells how the reward changes, and an evolution strategy how the measures do.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from ribs.emitters import GradientArborescenceEmitter
from scipy.stats import rankdata

from ppga.algorithms.base import Cost, SearchConfig
from ppga.algorithms.emitters import WithEmitters, number_of
from ppga.algorithms.off_policy import OffPolicy
from ppga.algorithms.problem import Judgement, Problem
from ppga.storage import NumpyArray
from ppga.tasks import Environment


class CMAMAEGA(WithEmitters):
    """Branch off a search policy along gradients; step to where the best branches are."""

    name = "cma-maega-td3-es"
    summary = "CMA-MAEGA, reward by TD3 and measures by OpenAI-ES (Tjanaka et al., GECCO 2022)"
    sections: ClassVar[tuple[str, ...]] = ("td3",)
    soft = True
    anywhere = False
    problem: OffPolicy

    @classmethod
    def on(cls, task: Environment, config: Any, progress: Callable[[], None]) -> Problem:
        """TD3 learns the reward."""
        search = config.search
        judged = search.emitters * (2 + search.es_samples + branched(search))
        weights = np.eye(1, 1 + len(task.measure_names))
        return OffPolicy(task, search, config.td3, config.network, judged, weights, progress)

    def cost(self) -> Cost:
        """What an iteration takes."""
        config = self.config
        policies = config.emitters * (2 + config.es_samples + branched(config))
        return self.problem.cost(policies, self.problem.td3.config.critic_steps)

    def make_emitters(self, first: NumpyArray) -> list[Any]:
        """One for each search policy."""
        return [
            GradientArborescenceEmitter(
                self.archives.soft,
                x0=place,
                sigma0=self.config.sigma0,
                lr=1.0,
                ranker="imp",
                grad_opt="gradient_ascent",
                selection_rule="mu",
                restart_rule="basic",  # as pyribs' example: only when CMA-ES has nothing left to adapt
                normalize_grad=True,
                batch_size=branched(self.config),
                seed=number_of(self.seed, number),
            )
            for number, place in enumerate(first)
        ]

    def iterate(self) -> dict[str, Any]:
        """Gradients, branches, archive, adaptation and step."""
        theta = np.concatenate([emitter.ask_dqd() for emitter in self.emitters])  # (m, d)
        noise = mirrored(self.generator("samples"), len(theta), self.config.es_samples, theta.shape[1])
        samples = (theta[:, None] + self.config.es_sigma * noise).astype(np.float32)
        around = self.judge(samples, self.key("evaluate samples"))
        with self.phase("archive"):
            sampled = self.guide(samples, around, _rows(samples))
        new_elites = self.keep(samples, around, self.key("confirm samples"))

        with self.phase("learn"):
            self.search, learnt = self.problem.learn(self.search, self.key("learn"))
            rewards = [
                self.problem.gradient(self.search, 0, place, self.key(f"gradient {number}"))
                for number, place in enumerate(theta)
            ]
        self.count(learnt)
        jacobian = np.concatenate([np.stack(rewards)[:, None], self.measure_gradients(noise, around)], axis=1)

        jacobian = np.nan_to_num(jacobian, posinf=0.0, neginf=0.0)
        for emitter, place, gradients in zip(self.emitters, theta, jacobian, strict=True):
            self.tell_gradients(emitter, place, gradients)
        branches = np.stack([emitter.ask() for emitter in self.emitters])  # (m, n, d)
        greedy = np.broadcast_to(self.problem.greedy(self.search), theta.shape)  # one is judged m times
        everyone = np.concatenate([theta[:, None], greedy[:, None], branches], axis=1).astype(np.float32)
        judged = self.judge(everyone, self.key("evaluate"))
        rows = _rows(everyone)
        with self.phase("archive"):
            others = self.guide(everyone[:, :2], judged, rows[:, :2])
            guidance = self.guide(everyone[:, 2:], judged, rows[:, 2:])
        new_elites = new_elites + self.keep(everyone, judged, self.key("confirm"))
        with self.phase("tell"):
            self.tell(everyone[:, 2:], judged, rows[:, 2:], guidance)
        return {
            "new_elites": int(new_elites.sum()),
            "soft_new": int(sum(one.entered.sum() for one in (sampled, others, guidance))),
            "search_objective": judged.objective[rows[:, 0]].tolist(),
            "search_measures": judged.measures[rows[:, 0]].tolist(),
            "greedy_objective": judged.objective[rows[:, 1]].tolist(),
            "step_size": [float(emitter._opt.sigma) for emitter in self.emitters],
            **learnt.metrics,
        }

    def measure_gradients(self, noise: NumpyArray, seen: Judgement) -> NumpyArray:
        """How each measure changes (m, k, d), by those around the search policies."""
        m, n, _ = noise.shape
        measures = seen.measures.reshape(m, n, -1)
        ranks = rankdata(np.nan_to_num(measures, nan=0.0), axis=1)  # of equals, the mean: no direction
        centred = (ranks - 1) / (n - 1) - 0.5
        return np.asarray(np.einsum("mnk,mnd->mkd", centred, noise) / (n * self.config.es_sigma))

    def tell_gradients(self, emitter: Any, theta: NumpyArray, jacobian: NumpyArray) -> None:
        """Tell an emitter the gradients (k+1, d) at its search policy; it looks at nothing else."""
        emitter.tell_dqd(
            solution=theta[None],
            objective=np.zeros(1),
            measures=np.array(self.problem.measure_ranges).mean(axis=1)[None],
            jacobian=jacobian[None],
            add_info={"status": np.zeros(1, np.int32), "value": np.zeros(1, np.float32)},
        )


def branched(config: SearchConfig) -> int:
    """Policies that branch off each search policy: TD3's greedy actor takes the place of one."""
    return max(2, config.branches - 1)  # CMA-ES ranks two at least


def _rows(solutions: NumpyArray) -> NumpyArray:
    """Where solutions (m, n, d) are in their judgement, (m, n)."""
    m, n, _ = solutions.shape
    return np.arange(m * n).reshape(m, n)


def mirrored(draws: np.random.Generator, m: int, n: int, d: int) -> NumpyArray:
    """Noise (m, n, d), the second half of it the first with the other sign."""
    half = draws.standard_normal((m, n // 2, d), np.float32)
    return np.concatenate([half, -half], axis=1)
