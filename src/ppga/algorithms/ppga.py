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
from ppga.problems import Cost, Evaluation, GradientProblem, LearningReport, PPOProblem, unit_rows
from ppga.rollouts import Executor
from ppga.storage import NumpyArray
from ppga.strategies import make_strategy
from ppga.tasks import Environment


class PPGA(Algorithm):
    """Branch policies off a search policy along its gradients, and walk it where the archive improves."""

    summary = "Proximal Policy Gradient Arborescence (Batra et al., ICLR 2024)"
    supports_analytic_problems = True
    problem: GradientProblem
    config: PPGAConfig
    soft: SoftArchive

    def __init__(self, problem: GradientProblem, config: PPGAConfig, elites: EliteArchive) -> None:
        super().__init__(problem, config, elites)
        self.gradient_count = self.count_gradients(len(problem.measure_names))
        self.strategy = make_strategy(config.strategy, self.gradient_count, config.branches, config.seed)
        self.reset_strategy("first mean")
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
        count, sample = cls.count_gradients(len(task.measure_names)), config.evaluation.actions == "sample"
        return PPOProblem(task, config.ppo, config.network, sample_actions=sample, executor=executor,
                          progress=progress, gradient_count=count)  # fmt: skip

    def cost(self) -> Cost:
        """Cost of an iteration."""
        config = self.config
        return self.problem.cost(1 + config.branches, config.jacobian_updates + config.walk_updates)

    def iterate(self) -> dict[str, Any]:
        """One pass of the loop of Algorithm 1."""
        # Estimate the gradients of f and m at the search policy by N1 updates, and normalize them.
        with self.timed("jacobian"):
            key, updates = self.key("jacobian"), self.config.jacobian_updates
            self.problem_state, jacobian, learned = self.problem.jacobian(self.problem_state, key, updates)
        self.count(learned)
        directions, lengths = unit_rows(jacobian[: self.gradient_count])  # (k+1, d), (k+1,)

        # Branch: theta_i = theta_mu + c_i . (grad f, grad m) with c_i ~ N(mu, Sigma).
        theta = self.problem.solution(self.problem_state)[None]  # (1, d)
        coefficients = self.strategy.ask()  # (lambda, k+1)
        branches = theta + (coefficients @ directions).astype(theta.dtype)  # (lambda, d)

        # Evaluate the search policy and its branches, and update the archives.
        solutions = np.concatenate([theta, branches])
        scores = self.evaluate(solutions)
        with self.timed("archive"):
            search_added = self.add_entries(theta, scores.rows(slice(1)))
            branches_added = self.add_entries(branches, scores.rows(slice(1, None)))
        new_elites = self.add_elites(solutions, scores)

        # Rank the branches by their improvement of the archive, and adapt N(mu, Sigma).
        ranking = search.ranked(branches_added.improvement)
        self.strategy.tell(ranking, branches_added.improvement)
        record = {"new_elites": new_elites, **self.metrics(scores, lengths, learned)}
        record["soft_entries"] = int(search_added.entered.sum() + branches_added.entered.sum())

        # If a branch entered the soft archive, walk: N2 updates of the search policy on mu . (f, m).
        self.adapt_exploration_noise(new_elites)
        self.rule.update(self.iteration, bool(branches_added.entered.any()), new_elites)
        if self.rule.should_walk(self.iteration):
            with self.timed("walk"):
                self.problem_state, walked = self.step_search_policy(branches[ranking])
            self.count(walked)
            record |= {f"walk_{name}": value for name, value in walked.metrics.items()}
        if self.rule.resets_strategy(self.iteration):
            self.reset_strategy("mean after the reward")
        # Otherwise, or if N(mu, Sigma) has degenerated, restart at a policy of an archive.
        if self.rule.due(self.iteration) or self.strategy.check_stop(branches_added.improvement[ranking]):
            self.restart()
        return record

    def metrics(self, scores: Evaluation, lengths: NumpyArray, learned: LearningReport) -> dict[str, Any]:
        """Metrics of search policy, gradients of these lengths (k+1,) and strategy; also adds warnings."""
        strategy, sigma0 = self.strategy, self.config.strategy.sigma0
        self.warnings += search.search_warnings(strategy, sigma0, lengths, self.problem.measure_names)
        return {
            "search_objective": float(scores.objective[0]),
            "search_measures": scores.measures[0].tolist(),
            "strategy_mean": strategy.mean.tolist(),
            "strategy_scale": strategy.scale,
            "jacobian_lengths": lengths.tolist(),
            **{f"jacobian_{name}": value for name, value in learned.metrics.items()},
        }

    def adapt_exploration_noise(self, new_elites: int) -> None:
        """Scale the exploration noise by the number of new elites, if that is configured."""
        if (noise := self.config.noise) is not None:
            factor = search.noise_factor(noise, new_elites, self.config.branches)
            limits, scale = (noise.min_std, noise.max_std), self.problem.scale_exploration_noise
            self.problem_state = scale(self.problem_state, factor, *limits)

    def step_search_policy(self, branches: NumpyArray) -> tuple[Any, LearningReport]:
        """The problem's state after a walk, or after a recombination of the branches (n, d), best first."""
        config, problem, state, key = self.config, self.problem, self.problem_state, self.key("walk")
        reward_only = self.rule.reward_only(self.iteration)
        if config.step == "recombination" and not reward_only:
            return problem.place(state, search.recombined_mean(branches), key)
        updates = self.rule.walk_updates(self.iteration, config.walk_updates)
        scaled = config.objective is not None and config.objective.scaling == "scaled"
        weights = search.walk_weights(self.strategy.mean, config.objective, reward_only)
        missing = 1 + len(problem.measure_names) - len(weights)  # PPGA without measures has one coefficient
        return problem.walk(state, np.pad(weights, (0, missing)), key, updates, scaled=scaled)

    def restart(self) -> None:
        """Restart the search policy at a policy of an archive, and the search distribution."""
        self.restarts += 1
        name = f"restart {self.restarts}"  # of its random streams: an iteration may have several restarts
        self.reset_strategy(f"mean of {name}")
        self.rule.restarted()
        if not self.elites.empty:
            elite = self.rule.elite(self.soft.restart_archive, self.generator(f"elite of {name}"))
            self.problem_state = self.problem.restart(self.problem_state, elite, self.key(name))

    def reset_strategy(self, stream: str) -> None:
        """Reset the search distribution; a random mean is drawn from the named random stream."""
        self.strategy.reset(self.config.strategy.initial_mean(self.gradient_count, self.generator(stream)))

    def components(self) -> dict[str, Component]:
        """Parts with a state of their own."""
        own: dict[str, Component] = {"soft": self.soft, "strategy": self.strategy, "restart_rule": self.rule}
        return super().components() | own
