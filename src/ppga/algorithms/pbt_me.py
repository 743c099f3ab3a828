"""PBT-MAP-Elites with SAC (Pierrot & Flajolet, 2023): a population that learns, exchanges its members with
the archive, and evolves its own hyperparameters.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ppga.algorithms.base import Cost, SearchConfig
from ppga.algorithms.map_elites import MAPElites
from ppga.algorithms.policy_problem import NetworkConfig, PolicyProblem
from ppga.algorithms.problem import Effort, Problem, effort_of
from ppga.learners.replay import Replay, draws_of
from ppga.learners.sac import SAC, Agent, SACConfig
from ppga.learners.td3 import Layout
from ppga.physics import Array
from ppga.policies import Moments
from ppga.rollouts import Transitions, explore
from ppga.storage import NumpyArray
from ppga.tasks import Environment, TaskState


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Population:
    """P agents and their environments, those of agent 0 first; and how observations are normalised."""

    observation: Moments
    agents: Agent
    worlds: TaskState


class SACPopulation(PolicyProblem):
    """A task with a population of SAC agents.

    Args:
        task: what they do.
        search: how policies are judged.
        sac: how they learn.
        network: sizes of actor and critics.
        progress: called now and then, for a display.
    """

    replay: Replay

    learners = ("agents",)

    def __init__(
        self,
        task: Environment,
        search: SearchConfig,
        sac: SACConfig,
        network: NetworkConfig,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        self.layout = Layout(task.observation_size, task.action_size, 1 + len(task.measure_names))
        self.sac = SAC(self.layout, network.actor, network.critic, sac)
        super().__init__(task, search, self.sac.actor, progress)
        count = sac.population
        # a row of the replay buffer is a step of all agents in their i-th environments
        self.replay = Replay(sac.buffer, (count, self.layout.width), sac.steps * sac.environments)
        self.fields |= {
            "critics": (2, self.sac.twins.network.parameters),
            "log_temperature": (),
            "hyper": (5,),
        }
        self._explore = jax.jit(self._explore_some)

    def start(self, key: Array) -> Population:
        """New agents in new environments."""
        agent_key, world_key, look_key = jax.random.split(key, 3)
        config = self.sac.config
        agents = jax.vmap(self.sac.init)(jax.random.split(agent_key, config.population))
        worlds = jax.jit(self.task.reset, static_argnums=1)(
            world_key, config.population * config.environments
        )
        return Population(self.look(look_key), agents, worlds)

    def learn(self, state: Population, key: Array) -> tuple[Population, Effort]:
        """Act, remember and learn, by turns."""
        config = self.sac.config
        agents, worlds, losses = state.agents, state.worlds, []
        for number in range(config.steps // config.chunk):
            act_key, draw_key, learn_key = jax.random.split(jax.random.fold_in(key, number), 3)
            worlds, film = self._explore(state.observation, agents, worlds, act_key)
            self.replay.add(self._rows(film))
            updates = round(config.chunk * config.environments * config.updates_per_step)
            rows = self.layout.seen(self._sample(draw_key, updates), state.observation)
            agents, loss = self.sac.train(agents, rows, jax.random.split(learn_key, config.population))
            losses.append(np.asarray(loss))
            self.progress()
        steps = config.steps * config.environments * config.population
        effort = effort_of(np.mean(losses, axis=0), steps, hyper=np.asarray(agents.hyper).tolist())
        return Population(state.observation, agents, worlds), effort

    def described(self, state: Population, agents: Agent) -> dict[str, NumpyArray]:
        """What the archive keeps with agents (n, ...), besides their policies."""
        n = len(agents.actor)
        plain = {name: np.repeat(values, n, axis=0) for name, values in super().kept(state).items()}
        return plain | {
            "critics": np.asarray(agents.critics),
            "log_temperature": np.asarray(agents.log_temperature),
            "hyper": np.asarray(agents.hyper),
        }

    def kept(self, state: Population) -> dict[str, NumpyArray]:
        """Of the first agent; what is kept depends on the solution (`described`)."""
        return self.described(state, jax.tree.map(lambda leaf: leaf[:1], state.agents))

    def replace(self, state: Population, places: NumpyArray, others: Agent) -> Population:
        """Put others (n, ...) in the places (n,) of some agents; their environments and memories stay."""
        at = jnp.asarray(places)
        agents = jax.tree.map(lambda leaf, new: leaf.at[at].set(new), state.agents, others)
        return Population(state.observation, agents, state.worlds)

    # Experience.

    def _explore_some(
        self, normaliser: Moments, agents: Agent, worlds: TaskState, key: Array
    ) -> tuple[TaskState, Transitions]:
        config = self.sac.config

        def act(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
            seen = normaliser.normalise(observation)
            seen = seen.reshape(config.population, config.environments, -1)
            keys = jax.random.split(key, config.population)
            action, _ = jax.vmap(self.sac.act)(agents.actor, seen, keys)
            # an agent that is lost must not leave to others what they cannot learn from
            return jnp.nan_to_num(action.reshape(len(observation), -1))

        return explore(self.task, act, worlds, key, config.chunk)

    def _rows(self, film: Transitions) -> NumpyArray:
        """Rows (steps, P, width); the steps of all environments, except where one of them failed to start."""
        config = self.sac.config
        film = Transitions(**{**vars(film), "lived": np.ones_like(film.lived)})  # a body that diverged stays
        shape = config.population, config.environments * config.chunk
        started = np.asarray(film.active).reshape(shape).all(axis=0)
        return self.layout.rows(film).reshape(*shape, -1).swapaxes(0, 1)[started]

    def _sample(self, key: Array, updates: int) -> Array:
        """Rows (P, updates, batch, width), each agent's of its own."""
        config = self.sac.config
        places = self.replay.places(draws_of(key), (config.population, updates, config.batch))
        who = np.arange(config.population)[:, None, None]
        return jnp.asarray(self.replay.at(places, who))


class PBTME(MAPElites):
    """Agents learn; they and varied elites are judged; the worst agents make room for better ones."""

    name = "pbt-me-sac"
    summary = "Population-Based Training MAP-Elites, with SAC (Pierrot & Flajolet, 2023)"
    sections: ClassVar[tuple[str, ...]] = ("sac",)
    anywhere = False
    problem: SACPopulation

    @classmethod
    def on(cls, task: Environment, config: Any, progress: Callable[[], None]) -> Problem:
        """SAC learns."""
        return SACPopulation(task, config.search, config.sac, config.network, progress)

    def cost(self) -> Cost:
        """What an iteration takes."""
        config, problem = self.problem.sac.config, self.problem
        steps = config.population * config.environments * config.steps
        networks = 2 * problem.actor.parameters + 5 * problem.sac.twins.network.parameters
        return Cost(
            max(config.population, self.config.branches),
            learning_steps=steps,
            multiplications=int(3 * networks * config.batch * config.updates_per_step * steps),
            memory=problem.replay.bytes,
        )

    def start(self, elites: Mapping[str, NumpyArray] | None = None) -> None:
        """Judge the population and other agents that have learnt nothing yet, `branches` in all."""
        super().start(elites)
        everyone = self.search.agents
        others = self.config.branches - len(everyone.actor)
        if others > 0:
            drawn = jax.vmap(self.problem.sac.init)(jax.random.split(self.key("first solutions"), others))
            everyone = _together(everyone, drawn)
        solutions = np.asarray(everyone.actor)[None]  # (1, n, d)
        judged = self.judge(solutions, self.key("evaluate"))
        self.keep(solutions, judged, self.key("confirm"), self.problem.described(self.search, everyone))

    def iterate(self) -> dict[str, Any]:
        """One generation."""
        with self.phase("learn"):
            self.search, learnt = self.problem.learn(self.search, self.key("learn"))
        self.count(learnt)
        with self.phase("vary"):
            everyone = self.with_varied(self.search.agents)
        solutions = np.asarray(everyone.actor)[None]  # (1, n, d)
        judged = self.judge(solutions, self.key("evaluate"))
        fields = self.problem.described(self.search, everyone)
        new_elites = self.keep(solutions, judged, self.key("confirm"), fields)
        population = self.problem.sac.config.population
        worth = np.nan_to_num(judged.objective[:population], nan=-np.inf)
        with self.phase("exchange"):
            self.exchange(worth)
        best = int(worth.argmax())
        return {
            "new_elites": int(new_elites.sum()),
            "search_objective": [float(judged.objective[best])],
            "search_measures": [judged.measures[best].tolist()],
            **learnt.metrics,
        }

    def with_varied(self, agents: Agent) -> Agent:
        """The population, followed by elites varied by iso+line, critics and all."""
        if self.archives.result.empty:
            return agents
        n = self.config.branches - len(agents.actor)
        if n <= 0:
            return agents
        pairs = [
            self.archives.random_elites(self.generator(stream), n)
            for stream in ("first parents", "second parents")
        ]
        whole = np.stack(
            [np.concatenate([pair["solution"], pair["critics"].reshape(n, -1)], axis=1) for pair in pairs]
        )
        varied = self.vary(whole)
        d = self.problem.solution_size
        children = self.beginners(
            varied[:, :d],
            varied[:, d:].reshape(pairs[0]["critics"].shape),
            pairs[0]["log_temperature"],
            pairs[0]["hyper"],
        )
        return _together(agents, children)

    def exchange(self, worth: NumpyArray) -> None:
        """Copies of the best agents, and elites, in the places of others; with new hyperparameters."""
        config, sac = self.problem.sac.config, self.problem.sac
        order = np.argsort(-worth, kind="stable")
        count = len(order)
        worst, archived = round(config.worst * count), round(config.archived * count)
        best = max(1, round(config.best * count))
        losers = order[count - worst :]
        if len(losers):
            chosen = order[np.arange(len(losers)) % best]
            agents: Agent = jax.tree.map(lambda leaf: leaf[jnp.asarray(chosen)], self.search.agents)
            fresh = jax.vmap(sac.draw_hyper)(jax.random.split(self.key("worst"), len(losers)))
            copies = self.beginners(agents.actor, agents.critics, agents.log_temperature, fresh)
            self.search = self.problem.replace(self.search, losers, copies)
        replaced = order[max(best, count - worst - archived) : count - worst]  # the next worst
        if len(replaced) and not self.archives.result.empty:
            elites = self.archives.random_elites(self.generator("replacements"), len(replaced))
            keys = jax.random.split(self.key("replacements"), len(replaced))
            fresh = jax.vmap(sac.draw_hyper)(keys)
            agents = self.beginners(elites["solution"], elites["critics"], elites["log_temperature"], fresh)
            self.search = self.problem.replace(self.search, replaced, agents)

    def beginners(self, actor: Any, critics: Any, log_temperature: Any, hyper: Any) -> Agent:
        """Agents (n, ...) that begin to learn with all this."""
        return jax.vmap(self.problem.sac.agent)(
            jnp.asarray(actor), jnp.asarray(critics), jnp.asarray(log_temperature), jnp.asarray(hyper)
        )


def _together(some: Agent, others: Agent) -> Agent:
    """All of them, one group after the other."""
    both: Agent = jax.tree.map(lambda one, other: jnp.concatenate([one, other]), some, others)
    return both
