"""Shared parts of the commands.

Heavy imports stay inside the commands, so that help and errors appear at once.
"""

import contextlib
import functools
import inspect
import io
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import docstring_parser
import tyro
from rich.console import Console

from ppga.errors import InputError, check_choice

# names of measures, runs and files, and texts of errors, may look like rich's markup or emoji codes
console = Console(markup=False, emoji=False)

Run = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
"""A run's folder, an archive's folder, an archive's file, or pretrained:NAME."""
TaskFile = Annotated[str | None, tyro.conf.arg(metavar="FILE.py:NAME")]
PLAIN_HELP = (tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone)
"""A switch, off by default, is one option, and None is no value that can be given."""


def command(function: Callable[..., None]) -> Callable[[list[str]], None]:
    """The `main` of a command's module: parses words into the arguments of a function, and calls it."""

    def main(words: list[str]) -> None:
        _parse(function, words)()

    return main


def _parse(function: Callable[..., None], words: list[str]) -> Callable[[], None]:
    """A call of a command's function with arguments given as words; errors are InputErrors of one line."""
    program = f"ppga {function.__name__}"
    _check_options(function, words)

    def call(*args: Any, **kwargs: Any) -> Callable[[], None]:
        return functools.partial(function, *args, **kwargs)

    call.__doc__, call.__annotations__ = function.__doc__, _with_help(function)
    call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            parsed: Callable[[], None] = tyro.cli(call, prog=program, args=words, config=PLAIN_HELP)
    except SystemExit as end:
        if not end.code:
            raise
        raise InputError(f"{program}: {_content(errors.getvalue())} See {program} --help.") from None
    return parsed


def _with_help(function: Callable[..., None]) -> dict[str, Any]:
    """Annotations of a command's function, with help in the style of `ppga train`: defaults in brackets."""

    def default_in_brackets(default: str) -> str:
        return "" if default in ("", "None", "True", "False") else f"[{default}]"

    texts = {
        part.arg_name: part.description or ""
        for part in docstring_parser.parse(function.__doc__ or "").params
    }
    annotations = typing.get_type_hints(function, include_extras=True)
    for name in texts.keys() & annotations.keys():
        text = " ".join(texts[name].split()).rstrip(".")
        arg = tyro.conf.arg(help=text, help_behavior_hint=default_in_brackets)
        annotations[name] = Annotated[annotations[name], arg]
    return annotations


def _check_options(function: Callable[..., None], words: Sequence[str]) -> None:
    """Raise an InputError that suggests the closest option if a word is an unknown one."""
    known = ["--help"]
    for name, parameter in inspect.signature(function).parameters.items():
        option = name.replace("_", "-")
        if not _is_positional(parameter.annotation):
            known.append(f"--{option}")
    for word in words:
        if word.startswith("--"):
            check_choice(f"option of ppga {function.__name__}", word.partition("=")[0], known)


def _is_positional(annotation: Any) -> bool:
    marks = typing.get_args(annotation)[1:]
    return any(mark is tyro.conf.Positional or "Positional" in repr(mark) for mark in marks)


def _content(box: str) -> str:
    """The message in tyro's box, as one line; its rules are drawn in Unicode or ASCII, or have no sides."""
    _, *lines = [line.strip("│╭╮╰╯─|+- ") for line in box.splitlines()]
    lines = lines[1:] if lines[:1] == [""] else lines  # a rule below the title
    end = lines.index("") if "" in lines else len(lines)  # a rule, before further hints
    if lines[0].startswith("Missing from"):
        return f"an argument is missing: {lines[1]}."
    message = " ".join(lines[:end])
    return message if message.endswith(".") else f"{message}."


def register_task(task: str | None, expected: str | None = None) -> None:
    """Register a user's task. The code in its file runs only because the user has named the file here.

    Args:
        task: FILE.py:NAME, or a name.
        expected: name that the task must have, if that is known.
    """
    if task is None:
        return
    from ppga.tasks import find

    name = find(task)
    if expected is not None and name != expected:
        raise InputError(f"--task {task} is {name!r}, but the archive is of {expected!r}.")


def check_seed(seed: int) -> None:
    """Raise an InputError unless every random generator accepts the seed."""
    if not 0 <= seed < 2**32:
        raise InputError(f"--seed must lie in [0, 2^32), got {seed}.")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Report that a file or folder cannot be written, as an InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write to {path}: {error.strerror or error}.") from None


@contextlib.contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[[int, int], None]]:
    """A progress bar with the remaining time; the context is a function of the number done and the total."""
    from rich.progress import Progress

    with Progress(console=console) as progress:
        bar = progress.add_task(label, total=total)
        yield lambda done, of: progress.update(bar, completed=done, total=of)
