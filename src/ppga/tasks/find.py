"""Tasks by name: those that come with ppga, those of installed packages, and those in a file of yours."""

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

from ppga.errors import InputError, choose
from ppga.tasks.base import Task
from ppga.tasks.environment import Environment

Maker = Callable[..., Environment]
"""A task's class, or a function that makes one; takes options of `Task`, or as many of them as it can use."""

TASKS: dict[str, Maker] = {}
"""What is known, by name."""
FROM_FILE = "ppga_task_"
"""What names of modules begin with that were in a file."""
GROUP = "ppga.tasks"
"""Entry points of installed packages that bring tasks: name = "package.module:Class"."""
USUAL = {"physics": "mujoco", "integrator": "fast", "threads": None, "episode_length": None, "impl": "jax"}
"""Options that say nothing, to a maker that does not take them."""


def register(task: type[Task]) -> type[Task]:
    """Make a task known to `make_task` by its name; usable as a class decorator."""
    TASKS[task.name] = task
    sample.cache_clear()
    return task


def make_task(name: str, **options: Any) -> Environment:
    """The task of that name.

    Example:
        >>> task = make_task("ant", physics="mujoco", episode_length=1000, integrator="fast")
        >>> task.observation_size, task.action_size, task.measure_names[0]
        (27, 8, 'front left')

    Args:
        name: one of `TASKS`, or a task of an installed package; what is in a file is made known by `find`.
        **options: see `Task`.
    """
    if not is_known(name):  # a file is not run for being named in a run
        choose("task", name, names())
    return _made(name, TASKS[find(name)], options)


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
    choose("task", word, names())
    try:
        maker = _installed()[word].load()
    except Exception as error:
        raise InputError(f"the installed task {word} cannot be loaded: {_told(error)}") from error
    name = _known(word, maker)
    if name != word:  # runs remember a task's own name
        del TASKS[name]
        raise InputError(f"the installed task {word} calls itself {name!r}: its entry point should, too.")
    return name


def word_for(name: str) -> str:
    """What another process must ask for to find the task of that name: itself, or FILE.py:NAME."""
    maker: Any = TASKS.get(name)
    module = getattr(maker, "__module__", "")
    if not module.startswith(FROM_FILE):
        return name
    return f"{sys.modules[module].__file__}:{maker.__name__}"


def names() -> list[str]:
    """All that can be made without running a file."""
    return list(dict.fromkeys([*TASKS, *_installed()]))


def is_known(name: str) -> bool:
    """Whether a task can be made without running a file."""
    return name in TASKS or name in _installed()


def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


@cache
def sample(name: str) -> Environment:
    """The task of that name with its own options, to ask it about itself."""
    return make_task(name)


def _known(word: str, maker: Maker) -> str:
    if not callable(maker):
        raise InputError(f"{word} is neither a class nor a function that makes a task.")
    name = getattr(_made(word, maker, {}), "name", "")
    if not re.fullmatch(r"[\w.-]*\w[\w.-]*", str(name)) or name in ("all", "sphere"):
        raise InputError(f"{word} is called {name!r}; a task's name is made of letters, digits, - and _.")
    before = TASKS.get(name, maker)
    if before is not maker and before.__module__ != maker.__module__:
        raise InputError(f"{word} is called {name!r}, and so is another task: give it another name.")
    TASKS[name] = maker
    sample.cache_clear()
    return str(name)


def _made(word: str, maker: Maker, options: dict[str, Any]) -> Environment:
    """A task; options that its maker does not take are left out if they say nothing, and refused if not.

    What is None says nothing to any: its own default holds.
    """
    taken = inspect.signature(maker).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values()):
        odd = [name for name, value in options.items() if name not in taken and value != USUAL.get(name)]
        if odd:
            raise InputError(
                f"this task has no option {', '.join(odd)}; it takes {', '.join(taken) or 'none'}."
            )
        options = {name: value for name, value in options.items() if name in taken}
    try:
        made = maker(**{name: value for name, value in options.items() if value is not None})
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{word} cannot be made: {_told(error)}") from error
    if not isinstance(made, Environment):
        raise InputError(
            f"{getattr(maker, '__name__', maker)} gives {type(made).__name__}, which is no task."
        )
    return made


def _module(file: Path) -> Any:
    """The module in a file, run once, and again when the file has changed."""
    if not file.is_file():
        raise InputError(f"there is no file {file}.")
    return _run(file, file.stat().st_mtime_ns)


@cache
def _run(file: Path, changed: int) -> Any:  # noqa: ARG001
    name = f"{FROM_FILE}{file.stem}_{hashlib.sha256(bytes(file)).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(file.parent))  # for what stands beside it
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise InputError(f"{file} cannot be loaded: {_told(error)}") from error
    finally:
        sys.path.remove(str(file.parent))
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
