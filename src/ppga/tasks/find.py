"""Tasks by name: those that come with ppga, those of installed packages, and those in a file of yours."""

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from ppga.errors import InputError, choose
from ppga.tasks.base import Task
from ppga.tasks.environment import Environment

Maker = Callable[..., Environment]
"""A task's class, or a function that makes one; takes options of `Task`, or as many of them as it can use."""

TASKS: dict[str, Maker] = {}
"""What is known, by name."""
GROUP = "ppga.tasks"
"""Entry points of installed packages that bring tasks: name = "package.module:Class"."""
USUAL = {"physics": "mujoco", "integrator": "fast", "threads": None, "episode_length": None, "impl": "jax"}
"""Options that say nothing, to a maker that does not take them."""


def register(task: type[Task]) -> type[Task]:
    """Make a task known to `make_task` by its name; usable as a class decorator."""
    TASKS[task.name] = task
    return task


def make_task(name: str, **options: Any) -> Environment:
    """The task of that name.

    Example:
        >>> task = make_task("ant", physics="mujoco", episode_length=1000, integrator="fast")
        >>> task.observation_size, task.action_size, task.measure_names[0]
        (27, 8, 'front left')

    Args:
        name: one of `TASKS`, a task of an installed package, or FILE.py:NAME.
        **options: see `Task`.
    """
    return _made(TASKS[find(name)], options)


def robot(name: str, **options: Any) -> Task:
    """The task of that name, which must be one in MuJoCo."""
    task = make_task(name, **options)
    if not isinstance(task, Task):
        raise InputError(f"{name} is not simulated by MuJoCo here.")
    return task


def find(word: str) -> str:
    """The name of a task that a user has asked for, which is known from then on.

    Code in a file is run only when the file itself is named, FILE.py:NAME; never because an archive or a run
    names its task.
    """
    if word in TASKS:
        return word
    file, colon, thing = word.rpartition(":")
    if colon and file.endswith(".py"):
        return _known(word, _from_file(Path(file), thing))
    if word.endswith(".py"):
        raise InputError(f"which task of {word}? {word}:NAME, a class or a function that makes it.")
    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    choose("task", word, [*TASKS, *installed])
    try:
        maker = installed[word].load()
    except Exception as error:
        raise InputError(f"the installed task {word} cannot be loaded: {_told(error)}") from error
    return _known(word, maker)


def is_known(name: str) -> bool:
    """Whether a task can be made without running a file."""
    return name in TASKS or any(entry.name == name for entry in entry_points(group=GROUP))


@cache
def sample(name: str) -> Environment:
    """The task of that name with its own options, to ask it about itself."""
    return make_task(name)


def _known(word: str, maker: Maker) -> str:
    if not callable(maker):
        raise InputError(f"{word} is neither a class nor a function that makes a task.")
    try:
        made = _made(maker, {})
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{word} cannot be made: {_told(error)}") from error
    name = getattr(made, "name", "")
    if not name or name == "sphere" or TASKS.get(name, maker) is not maker:
        raise InputError(f"{word} is called {name!r}, and so is another task: give it another name.")
    TASKS[name] = maker
    return name


def _made(maker: Maker, options: dict[str, Any]) -> Environment:
    """A task; options that its maker does not take are left out if they say nothing, and refused if not."""
    taken = inspect.signature(maker).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values()):
        odd = [name for name, value in options.items() if name not in taken and value != USUAL.get(name)]
        if odd:
            raise InputError(
                f"this task has no option {', '.join(odd)}; it takes {', '.join(taken) or 'none'}."
            )
        options = {name: value for name, value in options.items() if name in taken}
    made = maker(**options)
    if not isinstance(made, Environment):
        raise InputError(
            f"{getattr(maker, '__name__', maker)} gives {type(made).__name__}, which is no task."
        )
    return made


@cache
def _module(file: Path) -> Any:
    """The module in a file, run once."""
    name = f"ppga_task_{file.stem}_{hashlib.sha256(bytes(file)).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise InputError(f"there is no file {file}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise InputError(f"{file} cannot be loaded: {_told(error)}") from error
    return module


def _from_file(file: Path, thing: str) -> Maker:
    module = _module(file.absolute())
    if not hasattr(module, thing):
        named = [
            name for name, value in vars(module).items()
            if inspect.isclass(value)
            and issubclass(value, Environment)
            and value.__module__ == module.__name__
        ]  # fmt: skip
        raise InputError(f"{file} has no {thing!r}. Its tasks: {', '.join(named) or 'none'}.")
    maker: Maker = getattr(module, thing)
    return maker


def _told(error: Exception) -> str:
    """What went wrong, and in which line."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    what = "".join(traceback.format_exception_only(error)).strip()
    return f"{Path(place.filename).name}, line {place.lineno}: {what}"
