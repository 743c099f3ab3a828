"""What a user's mistake looks like: one plain message, never a traceback from the command line."""

import difflib
import importlib
import operator
from collections.abc import Iterable
from types import ModuleType
from typing import SupportsIndex

LONGEST_MESSAGE = 2000
"""Characters of an error that are shown; what it quotes from a file may be of any length."""


class InputError(ValueError):
    """Something given from outside cannot be used; the message says what was given and what is possible."""


class StorageWarning(UserWarning):
    """A file system lacks something; the message says what, and what is not guaranteed without it."""


def one_line(text: str) -> str:
    """A text as a line for a terminal, without what could move its cursor, and not endless."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text[:LONGEST_MESSAGE])
    return plain if len(text) <= LONGEST_MESSAGE else f"{plain} ..."


def told(error: Exception) -> str:
    """What went wrong, in a line: a mistake's own message, of anything else also what kind it is."""
    return str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"


def choose(kind: str, value: str, options: Iterable[str]) -> str:
    """Return `value` if it is one of `options`, else say which ones there are and which is nearest."""
    options = list(options)
    if value in options:
        return value
    nearest = difflib.get_close_matches(str(value).lower(), options, n=1, cutoff=0.4)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    raise InputError(f"unknown {kind} {value!r}.{hint} Possible: {', '.join(options)}.")


def at_least_one(what: str, value: object, most: int | None = None) -> int:
    """Return `value` if it is a whole number of at least 1, and not larger than `most` if that is given."""
    if isinstance(value, SupportsIndex) and not isinstance(value, bool) and operator.index(value) >= 1:
        if most is None or operator.index(value) <= most:
            return operator.index(value)
        raise InputError(f"{what} must be at most {most:,}, got {value!r}.")
    raise InputError(f"{what} must be a whole number of at least 1, got {value!r}.")


def import_extra(module: str, extra: str) -> ModuleType:
    """Import an optional package, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or module.split(".")[0] != error.name.split(".")[0]:
            raise
        raise InputError(
            f"{module} is not installed; it comes with the extra {extra!r}: pip install 'ppga[{extra}]'"
        ) from None
