"""A task with a population of SAC agents, each with its own environments and replay buffer."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from ppga.learners.replay import MAX_SAMPLE_SIZE, Replay, draws_of, equal_share
from ppga.learners.sac import SAC, Agent, SACConfig
from ppga.learners.td3 import Layout
from ppga.physics import Array
from ppga.policies.normalizer import NormalizerState
from ppga.problems.base import Cost, LearningReport, critic_report
from ppga.problems.policy import NetworkConfig, PolicyProblem
from ppga.rollouts import Executor, Transitions, explore
from ppga.storage import NumpyArray
from ppga.tasks import Environment, TaskState


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PopulationState:
    """State of a `PopulationProblem`.

    Attributes:
        normalizer: of observations, initialized once.
        agents: (P, ...).
        envs: environments of all agents, those of agent 0 first.
        firsts: (b,) number of the first row of the replay buffer of each of the last b iterations.
        owners: (b, P) column of that iteration's rows that holds the experience of each agent.
    """

    normalizer: NormalizerState
    agents: Agent
    envs: TaskState
    firsts: Array
    owners: Array


class PopulationProblem(PolicyProblem):
    """A task with a population of SAC agents.

    An agent that becomes a copy of another one also takes over its experience. A row of the replay buffer
    holds a step of every agent and is never copied; `PopulationState.owners` tells whose step an agent uses.

    Args:
        task: the task.
        sac: settings of SAC.
        population: number of agents P.
        network: hidden layers of actors and critics.
        executor: where evaluations run.
        progress: called now and then, for a display.
    """

    replay: Replay
    learner_parts = ("agents",)

    def __init__(
        self,
        task: Environment,
        sac: SACConfig,
        population: int,
        network: NetworkConfig,
        executor: Executor | None = None,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        self.layout = Layout(task.observation_size, task.action_size, 1 + len(task.measure_names))
        self.sac, self.population = SAC(self.layout, network.actor, network.critic, sac), population
        super().__init__(task, self.sac.actor, executor=executor, progress=progress)
        # a row of the replay buffer holds a step of every agent
        self.replay = Replay(sac.buffer_size, (population, self.layout.width), sac.steps * sac.environments)
        self.fields |= {
            "critics": (2, self.sac.twins.network.parameters),
            "log_temperature": (),
            "hyper": (5,),
        }
        self._iterations = 1 + -(-sac.buffer_size // (sac.steps * sac.environments))
        self._explore = jax.jit(self._explore_chunk)

    def init(self, key: Array) -> PopulationState:
        """New agents in new environments."""
        agent_key, env_key, normalizer_key = jax.random.split(key, 3)
        agents = jax.vmap(self.sac.init)(jax.random.split(agent_key, self.population))
        count = self.population * self.sac.config.environments
        envs = jax.jit(self.task.reset, static_argnums=1)(env_key, count)
        firsts = jnp.zeros(self._iterations, jnp.int32)
        owners = jnp.broadcast_to(jnp.arange(self.population), (self._iterations, self.population))
        return PopulationState(self.init_normalizer(normalizer_key), agents, envs, firsts, owners)

    def cost(self, policies: int) -> Cost:
        """Cost of evaluating policies and of training the population in an iteration."""
        config = self.sac.config
        steps = self.population * config.environments * config.steps
        networks = 2 * self.actor.parameters + 5 * self.sac.twins.network.parameters
        return Cost(
            policies,
            learning_steps=steps,
            multiplications=int(3 * networks * config.batch_size * config.updates_per_step * steps),
            memory=self.replay.bytes,
        )

    def learn(self, state: PopulationState, key: Array) -> tuple[PopulationState, LearningReport]:
        """Alternate between acting in the environments and gradient steps."""
        config = self.sac.config
        agents, envs, losses = state.agents, state.envs, []
        if config.fresh_optimizers:
            agents = jax.vmap(self.sac.agent)(
                agents.actor, agents.critics, agents.log_temperature, agents.hyper
            )
        firsts = jnp.append(state.firsts[1:], self.replay.written)
        owners = jnp.concatenate([state.owners[1:], jnp.arange(self.population)[None]])
        state = replace(state, firsts=firsts, owners=owners)
        updates = round(config.chunk * config.environments * config.updates_per_step)
        share = equal_share(
            updates, MAX_SAMPLE_SIZE // (self.population * config.batch_size * self.layout.width)
        )
        for number in range(config.steps // config.chunk):
            act_key, sample_key, learn_key = jax.random.split(jax.random.fold_in(key, number), 3)
            envs, transitions = self._explore(state.normalizer, agents, envs, act_key)
            self.replay.add(self._rows(transitions))
            rng = draws_of(sample_key)
            for part in range(updates // share):
                rows = self.layout.normalize(self._sample(state, rng, share), state.normalizer)
                keys = jax.random.split(jax.random.fold_in(learn_key, part), self.population)
                agents, loss = self.sac.train(agents, rows, keys)
                losses.append(np.asarray(loss))
            self.progress()
        steps = config.steps * config.environments * self.population
        report = critic_report(np.mean(losses, axis=0), steps, hyper=np.asarray(agents.hyper).tolist())
        return replace(state, agents=agents, envs=envs), report

    def stored_fields_of(self, state: PopulationState, agents: Agent) -> dict[str, NumpyArray]:
        """Fields that the archive stores with agents (n, ...) besides their policies: name -> (n, ...)."""
        n = len(agents.actor)
        shared = super().stored_fields(state).items()
        return {name: np.repeat(values[None], n, axis=0) for name, values in shared} | {
            "critics": np.asarray(agents.critics),
            "log_temperature": np.asarray(agents.log_temperature),
            "hyper": np.asarray(agents.hyper),
        }

    def with_agents(
        self, state: PopulationState, numbers: NumpyArray, agents: Agent, parents: NumpyArray | None = None
    ) -> PopulationState:
        """Replace agents; the environments stay.

        Args:
            state: the problem's state.
            numbers: (n,) numbers of the replaced agents.
            agents: (n, ...) the new ones.
            parents: (n,) numbers of the agents whose experience they take over; by default, that of the
                replaced ones.
        """
        at = jnp.asarray(numbers)
        merged = jax.tree.map(lambda leaf, new: leaf.at[at].set(new), state.agents, agents)
        owners = state.owners
        if parents is not None:
            owners = owners.at[:, at].set(owners[:, jnp.asarray(parents)])
        return replace(state, agents=merged, owners=owners)

    # Transitions.

    def _explore_chunk(
        self, normalizer: NormalizerState, agents: Agent, envs: TaskState, key: Array
    ) -> tuple[TaskState, Transitions]:
        config = self.sac.config

        def act(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
            normalized = normalizer.normalize(observation)
            normalized = normalized.reshape(self.population, config.environments, -1)
            keys = jax.random.split(key, self.population)
            action, _ = jax.vmap(self.sac.act)(agents.actor, normalized, keys)
            # the transitions of an agent whose parameters are not finite must not spoil a row of all agents
            return jnp.nan_to_num(action.reshape(len(observation), -1))

        return explore(self.task, act, envs, key, config.chunk)

    def _rows(self, transitions: Transitions) -> NumpyArray:
        """Rows (steps, P, width) of all environments, except where one of them failed to start."""
        config = self.sac.config
        # a step that diverged stays, because a row needs a step of every agent
        transitions = Transitions(**{**vars(transitions), "taken": np.ones_like(transitions.taken)})
        shape = self.population, config.environments * config.chunk
        started = np.asarray(transitions.active).reshape(shape).all(axis=0)
        return self.layout.rows(transitions).reshape(*shape, -1).swapaxes(0, 1)[started]

    def _sample(self, state: PopulationState, rng: np.random.Generator, updates: int) -> Array:
        """Rows (P, updates, batch, width), drawn from each agent's own experience."""
        numbers = self.replay.draw(rng, (self.population, updates, self.sac.config.batch_size))
        # rows may be older than all iterations, if environments that failed to start made these short
        iterations = np.maximum(np.searchsorted(np.asarray(state.firsts), numbers, side="right") - 1, 0)
        agents = np.arange(self.population)[:, None, None]
        return jnp.asarray(self.replay.at(numbers, np.asarray(state.owners)[iterations, agents]))
