"""What a run will take, before it starts: memory by arithmetic, time by measuring this machine for a
second.
"""

import math
import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from ppga.algorithms import Algorithm, PolicyProblem, Problem
from ppga.runs.config import Budget, PPGAConfig

FLOAT = 4  # bytes


@dataclass(frozen=True)
class Estimate:
    """What an iteration, and the whole budget, will take here.

    Attributes:
        parameters: numbers in a policy.
        iteration_steps: control steps in an iteration whose episodes go on to the end; walks for the reward
            may take more.
        iteration_seconds: of these, from a second's measurement; None for problems that are not simulated.
        iterations: how many the budget allows at that speed; None if that is unknown.
        seconds: how long they take.
        archive_bytes: of the archives when every cell is filled.
        learning_bytes: what learning needs: experience of an update, or all that is remembered.
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
    kept = archive_bytes(problem, algorithm.archives.cells, algorithm.soft)
    if not isinstance(problem, PolicyProblem):
        return Estimate(problem.solution_size, 0, None, budget.iterations, None, kept, 0)
    cost = algorithm.cost()
    # some tenth of the policies promise to be elites, and are judged again
    episodes = cost.policies * search.episodes + cost.policies * search.confirm // 10
    steps = cost.learning_steps + episodes * problem.task.episode_length
    seconds = None
    if measure:
        seconds = steps / _steps_per_second(problem) + 2 * cost.multiplications / _flops()
    iterations = _iterations(budget, seconds, steps, cost.policies)
    total = None if seconds is None or iterations is None else iterations * seconds
    return Estimate(problem.solution_size, steps, seconds, iterations, total, kept, cost.memory)


def span(seconds: float) -> str:
    """A time in words."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} seconds"


def archive_bytes(problem: Problem, cells: int, soft: bool) -> int:
    """What the archives take when every cell is filled; the soft one only where it is used."""
    kept = sum(math.prod(shape) for shape in problem.fields.values())
    elite = (problem.solution_size + len(problem.measure_names) + 2 + kept) * FLOAT
    return (2 if soft else 1) * cells * elite


def _iterations(budget: Budget, seconds: float | None, steps: int, policies: int) -> int | None:
    limits = [
        float(budget.iterations) if budget.iterations else math.inf,
        60 * budget.minutes / seconds if budget.minutes and seconds else math.inf,
        budget.env_steps / steps if budget.env_steps else math.inf,
        budget.evaluations / policies if budget.evaluations else math.inf,
    ]
    least = min(limits)
    return max(1, math.ceil(least)) if math.isfinite(least) else None


def _steps_per_second(problem: PolicyProblem, n: int = 192, steps: int = 20) -> float:
    """Control steps a second of this task's physics, in n environments."""
    task = problem.task
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
