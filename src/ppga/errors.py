"""Errors for users: one plain message, without a traceback on the command line."""

import difflib
import importlib
import operator
from collections.abc import Iterable
from types import ModuleType
from typing import SupportsIndex

LONGEST_MESSAGE = 2000
"""Characters of an error message that are shown; it may quote a file at any length."""


STOPPED = "ppga: stopped at once; ppga train --resume RUN continues from the last checkpoint"
"""Message of a command that does not wait for the end of an iteration."""


class InputError(ValueError):
    """An input (option, argument or file) cannot be used.

    The message says what was given, what is accepted, and which command or option fixes it.
    """


class StorageWarning(UserWarning):
    """A file system lacks a feature; the message names it and what is not guaranteed without it."""


def one_line(text: str) -> str:
    """A text as one line for a terminal: without control characters, and truncated if it is very long."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text[:LONGEST_MESSAGE])
    return plain if len(text) <= LONGEST_MESSAGE else f"{plain} ..."


def error_text(error: Exception) -> str:
    """Message of an error; for errors other than InputError, preceded by the type."""
    return str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"


def check_choice(kind: str, value: str, options: Iterable[str]) -> str:
    """Return `value` if it is one of the options.

    Args:
        kind: what the value names, for the message.
        value: given by the user.
        options: accepted values.

    Raises:
        InputError: it is none of them; the message lists them and suggests the nearest.
    """
    options = list(options)
    if value in options:
        return value
    nearest = difflib.get_close_matches(str(value).lower(), options, n=1, cutoff=0.4)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    raise InputError(f"unknown {kind} {value!r}.{hint} Possible: {', '.join(options)}.")


def check_count(name: str, value: object, most: int | None = None, least: int = 1) -> int:
    """Return `value` as an int if it is an integer of at least `least`.

    Args:
        name: name of the option or argument, for the message.
        value: given by the user.
        most: largest accepted value; no limit by default.
        least: smallest accepted value.

    Raises:
        InputError: it is not such a number.
    """
    if isinstance(value, SupportsIndex) and not isinstance(value, bool) and operator.index(value) >= least:
        if most is None or operator.index(value) <= most:
            return operator.index(value)
        raise InputError(f"{name} must be at most {most:,}, got {value!r}.")
    raise InputError(f"{name} must be an integer of at least {least}, got {value!r}.")


def import_extra(module: str, extra: str) -> ModuleType:
    """Import a module of an optional package.

    Args:
        module: dotted name.
        extra: the extra of ppga that installs it.

    Raises:
        InputError: the package is not installed; the message has the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or module.split(".")[0] != error.name.split(".")[0]:
            raise
        raise InputError(
            f"{module} is not installed; it comes with the extra {extra!r}: pip install 'ppga[{extra}]'"
        ) from None
