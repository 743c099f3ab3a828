"""Vectorized proximal policy optimization (VPPO): many PPO agents at once, each with its own objective.

One rollout collects data for all agents, each in its own share of the environments; one update moves all of
them. Functions of one agent are mapped over all agents with `jax.vmap`, so agents cannot affect each other.
Axes of arrays, in this order: agents A, environments e of an agent, time T, features. E = A e.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ppga import random
from ppga.learners.agent import Agent, LearnerState, Trajectory, UpdateReport, update_normalizers
from ppga.learners.ppo import AGENTS, PPO, Parameters, PPOConfig, UpdateState, check_agents
from ppga.physics import Array
from ppga.policies.network import Network
from ppga.policies.normalizer import NormalizerState
from ppga.policies.policy import Policy, init_mlp, init_policy
from ppga.rollouts.executor import Executor, LearnerFunctions, LocalExecutor
from ppga.tasks import Environment, TaskState

RESET = 2**31 - 1
"""Folded into the key of a learning phase, for new environments; updates have smaller numbers."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EnvBatch:
    """The environments in which agents learn.

    Attributes:
        state: E environments; on each device those of agent 0 first.
        returns: (E, k+1) running sums of discounted rewards of the current episodes.
    """

    state: TaskState
    returns: Array


class VPPO:
    """PPO of any number of agents on one task.

    Args:
        task: the task.
        actor_sizes: hidden units of the actor's layers.
        critic_sizes: hidden units of the critic's layers.
        config: settings.
        executor: where rollouts and updates run; this process by default.
        agents: the largest number of agents that learn at once.
        learner: PPO of one agent.

    Attributes:
        actor: network of the mean action.
        critic: network of the value.
        objectives: number k+1 of objectives, the reward first.
        init_envs: key -> all environments, at random starts.
        collect: agents, environments, keys (A,) -> the environments after a rollout, trajectories (A, e, T,
            ...). The first environments are donated: they cannot be used again.
        update: agents, trajectories, weights (A, k+1), keys (A,) -> the agents after an update, reports (A,),
            None.
        update_recorded: the same, with the actors' parameters (A, steps, d) after each minibatch step.
        update_normalizers: agents, trajectories -> agents with updated normalizers.
        reset_optimizer: agents -> agents with initial optimizer states.

    Raises:
        InputError: the agents cannot share the environments.
    """

    def __init__(
        self,
        task: Environment,
        actor_sizes: tuple[int, ...],
        critic_sizes: tuple[int, ...],
        config: PPOConfig,
        executor: Executor | None = None,
        agents: int = 1,
        learner: type[PPO] = PPO,
    ) -> None:
        executor = executor or LocalExecutor()
        measures = len(task.measure_names)
        description = f"reward and {measures} measure{'s' * (measures > 1)}" if agents == 1 + measures else ""
        check_agents(config, agents, description, executor.devices)
        self.task, self.config = task, config
        self.actor = Network((task.observation_size, *actor_sizes, task.action_size))
        self.objectives = 1 + measures
        self.critic = Network((task.observation_size, *critic_sizes, learner.heads(self.objectives)))
        self._ppo = learner(self.actor, self.critic, config, executor.devices, executor.axis)
        functions = LearnerFunctions(
            init_envs=self._init_envs,
            collect=self._collect,
            update=self._update,
            update_recorded=partial(self._update, recorded=True),
            update_normalizers=jax.vmap(partial(update_normalizers, rewards=config.normalize != "returns")),
        )
        programs = executor.compile(functions, task, config.environments // agents)
        self.init_envs: Callable[[Array], EnvBatch] = _traceable(programs.init_envs, functions.init_envs)
        self.collect: Callable[[Agent, EnvBatch, Array], tuple[EnvBatch, Trajectory]] = _traceable(
            programs.collect, functions.collect
        )
        self.update: _Update = programs.update
        self.update_recorded: _Update = programs.update_recorded
        self.update_normalizers: Callable[[Agent, Trajectory], Agent] = _traceable(
            programs.update_normalizers, functions.update_normalizers
        )
        self.reset_optimizer: Callable[[Agent], Agent] = jax.jit(jax.vmap(self._ppo.reset_optimizer))

    def init_policy(self, key: Array) -> Policy:
        """A new policy."""
        return init_policy(key, self.actor, self.config.initial_std)

    def init_learner(self, key: Array) -> LearnerState:
        """A new critic, with initial optimizer state and learning rate."""
        critic = jnp.asarray(self.critic.flatten(init_mlp(key, self.critic.sizes)))
        actor, log_std = jnp.zeros(self.actor.parameters), jnp.zeros(self.actor.sizes[-1])
        optimizer = self._ppo.optimizer.init(Parameters(actor, log_std, critic))
        return LearnerState(critic, optimizer, jnp.float32(self.config.learning_rate))

    def begin(self, agents: Agent, envs: EnvBatch, keys: Array) -> tuple[Agent, EnvBatch]:
        """Agents and environments at the start of a learning phase: reset as configured."""
        if self.config.reset_optimizer:
            agents = self.reset_optimizer(agents)
        if self.config.reset_environments:
            envs = self.init_envs(jax.random.fold_in(keys[0], RESET))
        return agents, envs

    def train(
        self,
        agents: Agent,
        envs: EnvBatch,
        weights: Array,
        updates: int,
        keys: Array,
        update_normalizers: bool,
        progress: Callable[[], None] = lambda: None,
    ) -> tuple[Agent, EnvBatch, UpdateReport]:
        """Alternate rollouts and updates.

        Args:
            agents: A agents.
            envs: the environments; they are donated to the first rollout.
            weights: (A, k+1) objective of each agent.
            updates: number of updates.
            keys: (A,) random key of each agent.
            update_normalizers: whether rollouts update the agents' normalizers.
            progress: called after every update.

        Returns:
            The agents, the environments, and a report with arrays (A,), averaged over the updates.
        """
        agents, envs = self.begin(agents, envs, keys)
        reports = []
        for number in range(updates):
            collect_keys, update_keys = random.split_each(_fold_in(keys, number))
            envs, trajectory = self.collect(agents, envs, collect_keys)
            agents, report, _ = self.update(agents, trajectory, weights, update_keys)
            if update_normalizers:
                agents = self.update_normalizers(agents, trajectory)
            reports.append(report)
            report.kl.block_until_ready()
            progress()
        return agents, envs, jax.tree.map(lambda *values: np.mean(values, axis=0), *reports)

    # Inside compiled programs.

    def _init_envs(self, key: Array) -> EnvBatch:
        state = self.task.reset(key, self.config.environments)
        return EnvBatch(state, jnp.zeros((self.config.environments, self.objectives)))

    def _collect(self, agents: Agent, envs: EnvBatch, keys: Array) -> tuple[EnvBatch, Trajectory]:
        config, task = self.config, self.task
        count, environments = len(keys), len(envs.returns)
        share = environments // count

        def by_agent(values: Array) -> Array:
            return values.reshape(count, share, *values.shape[1:])

        def step(carry: _Carry, number: Array) -> tuple[_Carry, Trajectory]:
            envs, normalizer = carry
            state, acting = envs.state, agents
            act_keys, restart_keys = random.split_each(_fold_in(keys, number))
            observation = by_agent(state.observation)
            if normalizer is not None:
                counted = by_agent(~state.finished)
                normalizer = jax.vmap(self._ppo.updated_normalizer)(normalizer, observation, counted)
                acting = replace(agents, policy=replace(agents.policy, normalizer=normalizer))
            noise = jax.vmap(lambda key: jax.random.normal(key, (share, task.action_size)))(act_keys)
            mean = jax.vmap(lambda policy, inputs: policy.mean_action(self.actor, inputs))(
                acting.policy, observation
            )
            action = mean + jnp.exp(agents.policy.log_std)[:, None] * noise
            after = task.step(state, action.reshape(environments, task.action_size))
            rewards = jnp.concatenate([after.reward[:, None], after.proxies], axis=1)
            returns = config.gamma * envs.returns + rewards
            needed = by_agent(self._ppo.needs_value(after))

            def final_values() -> Array:
                values = jax.vmap(self._ppo.value)(acting, by_agent(after.observation))
                return jnp.where(needed.reshape(needed.shape + (1,) * (values.ndim - 2)), values, 0.0)

            values = jax.eval_shape(final_values)
            truncation_value = jax.lax.cond(
                needed.any(), final_values, lambda: jnp.zeros(values.shape, values.dtype)
            )
            restart_keys = jax.vmap(lambda key: jax.random.split(key, share))(restart_keys)
            unfinished = ~after.finished[:, None]
            row = Trajectory(
                active=by_agent(~state.finished),
                observation=observation,
                noise=noise,
                action=action,
                rewards=by_agent(rewards),
                terminated=by_agent(after.terminated),
                finished=by_agent(after.finished),
                diverged=by_agent(after.diverged),
                truncation_value=truncation_value,
                last_observation=jnp.zeros(()),  # set below
                returns=by_agent(returns),
            )
            state = task.restart(after, restart_keys.reshape(environments))
            return (EnvBatch(state, returns * unfinished), normalizer), row

        running = agents.policy.normalizer if config.normalizers == "fresh" else None
        (envs, _), rows = jax.lax.scan(step, (envs, running), jnp.arange(config.rollout_length))
        trajectory: Trajectory = jax.tree.map(
            lambda values: jnp.moveaxis(values, 0, 2) if values.ndim > 1 else values, rows
        )
        return envs, replace(trajectory, last_observation=by_agent(envs.state.observation))

    def _update(
        self, agents: Agent, trajectory: Trajectory, weights: Array, keys: Array, recorded: bool = False
    ) -> tuple[Agent, UpdateReport, Array | None]:
        ppo = self._ppo
        data = jax.vmap(ppo.prepare)(agents, trajectory, weights)
        size = data.batch.advantage.shape[1]
        minibatches = jax.vmap(lambda key: ppo.minibatches(key, size), out_axes=1)(keys)  # (steps, A, m)

        epoch_ends = (jnp.arange(len(minibatches)) + 1) % self.config.minibatches == 0

        def all_agents(state: UpdateState, rows: Array, epoch_ends: Array) -> UpdateState:
            mapped = jax.vmap(ppo.minibatch_step, in_axes=(0, 0, 0, None), axis_name=AGENTS)
            after: UpdateState = mapped(state, data.batch, rows, epoch_ends)
            return after

        def step(state: UpdateState, xs: tuple[Array, Array]) -> tuple[UpdateState, Array | None]:
            state = jax.lax.cond(state.active.any(), all_agents, lambda state, *_: state, state, *xs)
            return state, state.parameters.actor if recorded else None

        end, actors = jax.lax.scan(step, data.start, (minibatches, epoch_ends))
        agents, report = jax.vmap(ppo.finish)(agents, end, trajectory, data)
        return agents, report, None if actors is None else jnp.swapaxes(actors, 0, 1)


def _traceable(program: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """`program`, but `function` for traced arguments: JAX cannot trace calls of workers or other devices."""

    def call(*arguments: Any) -> Any:
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arguments))
        return (function if traced else program)(*arguments)

    return call


_Carry = tuple[EnvBatch, NormalizerState | None]
_Update = Callable[[Agent, Trajectory, Array, Array], tuple[Agent, UpdateReport, Array | None]]


@jax.jit
def _fold_in(keys: Array, number: Array) -> Array:
    """Keys (n,), each with a number folded in."""
    return jnp.asarray(jax.vmap(lambda key: jax.random.fold_in(key, number))(keys))
