"""Proximal Policy Gradient Arborescence: Algorithm 1 of Batra et al., ICLR 2024.

m emitters run side by side, each with a search policy theta, an xNES over gradient coefficients, and lambda
branches; they share one archive. In the paper m = 1: read the leading axis as absent.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import numpy as np

from ppga.algorithms.base import Algorithm, Cost, as_found, under
from ppga.algorithms.policy_search import PolicySearch
from ppga.algorithms.problem import Effort, GradientProblem, Problem, unit_rows
from ppga.storage import Like, NumpyArray, like
from ppga.strategies import STRATEGIES
from ppga.tasks import Environment

EXPLODED = 50.0
"""A step size this many times sigma0 is worth a warning."""
SCARCE, STIR = 0.05, 1.1
"""New elites for each branch below which a search policy is stirred, and by how much."""
SHORT_ROW = 1e-4
"""A direction shorter than this is no direction."""


class PPGA(Algorithm):
    """Branch policies off a search policy along its gradients; walk it where the archive improves."""

    name = "ppga"
    summary = "Proximal Policy Gradient Arborescence (Batra et al., ICLR 2024)"
    sections: ClassVar[tuple[str, ...]] = ("ppo",)
    soft = True
    gradients = True
    problem: GradientProblem

    @classmethod
    def on(cls, task: Environment, config: Any, progress: Callable[[], None]) -> Problem:
        """VPPO learns."""
        agents = cls.agents(len(task.measure_names))
        return PolicySearch(task, config.search, config.ppo, config.network, progress, agents)

    @classmethod
    def agents(cls, measures: int) -> int:
        """One for the reward and one for each measure."""
        return 1 + measures

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.directions = self.agents(len(self.problem.measure_names))
        make = STRATEGIES[self.config.strategy]
        self.strategies = [
            make(
                self.config.sigma0,
                self.directions,
                self.config.branches,
                seed=np.random.SeedSequence([self.seed, i]),
            )
            for i in range(self.config.emitters)
        ]
        # iterations since each emitter gave a new elite, and since its leg began; a longer first leg is one
        # that begins before 0
        self.idle = np.zeros(self.config.emitters, np.int64)
        begin = self.config.leg - (self.config.first_leg or self.config.leg)
        self.age = np.full(self.config.emitters, begin, np.int64)
        # whether each follows the reward alone in this leg
        self.rewarding = np.zeros(self.config.emitters, bool)
        for emitter in range(self.config.emitters):
            self.restart_strategy(emitter, "first mean")

    def cost(self) -> Cost:
        """What an iteration takes."""
        config, problem = self.config, self.problem
        policies = config.emitters * (1 + config.branches)
        if isinstance(problem, PolicySearch):
            return problem.cost(policies, config.jacobian_updates + config.walk_updates)
        return Cost(policies)

    def iterate(self) -> dict[str, Any]:
        """One pass of the loop: gradients, branches, archive, adaptation, walk, restart."""
        problem = self.problem
        with self.phase("jacobian"):
            self.search, jacobian, gradients = problem.jacobian(self.search, self.key("jacobian"))
        self.count(gradients)
        directions, lengths = unit_rows(jacobian[:, : self.directions])  # (m, k+1, d), (m, k+1)

        theta = problem.solutions(self.search)[:, None]  # (m, 1, d)
        coefficients = np.stack([strategy.ask() for strategy in self.strategies])  # (m, lambda, k+1)
        branches = theta + (coefficients @ directions).astype(theta.dtype)  # (m, lambda, d)

        everyone = np.concatenate([theta, branches], axis=1)  # (m, 1 + lambda, d)
        judged = self.judge(everyone, self.key("evaluate"))

        with self.phase("archive"):
            m, n = self.config.emitters, self.config.branches
            rows = np.arange(m * (1 + n)).reshape(m, 1 + n)
            itself = self.guide(theta, judged, rows[:, :1])
            branched = self.guide(branches, judged, rows[:, 1:])
        new_elites = self.keep(everyone, judged, self.key("confirm"))  # (m,)
        self.idle = np.where(new_elites, 0, self.idle + 1)
        scarce = new_elites < SCARCE * self.config.branches
        self.search = problem.stir(self.search, np.where(scarce, STIR, 1 / STIR))
        self.age += self.iteration > self.config.reward_first
        improvement, entered = branched.improvement.reshape(m, n), branched.entered.reshape(m, n)

        ranking = [_best_first(gained) for gained in improvement]
        for strategy, order, gained in zip(self.strategies, ranking, improvement, strict=True):
            strategy.tell(order, gained)
        stuck = np.asarray(~entered.any(axis=1)) & ~self.rewarding

        walked = Effort()
        if not stuck.all():
            with self.phase("walk"):
                walked = self.step_on(branches, ranking, self.key("walk"))
            self.count(walked)

        record = {
            "new_elites": int(new_elites.sum()),
            "soft_new": int(itself.entered.sum() + entered.sum()),
            "search_objective": judged.objective[rows[:, 0]].tolist(),
            "search_measures": judged.measures[rows[:, 0]].tolist(),
            "xnes_mean": [strategy.mean.tolist() for strategy in self.strategies],
            "xnes_scale": [strategy.scale for strategy in self.strategies],
            "jacobian_lengths": lengths.tolist(),
            **{f"jacobian_{name}": value for name, value in gradients.metrics.items()},
            **{f"walk_{name}": value for name, value in walked.metrics.items()},
        }
        self.warn(lengths)
        if self.iteration == self.config.reward_first:  # from here on, c_mu steers: it begins unprejudiced
            for emitter in range(self.config.emitters):
                self.restart_strategy(emitter, "mean after the reward")
        for emitter, strategy in enumerate(self.strategies):
            done = strategy.check_stop(improvement[emitter][ranking[emitter]])
            if stuck[emitter] or done or self.tired(emitter):
                self.restart(emitter)
        return record

    def tired(self, emitter: int) -> bool:
        """Whether a search policy has walked for long enough, or found nothing for too long."""
        config, rewarding = self.config, self.rewarding[emitter]
        leg = (config.reward_leg if rewarding else 0) or config.leg
        patience = 0 if rewarding else config.patience
        return bool(0 < leg <= self.age[emitter] or 0 < patience <= self.idle[emitter])

    def step_on(self, branches: NumpyArray, ranking: list[NumpyArray], key: jax.Array) -> Effort:
        """Move the search policies where the archive gains: walk, or step to where the best branches are.

        Args:
            branches: (m, lambda, d).
            ranking: of each emitter's, best first.
            key: of what is random about it.
        """
        if self.config.step == "recombination" and not self.on_reward().all():
            theta = self.problem.solutions(self.search)
            means = [
                recombined(some[order]) if len(order) else itself
                for some, order, itself in zip(branches, ranking, theta, strict=True)
            ]
            self.search, effort = self.problem.place(self.search, np.stack(means), key)
            return effort
        weights = np.zeros((len(self.strategies), 1 + len(self.problem.measure_names)))
        for emitter, strategy in enumerate(self.strategies):
            weights[emitter, : self.directions] = self.walk_weights(strategy.mean, emitter)
        self.search, effort = self.problem.walk(self.search, weights, key, self.walk_updates())
        return effort

    def on_reward(self) -> NumpyArray:
        """Which (m,) search policies follow the reward alone now."""
        return self.rewarding | (self.iteration <= self.config.reward_first)

    def walk_updates(self) -> int:
        """Learning updates of this iteration's walk (N2)."""
        return (self.config.first_updates if self.on_reward().all() else 0) or self.config.walk_updates

    def walk_weights(self, mean: NumpyArray, emitter: int = 0) -> NumpyArray:
        """Objective of the walk: xNES' mean c_mu; f alone where that is zero, and where told so."""
        weights = np.zeros_like(mean) if self.on_reward()[emitter] else mean.copy()
        if self.config.clip_objective:
            weights[0] = max(weights[0], 0.0)
        if self.config.reward_share:
            weights[0] = max(weights[0], self.config.reward_share * np.linalg.norm(weights[1:]))
        if not weights.any():
            weights[0] = 1.0
        return weights

    def restart(self, number: int) -> None:
        """Begin again at an elite of the archive; at the best one, for the reward, every so often."""
        self.restarts += 1  # names the random streams: there may be several in an iteration
        self.restart_strategy(number, f"mean of restart {self.restarts}")
        self.idle[number] = self.age[number] = 0
        every = self.config.reward_every
        self.rewarding[number] = bool(every) and self.restarts % every == 1 % every
        if not self.archives.result.empty:
            draws = self.generator(f"elite of restart {self.restarts}")
            if self.rewarding[number]:
                elite = self.archives.best_elite()
            else:
                where = self.config.restart_at
                elite = self.archives.random_elite(draws, where != "random", where == "promising")
            key = self.key(f"restart {self.restarts}")
            self.search = self.problem.move(self.search, number, elite, key)

    def restart_strategy(self, emitter: int, stream: str) -> None:
        """XNES back to its first step size, around zero or a random point, drawn by a named stream."""
        strategy = self.strategies[emitter]
        mean = np.zeros(strategy.solution_dim)
        if self.config.mean == "random":
            draws = self.generator(f"{stream}, {emitter}")
            mean = np.concatenate([draws.uniform(0, 2, 1), draws.uniform(-2, 2, len(mean) - 1)])
        strategy.reset(mean)

    def warn(self, lengths: NumpyArray) -> None:
        """Note what a user should know."""
        names = ("reward", *self.problem.measure_names)[: self.directions]
        for emitter, strategy in enumerate(self.strategies):
            if strategy.scale > EXPLODED * self.config.sigma0:
                self.warnings.append(f"the strategy's step size has grown ({strategy.scale:.3g})")
            for name, length in zip(names, lengths[emitter], strict=True):
                if not length > SHORT_ROW:
                    self.warnings.append(f"the gradient of {name} is nearly zero ({length:.1g})")

    def state(self) -> dict[str, NumpyArray]:
        """All that is needed to go on, as plain arrays."""
        return (
            super().state()
            | {"idle": self.idle, "age": self.age, "rewarding": self.rewarding}
            | {
                f"strategy/{emitter}/{name}": value
                for emitter, strategy in enumerate(self.strategies)
                for name, value in strategy.state().items()
            }
        )

    def load_state(self, state: Mapping[str, NumpyArray]) -> None:
        """Go on from a `state()`, or raise an InputError that says why it cannot be one of this algorithm."""
        super().load_state(state)
        self.idle, self.age = np.array(state["idle"]), np.array(state["age"])
        self.rewarding = np.array(state["rewarding"])
        for emitter, strategy in enumerate(self.strategies):
            strategy.load_state(under(f"strategy/{emitter}/", state))

    def expected(self, state: Mapping[str, NumpyArray]) -> dict[str, Like]:
        """Kinds and shapes of all arrays of a `state()`."""
        own = {name: like(getattr(self, name)) for name in ("idle", "age", "rewarding")}
        strategies = (f"strategy/{emitter}/" for emitter in range(len(self.strategies)))
        return super().expected(state) | own | as_found(state, *strategies)


class NoMeasures(PPGA):
    """PPGA that knows of the reward only: it branches along its gradient and walks up it."""

    name = "ppga-no-measures"
    summary = "ablation: PPGA with the gradient of the reward alone (Batra et al., ICLR 2024, appendix)"

    @classmethod
    def agents(cls, measures: int) -> int:  # noqa: ARG003
        """One, for the reward."""
        return 1


def recombined(ranked: NumpyArray) -> NumpyArray:
    """Mean (d,) of the better half of solutions (n, d), best first, with CMA-ES' logarithmic weights."""
    parents = max(1, len(ranked) // 2)
    weights = np.log(parents + 0.5) - np.log(np.arange(1, parents + 1))
    return np.asarray((weights / weights.sum()).astype(ranked.dtype) @ ranked[:parents])


def _best_first(improvement: NumpyArray) -> NumpyArray:
    """Which branches, by falling improvement; those that could not be judged are left out."""
    order = np.argsort(-improvement, kind="stable")
    return np.asarray(order[np.isfinite(improvement[order])])
