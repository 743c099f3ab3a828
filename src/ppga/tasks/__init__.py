"""Tasks: what is seen, rewarded and measured."""

from typing import Any

from ppga.errors import choose
from ppga.tasks.base import Task, TaskState
from ppga.tasks.locomotion import Ant, HalfCheetah, Hopper, Humanoid, HumanoidFull, Walker2d

__all__ = ["TASKS", "Task", "TaskState", "make_task", "register"]

TASKS: dict[str, type[Task]] = {}


def register(task: type[Task]) -> type[Task]:
    """Make a task known to `make_task` by its name; usable as a class decorator."""
    TASKS[task.name] = task
    return task


for _task in (HalfCheetah, Walker2d, Hopper, Ant, Humanoid, HumanoidFull):
    register(_task)


def make_task(name: str, **options: Any) -> Task:
    """The task of that name.

    Example:
        >>> task = make_task("ant", physics="mujoco", episode_length=1000, integrator="fast")
        >>> task.observation_size, task.action_size, task.measure_names[0]
        (27, 8, 'front left')

    Args:
        name: one of `TASKS`.
        **options: see `Task`.
    """
    return TASKS[choose("task", name, TASKS)](**options)
