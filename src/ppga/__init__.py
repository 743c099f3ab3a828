"""Quality-diversity reinforcement learning that works out of the box.

Everything public is here; it is imported when first used, so that `import ppga` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ppga.version import __version__

if TYPE_CHECKING:
    from ppga.errors import InputError
    from ppga.tasks import TASKS, Task, TaskState, make_task

_HOMES = {
    "InputError": "ppga.errors",
    "TASKS": "ppga.tasks",
    "Task": "ppga.tasks",
    "TaskState": "ppga.tasks",
    "make_task": "ppga.tasks",
}

__all__ = ["TASKS", "InputError", "Task", "TaskState", "__version__", "make_task"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ppga' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
