"""Soft actor-critic (SAC; Haarnoja et al., 2018) with a learnt temperature, a population of agents at once.

What an agent does is written for one and mapped over all with `jax.vmap`; each has its own experience and its
own learning rates, discount and reward scale, so that these can evolve.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ppga.learners.td3 import Batch, Layout, Twins, if_finite
from ppga.physics import Array
from ppga.policies import Network, init_mlp, log_density

NARROWEST, WIDEST = -5.0, 2.0
"""Bounds of the logarithm of the action noise's standard deviation."""
HYPER = ("actor_rate", "critic_rate", "temperature_rate", "discount", "reward_scale")
"""What evolves, in the order of `Agent.hyper`."""


@dataclass(frozen=True)
class SACConfig:
    """Settings of SAC and of the population that learns with it (pbt-me-sac).

    Attributes:
        population: agents that learn.
        environments: of each agent.
        steps: control steps in each of its environments in an iteration.
        chunk: of these, how many at a time before gradient steps follow.
        updates_per_step: gradient steps for each control step of an agent.
        batch: transitions in a gradient step.
        buffer: transitions each agent remembers.
        tau: how far target critics follow in an update.
        rates: range of the learning rates, drawn evenly in their logarithm.
        discounts: range of the discounts.
        reward_scales: range of the factors of the reward, drawn evenly in their logarithm.
        best: share of the population that replaces
        worst: this share of it; and
        archived: this share is replaced from the archive.
    """

    population: int = 10
    environments: int = 1
    steps: int = 1000
    chunk: int = 50
    updates_per_step: float = 1.0
    batch: int = 256
    buffer: int = 100_000
    tau: float = 0.005
    rates: tuple[float, float] = (3e-5, 3e-3)
    discounts: tuple[float, float] = (0.9, 1.0)
    reward_scales: tuple[float, float] = (0.1, 10.0)
    best: float = 0.1
    worst: float = 0.2
    archived: float = 0.4


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Agent:
    """One agent; with a leading axis on every array, many.

    Attributes:
        actor: (d,) parameters of the policy.
        critics: (2, p).
        target: (2, p), following slowly.
        log_temperature: () how much entropy is worth.
        adam: moments of actor, critics and temperature.
        hyper: (5,) as `HYPER` says.
    """

    actor: Array
    critics: Array
    target: Array
    log_temperature: Array
    adam: tuple[optax.OptState, optax.OptState, optax.OptState]
    hyper: Array


class SAC:
    """SAC for any number of agents.

    Args:
        layout: of the rows of experience.
        actor_sizes: hidden units of the policies' layers.
        critic_sizes: hidden units of the critics' layers.
        config: settings.
    """

    def __init__(
        self, layout: Layout, actor_sizes: Sequence[int], critic_sizes: Sequence[int], config: SACConfig
    ) -> None:
        self.layout, self.config = layout, config
        # tanh: untrained, with ReLU and biases of 0, robots lie still, and there is nothing to choose from
        self.actor = Network((layout.observation, *actor_sizes, 2 * layout.action), "tanh", "gaussian")
        self.twins = Twins(layout, critic_sizes)
        self._adam = optax.scale_by_adam()

    def init(self, key: Array) -> Agent:
        """A new agent with hyperparameters at random."""
        actor_key, critic_key, hyper_key = jax.random.split(key, 3)
        actor = self.actor.flatten(init_mlp(actor_key, self.actor.sizes))
        return self.agent(
            jnp.asarray(actor), self.twins.init(critic_key), jnp.zeros(()), self.draw_hyper(hyper_key)
        )

    def agent(self, actor: Array, critics: Array, log_temperature: Array, hyper: Array) -> Agent:
        """An agent that begins to learn with all this."""
        adam = (self._adam.init(actor), self._adam.init(critics), self._adam.init(log_temperature))
        return Agent(actor, critics, critics, log_temperature, adam, hyper)

    def draw_hyper(self, key: Array) -> Array:
        """Hyperparameters (5,) at random."""
        config = self.config
        low = jnp.log(jnp.array([config.rates[0]] * 3 + [1.0, config.reward_scales[0]]))
        high = jnp.log(jnp.array([config.rates[1]] * 3 + [1.0, config.reward_scales[1]]))
        share = jax.random.uniform(key, (len(HYPER),))
        discount = config.discounts[0] + share[3] * (config.discounts[1] - config.discounts[0])
        return jnp.exp(low + share * (high - low)).at[3].set(discount)

    def act(self, actor: Array, observation: Array, key: Array) -> tuple[Array, Array]:
        """Actions (n, a) at random, and their log densities (n,)."""
        mean, width = jnp.split(self.actor.raw(actor, observation), 2, axis=-1)
        log_std = jnp.clip(width, NARROWEST, WIDEST)
        noise = jax.random.normal(key, mean.shape)
        before = mean + jnp.exp(log_std) * noise
        # d tanh(x) / dx = 1 - tanh^2(x) = 4 / (e^x + e^-x)^2, by its logarithm
        bent = 2 * (np.log(2.0) - before - jax.nn.softplus(-2 * before))
        return jnp.tanh(before), log_density(noise, log_std) - bent.sum(axis=-1)

    @partial(jax.jit, static_argnums=0)
    def train(self, agents: Agent, rows: Array, keys: Array) -> tuple[Agent, Array]:
        """Let P agents learn, each from its own rows (P, steps, batch, width); their critics' loss (P,)."""

        def one(agent: Agent, rows: Array, key: Array) -> tuple[Agent, Array]:
            def step(agent: Agent, now: tuple[Array, Array]) -> tuple[Agent, Array]:
                number, rows = now
                return self.step(agent, self.layout.split(rows), jax.random.fold_in(key, number))

            agent, losses = jax.lax.scan(step, agent, (jnp.arange(len(rows)), rows))
            return agent, losses.mean()

        trained: tuple[Agent, Array] = jax.vmap(one)(agents, rows, keys)
        return trained

    # One agent, one step; the pieces that tests look at.

    def aim(self, agent: Agent, batch: Batch, key: Array) -> Array:
        """What the critics should have expected (n,)."""
        discount, scale = agent.hyper[3], agent.hyper[4]
        action, density = self.act(agent.actor, batch.next_observation, key)
        expected = self.twins.values(agent.target, batch.next_observation, action).min(axis=0)
        follows = expected - jnp.exp(agent.log_temperature) * density
        return jnp.asarray(scale * batch.gains[:, 0] + discount * (1 - batch.terminated) * follows)

    def step(self, agent: Agent, batch: Batch, key: Array) -> tuple[Agent, Array]:
        """One gradient step of critics, actor and temperature; and the critics' loss before it."""
        aim_key, act_key = jax.random.split(key)
        aim = self.aim(agent, batch, aim_key)
        temperature = jnp.exp(agent.log_temperature)

        def critic_loss(critics: Array) -> Array:
            return (
                jnp.square(self.twins.values(critics, batch.observation, batch.action) - aim)
                .mean(axis=1)
                .sum()
            )

        def actor_loss(actor: Array) -> tuple[Array, Array]:
            action, density = self.act(actor, batch.observation, act_key)
            expected = self.twins.values(agent.critics, batch.observation, action).min(axis=0)
            return (temperature * density - expected).mean(), density

        error, critic_gradient = jax.value_and_grad(critic_loss)(agent.critics)
        actor_gradient, density = jax.grad(actor_loss, has_aux=True)(agent.actor)
        wanted_entropy = -float(self.layout.action)
        temperature_gradient = -(density + wanted_entropy).mean()
        learnt, moments = [], []
        for value, gradient, adam, rate in zip(
            (agent.actor, agent.critics, agent.log_temperature),
            (actor_gradient, critic_gradient, temperature_gradient),
            agent.adam,
            agent.hyper[:3],
            strict=True,
        ):
            change, after = self._adam.update(gradient, adam)
            new, now = if_finite(gradient, (value - rate * change, after), (value, adam))
            learnt.append(new)
            moments.append(now)
        actor, critics, log_temperature = learnt
        target = agent.target + self.config.tau * (critics - agent.target)
        first, second, third = moments
        return Agent(actor, critics, target, log_temperature, (first, second, third), agent.hyper), error
