"""Soft actor-critic (SAC; Haarnoja et al., 2018) with a learned temperature, for a population of agents.

The functions of an agent are written for one agent and mapped over all with `jax.vmap`. Each agent has its
own experience, learning rates, discount factor and reward scale, so that these hyperparameters can evolve.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ppga.config import check_range, check_whole, option
from ppga.errors import InputError
from ppga.learners.replay import ReplayConfig
from ppga.learners.td3 import Batch, Layout, Twins, if_finite
from ppga.physics import Array
from ppga.policies.network import Network
from ppga.policies.policy import init_mlp, log_density

LOG_STD_RANGE = -5.0, 2.0
"""Bounds of the logarithm of the action noise's standard deviation."""
HYPERPARAMETERS = (
    "actor_learning_rate", "critic_learning_rate", "temperature_learning_rate", "gamma", "reward_scale",
)  # fmt: skip
"""Names of an agent's hyperparameters, in the order of `Agent.hyper`."""


@dataclass(frozen=True)
class SACConfig(ReplayConfig):
    """Settings of SAC, for a population of agents with hyperparameters of their own.

    Attributes:
        environments: environments of each agent.
        steps: control steps in each environment per iteration.
        chunk: control steps in each environment between two series of gradient steps; must divide `steps`.
        updates_per_step: gradient steps per control step of an agent.
        batch_size: transitions of a gradient step.
        buffer_size: transitions in each agent's replay buffer; the oldest ones are overwritten.
        tau: Polyak coefficient of the target critics.
        target_entropy: the temperature seeks an entropy of minus this number per action.
        fresh_optimizers: begin every iteration with new states of Adam, and target critics equal to the
            critics, as QDax does.
        uniform: draw learning rates and reward scales uniformly, as QDax does; log-uniformly otherwise.
        learning_rates: range of Adam's learning rates, which are drawn for each agent.
        gammas: range of the discount factors, which are drawn uniformly for each agent.
        reward_scales: range of the factors of the reward, which are drawn for each agent.
    """

    environments: int = 1
    steps: int = 1000
    chunk: int = 50
    updates_per_step: float = 1.0
    batch_size: int = 256
    buffer_size: int = 100_000
    tau: float = 0.005
    target_entropy: float = 1.0
    fresh_optimizers: bool = False
    uniform: bool = False
    learning_rates: tuple[float, float] = (3e-5, 3e-3)
    gammas: tuple[float, float] = (0.9, 1.0)
    reward_scales: tuple[float, float] = (0.1, 10.0)

    def check(self) -> None:
        """Raise an InputError for values that cannot work."""
        for name in ("environments", "steps", "chunk", "batch_size", "buffer_size"):
            check_whole(f"sac.{name}", getattr(self, name))
        if self.steps % self.chunk:
            raise InputError(
                f"--sac.steps must be a multiple of --sac.chunk, {self.chunk}, got {self.steps}."
            )
        check_range("sac.updates_per_step", self.updates_per_step)
        if round(self.chunk * self.environments * self.updates_per_step) < 1:
            raise InputError(
                f"--sac.updates-per-step must give at least one gradient step per chunk "
                f"({self.chunk} steps x {self.environments} environments), got {self.updates_per_step}."
            )
        check_range("sac.tau", self.tau, high=1.0)
        check_range("sac.target_entropy", self.target_entropy)
        for name in ("learning_rates", "gammas", "reward_scales"):
            pair = getattr(self, name)
            if not (len(pair) == 2 and 0 < pair[0] <= pair[1] < math.inf):
                raise InputError(
                    f"{option(f'sac.{name}')} must be two positive numbers, low and high, got {pair}."
                )
        if self.gammas[1] > 1:
            raise InputError(f"--sac.gammas must not exceed 1, got {self.gammas}.")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Agent:
    """State of one agent; arrays of several agents have a leading axis.

    Attributes:
        actor: (d,) parameters of the policy.
        critics: (2, p) parameters of the twin critics.
        target: (2, p) of the target critics.
        log_temperature: () logarithm of the weight of the policy's entropy.
        optimizers: states of Adam for actor, critics and temperature.
        hyper: (5,) hyperparameters, in the order of `HYPERPARAMETERS`.
    """

    actor: Array
    critics: Array
    target: Array
    log_temperature: Array
    optimizers: tuple[optax.OptState, optax.OptState, optax.OptState]
    hyper: Array


class SAC:
    """SAC for any number of agents.

    Args:
        layout: sizes of the parts of a row, which is a flat transition.
        actor_sizes: units of each hidden layer of the policies.
        critic_sizes: units of each hidden layer of the critics.
        config: settings.
    """

    def __init__(
        self, layout: Layout, actor_sizes: Sequence[int], critic_sizes: Sequence[int], config: SACConfig
    ) -> None:
        self.layout, self.config = layout, config
        # tanh: with ReLU and zero biases, all robots lie still at first, and selection has no variety
        self.actor = Network((layout.observation, *actor_sizes, 2 * layout.action), "tanh", "gaussian")
        self.twins = Twins(layout, critic_sizes)
        self._adam = optax.scale_by_adam()

    def init(self, key: Array) -> Agent:
        """A randomly initialized agent with random hyperparameters."""
        actor_key, critic_key, hyper_key = jax.random.split(key, 3)
        actor = self.actor.flatten(init_mlp(actor_key, self.actor.sizes))
        return self.agent(
            jnp.asarray(actor), self.twins.init(critic_key), jnp.zeros(()), self.draw_hyper(hyper_key)
        )

    def agent(self, actor: Array, critics: Array, log_temperature: Array, hyper: Array) -> Agent:
        """An agent with new optimizer states, whose target critics equal its critics.

        Args:
            actor: (d,).
            critics: (2, p).
            log_temperature: ().
            hyper: (5,).
        """
        optimizers = (self._adam.init(actor), self._adam.init(critics), self._adam.init(log_temperature))
        return Agent(actor, critics, critics, log_temperature, optimizers, hyper)

    def draw_hyper(self, key: Array) -> Array:
        """Random hyperparameters (5,), within the ranges of the settings."""
        config = self.config
        ranges = [config.learning_rates] * 3 + [config.gammas, config.reward_scales]
        low, high = jnp.array(ranges).T
        share = jax.random.uniform(key, (len(HYPERPARAMETERS),))
        uniform = low + share * (high - low)
        if config.uniform:
            return jnp.asarray(uniform)
        # discount factors are always uniform
        return jnp.asarray((low * (high / low) ** share).at[3].set(uniform[3]))

    def act(self, actor: Array, observation: Array, key: Array) -> tuple[Array, Array]:
        """Sampled actions (n, a) of a policy (d,) at observations (n, o), and their log densities (n,)."""
        mean, raw_log_std = jnp.split(self.actor.raw(actor, observation), 2, axis=-1)
        log_std = jnp.clip(raw_log_std, *LOG_STD_RANGE)
        noise = jax.random.normal(key, mean.shape)
        gaussian = mean + jnp.exp(log_std) * noise
        # the logarithm of d tanh(x) / dx = 1 - tanh^2(x) = 4 / (e^x + e^-x)^2, which does not underflow
        log_slope = 2 * (np.log(2.0) - gaussian - jax.nn.softplus(-2 * gaussian))
        return jnp.tanh(gaussian), log_density(noise, log_std) - log_slope.sum(axis=-1)

    @partial(jax.jit, static_argnums=0)
    def train(self, agents: Agent, rows: Array, keys: Array) -> tuple[Agent, Array]:
        """Train P agents, each on its own rows.

        Args:
            agents: (P, ...).
            rows: (P, steps, batch, width).
            keys: (P,) random keys.

        Returns:
            Agents (P, ...), and their critics' mean loss (P,).
        """

        def train_one(agent: Agent, rows: Array, key: Array) -> tuple[Agent, Array]:
            def step(agent: Agent, numbered: tuple[Array, Array]) -> tuple[Agent, Array]:
                number, rows = numbered
                return self.step(agent, self.layout.split(rows), jax.random.fold_in(key, number))

            agent, losses = jax.lax.scan(step, agent, (jnp.arange(len(rows)), rows))
            return agent, losses.mean()

        trained: tuple[Agent, Array] = jax.vmap(train_one)(agents, rows, keys)
        return trained

    # One step of one agent. Tests compare these functions with calculations by hand.

    def td_target(self, agent: Agent, batch: Batch, key: Array) -> Array:
        """Targets (n,) of the critics: scaled reward plus discounted soft value of the next observation."""
        gamma, reward_scale = agent.hyper[3], agent.hyper[4]
        action, density = self.act(agent.actor, batch.next_observation, key)
        value = self.twins.values(agent.target, batch.next_observation, action).min(axis=0)
        soft_value = value - jnp.exp(agent.log_temperature) * density
        return jnp.asarray(reward_scale * batch.gains[:, 0] + gamma * (1 - batch.terminated) * soft_value)

    def step(self, agent: Agent, batch: Batch, key: Array) -> tuple[Agent, Array]:
        """One gradient step of critics, actor and temperature; also returns the critics' loss before it."""
        target_key, act_key = jax.random.split(key)
        td_target = self.td_target(agent, batch, target_key)
        temperature = jnp.exp(agent.log_temperature)

        def critic_loss(critics: Array) -> Array:
            values = self.twins.values(critics, batch.observation, batch.action)
            return jnp.square(values - td_target).mean(axis=1).sum()

        def actor_loss(actor: Array) -> tuple[Array, Array]:
            action, density = self.act(actor, batch.observation, act_key)
            value = self.twins.values(agent.critics, batch.observation, action).min(axis=0)
            return (temperature * density - value).mean(), density

        error, critic_gradient = jax.value_and_grad(critic_loss)(agent.critics)
        actor_gradient, density = jax.grad(actor_loss, has_aux=True)(agent.actor)
        target_entropy = -self.config.target_entropy * self.layout.action
        temperature_gradient = -(density + target_entropy).mean()
        parameters, optimizers = [], []
        for value, gradient, optimizer, learning_rate in zip(
            (agent.actor, agent.critics, agent.log_temperature),
            (actor_gradient, critic_gradient, temperature_gradient),
            agent.optimizers,
            agent.hyper[:3],
            strict=True,
        ):
            change, next_optimizer = self._adam.update(gradient, optimizer)
            new_value, new_optimizer = if_finite(
                gradient, (value - learning_rate * change, next_optimizer), (value, optimizer)
            )
            parameters.append(new_value)
            optimizers.append(new_optimizer)
        actor, critics, log_temperature = parameters
        target = agent.target + self.config.tau * (critics - agent.target)
        first, second, third = optimizers
        return Agent(actor, critics, target, log_temperature, (first, second, third), agent.hyper), error
