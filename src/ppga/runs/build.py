"""From a task and settings to a problem and an algorithm, checked before anything compiles."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ppga import machine
from ppga.algorithms import ALGORITHMS, Algorithm, AlgorithmConfig, config_from_json, config_to_json
from ppga.archives import EliteArchive, SoftArchiveConfig
from ppga.archives.statistics import statistics_shapes
from ppga.distributed.cluster import Cluster
from ppga.distributed.devices import DeviceExecutor
from ppga.distributed.ray_executor import RayExecutor
from ppga.distributed.shares import count_shares
from ppga.errors import InputError
from ppga.learners.replay import ReplayConfig
from ppga.problems import PolicyProblem, Problem, Sphere
from ppga.rollouts import Executor, LocalExecutor, Work
from ppga.tasks import SPHERE, TASKS, Environment, find, is_registered, make_task, task_argument

FLOAT_BYTES = 4


def task_name(task: str | Environment | Problem) -> str:
    """Name of a task or problem."""
    if isinstance(task, str):
        return task
    return task.name if isinstance(task, Environment) else str(task.describe()["task"]["name"])


def make_executor(config: AlgorithmConfig, cluster: Cluster | None) -> Executor:
    """Where the rollouts of a run with these settings run."""
    if config.cluster == "ray":
        return RayExecutor(cluster or Cluster())
    if config.cluster == "jax":
        return DeviceExecutor()
    if cluster is not None and cluster != Cluster():
        raise InputError("--address, --workers and --rank need --cluster ray or --cluster jax.")
    return LocalExecutor()


def make_problem(
    task: str | Environment | Problem,
    config: AlgorithmConfig,
    executor: Executor | None = None,
    progress: Callable[[], None] = lambda: None,
) -> Problem:
    """The problem that an algorithm makes of a task; settings that cannot work raise an InputError.

    Args:
        task: name of a task, a task, or a problem.
        config: settings; their class chooses the algorithm.
        executor: where rollouts and updates run; this process by default.
        progress: called now and then, for a display.
    """
    algorithm = ALGORITHMS[config.algorithm].algorithm
    config.simulation.check()
    if isinstance(task, str) and task != SPHERE:
        task = make_task(task, **dataclasses.asdict(config.simulation))
    if isinstance(task, Environment):
        config.check(len(task.measure_names))
        return algorithm.make_problem(task, config, executor, progress)
    problem = Sphere() if isinstance(task, str) else task
    if not algorithm.supports_analytic_problems:
        able = [name for name, entry in ALGORITHMS.items() if entry.algorithm.supports_analytic_problems]
        raise InputError(
            f"{config.algorithm} learns from transitions, and {task_name(problem)} has none. Choose one of "
            f"{', '.join(able)}."
        )
    config.check(len(problem.measure_names))
    return problem


def make_algorithm(
    task: str | Environment | Problem,
    config: AlgorithmConfig,
    executor: Executor | None = None,
    progress: Callable[[], None] = lambda: None,
) -> Algorithm:
    """An algorithm that is ready to start; see `make_problem`."""
    problem = make_problem(task, config, executor, progress)
    algorithm = ALGORITHMS[config.algorithm].algorithm
    cells = config.archive.count(problem.archive_shape)
    needed, free = archive_bytes(problem, config, cells), machine.free_memory()
    if needed > free:
        raise InputError(
            f"a full archive of {cells:,} cells takes {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB "
            "of memory are free. Use fewer cells (--archive.shape, --archive.cells) or smaller networks "
            "(--network.actor, --network.critic)."
        )
    elites = EliteArchive(
        problem.solution_size,
        problem.archive_shape,
        problem.measure_ranges,
        problem.fields,
        problem.qd_offset,
        config.archive,
        config.evaluation.min_survival,
    )
    return algorithm(problem, config, elites)


def archive_bytes(problem: Problem, config: AlgorithmConfig, cells: int) -> int:
    """Bytes of the archives when every cell is occupied."""
    measures = len(problem.measure_names)
    shapes = (*problem.fields.values(), *statistics_shapes(measures).values())
    elite = problem.solution_size + measures + 2 + sum(map(math.prod, shapes))
    soft = 0
    if isinstance(config.archive, SoftArchiveConfig):
        soft_archive = ALGORITHMS[config.algorithm].algorithm.soft_archive
        soft = soft_archive.numbers_per_cell(config.archive, problem.solution_size, problem.fields)
    return cells * (elite + soft) * FLOAT_BYTES


def worker_problem(task: str, config: Mapping[str, Any]) -> PolicyProblem:
    """The problem as a Ray worker builds it.

    Args:
        task: registered name of the task, or FILE.py:NAME.
        config: settings as JSON values.
    """
    problem = make_problem(find(task), config_from_json(config))
    assert isinstance(problem, PolicyProblem)
    return problem


def work_of(task: str | Environment | Problem, algorithm: Algorithm) -> Work:
    """Description of an algorithm's run for its executor."""
    problem, config = algorithm.problem, algorithm.config
    if not isinstance(problem, PolicyProblem):
        raise InputError(
            f"--cluster {config.cluster} distributes simulations, and {task_name(task)} has none."
        )
    name = task_name(task)
    if config.cluster == "ray" and not (
        is_registered(name) and (isinstance(task, str) or type(task) is TASKS[name])
    ):
        raise InputError(
            f"Ray's workers build the task themselves: give {name} by its name or as FILE.py:NAME."
        )
    policies, episodes = algorithm.cost().policies, config.evaluation.episodes
    return Work(
        task=task_argument(name),
        config=config_to_json(config),
        build=worker_problem,
        physics=problem.task.physics_name,
        replay=problem.replay is not None,
        shares=count_shares(policies, episodes, problem.rollout_environments, problem.rollout_agents),
    )


def with_fitting_buffer(
    algorithm: Algorithm, config: AlgorithmConfig, folder: Path | None
) -> AlgorithmConfig:
    """The settings with the largest replay buffer that fits in memory and on the disk, if they allow that."""
    problem = algorithm.problem
    replay = problem.replay if isinstance(problem, PolicyProblem) else None
    for name, learner in vars(config).items():
        if replay is not None and isinstance(learner, ReplayConfig) and learner.fit_buffer:
            size = replay.fits(folder)
            # if not even the transitions of one iteration fit, the check of the whole size reports it
            if replay.burst <= size < replay.capacity:
                return config.replace(**{f"{name}.buffer_size": size})
    return config
