"""Options of `ppga train`: an algorithm's settings as words of a command, and their help.

Each algorithm has its own settings, so words are parsed in two stages: first the algorithm, then the rest.
"""

import dataclasses
import difflib
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import docstring_parser
from rich.console import Group
from rich.table import Table
from rich.text import Text

from ppga.config import without_none
from ppga.errors import InputError

ENABLED, DISABLED = "enabled", "disabled"
"""Defaults of optional sections."""
HINT = "ppga train --algorithm NAME --help-all lists all options."


def value_of(option: str, words: Sequence[str]) -> str | None:
    """The word that follows an option, as `--option word` or `--option=word`; None if it is not given."""
    for number, word in enumerate(words):
        if word == option and number + 1 < len(words):
            return words[number + 1]
        if word.startswith(f"{option}="):
            return word.removeprefix(f"{option}=")
    return None


def parse(words: Sequence[str], kinds: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Positional words, and the text that is given for each option.

    Args:
        words: words of a command.
        kinds: name -> type of the options.

    Raises:
        InputError: an unknown option, one without a value, or one that is given twice.
    """
    positional: list[str] = []
    texts: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            if word.startswith("-"):
                raise InputError(f"unknown option {word}. {HINT}")
            positional.append(word)
            continue
        option, equals, text = word.partition("=")
        name, negated = _setting(option, kinds)
        kind, _ = without_none(kinds[name])
        if name in texts:
            raise InputError(f"{option} is given twice.")
        if kind is bool and not equals:
            text = rest.pop(0) if rest and rest[0].lower() in ("true", "false") else "true"
        elif not equals:
            text = _values(rest, kind)
            if not text:
                raise InputError(f"{option} needs a value.")
        texts[name] = {"true": "false", "false": "true"}.get(text.lower(), text) if negated else text
    return positional, texts


def _setting(option: str, kinds: Mapping[str, Any]) -> tuple[str, bool]:
    """Name of the setting that an option sets, and whether it is `--no-NAME` of a switch."""
    name = option.removeprefix("--").replace("-", "_")
    if name in kinds:
        return name, False
    section, dot, last = name.rpartition(".")
    for positive in (f"{section}{dot}{last.removeprefix('no_')}", name.removeprefix("no_")):
        if positive != name and kinds.get(positive) is bool:
            return positive, True
    names = [f"--{known.replace('_', '-')}" for known in kinds]
    nearest = difflib.get_close_matches(option, names, n=1, cutoff=0.6)
    same_name = [known for known in names if known.strip("-").rpartition(".")[2] == last.replace("_", "-")]
    same_name.sort(key=len)
    suggestion = (same_name or nearest or [""])[0]
    hint = f" Did you mean {suggestion}?" if suggestion else ""
    raise InputError(f"unknown option {option}.{hint} {HINT}")


def _values(rest: list[str], kind: Any) -> str:
    """Remove an option's values from the words after it; several for a tuple, separated by spaces."""
    if typing.get_origin(kind) is not tuple:
        return rest.pop(0) if rest and not rest[0].startswith("--") else ""
    numeric = typing.get_args(kind)[0] in (int, float)
    taken = [rest.pop(0)] if rest and not rest[0].startswith("--") else []
    while rest and not rest[0].startswith("--") and (not numeric or _is_number(rest[0])):
        taken.append(rest.pop(0))
    return " ".join(taken)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Option:
    """An option in the help.

    Attributes:
        name: dotted name of the setting.
        kind: its type.
        default: its value if it is not given.
        text: its help, without the default.
        common: whether the short help shows it.
        placeholder: of its value; made from its type by default.
    """

    name: str
    kind: Any
    default: Any
    text: str
    common: bool
    placeholder: str | None = None

    @property
    def usage(self) -> str:
        """The option with a placeholder for its value."""
        option = f"--{self.name.replace('_', '-')}"
        kind, _ = without_none(self.kind)
        if kind is bool:
            start, dot, last = option.rpartition(".")
            return f"{start}.[no-]{last}" if dot else option
        origin, choices = typing.get_origin(kind), typing.get_args(kind)
        if origin is Literal:
            return f"{option} {{{','.join(choices)}}}"
        if dataclasses.is_dataclass(kind):
            return f"{option} {{default,none}}"
        if origin is tuple:
            return f"{option} {choices[0].__name__.upper()}..."
        return f"{option} {self.placeholder or ('TEXT' if kind is str else kind.__name__.upper())}"

    @property
    def help(self) -> str:
        """Its help, with the default in brackets."""
        if self.default is None:
            return self.text
        default = " ".join(map(str, self.default)) if isinstance(self.default, tuple) else self.default
        return f"{self.text} [{default}]"


def options_of(config: Any, prefix: str = "") -> Iterator[Option]:
    """Options of a config, with its values as defaults.

    An optional section is also an option, which enables or disables it.
    """
    texts = _attributes(type(config))
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, name, text = getattr(config, field.name), f"{prefix}{field.name}", texts.get(field.name, "")
        kind, optional = without_none(hints[field.name])
        if not dataclasses.is_dataclass(kind):
            yield Option(name, hints[field.name], value, text, bool(field.metadata.get("common")))
        elif optional:
            state = DISABLED if value is None else ENABLED
            text = f"enable with defaults, or disable: {text}"
            yield Option(name, hints[field.name], state, text, common=False)
        if dataclasses.is_dataclass(value):
            yield from options_of(value, f"{name}.")


def _attributes(kind: type) -> dict[str, str]:
    """Attribute -> its description in the docstrings of a class and its bases."""
    return {
        attribute.arg_name: " ".join((attribute.description or "").split()).rstrip(".")
        for base in reversed(kind.__mro__)
        for attribute in docstring_parser.parse(base.__doc__ or "").params
    }


def help_table(title: str, options: Sequence[Option]) -> Group:
    """Options with their help, in two columns."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for option in options:
        table.add_row(Text(f"  {option.usage}"), Text(option.help))
    return Group(Text(title), table)
