"""Quality-diversity reinforcement learning that works out of the box.

Everything public is here. It is imported on first use, so `import ppga` takes no time.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ppga.version import __version__

if TYPE_CHECKING:
    from ppga.adaptation import adapt
    from ppga.algorithms import ALGORITHMS, AlgorithmConfig, PPGAConfig, find_algorithm, preset
    from ppga.analysis.proxies import check_proxies
    from ppga.archives import Archive, ArchiveConfig, SoftArchiveConfig, load_archive, pretrained
    from ppga.config import Budget, LoggingConfig, SimulationConfig
    from ppga.errors import InputError
    from ppga.learners.ppo import PPOConfig
    from ppga.problems import NetworkConfig
    from ppga.runs import Iteration, Outcome, resume, train
    from ppga.tasks import TASKS, Environment, Task, TaskState, damaged, from_brax, from_gymnasium, make_task

_MODULES = {
    "ppga.adaptation": ("adapt",),
    "ppga.algorithms": ("ALGORITHMS", "AlgorithmConfig", "PPGAConfig", "find_algorithm", "preset"),
    "ppga.analysis.proxies": ("check_proxies",),
    "ppga.archives": ("Archive", "ArchiveConfig", "SoftArchiveConfig", "load_archive", "pretrained"),
    "ppga.config": ("Budget", "LoggingConfig", "SimulationConfig"),
    "ppga.errors": ("InputError",),
    "ppga.learners.ppo": ("PPOConfig",),
    "ppga.problems": ("NetworkConfig",),
    "ppga.runs": ("Iteration", "Outcome", "resume", "train"),
    "ppga.tasks": (
        "TASKS", "Environment", "Task", "TaskState", "damaged", "from_brax", "from_gymnasium", "make_task",
    ),
}  # fmt: skip
_MODULE_OF = {name: module for module, public in _MODULES.items() for name in public}

__all__ = [
    "ALGORITHMS",
    "TASKS",
    "AlgorithmConfig",
    "Archive",
    "ArchiveConfig",
    "Budget",
    "Environment",
    "InputError",
    "Iteration",
    "LoggingConfig",
    "NetworkConfig",
    "Outcome",
    "PPGAConfig",
    "PPOConfig",
    "SimulationConfig",
    "SoftArchiveConfig",
    "Task",
    "TaskState",
    "__version__",
    "adapt",
    "check_proxies",
    "damaged",
    "find_algorithm",
    "from_brax",
    "from_gymnasium",
    "load_archive",
    "make_task",
    "preset",
    "pretrained",
    "resume",
    "train",
]

if not TYPE_CHECKING:  # a type checker knows every name from above, and so reports any other

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'ppga' has no attribute {name!r}")
        return getattr(importlib.import_module(_MODULE_OF[name]), name)
