"""Tasks: environments with rewards and measures, and the registry of their names."""

from ppga.tasks.base import Task
from ppga.tasks.brax import brax_feet, from_brax
from ppga.tasks.damage import damaged
from ppga.tasks.environment import Environment, TaskState
from ppga.tasks.gymnasium import from_gymnasium
from ppga.tasks.locomotion import Ant, AntOmni, HalfCheetah, Hopper, Humanoid, HumanoidFull, Walker2d
from ppga.tasks.maze import PointMaze
from ppga.tasks.registry import (
    SPHERE,
    TASKS,
    find,
    is_registered,
    make_task,
    names,
    register,
    robot,
    sample,
    task_argument,
)

__all__ = [
    "SPHERE", "TASKS", "Environment", "Task", "TaskState", "brax_feet", "damaged", "find", "from_brax",
    "from_gymnasium", "is_registered", "make_task", "names", "register", "robot", "sample", "task_argument",
]  # fmt: skip

for _task in (HalfCheetah, Walker2d, Hopper, Ant, Humanoid, HumanoidFull, AntOmni, PointMaze):
    register(_task)
