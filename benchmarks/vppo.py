"""Speed of learning and evaluation, beside what the physics and the updates alone would allow."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from ppga.learners.agent import Agent, ReturnStatistics
from ppga.learners.vppo import VPPO
from ppga.physics import Array, Bodies
from ppga.policies.policy import Policy
from ppga.rollouts import Evaluator, EvaluatorSettings, episode_keys, record
from ppga.tasks import Task, robot

from benchmarks.harness import Result, rates
from benchmarks.physics import bare_batch
from benchmarks.settings import ppga_config

UNIFORM_STD = 3**-0.5
"""Standard deviation of the random actions in [-1, 1] of the bare library."""


def bench_vppo(
    task: str, preset: str, environments: int | None, steps: int, rounds: int, threads: int | None
) -> list[Result]:
    """Speed of learning and evaluation, with the networks and batches of a preset.

    Episodes end at the time limit only, and actions are as random as those of the bare library, so that the
    bodies move in the same way.

    Args:
        task: name of the task.
        preset: name of the preset.
        environments: number of environments of the learner; that of the preset by default.
        steps: control steps of an episode.
        rounds: how often each figure is timed.
        threads: threads of MuJoCo; all visible cores by default.
    """
    simulation = without_termination(task, steps, threads)
    config = ppga_config(preset, task)
    environments = environments or config.ppo.environments
    config = config.replace(
        **{"ppo.environments": environments, "ppo.target_kl": 0.0, "ppo.initial_std": UNIFORM_STD}
    )
    objectives = 1 + len(simulation.measure_names)
    config.check(len(simulation.measure_names))
    network = config.network
    vppo = VPPO(simulation, network.actor, network.critic, config.ppo, agents=objectives)
    policies, episodes = config.branches, config.evaluation.episodes
    evaluation, replay = evaluate_and_replay(simulation, vppo, policies, episodes, steps, threads)
    measured = rates(
        {
            "mujoco.batch": bare_batch(simulation, environments, steps, threads),
            "update": learning(vppo, rollouts=False),
            "vppo": learning(vppo, rollouts=True),
            "replay": replay,
            "evaluation": evaluation,
        },
        rounds,
    )
    limit = 1 / (1 / measured["mujoco.batch"] + 1 / measured["update"])

    def result(name: str, reference: float | None = None, against: str | None = None) -> Result:
        ratio = measured[name] / reference if reference else None
        return Result(f"{name}/{task}", measured[name], "steps/s", ratio, against)

    bodies = policies * episodes
    return [
        result("mujoco.batch"),
        result("update"),
        result("vppo", limit, "1/(1/mujoco.batch + 1/update)"),
        result("evaluation", measured["replay"], f"mujoco.batch, {bodies} bodies, same actions"),
    ]


def learning(vppo: VPPO, rollouts: bool) -> Callable[[], int]:
    """An update of one agent for each objective, after a rollout or on the data of the same rollout."""
    k1 = vppo.objectives
    keys = jax.random.split(jax.random.key(0), k1)
    statistics: ReturnStatistics = jax.tree.map(
        lambda leaf: jnp.stack([leaf] * k1), ReturnStatistics.initial(k1)
    )
    agents = Agent(jax.vmap(vppo.init_policy)(keys), statistics, jax.vmap(vppo.init_learner)(keys))
    envs, trajectory = vppo.collect(agents, vppo.init_envs(jax.random.key(1)), keys)
    steps = vppo.config.environments * vppo.config.rollout_length

    def work() -> int:
        nonlocal envs, trajectory
        if rollouts:
            envs, trajectory = vppo.collect(agents, envs, keys)
        _, report, _ = vppo.update(agents, trajectory, jnp.eye(k1), keys)
        report.kl.block_until_ready()
        return steps

    return work


def evaluate_and_replay(
    task: Task, vppo: VPPO, policies: int, episodes: int, steps: int, threads: int | None
) -> tuple[Callable[[], int], Callable[[], int]]:
    """The evaluation of many policies at once; and the bare library with the actions that they choose.

    Args:
        task: the task.
        vppo: has the network, and initializes the policies.
        policies: number of policies.
        episodes: episodes of each policy.
        steps: control steps of an episode.
        threads: threads of MuJoCo; all visible cores by default.
    """
    many: Policy = jax.vmap(vppo.init_policy)(jax.random.split(jax.random.key(2), policies))
    noise = 0.2 * jax.random.normal(jax.random.key(3), many.parameters.shape)
    many = replace(many, parameters=many.parameters + noise)  # initial policies hardly move
    evaluate = Evaluator(task, vppo.actor, EvaluatorSettings(episodes))
    key, n = jax.random.key(4), policies * episodes

    def act(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
        by_policy = observation.reshape(policies, episodes, -1)
        action = jax.vmap(lambda policy, inputs: policy.mean_action(vppo.actor, inputs))(many, by_policy)
        return jnp.asarray(action.reshape(n, -1))

    keys = episode_keys(key, policies, episodes).reshape(n)
    recording = jax.jit(lambda keys: record(task, act, keys, n, steps))(keys)
    start = jax.jit(lambda keys: task.reset(jax.vmap(jax.random.split)(keys)[:, 0], n))(keys)
    actions = jnp.swapaxes(recording.action, 0, 1)

    def evaluation() -> int:
        return int(evaluate(many, key)[0].steps.sum())

    return evaluation, bare_batch(task, n, steps, threads, actions, start)


def without_termination(name: str, steps: int, threads: int | None) -> Task:
    """A task whose episodes end after the given number of control steps only."""

    def never(self: Task, body: Bodies) -> Array:  # noqa: ARG001
        return jnp.zeros((), jnp.bool_)

    kind: Any = type(f"Endless{name}", (type(robot(name)),), {"terminated": never})
    task: Task = kind(episode_length=steps, threads=threads)
    return task
