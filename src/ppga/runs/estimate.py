"""Estimates of a run's memory and duration: by arithmetic, and by measuring this machine for a second."""

import math
import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from ppga.algorithms import Algorithm
from ppga.config import Budget
from ppga.problems import PolicyProblem
from ppga.runs.build import archive_bytes

CONFIRMED_SHARE = 0.1
"""Share of the evaluated policies that are confirmed, roughly."""


@dataclass(frozen=True)
class Estimate:
    """Estimates for an iteration and for the whole budget on this machine.

    Attributes:
        parameters: number of parameters of a policy.
        iteration_steps: control steps of an iteration whose episodes are not terminated early; the longer
            walks of reward phases are left out.
        iteration_seconds: their duration; None for problems that are not simulated.
        iterations: iterations within the budget at that speed; None if that is unknown.
        seconds: their duration.
        archive_bytes: memory of the archives when every cell is occupied.
        learning_bytes: memory of learning: the rollout buffer of an update, or the replay buffer.
    """

    parameters: int
    iteration_steps: int
    iteration_seconds: float | None
    iterations: int | None
    seconds: float | None
    archive_bytes: int
    learning_bytes: int


def estimate(algorithm: Algorithm, budget: Budget) -> Estimate:
    """Estimate what a run will take on this machine."""
    problem, config = algorithm.problem, algorithm.config
    archive = archive_bytes(problem, config, algorithm.elites.cells)
    if not isinstance(problem, PolicyProblem):
        return Estimate(problem.solution_size, 0, None, budget.iterations, None, archive, 0)
    cost = algorithm.cost()
    episodes = cost.policies * config.evaluation.episodes
    if config.confirm is not None:
        again = CONFIRMED_SHARE * cost.policies + config.confirm.recheck
        episodes += round(again * config.confirm.episodes)
    steps = cost.learning_steps + episodes * problem.task.episode_length
    seconds = steps / _steps_per_second(problem) + 2 * cost.multiplications / _flops()
    iterations = _iterations(budget, seconds, steps, cost.policies)
    total = None if iterations is None else iterations * seconds
    return Estimate(problem.solution_size, steps, seconds, iterations, total, archive, cost.memory)


def duration(seconds: float) -> str:
    """A duration in words."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} seconds"


def _iterations(budget: Budget, seconds: float, steps: int, policies: int) -> int | None:
    """Iterations within the budget; None if it has no limit that can be converted."""
    limits = [
        float(budget.iterations) if budget.iterations else math.inf,
        60 * budget.minutes / seconds if budget.minutes else math.inf,
        budget.env_steps / steps if budget.env_steps else math.inf,
        budget.evaluations / policies if budget.evaluations else math.inf,
    ]
    least = min(limits)
    return max(1, math.ceil(least)) if math.isfinite(least) else None


def _steps_per_second(problem: PolicyProblem, n: int = 192, steps: int = 20) -> float:
    """Control steps per second of the task's physics in n environments."""
    task = problem.task
    state = jax.jit(task.reset, static_argnums=1)(jax.random.key(0), n)
    step = jax.jit(task.step)
    action = jnp.zeros((n, task.action_size))
    state = step(state, action)
    state.reward.block_until_ready()
    begin = time.perf_counter()
    for _ in range(steps):
        state = step(state, action)
    state.reward.block_until_ready()
    return n * steps / (time.perf_counter() - begin)


def _flops(size: int = 512, times: int = 20) -> float:
    """Floating-point operations per second in matrix products."""
    multiply = jax.jit(lambda matrix: matrix @ matrix)
    matrix = jnp.full((size, size), 1e-3, jnp.float32)
    multiply(matrix).block_until_ready()
    begin = time.perf_counter()
    for _ in range(times):
        multiply(matrix).block_until_ready()
    return 2 * size**3 * times / (time.perf_counter() - begin)
