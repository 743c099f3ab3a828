"""What a run will take, before it starts: memory by arithmetic, time by measuring this machine for a
second.
"""

import math
import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from ppga.algorithms import Algorithm, PolicySearch
from ppga.runs.config import Budget, PPGAConfig

FLOAT = 4  # bytes


@dataclass(frozen=True)
class Estimate:
    """What an iteration, and the whole budget, will take here.

    Attributes:
        parameters: numbers in a policy.
        iteration_steps: control steps in an iteration, at most (episodes may end early).
        iteration_seconds: at most, from a second's measurement; None for problems that are not simulated.
        iterations: how many the budget allows at that speed; None if that is unknown.
        seconds: how long they take.
        archive_bytes: both archives when every cell is filled.
        learning_bytes: experience and gradients of one update.
    """

    parameters: int
    iteration_steps: int
    iteration_seconds: float | None
    iterations: int | None
    seconds: float | None
    archive_bytes: int
    learning_bytes: int


def estimate(algorithm: Algorithm, config: PPGAConfig, budget: Budget, measure: bool = True) -> Estimate:
    """Estimate what a run will take on this machine."""
    problem, search = algorithm.problem, config.search
    kept = sum(math.prod(shape) for shape in problem.fields.values())
    elite = (problem.solution_size + len(problem.measure_names) + 2 + kept) * FLOAT
    archive_bytes = 2 * algorithm.archives.cells * elite
    if not isinstance(problem, PolicySearch):
        return Estimate(problem.solution_size, 0, None, budget.iterations, None, archive_bytes, 0)
    ppo, task = config.ppo, problem.task
    learning_steps = ppo.environments * ppo.rollout_length * search.walk_updates
    policies = search.emitters
    if algorithm.takes_gradients:
        learning_steps += ppo.environments * ppo.rollout_length * search.jacobian_updates
        policies *= 1 + search.branches
    # some tenth of the policies promise to be elites, and are judged again
    episodes = policies * search.episodes + policies * search.confirm // 10
    judging_steps = episodes * task.episode_length
    batch = ppo.environments * ppo.rollout_length
    row = 2 * task.observation_size + 2 * task.action_size + 2 * problem.objectives + 8
    branches = policies * problem.solution_size * FLOAT
    learning_bytes = batch * row * FLOAT + branches
    seconds = None
    if measure:
        multiplications = problem.vppo.actor.parameters + problem.vppo.critic.parameters
        work = 6 * multiplications * ppo.epochs * learning_steps  # forwards, and twice backwards
        seconds = (learning_steps + judging_steps) / _steps_per_second(problem) + work / _flops()
    steps = learning_steps + judging_steps
    iterations = _iterations(budget, seconds, steps, policies)
    total = None if seconds is None or iterations is None else iterations * seconds
    return Estimate(problem.solution_size, steps, seconds, iterations, total, archive_bytes, learning_bytes)


def _iterations(budget: Budget, seconds: float | None, steps: int, policies: int) -> int | None:
    limits = [
        float(budget.iterations) if budget.iterations else math.inf,
        60 * budget.minutes / seconds if budget.minutes and seconds else math.inf,
        budget.env_steps / steps if budget.env_steps else math.inf,
        budget.evaluations / policies if budget.evaluations else math.inf,
    ]
    least = min(limits)
    return max(1, math.ceil(least)) if math.isfinite(least) else None


def _steps_per_second(problem: PolicySearch, steps: int = 20) -> float:
    """Control steps a second of this task's physics, in as many environments as learning has."""
    task, n = problem.task, problem.ppo.environments
    state = jax.jit(task.reset, static_argnums=1)(jax.random.key(0), n)
    step = jax.jit(task.step)
    still = jnp.zeros((n, task.action_size))
    state = step(state, still)
    state.reward.block_until_ready()
    began = time.perf_counter()
    for _ in range(steps):
        state = step(state, still)
    state.reward.block_until_ready()
    return n * steps / (time.perf_counter() - began)


def _flops(size: int = 512, times: int = 20) -> float:
    """Floating-point operations a second in matrix products."""
    multiply = jax.jit(lambda matrix: matrix @ matrix)
    matrix = jnp.full((size, size), 1e-3, jnp.float32)
    multiply(matrix).block_until_ready()
    began = time.perf_counter()
    for _ in range(times):
        multiply(matrix).block_until_ready()
    return 2 * size**3 * times / (time.perf_counter() - began)
