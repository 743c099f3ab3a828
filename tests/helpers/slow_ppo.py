"""A complete PPO update in NumPy and float64: slow, plain, and with gradients written out by hand.

Arrays have the axes agents A, environments e, time T, as in `ppga.learners`.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ppga.learners.ppo import PPOConfig

Layers = list[tuple[np.ndarray, np.ndarray]]


@dataclass
class Adam:
    """Adam for a list of arrays."""

    mean: list[np.ndarray]
    square: list[np.ndarray]
    steps: int = 0

    @staticmethod
    def of(arrays: list[np.ndarray]) -> "Adam":
        return Adam([np.zeros_like(a) for a in arrays], [np.zeros_like(a) for a in arrays])

    def step(self, arrays: list[np.ndarray], gradients: list[np.ndarray], rate: float) -> None:
        """Change arrays in place."""
        self.steps += 1
        for a, g, m, v in zip(arrays, gradients, self.mean, self.square, strict=True):
            m += 0.1 * (g - m)
            v += 0.001 * (g**2 - v)
            corrected = np.sqrt(v / (1 - 0.999**self.steps)) + 1e-5
            a -= rate * m / (1 - 0.9**self.steps) / corrected


@dataclass
class Learner:
    """One agent: networks, exploration noise, normalizers and optimizers."""

    actor: Layers
    log_std: np.ndarray
    critic: Layers
    observations: tuple[np.ndarray, np.ndarray, float]
    returns: tuple[np.ndarray, np.ndarray, float]
    actor_adam: Adam = field(init=False)
    critic_adam: Adam = field(init=False)

    def __post_init__(self) -> None:
        self.actor_adam, self.critic_adam = Adam.of(self.actor_arrays), Adam.of(self.critic_arrays)

    @property
    def actor_arrays(self) -> list[np.ndarray]:
        return [array for layer in self.actor for array in layer] + [self.log_std]

    @property
    def critic_arrays(self) -> list[np.ndarray]:
        return [array for layer in self.critic for array in layer]


def forward(layers: Layers, inputs: np.ndarray) -> list[np.ndarray]:
    """Inputs (n, i) and the outputs of every layer; tanh but for the last one."""
    outputs = [inputs]
    for number, (weights, biases) in enumerate(layers):
        sums = outputs[-1] @ weights + biases
        outputs.append(sums if number == len(layers) - 1 else np.tanh(sums))
    return outputs


def backward(layers: Layers, outputs: list[np.ndarray], slope: np.ndarray) -> list[np.ndarray]:
    """Gradients of all weights and biases, for the slope (n, outputs) of the loss in the last outputs."""
    gradients: list[np.ndarray] = []
    for number in reversed(range(len(layers))):
        gradients = [outputs[number].T @ slope, slope.sum(axis=0), *gradients]
        slope = slope @ layers[number][0].T * (1 - outputs[number] ** 2)
    return gradients


def moved(statistics: tuple[Any, Any, Any], values: np.ndarray) -> tuple[Any, Any, Any]:
    """Mean, variance and count of all values so far, after more of them (n, ...)."""
    mean, variance, count = statistics
    n = len(values)
    total = count + n
    new_mean = (count * mean + values.sum(axis=0)) / total
    squares = count * (variance + (mean - new_mean) ** 2) + ((values - new_mean) ** 2).sum(axis=0)
    return new_mean, squares / total, total


def log_density(action: np.ndarray, mean: np.ndarray, log_std: np.ndarray) -> np.ndarray:
    noise = (action - mean) / np.exp(log_std)
    return np.asarray((-0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)).sum(axis=-1))


def observed(config: PPOConfig, learner: Learner, observation: np.ndarray) -> np.ndarray:
    """Normalized observations (e, T + 1, o)."""
    statistics, normalized = learner.observations, np.zeros_like(observation)
    for t in range(observation.shape[1]):
        if config.normalizers == "fresh":
            statistics = moved(statistics, observation[:, t])
        mean, variance, _ = statistics
        normalized[:, t] = np.clip((observation[:, t] - mean) / np.sqrt(variance + 1e-8), -10, 10)
    return normalized


def prepared(
    config: PPOConfig, learner: Learner, trajectory: dict[str, np.ndarray], weights: np.ndarray
) -> dict[str, np.ndarray]:
    """Rows (e T, ...) that the minibatches are taken from; updates the statistics of returns."""
    observation = observed(config, learner, trajectory["observations"])
    e, steps = observation.shape[0], observation.shape[1] - 1
    predicted = forward(learner.critic, observation.reshape(-1, observation.shape[-1]))[-1]
    predicted = predicted.reshape(e, steps + 1)
    rewards, truncation_value = trajectory["rewards"] @ weights, trajectory["truncation_value"]
    values = predicted
    if config.normalize == "rewards":
        rewards = rewards / np.sqrt(weights @ learner.returns[1] @ weights)
    elif config.normalize == "returns":
        mean, variance, _ = learner.returns
        values = np.clip(predicted, -5, 5) * np.sqrt(variance) + mean
        truncation_value = np.clip(truncation_value, -5, 5) * np.sqrt(variance) + mean
    advantage = np.zeros((e, steps))
    for i in range(e):
        following = 0.0
        for t in reversed(range(steps)):
            after = values[i, t + 1]
            if trajectory["finished"][i, t]:
                following = 0.0
                truncated = not trajectory["terminated"][i, t] and config.bootstrap_truncated
                after = truncation_value[i, t] if truncated else 0.0
            error = rewards[i, t] + config.gamma * after - values[i, t]
            advantage[i, t] = following = error + config.gamma * config.gae_lambda * following
    target = advantage + values[:, :-1]
    if config.normalize == "returns":
        for t in range(steps):
            learner.returns = moved(learner.returns, target[:, t])
            mean, variance, _ = learner.returns
            target[:, t] = np.clip((target[:, t] - mean) / np.sqrt(variance + 1e-8), -5, 5)
    if config.update == "separate":
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    old = (-0.5 * trajectory["noise"] ** 2 - learner.log_std - 0.5 * np.log(2 * np.pi)).sum(axis=-1)
    rows = {
        "observation": observation[:, :-1], "action": trajectory["action"], "log_density": old,
        "advantage": advantage, "target": target, "value": predicted[:, :-1],
    }  # fmt: skip
    return {name: values.reshape(e * steps, *values.shape[2:]) for name, values in rows.items()}


def gradients_of(
    config: PPOConfig, learner: Learner, rows: dict[str, np.ndarray], count: int
) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """Gradients of actor and critic, of a loss that is a mean over `count` rows, and KL estimates of rows."""
    outputs = forward(learner.actor, rows["observation"])
    std = np.exp(learner.log_std)
    noise = (rows["action"] - outputs[-1]) / std
    log_ratio = log_density(rows["action"], outputs[-1], learner.log_std) - rows["log_density"]
    ratio, advantage = np.exp(log_ratio), rows["advantage"]
    clipped = np.clip(ratio, 1 - config.clip, 1 + config.clip)
    unclipped = ratio * advantage <= clipped * advantage  # the smaller of the two counts
    slope = np.where(unclipped, -advantage * ratio, 0.0)[:, None] / count  # in the log density
    actor = backward(learner.actor, outputs, slope * noise / std)
    entropy = config.entropy_coefficient * len(noise) / count
    actor.append((slope * (noise**2 - 1)).sum(axis=0) - entropy)
    outputs = forward(learner.critic, rows["observation"])
    value = outputs[-1][:, 0]
    error, slope = (value - rows["target"]) ** 2, 2 * (value - rows["target"])
    if config.clip_values:
        step = value - rows["value"]
        near = rows["value"] + np.clip(step, -config.clip, config.clip)
        within = np.abs(step) < config.clip
        larger = (near - rows["target"]) ** 2 > error
        slope = np.where(larger, np.where(within, 2 * (near - rows["target"]), 0.0), slope)
    slope = 0.5 * config.value_coefficient * slope / count
    return actor, backward(learner.critic, outputs, slope[:, None]), ratio - 1 - log_ratio


def limited(gradients: list[np.ndarray], largest: float) -> bool:
    """Scale gradients down in place to a norm of at most `largest`; returns whether that was needed."""
    norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients))
    for gradient in gradients:
        gradient *= min(1.0, largest / norm)
    return bool(norm > largest)


def update(
    config: PPOConfig,
    learners: list[Learner],
    trajectories: list[dict[str, np.ndarray]],
    weights: np.ndarray,
    orders: list[np.ndarray],
) -> tuple[list[int], int]:
    """A complete update of all agents, in place.

    Args:
        config: settings.
        learners: agents A.
        trajectories: of each agent.
        weights: (A, k+1).
        orders: (steps, m) rows of the minibatches of each agent, used by separate updates.

    Returns:
        The number of gradient steps of each agent, and how often a gradient's norm was limited.
    """
    data = [prepared(config, *each) for each in zip(learners, trajectories, weights, strict=True)]
    if config.update == "joint":
        return joint(config, learners, data)
    steps, limits = [], 0
    for learner, rows, order in zip(learners, data, orders, strict=True):
        used = 0
        for minibatch in order:
            chosen = {name: values[minibatch] for name, values in rows.items()}
            actor, critic, kl = gradients_of(config, learner, chosen, len(minibatch))
            if config.target_kl and kl.mean() > config.target_kl:
                break
            limits += limited(actor + critic, config.max_gradient_norm)
            learner.actor_adam.step(learner.actor_arrays, actor, config.learning_rate)
            learner.critic_adam.step(learner.critic_arrays, critic, config.learning_rate)
            used += 1
        steps.append(used)
    return steps, limits


def joint(
    config: PPOConfig, learners: list[Learner], data: list[dict[str, np.ndarray]]
) -> tuple[list[int], int]:
    """See `update`: all agents take the same steps."""
    size = len(data[0]["target"]) // config.minibatches
    used = limits = 0
    for _ in range(config.epochs):
        for start in range(0, size * config.minibatches, size):
            parts = [{name: v[start : start + size].copy() for name, v in rows.items()} for rows in data]
            everyone = np.concatenate([part["advantage"] for part in parts])
            for part in parts:
                part["advantage"] = (part["advantage"] - everyone.mean()) / (everyone.std() + 1e-8)
            results = [
                gradients_of(config, learner, part, len(everyone))
                for learner, part in zip(learners, parts, strict=True)
            ]
            limits += limited([g for actor, _, _ in results for g in actor], config.max_gradient_norm)
            limits += limited([g for _, critic, _ in results for g in critic], config.max_gradient_norm)
            for learner, (actor, critic, _) in zip(learners, results, strict=True):
                learner.actor_adam.step(learner.actor_arrays, actor, config.learning_rate)
                learner.critic_adam.step(learner.critic_arrays, critic, config.learning_rate)
            used += 1
        if config.target_kl and np.concatenate([kl for _, _, kl in results]).mean() > config.target_kl:
            break
    return [used] * len(learners), limits
