"""Tasks: what is seen, rewarded and measured."""

from ppga.tasks.base import Task
from ppga.tasks.damage import damaged
from ppga.tasks.environment import Environment, TaskState
from ppga.tasks.find import TASKS, find, is_known, make_task, names, register, robot, sample, word_for
from ppga.tasks.locomotion import Ant, AntOmni, HalfCheetah, Hopper, Humanoid, HumanoidFull, Walker2d
from ppga.tasks.maze import PointMaze
from ppga.tasks.others import brax_feet, from_brax, from_gymnasium

__all__ = [
    "TASKS", "Environment", "Task", "TaskState", "brax_feet", "damaged", "find", "from_brax",
    "from_gymnasium", "is_known", "make_task", "names", "register", "robot", "sample", "word_for",
]  # fmt: skip

for _task in (HalfCheetah, Walker2d, Hopper, Ant, Humanoid, HumanoidFull, AntOmni, PointMaze):
    register(_task)
