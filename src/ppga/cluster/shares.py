"""Work cut into shares of a fixed size, so that results do not depend on who computes which.

XLA rounds differently for another batch shape and for another number of visible cores; a share always has the
same shape and is computed on the same number of cores, and its randomness comes from what it is.
"""

from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ppga.algorithms import PolicyProblem, PolicySearch
from ppga.learners.vppo import Agent, Skill, Trajectory, Worlds
from ppga.networks import Network
from ppga.physics import Array
from ppga.policies import Policy
from ppga.rollouts import Judge, Scores, Transitions, episode_keys
from ppga.storage import NumpyArray
from ppga.tasks import Environment

BODIES = 32
"""Bodies in a share, at most: enough to keep a core busy between two calls."""


class Crew(Protocol):
    """Those who compute shares."""

    def run(self, kind: str, shared: list[Any], jobs: list[tuple[int, tuple[Any, ...]]]) -> list[Any]:
        """What the jobs give, in their order.

        Args:
            kind: of work, a method of `Worker`.
            shared: what several jobs need, sent once to whoever needs it.
            jobs: which of the shared things each needs, and what it alone needs; arrays of NumPy.
        """
        ...


def compute(
    crew: Crew, task: Environment, kind: str, shared: list[Any], jobs: list[tuple[int, tuple[Any, ...]]]
) -> list[Any]:
    """What the jobs give; see `Crew.run`. The workers' simulation warnings are added to the task's."""
    answers = crew.run(kind, shared, jobs)
    task.simulation_warnings.update(*(warnings for _, warnings in answers))
    return [found for found, _ in answers]


def policies_together(episodes: int) -> int:
    """How many policies, each playing so many episodes, make a share."""
    return max(1, BODIES // episodes)


class SharedCollect:
    """A rollout of all agents (`VPPO.collect`), in shares.

    Args:
        crew: who computes them.
        task: whose environments they are.
        size: environments in a share.
    """

    def __init__(self, crew: Crew, task: Environment, size: int) -> None:
        self.crew, self.task, self.size = crew, task, size

    def __call__(self, agents: Agent, worlds: Worlds, keys: Array) -> tuple[Worlds, Trajectory]:
        """See `VPPO.collect`: the environments after it, and trajectories (A, e, T, ...)."""
        count, environments = len(keys), len(worlds.running)
        each = environments // count // self.size  # shares of an agent
        slim = plain(_without_adam(agents))
        shared = [jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], slim) for i in range(count)]
        split = jax.vmap(lambda key: jax.random.split(key, each))(keys).reshape(count * each)
        host, own = plain(worlds), np.asarray(jax.random.key_data(split))
        jobs = []
        for number in range(count * each):
            rows = slice(number * self.size, (number + 1) * self.size)
            here = jax.tree.map(lambda leaf, rows=rows: leaf[rows], host)
            jobs.append((number // each, (here, own[number])))
        found = compute(self.crew, self.task, "collect", shared, jobs)
        after: Worlds = _joined([worlds for worlds, _ in found])
        seen: Trajectory = _joined([trajectory for _, trajectory in found])  # (shares, size, ...)
        seen = jax.tree.map(lambda leaf: leaf.reshape(count, each * self.size, *leaf.shape[2:]), seen)
        whole: tuple[Worlds, Trajectory] = jax.tree.map(jnp.asarray, (after, seen))
        return whole


class SharedJudge(Judge):
    """A `Judge` whose policies are played in shares.

    Args:
        crew: who plays them.
        task, network, episodes, sample, watch: see `Judge`.
    """

    def __init__(
        self,
        crew: Crew,
        task: Environment,
        network: Network,
        episodes: int,
        sample: bool = False,
        watch: bool = False,
    ) -> None:
        super().__init__(task, network, episodes, sample, watch)
        self.crew = crew

    def __call__(
        self, policies: Policy, key: Array, playing: NumpyArray | None = None
    ) -> tuple[Scores, Transitions | None]:
        """See `Judge`."""
        n, size = len(policies.parameters), policies_together(self.episodes)
        shares = -(-n // size)
        everyone, keys, who = filled_up(policies, key, self.episodes, playing, shares * size)
        settings = (self.episodes, self.sample, self.watch)
        jobs = []
        for first in range(0, shares * size, size):
            part = slice(first, first + size)
            some = jax.tree.map(lambda leaf, part=part: leaf[part], everyone)
            jobs.append((0, (some, keys[part], who[part])))
        found = compute(self.crew, self.task, "play", [settings], jobs)
        whole: tuple[Scores, Transitions | None] = jax.tree.map(lambda leaf: leaf[:n], _joined(found))
        return whole


def filled_up(
    policies: Policy, key: Array, episodes: int, playing: NumpyArray | None, total: int
) -> tuple[Policy, NumpyArray, NumpyArray]:
    """N policies, data of their episodes' keys (n, episodes, ...) and who plays (n,), for NumPy; all as many
    as `total` by the last one again, which does not play again.
    """
    n = len(policies.parameters)
    rows = np.minimum(np.arange(total), n - 1)
    who = np.zeros(total, bool)
    who[:n] = True if playing is None else playing
    keys = np.asarray(jax.random.key_data(episode_keys(key, n, episodes)))[rows]
    return jax.tree.map(lambda leaf: leaf[rows], plain(policies)), keys, who


def plain(tree: Any) -> Any:
    """The same with arrays of NumPy."""
    return jax.tree.map(np.asarray, tree)


def _joined(parts: list[Any]) -> Any:
    """One tree whose arrays follow each other along their first axis."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def _without_adam(agents: Agent) -> Agent:
    """What acting and expecting needs of agents: not how they learn."""
    skill = Skill(agents.skill.critic, (), agents.skill.rate)
    return Agent(agents.policy, agents.returns, skill)


class Worker:
    """What a worker does, wherever it runs: it holds programs, and nothing of a run.

    Each job's answer is a pair of what it gives and the warnings of the worker's simulations so far.

    Args:
        problem: whose rollouts it makes.
    """

    def __init__(self, problem: PolicyProblem) -> None:
        self.problem = problem
        self._judges: dict[tuple[int, bool, bool], Any] = {}

    def collect(
        self, agent: Agent, worlds: Worlds, key: NumpyArray
    ) -> tuple[tuple[Worlds, Trajectory], set[str]]:
        """A rollout of one agent (1, ...) in a share of its environments; trajectories (1, size, T, ...)."""
        assert isinstance(self.problem, PolicySearch)
        keys = jax.random.wrap_key_data(jnp.asarray(key))[None]
        worlds = jax.tree.map(jnp.array, worlds)  # a copy: a rollout gives the memory of its worlds away
        found: tuple[Worlds, Trajectory] = plain(self.problem.vppo.collect(agent, worlds, keys))
        return found, self.problem.simulation_warnings

    def play(
        self, settings: tuple[int, bool, bool], policies: Policy, keys: NumpyArray, playing: NumpyArray
    ) -> tuple[tuple[Scores, Transitions | None], set[str]]:
        """Scores (n, episodes, ...) of a share of policies, and their transitions if they are watched.

        Args:
            settings: episodes of each, whether they act with noise, whether they are watched.
            policies: n of them.
            keys: (n, episodes, ...) data of each episode's key.
            playing: (n,) bool.
        """
        if settings not in self._judges:
            judge = Judge(self.problem.task, self.problem.actor, *settings)
            self._judges[settings] = jax.jit(judge.play_here)
        wrapped = jax.random.wrap_key_data(jnp.asarray(keys))
        found: tuple[Scores, Transitions | None] = plain(self._judges[settings](policies, wrapped, playing))
        return found, self.problem.simulation_warnings


def employ(problem: PolicyProblem, crew: Crew) -> None:
    """Let a crew make a problem's rollouts."""
    problem.make_judge = partial(SharedJudge, crew)
    if isinstance(problem, PolicySearch):
        problem.vppo.collect = SharedCollect(crew, problem.task, environments_together(problem))


def environments_together(problem: PolicySearch) -> int:
    """How many of an agent's environments make a share: as many as fit, and divide them evenly."""
    each = problem.ppo.environments // (problem.search.emitters * problem.gradients)
    return max(size for size in range(1, min(each, BODIES) + 1) if each % size == 0)


def shares(problem: PolicyProblem) -> int:
    """Into how many shares the larger part of the work falls, at least: so many can work at once."""
    policies = problem.search.emitters * problem.search.branches
    judged = -(-policies // policies_together(problem.search.episodes))
    if isinstance(problem, PolicySearch):
        return max(judged, problem.ppo.environments // environments_together(problem))
    return judged
