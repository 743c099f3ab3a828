"""CMA-MAEGA (TD3, ES) (Tjanaka et al., GECCO 2022; Fontaine & Nikolaidis, 2023).

Gradient arborescence where TD3 estimates the gradient of the reward, and OpenAI-ES those of the measures.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from ribs.emitters import GradientArborescenceEmitter
from scipy.stats import rankdata

from ppga.algorithms.base import AlgorithmConfig, check_policies, most_episodes
from ppga.algorithms.emitters import EmitterAlgorithm, emitter_seed
from ppga.algorithms.presets import (
    CMA_MAE_THRESHOLDS,
    EVALUATIONS,
    HALFCHEETAH_THRESHOLD,
    LAPTOP_CRITIC_STEPS,
    LAPTOP_CRITICS,
    LAPTOP_TD3,
    PAPER_CRITICS,
    SHORT_CONFIRMATION,
    SMOKE_TD3,
    Preset,
    smoke,
)
from ppga.archives import SoftArchiveConfig
from ppga.config import check_positive, check_whole, common
from ppga.errors import InputError
from ppga.learners.td3 import TD3Config
from ppga.problems import Cost, Evaluation, NetworkConfig, OffPolicyProblem
from ppga.rollouts import Executor
from ppga.search import ConfirmationConfig
from ppga.storage import NumpyArray
from ppga.tasks import Environment


@dataclass(frozen=True)
class ESConfig:
    """OpenAI-ES, which estimates the gradients of the measures.

    Attributes:
        samples: policies around the search policy, in mirrored pairs.
        sigma: standard deviation of their parameters.
        insert: add these policies to the archives.
    """

    samples: int = common(32)
    sigma: float = 0.02
    insert: bool = True

    def check(self) -> None:
        """Raise an InputError for values that cannot work."""
        check_policies("es.samples", self.samples, least=2)
        if self.samples % 2:
            raise InputError(f"--es.samples must be even (mirrored pairs), got {self.samples}.")
        check_positive("es.sigma", self.sigma)


@dataclass(frozen=True)
class CMAMAEGAConfig(AlgorithmConfig):
    """Settings of CMA-MAEGA (TD3, ES).

    Attributes:
        archive: cells of the archive, and thresholds of the soft archive.
        branches: policies evaluated in each iteration besides the search policy and those of OpenAI-ES:
            branches, and TD3's greedy actor.
        sigma0: initial step size of CMA-ES over the gradient coefficients.
        es: estimate of the measures' gradients.
        critic_steps: gradient steps of the critics and their greedy actor per iteration.
        gradient_batches: batches of transitions that the gradient of the reward is averaged over.
        td3: the learner of the reward's gradient.
    """

    algorithm: ClassVar[str] = "cma-maega-td3-es"

    confirm: ConfirmationConfig | None = field(default_factory=lambda: SHORT_CONFIRMATION)
    archive: SoftArchiveConfig = field(default_factory=SoftArchiveConfig)
    network: NetworkConfig = field(default_factory=lambda: LAPTOP_CRITICS)
    branches: int = common(32)
    sigma0: float = common(1.0)
    es: ESConfig = field(default_factory=ESConfig)
    critic_steps: int = common(LAPTOP_CRITIC_STEPS)
    gradient_batches: int = 16
    td3: TD3Config = field(default_factory=lambda: LAPTOP_TD3)

    def check(self, measures: int) -> None:
        """Raise an InputError for settings that cannot work for a task with that many measures."""
        super().check(measures)
        check_policies("branches", self.branches, least=3)
        check_positive("sigma0", self.sigma0)
        check_whole("gradient_batches", self.gradient_batches)
        self.td3.check_steps("critic_steps", self.critic_steps)


class CMAMAEGA(EmitterAlgorithm):
    """Branch off a search policy along gradients, and move it toward the best branches."""

    summary = "CMA-MAEGA, reward by TD3 and measures by OpenAI-ES (Tjanaka et al., GECCO 2022)"
    problem: OffPolicyProblem
    config: CMAMAEGAConfig

    @classmethod
    def make_problem(
        cls, task: Environment, config: Any, executor: Executor | None, progress: Callable[[], None]
    ) -> OffPolicyProblem:
        """TD3 learns the reward."""
        # the samples, and then the others, are added to the archive
        episodes = most_episodes(config, 1 + config.branches + config.es.samples, batches=2)
        weights = np.eye(1, 1 + len(task.measure_names))
        return OffPolicyProblem(task, config.td3, config.network, episodes, weights, executor, progress)

    def cost(self) -> Cost:
        """Cost of an iteration."""
        policies = 1 + self.config.branches + self.config.es.samples
        return self.problem.cost(policies, self.config.critic_steps)

    def make_emitters(self, x0: NumpyArray) -> list[Any]:
        """The emitter, at the initial solution (1, d)."""
        return [
            GradientArborescenceEmitter(
                self.soft,
                x0=x0[0],
                sigma0=self.config.sigma0,
                lr=1.0,
                ranker="imp",
                grad_opt="gradient_ascent",
                selection_rule="mu",
                restart_rule="basic",  # as in pyribs' example: only when CMA-ES has nothing left to adapt
                normalize_grad=True,
                batch_size=self.config.branches - 1,
                seed=emitter_seed(self.config.seed, 0),
            )
        ]

    def iterate(self) -> dict[str, Any]:
        """Gradients, branches, archive, adaptation and step."""
        (emitter,) = self.emitters
        theta = emitter.ask_dqd()  # (1, d)

        # Estimate the gradients of the measures by OpenAI-ES.
        noise = mirrored_noise(self.generator("samples"), self.config.es.samples, theta.shape[1])
        samples = (theta + self.config.es.sigma * noise).astype(np.float32)
        around = self.evaluate(samples, "evaluate samples")
        new_elites = entries = 0
        if self.config.es.insert:
            with self.timed("archive"):
                entries = self.soft.add(samples, around.objective, around.measures).entered.sum()
            new_elites = self.add_elites(samples, around, "confirm samples")
        measure_gradients = self.measure_gradients(noise, around)  # (k, d)

        # Estimate the gradient of the reward by TD3, and branch.
        with self.timed("learn"):
            self.problem_state, learned = self.problem.learn(
                self.problem_state, self.key("learn"), self.config.critic_steps
            )
            gradient = self.problem.gradient(
                self.problem_state, 0, theta[0], self.key("gradient"), self.config.gradient_batches
            )
        self.count(learned)
        jacobian = np.concatenate([gradient[None], measure_gradients])
        self.tell_gradients(theta, np.nan_to_num(jacobian, posinf=0.0, neginf=0.0))
        branches = emitter.ask()  # (n, d)

        # Evaluate the search policy, the greedy actor and the branches, and adapt.
        greedy = self.problem.greedy(self.problem_state)  # (1, d)
        solutions = np.concatenate([theta, greedy, branches]).astype(np.float32)
        scores = self.evaluate(solutions)
        with self.timed("archive"):
            own = self.soft.add(solutions[:2], scores.objective[:2], scores.measures[:2])
            added = self.soft.add(solutions[2:], scores.objective[2:], scores.measures[2:])
        new_elites += self.add_elites(solutions, scores)
        with self.timed("tell"):
            self.tell(solutions[2:], scores.rows(slice(2, None)), added)
        return {
            "new_elites": new_elites,
            "soft_entries": int(entries + own.entered.sum() + added.entered.sum()),
            "search_objective": float(scores.objective[0]),
            "search_measures": scores.measures[0].tolist(),
            "greedy_objective": float(scores.objective[1]),
            "step_size": [float(emitter._opt.sigma)],
            **learned.metrics,
        }

    def measure_gradients(self, noise: NumpyArray, scores: Evaluation) -> NumpyArray:
        """Gradients (k, d) of the measures, from the scores of policies with that noise (n, d)."""
        n = len(noise)
        ranks = rankdata(np.nan_to_num(scores.measures, nan=0.0), axis=0)  # equal measures give no direction
        centered = (ranks - 1) / (n - 1) - 0.5
        return np.asarray(np.einsum("nk,nd->kd", centered, noise) / (n * self.config.es.sigma))

    def tell_gradients(self, theta: NumpyArray, jacobian: NumpyArray) -> None:
        """Tell the emitter the gradients (k+1, d) at its search policy (1, d), all that it uses."""
        self.emitters[0].tell_dqd(
            solution=theta,
            objective=np.zeros(1),
            measures=np.array(self.problem.measure_ranges).mean(axis=1)[None],
            jacobian=jacobian[None],
            add_info={"status": np.zeros(1, np.int32), "value": np.zeros(1, np.float32)},
        )


def mirrored_noise(rng: np.random.Generator, n: int, d: int) -> NumpyArray:
    """Standard normal noise (n, d) whose second half is the negative of the first."""
    half = rng.standard_normal((n // 2, d), np.float32)
    return np.concatenate([half, -half])


LAPTOP = Preset(CMAMAEGAConfig(), tasks={"halfcheetah": HALFCHEETAH_THRESHOLD})
PAPER = Preset(
    CMAMAEGAConfig(
        confirm=None,
        archive=SoftArchiveConfig(alpha=0.01, threshold_min=0.0),
        network=PAPER_CRITICS,
        branches=99,
        es=ESConfig(samples=100, insert=False),
        critic_steps=600,
        gradient_batches=256,
        td3=TD3Config(),
    ),
    EVALUATIONS,
    tasks=CMA_MAE_THRESHOLDS,
)
PRESETS = {
    "laptop": LAPTOP,
    "paper": PAPER,
    "smoke": smoke(LAPTOP, {"branches": 4, "es.samples": 4, "critic_steps": 4, **SMOKE_TD3}),
}
