"""Twin delayed deep deterministic policy gradients (TD3; Fujimoto et al., 2018), many learners at once.

What a learner does is written for one and mapped over all with `jax.vmap`. A row of experience is flat:
observation, action, next observation, whether nothing follows, and then what the step gave: reward, measure
proxies, and whatever else a learner may be told to raise. What it raises is a weighted sum of these.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ppga.physics import Array
from ppga.policies import Moments, Network, init_mlp
from ppga.rollouts import Transitions
from ppga.storage import NumpyArray


@dataclass(frozen=True)
class TD3Config:
    """Settings of TD3, for the algorithms that learn off policy with it.

    Attributes:
        batch: transitions in a gradient step.
        buffer: transitions remembered.
        critic_steps: gradient steps of the critics, with their greedy actors, in an iteration.
        policy_steps: gradient steps by which a policy of the archive is varied.
        discount: gamma.
        tau: how far target networks follow in an update.
        noise: smoothing noise of the target policy (standard deviation).
        noise_clip: its bound.
        delay: critic steps for each step of the actor and of the targets.
        critic_rate: Adam's learning rate of the critics.
        actor_rate: of the actors that learn along with them.
        policy_rate: of policies that are varied.
    """

    batch: int = 256
    buffer: int = 1_000_000
    critic_steps: int = 300
    policy_steps: int = 100
    discount: float = 0.99
    tau: float = 0.005
    noise: float = 0.2
    noise_clip: float = 0.5
    delay: int = 2
    critic_rate: float = 3e-4
    actor_rate: float = 3e-4
    policy_rate: float = 1e-3


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """Rows (n, ...) taken apart."""

    observation: Array
    action: Array
    next_observation: Array
    terminated: Array
    gains: Array


@dataclass(frozen=True)
class Layout:
    """Where things are in a row.

    Attributes:
        observation: numbers seen.
        action: numbers done.
        gains: numbers that a step gave: reward and k measure proxies.
    """

    observation: int
    action: int
    gains: int

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return 2 * self.observation + self.action + 1 + self.gains

    def rows(self, film: Transitions) -> NumpyArray:
        """The steps that were lived, as rows."""
        lived = np.asarray(film.lived)
        parts = (
            film.observation,
            film.action,
            film.next_observation,
            film.terminated[..., None],
            film.reward[..., None],
            film.proxies,
        )
        return np.concatenate([np.asarray(part)[lived].astype(np.float32) for part in parts], axis=1)

    @partial(jax.jit, static_argnums=0)
    def seen(self, rows: Array, normaliser: Moments) -> Array:
        """Rows (..., width or more) with their observations normalised."""
        o, a = self.observation, self.action
        before, after = rows[..., :o], rows[..., o + a : 2 * o + a]
        return jnp.concatenate(
            [
                normaliser.normalise(before),
                rows[..., o : o + a],
                normaliser.normalise(after),
                rows[..., 2 * o + a :],
            ],
            axis=-1,
        )

    def split(self, rows: Array) -> Batch:
        """Rows (..., width or more) taken apart; what is beyond the width counts as gained."""
        o, a = self.observation, self.action
        return Batch(
            observation=rows[..., :o],
            action=rows[..., o : o + a],
            next_observation=rows[..., o + a : 2 * o + a],
            terminated=rows[..., 2 * o + a],
            gains=rows[..., 2 * o + a + 1 :],
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Critics:
    """Two critics of one objective.

    Attributes:
        parameters: (2, p).
        target: (2, p), following slowly.
        adam: their moments.
    """

    parameters: Array
    target: Array
    adam: optax.OptState


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Actor:
    """A policy that learns along with critics.

    Attributes:
        parameters: (d,).
        target: (d,), following slowly.
        adam: its moments.
    """

    parameters: Array
    target: Array
    adam: optax.OptState


class Twins:
    """Two critics that judge an action, of which the less hopeful counts.

    Args:
        layout: of the rows.
        hidden: units of the hidden layers.

    Attributes:
        network: of each; p parameters.
    """

    def __init__(self, layout: Layout, hidden: Sequence[int]) -> None:
        self.network = Network((layout.observation + layout.action, *hidden, 1), "relu")

    def init(self, key: Array) -> Array:
        """Parameters (2, p) to begin with."""
        sizes = self.network.sizes
        return jnp.stack([self.network.flatten(init_mlp(key, sizes)) for key in jax.random.split(key)])

    def value(self, critic: Array, observation: Array, action: Array) -> Array:
        """What one of them (p,) expects (n,)."""
        return jnp.asarray(self.network(critic, jnp.concatenate([observation, action], axis=-1))[..., 0])

    def values(self, critics: Array, observation: Array, action: Array) -> Array:
        """What both (2, p) expect (2, n)."""
        return jnp.asarray(jax.vmap(self.value, (0, None, None))(critics, observation, action))


class TD3:
    """TD3 for any number of learners.

    Args:
        layout: of the rows.
        actor: the policies' network; its outputs lie in [-1, 1].
        critic_sizes: hidden units of the critics' layers.
        config: settings.
    """

    def __init__(
        self, layout: Layout, actor: Network, critic_sizes: Sequence[int], config: TD3Config
    ) -> None:
        self.layout, self.actor, self.config = layout, actor, config
        self.twins = Twins(layout, critic_sizes)
        self._adam = optax.scale_by_adam()

    def init_critics(self, key: Array) -> Critics:
        """New critics."""
        parameters = self.twins.init(key)
        return Critics(parameters, parameters, self._adam.init(parameters))

    def init_actor(self, parameters: Array) -> Actor:
        """An actor that begins here, its target too."""
        return Actor(parameters, parameters, self._adam.init(parameters))

    @partial(jax.jit, static_argnums=0)
    def train(
        self, critics: Critics, actors: Actor, rows: Array, weights: Array, keys: Array
    ) -> tuple[Critics, Actor, Array]:
        """Let J learners learn from the same rows.

        Args:
            critics: J of them.
            actors: J of them.
            rows: (steps, batch, width); steps in multiples of the delay.
            weights: (J, gains) what each is to raise.
            keys: (J,) their randomness.

        Returns:
            Critics, actors, and the critics' mean loss (J,).
        """
        delay = self.config.delay
        groups = rows.reshape(-1, delay, *rows.shape[1:])

        def one(critics: Critics, actor: Actor, weights: Array, key: Array) -> tuple[Critics, Actor, Array]:
            def group(
                carry: tuple[Critics, Actor], step: tuple[Array, Array]
            ) -> tuple[tuple[Critics, Actor], Array]:
                critics, actor = carry
                number, rows = step
                loss = jnp.zeros(())
                for inner in range(delay):
                    now = jax.random.fold_in(key, number * delay + inner)
                    critics, error = self.critic_step(
                        critics, actor, self.layout.split(rows[inner]), weights, now
                    )
                    loss += error / delay
                last = self.layout.split(rows[-1])
                return self.delayed_step(critics, actor, last.observation), loss

            (critics, actor), losses = jax.lax.scan(
                group, (critics, actor), (jnp.arange(len(groups)), groups)
            )
            return critics, actor, losses.mean()

        trained: tuple[Critics, Actor, Array] = jax.vmap(one)(critics, actors, weights, keys)
        return trained

    @partial(jax.jit, static_argnums=0)
    def climb(self, policies: Array, critics: Critics, rows: Array) -> Array:
        """Policies (n, d) after gradient steps up their own critics (n), on rows (steps, batch, width)."""

        def one(parameters: Array, critics: Critics) -> Array:
            def step(
                carry: tuple[Array, optax.OptState], rows: Array
            ) -> tuple[tuple[Array, optax.OptState], None]:
                parameters, adam = carry
                gradient = self.gradient(parameters, critics, self.layout.split(rows).observation)
                change, adam = self._adam.update(gradient, adam)
                return (parameters + self.config.policy_rate * change, adam), None

            (parameters, _), _ = jax.lax.scan(step, (parameters, self._adam.init(parameters)), rows)
            return parameters

        return jnp.asarray(jax.vmap(one)(policies, critics))

    @partial(jax.jit, static_argnums=0)
    def gradient(self, parameters: Array, critics: Critics, observation: Array) -> Array:
        """How to change a policy (d,) so that the first critic expects more, at observations (n, o)."""

        def expected(parameters: Array) -> Array:
            action = self.actor(parameters, observation)
            return self.twins.value(critics.parameters[0], observation, action).mean()

        return jnp.asarray(jax.grad(expected)(parameters))

    # One learner, one step; the pieces that tests look at.

    def aim(self, critics: Critics, actor: Actor, batch: Batch, weights: Array, key: Array) -> Array:
        """What the critics should have expected (n,)."""
        config = self.config
        noise = config.noise * jax.random.normal(key, batch.action.shape)
        noise = jnp.clip(noise, -config.noise_clip, config.noise_clip)
        action = jnp.clip(self.actor(actor.target, batch.next_observation) + noise, -1.0, 1.0)
        expected = self.twins.values(critics.target, batch.next_observation, action)
        follows = (1 - batch.terminated) * expected.min(axis=0)
        return jnp.asarray(batch.gains @ weights + config.discount * follows)

    def critic_step(
        self, critics: Critics, actor: Actor, batch: Batch, weights: Array, key: Array
    ) -> tuple[Critics, Array]:
        """One gradient step of both critics; targets stay. Returns the loss before it, too."""
        aim = self.aim(critics, actor, batch, weights, key)

        def loss(parameters: Array) -> Array:
            expected = self.twins.values(parameters, batch.observation, batch.action)
            return jnp.square(expected - aim).mean(axis=1).sum()

        error, gradient = jax.value_and_grad(loss)(critics.parameters)
        change, adam = self._adam.update(gradient, critics.adam)
        parameters = critics.parameters - self.config.critic_rate * change
        after = Critics(parameters, critics.target, adam)
        return if_finite(gradient, after, critics), error

    def delayed_step(self, critics: Critics, actor: Actor, observation: Array) -> tuple[Critics, Actor]:
        """One gradient step of the actor, and all targets a little nearer."""
        gradient = self.gradient(actor.parameters, critics, observation)
        change, adam = self._adam.update(gradient, actor.adam)
        parameters = actor.parameters + self.config.actor_rate * change
        tau = self.config.tau
        target = (1 - tau) * critics.target + tau * critics.parameters
        after = Actor(parameters, (1 - tau) * actor.target + tau * parameters, adam)
        return Critics(critics.parameters, target, critics.adam), if_finite(gradient, after, actor)


def if_finite(gradient: Array, new: Any, old: Any) -> Any:
    """What a gradient leads to; what was there, if it is not finite."""
    finite = jnp.isfinite(gradient).all()
    return jax.tree.map(lambda new, old: jnp.where(finite, new, old), new, old)
