"""PBT-MAP-Elites with SAC (Pierrot & Flajolet, 2023).

A population of agents learns, exchanges members with the archive, and evolves its hyperparameters.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ppga.algorithms.base import check_policies
from ppga.algorithms.map_elites import MAPElites, MAPElitesConfig
from ppga.algorithms.presets import EVALUATIONS, LAPTOP_CRITICS, Preset, smoke
from ppga.config import check_range, common
from ppga.errors import InputError
from ppga.learners.sac import Agent, SACConfig
from ppga.problems import Cost, NetworkConfig
from ppga.problems.population import PopulationProblem
from ppga.rollouts import Executor
from ppga.storage import NumpyArray
from ppga.tasks import Environment

# As many gradient steps as two cores can make, and ranges of hyperparameters that are known to work.
LAPTOP_SAC = SACConfig(
    environments=8,
    steps=500,
    updates_per_step=0.25,
    fit_buffer=True,
    learning_rates=(3e-4, 3e-3),
    gammas=(0.97, 0.995),
)


@dataclass(frozen=True)
class PBTMEConfig(MAPElitesConfig):
    """Settings of PBT-MAP-Elites.

    Attributes:
        batch_size: policies evaluated in each iteration: the population, and elites varied by iso+line.
        population: number of agents.
        best_share: share of the population, the best agents, whose copies replace the worst ones.
        worst_share: share of the population that is replaced by these copies.
        archive_share: share of the population, the next worst agents, that is replaced by elites.
        sac: the learner.
    """

    algorithm: ClassVar[str] = "pbt-me-sac"

    network: NetworkConfig = field(default_factory=lambda: LAPTOP_CRITICS)
    batch_size: int = common(32)
    population: int = common(4)
    best_share: float = 0.25
    worst_share: float = 0.25
    archive_share: float = 0.25
    sac: SACConfig = field(default_factory=lambda: LAPTOP_SAC)

    def check(self, measures: int) -> None:
        """Raise an InputError for settings that cannot work for a task with that many measures."""
        super().check(measures)
        check_policies("population", self.population)
        shares = (self.best_share, self.worst_share, self.archive_share)
        for name, share in zip(("best_share", "worst_share", "archive_share"), shares, strict=True):
            check_range(name, share, 0.0, 1.0)
        if sum(shares) > 1:
            raise InputError(
                "--best-share, --worst-share and --archive-share are shares of one population: their sum "
                f"must be at most 1, got {sum(shares):g}."
            )


class PBTME(MAPElites):
    """Train agents, evaluate them and varied elites, and replace the worst agents."""

    summary = "Population-Based Training MAP-Elites, with SAC (Pierrot & Flajolet, 2023)"
    supports_analytic_problems = False
    problem: PopulationProblem
    config: PBTMEConfig

    @classmethod
    def make_problem(
        cls, task: Environment, config: Any, executor: Executor | None, progress: Callable[[], None]
    ) -> PopulationProblem:
        """A population of SAC agents."""
        return PopulationProblem(task, config.sac, config.population, config.network, executor, progress)

    def cost(self) -> Cost:
        """Cost of an iteration."""
        return self.problem.cost(max(self.config.population, self.config.batch_size))

    def start(self, elites: Mapping[str, NumpyArray] | None = None) -> None:
        """Evaluate the population and further random agents, `batch_size` in all."""
        super().start(elites)
        agents = self.problem_state.agents
        further = self.config.batch_size - len(agents.actor)
        if further > 0:
            keys = jax.random.split(self.key("first solutions"), further)
            agents = _concatenated(agents, jax.vmap(self.problem.sac.init)(keys))
        self.add_agents(agents)

    def add_agents(self, agents: Agent) -> tuple[int, NumpyArray, NumpyArray]:
        """Evaluate agents (n, ...) and add them to the archive.

        Returns:
            The number of new elites, objectives (n,) and measures (n, k).
        """
        solutions = np.asarray(agents.actor)
        scores = self.evaluate(solutions)
        fields = self.problem.stored_fields_of(self.problem_state, agents)
        return self.add_elites(solutions, scores, fields=fields), scores.objective, scores.measures

    def iterate(self) -> dict[str, Any]:
        """One generation."""
        with self.timed("learn"):
            self.problem_state, learned = self.problem.learn(self.problem_state, self.key("learn"))
        self.count(learned)
        with self.timed("vary"):
            agents = self.with_varied_elites(self.problem_state.agents)
        new_elites, objectives, measures = self.add_agents(agents)
        fitness = np.nan_to_num(objectives[: self.config.population], nan=-np.inf)
        with self.timed("exchange"):
            self.exchange(fitness)
        best = int(fitness.argmax())
        return {
            "new_elites": new_elites,
            "search_objective": float(objectives[best]),
            "search_measures": measures[best].tolist(),
            **learned.metrics,
        }

    def with_varied_elites(self, agents: Agent) -> Agent:
        """The population, and elites whose policies, critics and temperatures are varied by iso+line."""
        n = self.config.batch_size - len(agents.actor)
        if self.elites.empty or n <= 0:
            return agents
        first, second = (self.sample(n, stream) for stream in ("first parents", "second parents"))
        names = ("solution", "critics", "log_temperature")
        parents = [
            np.concatenate([parent[name].reshape(n, -1) for name in names], axis=1)
            for parent in (first, second)
        ]
        varied = self.vary(np.stack(parents))
        d = self.problem.solution_size
        critics = varied[:, d:-1].reshape(first["critics"].shape)
        children = self.new_agents(varied[:, :d], critics, varied[:, -1], first["hyper"])
        return _concatenated(agents, children)

    def exchange(self, fitness: NumpyArray) -> None:
        """Replace the worst agents by copies of the best ones, and the next worst by elites.

        Copies take over the experience of the best ones; elites get that of the agents that they replace. All
        replaced agents get new hyperparameters.

        Args:
            fitness: (P,) objectives of the agents in the population.
        """
        config, problem = self.config, self.problem
        order, count = np.argsort(-fitness, kind="stable"), len(fitness)
        worst, archive = round(config.worst_share * count), round(config.archive_share * count)
        best = max(1, round(config.best_share * count))
        losers = order[count - worst :]
        if len(losers):
            chosen = order[np.arange(len(losers)) % best]
            agents: Agent = jax.tree.map(lambda leaf: leaf[chosen], self.problem_state.agents)
            hyper = self._new_hyper("worst", len(losers))
            copies = self.new_agents(agents.actor, agents.critics, agents.log_temperature, hyper)
            self.problem_state = problem.with_agents(self.problem_state, losers, copies, chosen)
        replaced = order[max(best, count - worst - archive) : count - worst]
        if len(replaced) and not self.elites.empty:
            elites = self.sample(len(replaced), "replacements")
            hyper = self._new_hyper("replacements", len(replaced))
            agents = self.new_agents(elites["solution"], elites["critics"], elites["log_temperature"], hyper)
            self.problem_state = problem.with_agents(self.problem_state, replaced, agents)

    def _new_hyper(self, stream: str, n: int) -> jax.Array:
        """Random hyperparameters (n, 5) from a named random stream."""
        keys = jax.random.split(self.key(stream), n)
        return jnp.asarray(jax.vmap(self.problem.sac.draw_hyper)(keys))

    def new_agents(self, actor: Any, critics: Any, log_temperature: Any, hyper: Any) -> Agent:
        """Agents (n, ...) with new optimizer states."""
        arrays = map(jnp.asarray, (actor, critics, log_temperature, hyper))
        return jax.vmap(self.problem.sac.agent)(*arrays)


def _concatenated(first: Agent, second: Agent) -> Agent:
    """Agents (n, ...) followed by agents (m, ...)."""
    both: Agent = jax.tree.map(lambda one, other: jnp.concatenate([one, other]), first, second)
    return both


LAPTOP = Preset(PBTMEConfig())
PAPER = Preset(
    PBTMEConfig(
        confirm=None,
        batch_size=40,
        network=NetworkConfig(actor=(256, 256), critic=(256, 256)),
        population=10,
        best_share=0.1,
        worst_share=0.2,
        archive_share=0.4,
        sac=SACConfig(
            environments=250, steps=40, chunk=1, target_entropy=0.5, fresh_optimizers=True, uniform=True
        ),
    ),
    EVALUATIONS,
)
SMOKE = {
    "batch_size": 4,
    "population": 3,
    "best_share": 0.34,
    "worst_share": 0.33,
    "archive_share": 0.33,
    "sac.environments": 2,
    "sac.steps": 20,
    "sac.chunk": 10,
    "sac.updates_per_step": 0.2,
    "sac.batch_size": 8,
    "sac.buffer_size": 400,
    "sac.fit_buffer": False,
}
PRESETS = {"laptop": LAPTOP, "paper": PAPER, "smoke": smoke(LAPTOP, SMOKE)}
