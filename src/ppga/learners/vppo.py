"""Vectorised proximal policy optimisation (VPPO): many PPO agents at once, each with an objective of its own.

One rollout serves all agents, each in its own share of the environments; one update moves all of them. What
an agent does is written for one and mapped over all with `jax.vmap`, so nothing of one can touch another.

Axes, everywhere: agents A, environments of an agent e, time T, features. Objectives are weighted sums of what
    a step
gives: the reward f and the k measure proxies delta_i, together k+1 numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ppga import random
from ppga.physics import Array
from ppga.policies import Moments, Network, Policy, init_mlp, init_policy, log_density
from ppga.storage import NumpyArray
from ppga.tasks import Environment, TaskState

SLOWER, FASTER, SLOWEST = 0.7, 1.2, 0.01
"""Factors of the learning rate: when updates end early, when they do not, and at least."""
StdMode = Literal["learnt", "reset", "fixed", "archive"]


@dataclass(frozen=True)
class PPOConfig:
    """Settings of proximal policy optimisation.

    Attributes:
        environments: environments in all; every agent gets an equal share.
        rollout_length: control steps in every environment between two updates.
        epochs: how often an update goes through its data.
        minibatches: parts the data is cut into, one gradient step each.
        learning_rate: of Adam.
        discount: gamma.
        gae_lambda: of generalised advantage estimation.
        clip: how far the probability ratio may move the surrogate.
        clip_values: clip the value function's steps as well.
        value_coefficient: weight of the value loss.
        entropy_coefficient: weight of the entropy bonus.
        gradient_norm: longest gradient an agent may follow.
        target_kl: an agent's update ends when it has moved this far; 0 for no limit.
        adapt_rate: slow an agent down whose updates end early, so that it can use all its data.
        fresh_adam: forget Adam's moments whenever an agent begins to learn.
        normalise_rewards: divide rewards by the spread of their discounted returns.
        std: action noise: learnt, reset to its initial value in every iteration, fixed, or by what the
            archive gains: larger while a search policy finds few new elites, smaller while it finds many.
        initial_std: of the action noise.
    """

    environments: int = 192
    rollout_length: int = 128
    epochs: int = 4
    minibatches: int = 8
    learning_rate: float = 1e-3
    discount: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    clip_values: bool = False
    value_coefficient: float = 2.0
    entropy_coefficient: float = 0.0
    gradient_norm: float = 1.0
    target_kl: float = 0.008
    adapt_rate: bool = True
    fresh_adam: bool = False
    normalise_rewards: bool = True
    std: StdMode = "learnt"
    initial_std: float = 1.0


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Returns:
    """Running moments of the discounted returns of all k+1 objectives.

    Their covariance gives the spread of any weighted sum of them.

    Attributes:
        mean: (k+1,)
        covariance: (k+1, k+1)
        count: () how many samples they stand for, float32.
    """

    mean: Array
    covariance: Array
    count: Array

    @staticmethod
    def unknown(objectives: int) -> "Returns":
        """Nothing seen yet: mean 0, covariance 1."""
        return Returns(jnp.zeros(objectives), jnp.eye(objectives), jnp.zeros(()))

    def updated(self, values: Array, counted: Array) -> "Returns":
        """With a batch of returns (n, k+1) added, of which only the `counted` (n,) are used."""
        n = counted.sum(dtype=jnp.float32)
        total = self.count + n
        share = n / jnp.maximum(total, 1)
        mean = values.sum(axis=0, where=counted[:, None]) / jnp.maximum(n, 1)
        centred = jnp.where(counted[:, None], values - mean, 0.0)
        covariance = centred.T @ centred / jnp.maximum(n, 1)
        step = mean - self.mean
        between = jnp.outer(step, step) * share * (1 - share)
        return Returns(
            self.mean + share * step, self.covariance * (1 - share) + covariance * share + between, total
        )

    def spread(self, weights: Array) -> Array:
        """Standard deviation () of the returns weighted with (k+1,)."""
        return jnp.sqrt(jnp.maximum(weights @ self.covariance @ weights, 1e-8))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Skill:
    """What an agent keeps until it learns the same objective again.

    Attributes:
        critic: (parameters of the critic network,) what it expects of the objective.
        adam: Adam's moments of all that learns: actor, log-std, critic.
        rate: () learning rate.
    """

    critic: Array
    adam: optax.OptState
    rate: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Agent:
    """One agent; with a leading axis on every array, A of them.

    Attributes:
        policy: what acts.
        returns: normaliser of rewards.
        skill: what it has learnt of its objective, and how.
    """

    policy: Policy
    returns: Returns
    skill: Skill


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Worlds:
    """The environments that learning goes on in.

    Attributes:
        state: E environments; on each device those of agent 0 first.
        running: (E, k+1) discounted returns so far of the episodes under way.
    """

    state: TaskState
    running: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Trajectory:
    """What one agent's e environments went through in T steps.

    Attributes:
        active: (e, T) bool, the episode had not ended before the step: false where an environment failed to
            start. Nothing is learned from such a step, and no normalizer counts it.
        observation: (e, T, o) raw.
        noise: (e, T, a) standard normal draws; action = mean + std * noise.
        action: (e, T, a).
        rewards: (e, T, k+1) reward and measure proxies, raw.
        terminated: (e, T) bool, the episode ended here for good.
        finished: (e, T) bool, the episode ended here, by the task or by the time limit.
        diverged: (e, T) bool, it ended because something was not finite.
        final_value: (e, T) what the critic expects after the last observation of an episode that the time
            limit ended; 0 elsewhere.
        last_observation: (e, o) where the rollout stopped.
        returns: (e, T, k+1) discounted return of the episode so far.
    """

    active: Array
    observation: Array
    noise: Array
    action: Array
    rewards: Array
    terminated: Array
    finished: Array
    diverged: Array
    final_value: Array
    last_observation: Array
    returns: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Report:
    """How an update went: one number () an agent.

    Attributes:
        policy_loss, value_loss, entropy: means over the minibatches used.
        kl: the furthest a minibatch step found the policy moved.
        explained: share of the returns' variance that the critic explains.
        used: share of the minibatches used before the KL limit.
        nonfinite: gradient steps that were left out because they were not finite.
        diverged: episodes that ended because something was not finite.
        rate: learning rate at the end.
        reward: mean of the weighted reward of a step, raw.
    """

    policy_loss: Array
    value_loss: Array
    entropy: Array
    kl: Array
    explained: Array
    used: Array
    nonfinite: Array
    diverged: Array
    rate: Array
    reward: Array


def advantages(
    rewards: Array, values: Array, last_value: Array, terminated: Array, finished: Array, final_value: Array,
    discount: float, gae_lambda: float,
) -> Array:  # fmt: skip
    """Generalised advantage estimates (e, T) of one agent.

    Args:
        rewards: (e, T).
        values: (e, T) of the observations acted upon.
        last_value: (e,) of the observation after the last step, where its episode goes on.
        terminated: (e, T) bool; nothing follows.
        finished: (e, T) bool; what follows belongs to another episode.
        final_value: (e, T) of the last observation of an episode that the time limit ended.
        discount: gamma.
        gae_lambda: lambda.
    """
    following = jnp.concatenate([values[:, 1:], last_value[:, None]], axis=1)
    following = jnp.where(finished, final_value, following) * ~terminated
    errors = rewards + discount * following - values

    def back(advantage: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        error, finished = step
        advantage = error + discount * gae_lambda * advantage * ~finished
        return advantage, advantage

    _, backwards = jax.lax.scan(back, jnp.zeros_like(last_value), (errors.T, finished.T), reverse=True)
    return jnp.asarray(backwards.T)


Collect = Callable[[Agent, Worlds, Array], tuple[Worlds, Trajectory]]
"""A rollout: agents, environments, keys (A,) -> the environments after it, trajectories (A, e, T, ...)."""
Update = Callable[[Agent, Trajectory, Array, Array], tuple[Agent, Report, Array | None]]
"""Learning: agents, trajectories, weights (A, k+1), keys (A,) -> the agents after it, how it went, and the
way, if that is watched."""
Observe = Callable[[Agent, Trajectory], Agent]
"""Agents, trajectories -> agents whose normalisers have taken them in."""


class VPPO:
    """PPO for any number of agents on one task.

    Args:
        task: what the agents do.
        actor_sizes: hidden units of the actor's layers.
        critic_sizes: hidden units of the critic's layers.
        config: settings.
    """

    def __init__(
        self,
        task: Environment,
        actor_sizes: tuple[int, ...],
        critic_sizes: tuple[int, ...],
        config: PPOConfig,
    ) -> None:
        self.task = task
        self.config = config
        self.actor = Network((task.observation_size, *actor_sizes, task.action_size))
        self.critic = Network((task.observation_size, *critic_sizes, 1))
        self.objectives = 1 + len(task.measure_names)
        self._optimiser = optax.chain(
            optax.clip_by_global_norm(config.gradient_norm), optax.scale_by_adam(eps=1e-5)
        )
        # the devices that share environments and gradients, and what that axis is called among them
        self.devices, self.axis = 1, ""
        self.collect: Collect = jax.jit(self.rollout, donate_argnums=1)
        self.update: Update = jax.jit(self.learn)
        self.update_watched: Update = jax.jit(partial(self.learn, watched=True))
        self.observe: Observe = jax.jit(jax.vmap(observe))
        self.forget = jax.jit(jax.vmap(self._forget))
        self._reset: Callable[[Array], Worlds] = jax.jit(self._init_worlds)

    def init_policy(self, key: Array) -> Policy:
        """A new policy."""
        return init_policy(key, self.actor, self.config.initial_std)

    def init_skill(self, key: Array) -> Skill:
        """A new critic, and Adam at rest."""
        critic = jnp.asarray(self.critic.flatten(init_mlp(key, self.critic.sizes)))
        actor, noise = jnp.zeros(self.actor.parameters), jnp.zeros(self.actor.sizes[-1])
        adam = self._optimiser.init((actor, noise, critic))
        return Skill(critic, adam, jnp.float32(self.config.learning_rate))

    def init_worlds(self, key: Array) -> Worlds:
        """All environments at random starts."""
        return self._reset(key)

    def owners(self, agents: int) -> NumpyArray:
        """Which of so many agents each environment (E,) belongs to: equal shares, on every device."""
        each = self.config.environments // self.devices
        return np.tile(np.arange(each) // (each // agents), self.devices)

    def train(
        self,
        agents: Agent,
        worlds: Worlds,
        weights: Array,
        updates: int,
        keys: Array,
        learn_normalisers: bool,
        progress: Callable[[], None] = lambda: None,
    ) -> tuple[Agent, Worlds, Report]:
        """Alternate rollouts and updates.

        Args:
            agents: A of them.
            worlds: the environments, shared as `owners` says.
            weights: (A, k+1) objective of each agent.
            updates: how often.
            keys: (A,) randomness of each agent.
            learn_normalisers: whether the agents' normalisers take in what was seen.
            progress: called after every update.

        Returns:
            The agents, the environments, and a report with arrays (A,), averaged over the updates.
        """
        if self.config.fresh_adam:
            agents = self.forget(agents)
        reports = []
        for number in range(updates):
            collect_keys, update_keys = random.split_each(_fold_in(keys, number))
            worlds, trajectory = self.collect(agents, worlds, collect_keys)
            agents, report, _ = self.update(agents, trajectory, weights, update_keys)
            if learn_normalisers:
                agents = self.observe(agents, trajectory)
            reports.append(report)
            report.kl.block_until_ready()
            progress()
        return agents, worlds, jax.tree.map(lambda *values: np.mean(values, axis=0), *reports)

    # Inside jit.

    def _init_worlds(self, key: Array) -> Worlds:
        state = self.task.reset(key, self.config.environments)
        return Worlds(state, jnp.zeros((self.config.environments, self.objectives)))

    def rollout(self, agents: Agent, worlds: Worlds, keys: Array) -> tuple[Worlds, Trajectory]:
        """One rollout of all agents: arrays of the trajectory are (A, e, T, ...)."""
        config, task = self.config, self.task
        count, environments = len(keys), len(worlds.running)
        share = environments // count

        def apart(values: Array) -> Array:
            return values.reshape(count, share, *values.shape[1:])

        def step(worlds: Worlds, number: Array) -> tuple[Worlds, Trajectory]:
            state = worlds.state
            act_keys, restart_keys = random.split_each(_fold_in(keys, number))
            observation = apart(state.observation)
            noise = jax.vmap(lambda key: jax.random.normal(key, (share, task.action_size)))(act_keys)
            mean = jax.vmap(lambda policy, seen: policy.mean_action(self.actor, seen))(
                agents.policy, observation
            )
            action = mean + jnp.exp(agents.policy.log_std)[:, None] * noise
            after = task.step(state, action.reshape(environments, task.action_size))
            rewards = jnp.concatenate([after.reward[:, None], after.proxies], axis=1)
            returns = config.discount * worlds.running + rewards
            final_value = jax.lax.cond(
                after.truncated.any(),
                lambda: jnp.where(
                    apart(after.truncated), jax.vmap(self._value)(agents, apart(after.observation)), 0.0
                ),
                lambda: jnp.zeros((count, share)),
            )
            restart_keys = jax.vmap(lambda key: jax.random.split(key, share))(restart_keys)
            goes_on = ~after.finished[:, None]
            seen = Trajectory(
                active=apart(~state.finished),
                observation=observation,
                noise=noise,
                action=action,
                rewards=apart(rewards),
                terminated=apart(after.terminated),
                finished=apart(after.finished),
                diverged=apart(after.diverged),
                final_value=final_value,
                last_observation=jnp.zeros(()),
                returns=apart(returns),
            )
            state = task.restart(after, restart_keys.reshape(environments))
            return Worlds(state, returns * goes_on), seen

        worlds, steps = jax.lax.scan(step, worlds, jnp.arange(config.rollout_length))
        trajectory: Trajectory = jax.tree.map(
            lambda values: jnp.moveaxis(values, 0, 2) if values.ndim > 1 else values, steps
        )
        return worlds, replace(trajectory, last_observation=apart(worlds.state.observation))

    def _forget(self, agent: Agent) -> Agent:
        return replace(agent, skill=replace(agent.skill, adam=self._optimiser.init(_learnt(agent))))

    def _value(self, agent: Agent, observation: Array) -> Array:
        """What one agent's critic expects (n,) after observations (n, o)."""
        return jnp.asarray(
            self.critic(agent.skill.critic, agent.policy.observation.normalise(observation))[:, 0]
        )

    def learn(
        self, agents: Agent, trajectory: Trajectory, weights: Array, keys: Array, watched: bool = False
    ) -> tuple[Agent, Report, Array | None]:
        """Several epochs of minibatch steps, all agents at once.

        If watched, all the actors' parameters on the way are returned too, (A, steps, d).
        """
        config = self.config
        batches, rewards, explained = jax.vmap(self._prepare)(agents, trajectory, weights)
        size = batches.advantage.shape[1]
        steps = config.epochs * config.minibatches
        orders = jax.vmap(
            lambda key: jnp.concatenate(
                [jax.random.permutation(key, size) for key in jax.random.split(key, config.epochs)]
            )
        )(keys)
        orders = jnp.moveaxis(orders.reshape(len(keys), steps, size // config.minibatches), 1, 0)

        def all_agents(carry: _Carry, rows: Array) -> _Carry:
            return jax.vmap(self._step)(carry, batches, rows)

        def step(carry: _Carry, rows: Array) -> tuple[_Carry, Array | None]:
            stepped: _Carry = jax.lax.cond(
                carry.active.any(), all_agents, lambda carry, _: carry, carry, rows
            )
            return stepped, stepped.learnt[0] if watched else None

        zero = jnp.zeros(len(keys))
        start = _Carry(
            _learnt(agents), agents.skill.adam, agents.skill.rate, zero == 0, zero, zero, zero, zero, zero
        )
        end, way = jax.lax.scan(step, start, orders)
        actor, log_std, critic = end.learnt
        agents = replace(
            agents,
            policy=replace(agents.policy, parameters=actor, log_std=log_std),
            skill=Skill(critic, end.adam, self._next_rate(end.rate, end.used / steps)),
        )
        used = jnp.maximum(end.used, 1.0)
        report = Report(
            policy_loss=end.policy_loss / used,
            value_loss=end.value_loss / used,
            entropy=(log_std + 0.5 * jnp.log(2 * jnp.pi * jnp.e)).sum(axis=1),
            kl=end.kl,
            explained=explained,
            used=end.used / steps,
            nonfinite=end.nonfinite,
            diverged=self.devices * self._mean(trajectory.diverged.sum(axis=(1, 2)).astype(jnp.float32)),
            rate=agents.skill.rate,
            reward=rewards,
        )
        return agents, report, None if way is None else jnp.swapaxes(way, 0, 1)

    def _next_rate(self, rate: Array, used: Array) -> Array:
        """Learning rates (A,) after an update that used so much of its data."""
        if not (self.config.target_kl and self.config.adapt_rate):
            return rate
        factor = jnp.where(used < 0.5, SLOWER, jnp.where(used >= 1.0, FASTER, 1.0))
        top = self.config.learning_rate
        return jnp.clip(rate * factor, SLOWEST * top, top)

    def _prepare(self, agent: Agent, seen: Trajectory, weights: Array) -> tuple["_Batch", Array, Array]:
        """Advantages and value targets of one agent, flat over environments and time."""
        config = self.config
        reward = seen.rewards @ weights
        scale = agent.returns.spread(weights) if config.normalise_rewards else 1.0
        normalised = agent.policy.observation.normalise(
            jnp.concatenate([seen.observation, seen.last_observation[:, None]], axis=1)
        )
        values = self.critic(agent.skill.critic, normalised)[..., 0]
        advantage = advantages(
            reward / scale, values[:, :-1], values[:, -1], seen.terminated, seen.finished, seen.final_value,
            config.discount, config.gae_lambda,
        )  # fmt: skip
        target = advantage + values[:, :-1]
        active = seen.active.astype(jnp.float32)
        weight = active / jnp.maximum(self._mean(active.mean()), 1e-8)  # mean 1
        centre, spread = self._moments(advantage, weight)
        explained = 1 - spread**2 / jnp.maximum(self._moments(target, weight)[1] ** 2, 1e-8)
        batch = _Batch(
            observation=normalised[:, :-1],
            action=seen.action,
            log_density=log_density(seen.noise, agent.policy.log_std),
            advantage=(advantage - centre) / (spread + 1e-8),
            target=target,
            value=values[:, :-1],
            weight=weight,
        )
        flat: _Batch = jax.tree.map(lambda rows: rows.reshape(-1, *rows.shape[2:]), batch)
        return flat, self._mean((reward * weight).mean()), explained

    def _mean(self, tree: Any) -> Any:
        """The mean over all devices, where there are several."""
        return jax.lax.pmean(tree, self.axis) if self.axis else tree  # type: ignore[no-untyped-call]

    def _moments(self, values: Array, weight: Array) -> tuple[Array, Array]:
        """Weighted mean and standard deviation of the values of all devices."""
        mean = self._mean((weight * values).mean())
        return mean, jnp.sqrt(self._mean((weight * jnp.square(values - mean)).mean()))

    def _step(self, carry: "_Carry", batch: "_Batch", rows: Array) -> "_Carry":
        """One gradient step of one agent on some rows of its batch, unless it has moved far enough."""
        config = self.config
        part: _Batch = jax.tree.map(lambda values: values[rows], batch)
        gradient, (kl, policy_loss, value_loss) = self._mean(
            jax.grad(self._loss, has_aux=True)(carry.learnt, part)
        )
        if config.std in ("fixed", "archive"):
            gradient = (gradient[0], jnp.zeros_like(gradient[1]), gradient[2])
        change, adam = self._optimiser.update(gradient, carry.adam)
        finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in gradient]).all()
        near = (kl <= config.target_kl) if config.target_kl else jnp.bool_(True)
        active = carry.active & (near | ~finite)
        good = active & finite
        learnt = jax.tree.map(lambda old, step: old - carry.rate * step, carry.learnt, change)

        def chosen(new: Array, old: Array) -> Array:
            return jnp.where(good, new, old)

        return _Carry(
            learnt=jax.tree.map(chosen, learnt, carry.learnt),
            adam=jax.tree.map(chosen, adam, carry.adam),
            rate=carry.rate,
            active=active,
            used=carry.used + good,
            policy_loss=carry.policy_loss + jnp.where(good, policy_loss, 0.0),
            value_loss=carry.value_loss + jnp.where(good, value_loss, 0.0),
            kl=jnp.where(carry.active & finite, jnp.maximum(carry.kl, kl), carry.kl),
            nonfinite=carry.nonfinite + (active & ~finite),
        )

    def _loss(self, learnt: "_Learnt", batch: "_Batch") -> tuple[Array, tuple[Array, Array, Array]]:
        """PPO's loss () of one agent, with its KL, policy loss and value loss."""
        config = self.config
        actor, log_std, critic = learnt
        noise = (batch.action - self.actor(actor, batch.observation)) * jnp.exp(-log_std)
        log_ratio = log_density(noise, log_std) - batch.log_density
        ratio = jnp.exp(log_ratio)
        clipped = jnp.clip(ratio, 1 - config.clip, 1 + config.clip)
        gain = jnp.minimum(ratio * batch.advantage, clipped * batch.advantage)
        policy_loss = -(batch.weight * gain).mean()
        value = self.critic(critic, batch.observation)[:, 0]
        error = jnp.square(value - batch.target)
        if config.clip_values:
            near = batch.value + jnp.clip(value - batch.value, -config.clip, config.clip)
            error = jnp.maximum(error, jnp.square(near - batch.target))
        value_loss = 0.5 * (batch.weight * error).mean()
        loss = (
            policy_loss
            + config.value_coefficient * value_loss
            - config.entropy_coefficient * log_std.sum()  # all of the entropy that can change
        )
        kl = (batch.weight * (ratio - 1 - log_ratio)).mean()
        return loss, (kl, policy_loss, value_loss)


_Learnt = tuple[Array, Array, Array]
"""What gradients move: actor parameters, log-std, critic parameters."""


def _learnt(agent: Agent) -> _Learnt:
    return agent.policy.parameters, agent.policy.log_std, agent.skill.critic


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Batch:
    """One agent's data (n, ...), n = e T; `weight` is 0 for steps that were not taken, and 1 in the mean."""

    observation: Array
    action: Array
    log_density: Array
    advantage: Array
    target: Array
    value: Array
    weight: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Carry:
    """One agent between minibatch steps."""

    learnt: _Learnt
    adam: optax.OptState
    rate: Array
    active: Array
    used: Array
    policy_loss: Array
    value_loss: Array
    kl: Array
    nonfinite: Array


def observe(agent: Agent, seen: Trajectory) -> Agent:
    """One agent with normalisers that have taken in a trajectory."""
    active = seen.active.ravel()
    observation: Moments = agent.policy.observation.updated(
        seen.observation.reshape(-1, seen.observation.shape[-1]), active
    )
    returns = agent.returns.updated(seen.returns.reshape(-1, seen.returns.shape[-1]), active)
    return replace(agent, policy=replace(agent.policy, observation=observation), returns=returns)


@jax.jit
def _fold_in(keys: Array, number: Array) -> Array:
    return jnp.asarray(jax.vmap(lambda key: jax.random.fold_in(key, number))(keys))
