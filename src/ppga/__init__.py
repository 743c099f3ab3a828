"""Quality-diversity reinforcement learning that works out of the box.

Everything public is here; it is imported when first used, so that `import ppga` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ppga.version import __version__

if TYPE_CHECKING:
    from ppga.adaptation import adapt
    from ppga.algorithms import NetworkConfig, SearchConfig
    from ppga.analysis.proxies import check_proxies
    from ppga.archives import Archive, ArchiveConfig, load_archive, pretrained
    from ppga.errors import InputError
    from ppga.learners.vppo import PPOConfig
    from ppga.runs import (
        Budget,
        Iteration,
        KeepingConfig,
        Outcome,
        PPGAConfig,
        SimulationConfig,
        preset,
        resume,
        train,
    )
    from ppga.tasks import TASKS, Environment, Task, TaskState, damaged, from_brax, from_gymnasium, make_task

_HOMES = {
    "InputError": "ppga.errors",
    "TASKS": "ppga.tasks",
    "Task": "ppga.tasks",
    "TaskState": "ppga.tasks",
    "Environment": "ppga.tasks",
    "damaged": "ppga.tasks",
    "from_brax": "ppga.tasks",
    "from_gymnasium": "ppga.tasks",
    "adapt": "ppga.adaptation",
    "check_proxies": "ppga.analysis.proxies",
    "make_task": "ppga.tasks",
    "Archive": "ppga.archives",
    "ArchiveConfig": "ppga.archives",
    "load_archive": "ppga.archives",
    "pretrained": "ppga.archives",
    "NetworkConfig": "ppga.algorithms",
    "SearchConfig": "ppga.algorithms",
    "PPOConfig": "ppga.learners.vppo",
    "Budget": "ppga.runs",
    "Iteration": "ppga.runs",
    "KeepingConfig": "ppga.runs",
    "Outcome": "ppga.runs",
    "PPGAConfig": "ppga.runs",
    "SimulationConfig": "ppga.runs",
    "preset": "ppga.runs",
    "resume": "ppga.runs",
    "train": "ppga.runs",
}

__all__ = [
    "TASKS",
    "Archive",
    "ArchiveConfig",
    "Budget",
    "Environment",
    "InputError",
    "Iteration",
    "KeepingConfig",
    "NetworkConfig",
    "Outcome",
    "PPGAConfig",
    "PPOConfig",
    "SearchConfig",
    "SimulationConfig",
    "Task",
    "TaskState",
    "__version__",
    "adapt",
    "check_proxies",
    "damaged",
    "from_brax",
    "from_gymnasium",
    "load_archive",
    "make_task",
    "preset",
    "pretrained",
    "resume",
    "train",
]


if not TYPE_CHECKING:  # which knows every name from above, and so any that is misspelt

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'ppga' has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)
