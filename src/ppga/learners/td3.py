"""Twin delayed deep deterministic policy gradients (TD3; Fujimoto et al., 2018), many learners at once.

The functions of a learner are written for one learner and mapped over all with `jax.vmap`. A transition is
stored as a flat row: observation, action, next observation, terminated, and the gains of the step (reward,
measure proxies, and further numbers that a learner can maximize). Each learner maximizes a weighted sum of
the gains.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ppga.config import check_range, check_whole, option
from ppga.errors import InputError
from ppga.learners.replay import ReplayConfig
from ppga.physics import Array
from ppga.policies.network import Network
from ppga.policies.normalizer import NormalizerState
from ppga.policies.policy import init_mlp
from ppga.rollouts import Transitions
from ppga.storage import NumpyArray


@dataclass(frozen=True)
class TD3Config(ReplayConfig):
    """Settings of TD3, for algorithms with an off-policy learner.

    Attributes:
        batch_size: transitions of a gradient step.
        gamma: discount factor.
        tau: Polyak coefficient of the target networks.
        target_noise: standard deviation of the noise on the target policy's actions, which lie in [-1, 1].
        target_noise_clip: largest absolute value of that noise.
        policy_delay: critic steps per step of the actor and of the target networks.
        delayed_targets: update the critics' target networks together with the actor, as TD3's authors do;
            after every critic step otherwise, as QDax does.
        own_actor_batch: draw further transitions for each step of the actor, as QDax does; it gets those of
            the last critic step otherwise.
        critic_learning_rate: Adam's learning rate of the critics.
        actor_learning_rate: Adam's learning rate of the greedy actors, which are trained with the critics.
        policy_learning_rate: Adam's learning rate of policies that are varied by policy gradients.
    """

    batch_size: int = 256
    gamma: float = 0.99
    tau: float = 0.005
    target_noise: float = 0.2
    target_noise_clip: float = 0.5
    policy_delay: int = 2
    delayed_targets: bool = True
    own_actor_batch: bool = False
    critic_learning_rate: float = 3e-4
    actor_learning_rate: float = 3e-4
    policy_learning_rate: float = 1e-3

    def check(self) -> None:
        """Raise an InputError for values that cannot work."""
        for name in ("batch_size", "buffer_size", "policy_delay"):
            check_whole(f"td3.{name}", getattr(self, name))
        for name in ("critic_learning_rate", "actor_learning_rate", "policy_learning_rate"):
            check_range(f"td3.{name}", getattr(self, name))
        for name in ("target_noise", "target_noise_clip"):
            check_range(f"td3.{name}", getattr(self, name))
        for name in ("gamma", "tau"):
            check_range(f"td3.{name}", getattr(self, name), high=1.0)

    def check_steps(self, name: str, steps: int) -> None:
        """Raise an InputError unless a number of critic steps is a positive multiple of the policy delay."""
        check_whole(name, steps)
        if steps % self.policy_delay:
            raise InputError(
                f"{option(name)} must be a multiple of --td3.policy-delay, {self.policy_delay}, got {steps}."
            )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """The parts of n transitions.

    Attributes:
        observation: (n, o) before the step.
        action: (n, a).
        next_observation: (n, o) after the step.
        terminated: (n,) 1 if the step ended the episode other than by the time limit, else 0.
        gains: (n, g) numbers that learners maximize: reward, k measure proxies, and any further ones.
    """

    observation: Array
    action: Array
    next_observation: Array
    terminated: Array
    gains: Array


@dataclass(frozen=True)
class Layout:
    """Sizes of the parts of a row, which is a flat transition.

    Attributes:
        observation: size o of an observation.
        action: size a of an action.
        gains: number of stored gains, 1 + k: reward and k measure proxies.
    """

    observation: int
    action: int
    gains: int

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return 2 * self.observation + self.action + 1 + self.gains

    def rows(self, transitions: Transitions) -> NumpyArray:
        """Rows (m, width) of the m steps that were taken, of transitions (..., t)."""
        taken = np.asarray(transitions.taken)
        parts = (
            transitions.observation,
            transitions.action,
            transitions.next_observation,
            transitions.terminated[..., None],
            transitions.reward[..., None],
            transitions.proxies,
        )
        return np.concatenate([np.asarray(part)[taken].astype(np.float32) for part in parts], axis=1)

    @partial(jax.jit, static_argnums=0)
    def normalize(self, rows: Array, normalizer: NormalizerState) -> Array:
        """Rows (..., width or more) with their observations normalized."""
        o, a = self.observation, self.action
        before, after = rows[..., :o], rows[..., o + a : 2 * o + a]
        return jnp.concatenate(
            [
                normalizer.normalize(before),
                rows[..., o : o + a],
                normalizer.normalize(after),
                rows[..., 2 * o + a :],
            ],
            axis=-1,
        )

    def split(self, rows: Array) -> Batch:
        """The parts of rows (..., width or more); columns beyond the width are further gains."""
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
        target: (2, p) of the target networks.
        optimizer: state of Adam.
    """

    parameters: Array
    target: Array
    optimizer: optax.OptState


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Actor:
    """A greedy actor: a policy that is trained together with critics.

    Attributes:
        parameters: (d,).
        target: (d,) of the target network.
        optimizer: state of Adam.
    """

    parameters: Array
    target: Array
    optimizer: optax.OptState


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ascent:
    """Policies that are varied by policy gradients.

    Attributes:
        policies: (n, d).
        optimizer: state of Adam.
    """

    policies: Array
    optimizer: optax.OptState


class Twins:
    """Twin critics: two networks that estimate an action's value. Targets use the minimum of both.

    Args:
        layout: sizes of observations and actions.
        hidden: units of each hidden layer.

    Attributes:
        network: the network of each critic, with p parameters.
    """

    def __init__(self, layout: Layout, hidden: Sequence[int]) -> None:
        self.network = Network((layout.observation + layout.action, *hidden, 1), "relu")

    def init(self, key: Array) -> Array:
        """Initial parameters (2, p)."""
        sizes = self.network.sizes
        return jnp.stack([self.network.flatten(init_mlp(key, sizes)) for key in jax.random.split(key)])

    def value(self, critic: Array, observation: Array, action: Array) -> Array:
        """Values (n,) of actions (n, a) at observations (n, o), by the critic with parameters (p,)."""
        return jnp.asarray(self.network(critic, jnp.concatenate([observation, action], axis=-1))[..., 0])

    def values(self, critics: Array, observation: Array, action: Array) -> Array:
        """Values (2, n) of actions (n, a) at observations (n, o), by critics with parameters (2, p)."""
        return jnp.asarray(jax.vmap(self.value, (0, None, None))(critics, observation, action))


class TD3:
    """TD3 for any number of learners.

    Args:
        layout: sizes of the parts of a row.
        actor: the policies' network; its outputs lie in [-1, 1].
        critic_sizes: units of each hidden layer of the critics.
        config: settings.

    Attributes:
        group: batches of `policy_delay` critic steps and the step of the actor that follows them.
    """

    def __init__(
        self, layout: Layout, actor: Network, critic_sizes: Sequence[int], config: TD3Config
    ) -> None:
        self.layout, self.actor, self.config = layout, actor, config
        self.twins = Twins(layout, critic_sizes)
        self.group = config.policy_delay + config.own_actor_batch
        self._adam = optax.scale_by_adam()

    def init_critics(self, key: Array) -> Critics:
        """Randomly initialized critics."""
        parameters = self.twins.init(key)
        return Critics(parameters, parameters, self._adam.init(parameters))

    def init_actor(self, parameters: Array) -> Actor:
        """An actor with these parameters (d,), also those of its target network."""
        return Actor(parameters, parameters, self._adam.init(parameters))

    @partial(jax.jit, static_argnums=0)
    def train(
        self, critics: Critics, actors: Actor, rows: Array, weights: Array, keys: Array
    ) -> tuple[Critics, Actor, Array]:
        """Train J learners on the same rows.

        Args:
            critics: (J, ...).
            actors: (J, ...).
            rows: (batches, batch, width or more); the number of batches must be a multiple of `group`.
            weights: (J, g) weights of the gains in the sum that each learner maximizes.
            keys: (J,) random keys.

        Returns:
            Critics (J, ...), actors (J, ...), and the critics' mean loss (J,).
        """
        delay = self.config.policy_delay
        groups = rows.reshape(-1, self.group, *rows.shape[1:])

        def train_one(
            critics: Critics, actor: Actor, weights: Array, key: Array
        ) -> tuple[Critics, Actor, Array]:
            def group(
                carry: tuple[Critics, Actor], step: tuple[Array, Array]
            ) -> tuple[tuple[Critics, Actor], Array]:
                critics, actor = carry
                number, rows = step
                loss = jnp.zeros(())
                for inner in range(delay):
                    step_key = jax.random.fold_in(key, number * delay + inner)
                    critics, error = self.critic_step(
                        critics, actor, self.layout.split(rows[inner]), weights, step_key
                    )
                    loss += error / delay
                last = self.layout.split(rows[-1])
                return self.delayed_step(critics, actor, last.observation), loss

            (critics, actor), losses = jax.lax.scan(
                group, (critics, actor), (jnp.arange(len(groups)), groups)
            )
            return critics, actor, losses.mean()

        trained: tuple[Critics, Actor, Array] = jax.vmap(train_one)(critics, actors, weights, keys)
        return trained

    def init_ascent(self, policies: Array) -> Ascent:
        """Policies (n, d) before their first step of gradient ascent."""
        return Ascent(policies, self._adam.init(policies))

    @partial(jax.jit, static_argnums=0)
    def ascend(self, ascent: Ascent, critic: Array, rows: Array) -> Ascent:
        """Policies after some steps of gradient ascent on the value of one critic.

        All policies share the critic and the transitions. On accelerators, they are evaluated at once; on
        CPUs one after the other, because then the values of all layers fit in a core's cache.

        Args:
            ascent: n policies.
            critic: (p,).
            rows: (steps, batch, width or more).
        """

        def step(ascent: Ascent, rows: Array) -> tuple[Ascent, None]:
            observation = self.layout.split(rows).observation
            gradient = jax.lax.map(
                lambda policy: self.gradient(policy, critic, observation),
                ascent.policies,
                batch_size=1 if jax.default_backend() == "cpu" else len(ascent.policies),
            )
            change, optimizer = self._adam.update(gradient, ascent.optimizer)
            return Ascent(ascent.policies + self.config.policy_learning_rate * change, optimizer), None

        after: Ascent = jax.lax.scan(step, ascent, rows)[0]
        return after

    @partial(jax.jit, static_argnums=0)
    def gradient(self, parameters: Array, critic: Array, observation: Array) -> Array:
        """Gradient (d,) of a critic's mean value with respect to a policy (d,) at observations (n, o)."""

        def mean_value(parameters: Array) -> Array:
            action = self.actor(parameters, observation)
            return self.twins.value(critic, observation, action).mean()

        return jnp.asarray(jax.grad(mean_value)(parameters))

    # One step of one learner. Tests compare these functions with calculations by hand.

    def td_target(self, critics: Critics, actor: Actor, batch: Batch, weights: Array, key: Array) -> Array:
        """Targets (n,) of the critics: weighted gains plus discounted value of the next observation.

        The action at the next observation is that of the target actor, with clipped noise.
        """
        config = self.config
        noise = config.target_noise * jax.random.normal(key, batch.action.shape)
        noise = jnp.clip(noise, -config.target_noise_clip, config.target_noise_clip)
        action = jnp.clip(self.actor(actor.target, batch.next_observation) + noise, -1.0, 1.0)
        values = self.twins.values(critics.target, batch.next_observation, action)
        next_value = (1 - batch.terminated) * values.min(axis=0)
        return jnp.asarray(batch.gains @ weights + config.gamma * next_value)

    def critic_step(
        self, critics: Critics, actor: Actor, batch: Batch, weights: Array, key: Array
    ) -> tuple[Critics, Array]:
        """One gradient step of both critics; also returns the loss before the step.

        Their target networks follow only if they are not delayed.
        """
        target = self.td_target(critics, actor, batch, weights, key)

        def loss(parameters: Array) -> Array:
            values = self.twins.values(parameters, batch.observation, batch.action)
            return jnp.square(values - target).mean(axis=1).sum()

        error, gradient = jax.value_and_grad(loss)(critics.parameters)
        change, optimizer = self._adam.update(gradient, critics.optimizer)
        parameters = critics.parameters - self.config.critic_learning_rate * change
        after = if_finite(gradient, Critics(parameters, critics.target, optimizer), critics)
        return after if self.config.delayed_targets else self.follow(after), error

    def follow(self, critics: Critics) -> Critics:
        """Critics whose target networks have moved toward them."""
        tau = self.config.tau
        target = (1 - tau) * critics.target + tau * critics.parameters
        return Critics(critics.parameters, target, critics.optimizer)

    def delayed_step(self, critics: Critics, actor: Actor, observation: Array) -> tuple[Critics, Actor]:
        """One gradient step of the actor at observations (n, o), and of the delayed target networks."""
        gradient = self.gradient(actor.parameters, critics.parameters[0], observation)
        change, optimizer = self._adam.update(gradient, actor.optimizer)
        parameters = actor.parameters + self.config.actor_learning_rate * change
        tau = self.config.tau
        after = Actor(parameters, (1 - tau) * actor.target + tau * parameters, optimizer)
        followed = self.follow(critics) if self.config.delayed_targets else critics
        return followed, if_finite(gradient, after, actor)


def if_finite(gradient: Array, new: Any, old: Any) -> Any:
    """The tree `new` if the gradient is finite in all its entries, else the tree `old`."""
    finite = jnp.isfinite(gradient).all()
    return jax.tree.map(lambda new, old: jnp.where(finite, new, old), new, old)
