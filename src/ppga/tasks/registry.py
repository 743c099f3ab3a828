"""Tasks by name: those included in ppga, those of installed packages, and those in files of users."""

import hashlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from ppga.errors import InputError, check_choice
from ppga.tasks.base import Task
from ppga.tasks.environment import Environment

Maker = Callable[..., Environment]
"""A task's class, or a function that makes a task. It takes some or all of the options of `Task`."""

TASKS: dict[str, Maker] = {}
"""Registered tasks by name."""
SPHERE = "sphere"
"""Name of the problem without a simulation, which no task may have."""
_FILE_MODULE = "ppga_task_"
"""Prefix of the names of modules that are loaded from files."""
_ENTRY_POINTS = "ppga.tasks"
"""Group of the entry points by which installed packages offer tasks: name = "package.module:Class"."""
_DEFAULTS = {
    "physics": "mujoco",
    "integrator": "fast",
    "threads": None,
    "episode_length": None,
    "clip": None,
    "impl": "jax",
}
"""Default options; a maker need not take those that have these values."""


def register(task: type[Task]) -> type[Task]:
    """Register a task class under its name, for `make_task`; usable as a class decorator."""
    TASKS[task.name] = task
    sample.cache_clear()
    return task


def make_task(name: str, **options: Any) -> Environment:
    """Make a task by its name.

    Example:
        >>> task = make_task("ant", physics="mujoco", episode_length=1000, integrator="fast")
        >>> task.observation_size, task.action_size, task.measure_names[0]
        (27, 8, 'front left')

    Args:
        name: one of `TASKS`, or a task of an installed package; tasks in files must be registered by `find`.
        **options: see `Task`.

    Raises:
        InputError: an unknown task or option, or a task that cannot be made.
    """
    if not is_registered(name):  # the name may come from a run's files, which must not run a Python file
        check_choice("task", name, names())
    return _make(name, TASKS[find(name)], options)


def robot(name: str, **options: Any) -> Task:
    """Make a task by its name; raises an InputError unless it is a `Task`, simulated by MuJoCo."""
    task = make_task(name, **options)
    if not isinstance(task, Task):
        raise InputError(f"{name} is not a ppga.Task: it is simulated by another library, not by MuJoCo.")
    return task


def find(argument: str) -> str:
    """Register the task that a user has asked for, and return its name.

    A file of Python code runs only if the user names the file, as FILE.py:NAME; never because an archive or a
    run names its task.

    Args:
        argument: name of a task, or FILE.py:NAME, where NAME is a class or a function that makes the task.

    Raises:
        InputError: there is no such task, or it cannot be made.
    """
    if argument in TASKS:
        return argument
    file, colon, attribute = argument.rpartition(":")
    if colon and file.endswith(".py"):
        return _register_maker(argument, _from_file(Path(file), attribute))
    if argument.endswith(".py"):
        raise InputError(
            f"{argument} may contain several tasks; use {argument}:NAME, where NAME is a class or a function "
            "that makes the task."
        )
    check_choice("task", argument, names())
    try:
        maker = _installed()[argument].load()
    except Exception as error:
        raise InputError(
            f"the installed task {argument} cannot be loaded: {_error_with_line(error)}"
        ) from error
    name = _register_maker(argument, maker)
    if name != argument:  # a run's files have the task's own name, and must find it again
        del TASKS[name]
        raise InputError(
            f"the installed task {argument} has the name {name!r}: its entry point must have the same name."
        )
    return name


def task_argument(name: str) -> str:
    """The argument of `find` that registers a task in another process: its name, or FILE.py:NAME."""
    maker: Any = TASKS.get(name)
    module = getattr(maker, "__module__", "")
    if not module.startswith(_FILE_MODULE):
        return name
    return f"{sys.modules[module].__file__}:{maker.__name__}"


def names() -> list[str]:
    """Names of all tasks that can be made without running a file."""
    return list(dict.fromkeys([*TASKS, *_installed()]))


def is_registered(name: str) -> bool:
    """Whether a task can be made without running a file."""
    return name in TASKS or name in _installed()


def _installed() -> dict[str, EntryPoint]:
    """Tasks of installed packages, by name."""
    return {entry.name: entry for entry in entry_points(group=_ENTRY_POINTS)}


@cache
def sample(name: str) -> Environment:
    """A task with its default options, made once, for reading its properties."""
    return make_task(name)


def _register_maker(argument: str, maker: Maker) -> str:
    """Register a task under its own name, and return the name."""
    if not callable(maker):
        raise InputError(f"{argument} is neither a class nor a function that makes a task.")
    name = getattr(_make(argument, maker, {}), "name", "")
    if not re.fullmatch(r"[\w.-]*\w[\w.-]*", str(name)):
        raise InputError(
            f"{argument} has the name {name!r}; the name of a task must consist of letters, digits, '-', '.' "
            "and '_'."
        )
    if name in ("all", SPHERE):
        raise InputError(f"{argument} has the reserved name {name!r}: give it another name.")
    before = TASKS.get(name, maker)
    if before is not maker and before.__module__ != maker.__module__:
        raise InputError(f"{argument} has the name {name!r} of another task: give it another name.")
    TASKS[name] = maker
    sample.cache_clear()
    return str(name)


def _make(argument: str, maker: Maker, options: dict[str, Any]) -> Environment:
    """Make a task.

    Options that the maker does not take are dropped if they have their default value, and rejected otherwise.
    Options of None are dropped, so that the task's own default is used.
    """
    accepted = inspect.signature(maker).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values()):
        rejected = [
            name for name, value in options.items() if name not in accepted and value != _DEFAULTS.get(name)
        ]
        if rejected:
            raise InputError(
                f"this task has no option {', '.join(rejected)}; it takes {', '.join(accepted) or 'none'}."
            )
        options = {name: value for name, value in options.items() if name in accepted}
    try:
        task = maker(**{name: value for name, value in options.items() if value is not None})
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{argument} cannot be made: {_error_with_line(error)}") from error
    if not isinstance(task, Environment):
        raise InputError(
            f"{getattr(maker, '__name__', maker)} returns {type(task).__name__}, which is not a task."
        )
    return task


def _module(file: Path) -> Any:
    """The module in a file; the file runs once, and again only after it has changed."""
    if not file.is_file():
        raise InputError(f"there is no file {file}.")
    return _run(file, file.stat().st_mtime_ns)


@cache
def _run(file: Path, changed: int) -> Any:  # noqa: ARG001
    """Import the module in a file that was changed at that time."""
    name = f"{_FILE_MODULE}{file.stem}_{hashlib.sha256(bytes(file)).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(file.parent))  # so that it can import modules next to it
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise InputError(f"{file} cannot be loaded: {_error_with_line(error)}") from error
    finally:
        sys.path.remove(str(file.parent))
    return module


def _from_file(file: Path, attribute: str) -> Maker:
    """The class or function of that name in a file."""
    module = _module(file.absolute())
    if not hasattr(module, attribute):
        tasks = [
            name for name, value in vars(module).items()
            if inspect.isclass(value)
            and issubclass(value, Environment)
            and value.__module__ == module.__name__
        ]  # fmt: skip
        raise InputError(f"{file} has no {attribute!r}. Its tasks: {', '.join(tasks) or 'none'}.")
    maker: Maker = getattr(module, attribute)
    return maker


def _error_with_line(error: Exception) -> str:
    """Message of an error, preceded by the file and the line in which it was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    message = "".join(traceback.format_exception_only(error)).strip()
    return f"{Path(frame.filename).name}, line {frame.lineno}: {message}"
