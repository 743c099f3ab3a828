"""Proximal Policy Gradient Arborescence: Algorithm 1 of Batra et al., ICLR 2024.

Symbols of the paper: search policy theta_mu, objective f, k measures m, coefficients c (lambda, k+1).
The sections objective, phases, legs, noise and confirm are extensions, which the preset `paper` leaves out.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ppga import search
from ppga.algorithms.base import Algorithm, Component
from ppga.algorithms.ppga_config import PPGAConfig
from ppga.archives import EliteArchive, SoftArchive
from ppga.problems import Cost, GradientProblem, LearningReport, PPOProblem, unit_rows
from ppga.rollouts import Executor
from ppga.storage import NumpyArray
from ppga.strategies import make_strategy
from ppga.tasks import Environment


class PPGA(Algorithm):
    """Branch policies off a search policy along its gradients, and walk it where the archive improves."""

    summary = "Proximal Policy Gradient Arborescence (Batra et al., ICLR 2024)"
    supports_formulas = True
    problem: GradientProblem
    config: PPGAConfig

    def __init__(self, problem: GradientProblem, config: PPGAConfig, elites: EliteArchive) -> None:
        super().__init__(problem, config, elites)
        self.soft = SoftArchive(elites, config.archive)
        self.gradient_count = self.count_gradients(len(problem.measure_names))
        self.strategy = make_strategy(config.strategy, self.gradient_count, config.branches, config.seed)
        self.reset_strategy("first mean, 0")
        self.rule = search.make_restart_rule(config.legs, config.phases)

    @classmethod
    def count_gradients(cls, measures: int) -> int:
        """Number of gradients to branch along: of the objective, and of each measure."""
        return 1 + measures

    @classmethod
    def make_problem(
        cls, task: Environment, config: Any, executor: Executor | None, progress: Callable[[], None]
    ) -> GradientProblem:
        """VPPO estimates the Jacobian and walks."""
        rows, sample = cls.count_gradients(len(task.measure_names)), config.evaluation.actions == "sample"
        return PPOProblem(task, config.ppo, config.network, sample, executor, progress, rows)

    def cost(self) -> Cost:
        """Cost of an iteration."""
        config = self.config
        return self.problem.cost(1 + config.branches, config.jacobian_updates + config.walk_updates)

    def iterate(self) -> dict[str, Any]:
        """One pass of the loop of Algorithm 1."""
        config, problem, strategy = self.config, self.problem, self.strategy
        # Estimate the gradients of f and m at the search policy by N1 updates, and normalize them.
        with self.timed("jacobian"):
            self.problem_state, jacobian, learned = problem.jacobian(
                self.problem_state, self.key("jacobian"), config.jacobian_updates
            )
        self.count(learned)
        directions, lengths = unit_rows(jacobian[: self.gradient_count])  # (k+1, d), (k+1,)

        # Branch: theta_i = theta_mu + c_i . (grad f, grad m) with c_i ~ N(mu, Sigma).
        theta = problem.solution(self.problem_state)[None]  # (1, d)
        coefficients = strategy.ask()  # (lambda, k+1)
        branches = theta + (coefficients @ directions).astype(theta.dtype)  # (lambda, d)

        # Evaluate the search policy and its branches, and update the archives.
        solutions = np.concatenate([theta, branches])
        scores = self.evaluate(solutions)
        with self.timed("archive"):
            own = self.soft.add(theta, scores.objective[:1], scores.measures[:1])
            added = self.soft.add(branches, scores.objective[1:], scores.measures[1:])
        new_elites = self.add_elites(solutions, scores)

        # Rank the branches by their improvement of the archive, and adapt N(mu, Sigma).
        ranking = search.ranked(added.improvement)
        strategy.tell(ranking, added.improvement)

        # Walk: N2 updates of the search policy on mu . (f, m), unless no branch entered the soft archive.
        self.rule.update(self.iteration, bool(added.entered.any()), new_elites)
        self.adapt_exploration_noise(new_elites)
        walked = LearningReport()
        if self.rule.may_walk():
            with self.timed("walk"):
                self.problem_state, walked = self.move(branches[ranking])
            self.count(walked)
        names = problem.measure_names
        self.warnings += search.search_warnings(strategy, config.strategy.sigma0, lengths, names)
        record = {
            "new_elites": new_elites,
            "soft_entries": int(own.entered.sum() + added.entered.sum()),
            "search_objective": float(scores.objective[0]),
            "search_measures": scores.measures[0].tolist(),
            "strategy_mean": strategy.mean.tolist(),
            "strategy_scale": strategy.scale,
            "jacobian_lengths": lengths.tolist(),
            **{f"jacobian_{name}": value for name, value in learned.metrics.items()},
            **{f"walk_{name}": value for name, value in walked.metrics.items()},
        }

        # Restart at an elite if no branch entered the soft archive, or if N(mu, Sigma) has degenerated.
        if self.rule.resets_strategy(self.iteration):
            self.reset_strategy("mean after the reward, 0")
        if self.rule.due() or strategy.check_stop(added.improvement[ranking]):
            self.restart()
        return record

    def adapt_exploration_noise(self, new_elites: int) -> None:
        """Scale the exploration noise by the number of new elites, if that is configured."""
        if (noise := self.config.noise) is not None:
            factor = search.noise_factor(noise, new_elites, self.config.branches)
            limits, scale = (noise.min_std, noise.max_std), self.problem.scale_exploration_noise
            self.problem_state = scale(self.problem_state, factor, *limits)

    def move(self, branches: NumpyArray) -> tuple[Any, LearningReport]:
        """The problem's state after a walk, or after a recombination of the branches (n, d), best first."""
        config, problem, state, key = self.config, self.problem, self.problem_state, self.key("walk")
        reward_only = self.rule.reward_only(self.iteration)
        if config.step == "recombination" and not reward_only:
            return problem.place(state, search.recombined_mean(branches), key)
        updates = self.rule.walk_updates(self.iteration, config.walk_updates)
        used = search.walk_weights(self.strategy.mean, config.objective, reward_only)
        weights = np.pad(used, (0, 1 + len(problem.measure_names) - len(used)))  # (k+1,)
        scaled = config.objective is not None and config.objective.scaling == "scaled"
        return problem.walk(state, weights, key, updates, scaled)

    def restart(self) -> None:
        """Restart the search policy at an elite, and the search distribution."""
        self.restarts += 1  # names the random streams: an iteration may have several restarts
        self.reset_strategy(f"mean of restart {self.restarts}, 0")
        self.rule.restarted()
        if not self.elites.empty:
            elite = self.rule.elite(self.elites, self.generator(f"elite of restart {self.restarts}"))
            key = self.key(f"restart {self.restarts}")
            self.problem_state = self.problem.restart(self.problem_state, elite, key)

    def reset_strategy(self, stream: str) -> None:
        """Reset the search distribution; the stream draws a random mean; its 0 numbers the search policy."""
        self.strategy.reset(self.config.strategy.initial_mean(self.gradient_count, self.generator(stream)))

    def components(self) -> dict[str, Component]:
        """Parts with a state of their own."""
        own: dict[str, Component] = {"soft": self.soft, "strategy": self.strategy, "restart_rule": self.rule}
        return super().components() | own
