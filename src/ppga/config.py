"""Settings as frozen dataclasses: JSON, dotted names, and the sections that every run has.

A config is composed of sections. A section that is None is absent: the algorithm runs without it.
"""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from ppga.errors import InputError, check_choice, check_count
from ppga.limits import LONGEST_EPISODE

Config = TypeVar("Config")


def common(default: Any) -> Any:
    """A field of a config with that default (made by calling it, if it can be called) that `--help` shows."""
    metadata = {"common": True}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class SimulationConfig:
    """How the task is simulated.

    Attributes:
        physics: engine: mujoco (threads on CPUs) or mjx (JAX, for accelerators).
        integrator: fast (Euler), or gymnasium (the one in the robot's model file).
        episode_length: control steps until an episode is truncated; the task's own by default.
        threads: threads of the mujoco engine; all visible cores by default.
        clip: observations and rewards are clipped to [-clip, clip], also in evaluations; none for no limit.
    """

    physics: Literal["mujoco", "mjx"] = common("mujoco")
    integrator: Literal["fast", "gymnasium"] = "fast"
    episode_length: int | None = None
    threads: int | None = None
    clip: float | None = None

    def check(self) -> None:
        """Raise an InputError for values that cannot work."""
        if self.episode_length is not None:
            check_whole("simulation.episode_length", self.episode_length, most=LONGEST_EPISODE)
        if self.threads is not None:
            check_whole("simulation.threads", self.threads)
        if self.clip is not None:
            check_positive("simulation.clip", self.clip)


@dataclass(frozen=True)
class LoggingConfig:
    """Logs, snapshots and checkpoints of a run.

    Attributes:
        checkpoint_seconds: seconds between two checkpoints; longer if writing takes more than 2% of the time.
            0 writes one after every iteration.
        snapshot_iterations: iterations between two snapshots of all cells' objectives.
        tensorboard: write TensorBoard event files.
        wandb: project of Weights & Biases to log to; needs the extra `wandb`.
    """

    checkpoint_seconds: float = 30.0
    snapshot_iterations: int = 2
    tensorboard: bool = True
    wandb: str | None = None

    def check(self) -> None:
        """Raise an InputError for values that cannot work."""
        check_range("log.checkpoint_seconds", self.checkpoint_seconds)
        check_whole("log.snapshot_iterations", self.snapshot_iterations)


@dataclass(frozen=True)
class Budget:
    """When a run ends: at the first of these limits that is reached.

    Attributes:
        iterations: iterations of the algorithm.
        minutes: wall time, those before a resume included.
        env_steps: control steps of learning and evaluation.
        evaluations: evaluated policies.
    """

    iterations: int | None = None
    minutes: float | None = None
    env_steps: int | None = None
    evaluations: int | None = None

    def check(self, simulated: bool = True) -> None:
        """Raise an InputError unless the run ends; a problem without simulation takes no env_steps."""
        limits = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        if not limits:
            raise InputError("a run needs a budget: --iterations, --minutes, --env-steps or --evaluations.")
        for name, value in limits.items():
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"the budget of {name} must be positive, got {value}.")
        if not simulated and list(limits) == ["env_steps"]:
            raise InputError("this problem is not simulated: it takes no env_steps. Give another budget.")

    def spent(self, iterations: int, minutes: float, env_steps: int, evaluations: int) -> float:
        """Share of the budget that is used up; 1 or more when the run is over."""
        used = Budget(iterations, minutes, env_steps, evaluations)
        limits = {name: limit for name, limit in dataclasses.asdict(self).items() if limit is not None}
        return float(max(getattr(used, name) / limit for name, limit in limits.items()))


# Checks of settings, given by their dotted names.


def option(name: str) -> str:
    """The command-line option of a setting: `--ppo.rollout-length` for `ppo.rollout_length`."""
    return f"--{name.replace('_', '-')}"


def check_whole(name: str, value: int, least: int = 1, most: int | None = None) -> None:
    """Raise an InputError for a number that is not an integer in [least, most]."""
    check_count(option(name), value, most, least)


def check_range(name: str, value: float, low: float = 0.0, high: float = math.inf) -> None:
    """Raise an InputError for a number that is not finite or not in [low, high]."""
    if not (math.isfinite(value) and low <= value <= high):
        raise InputError(f"{option(name)} must lie in [{low:g}, {high:g}], got {value!r}.")


def check_positive(name: str, value: float) -> None:
    """Raise an InputError for a number that is not finite or not above 0."""
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{option(name)} must be a positive number, got {value!r}.")


# Dotted names.


def replace_nested(config: Config, changes: Mapping[str, Any]) -> Config:
    """A config with changed fields, named by dotted names.

    Example:
        >>> replace_nested(Budget(minutes=5.0), {"minutes": 10.0}).minutes
        10.0

    Raises:
        InputError: a name that the config does not have, or one inside a disabled section.
    """
    for name, value in changes.items():
        config = _replaced(config, name.split("."), value, name)
    return config


def _replaced(config: Any, path: list[str], value: Any, name: str) -> Any:
    fields = [field.name for field in dataclasses.fields(config)]
    first = check_choice("setting", path[0], fields)
    if len(path) > 1:
        section = getattr(config, first)
        if not dataclasses.is_dataclass(section):
            reason = "is disabled; enable it first" if section is None else "is not a section"
            raise InputError(f"cannot set {name}: {first} {reason}.")
        value = _replaced(section, path[1:], value, name)
    return dataclasses.replace(config, **{first: value})


def replace_from_text(config: Config, changes: Mapping[str, str]) -> Config:
    """A config with changed settings, named by dotted names, with values as they are typed in a command.

    Elements of a tuple are separated by spaces or commas. The text `none` is None and disables a section; the
    text `default` is a section with its default settings. A setting of a disabled section enables it.

    Example:
        >>> replace_from_text(Budget(minutes=5.0), {"env-steps": "1000", "minutes": "none"}).env_steps
        1000

    Args:
        config: the config.
        changes: name -> text; dashes in names stand for underscores.

    Raises:
        InputError: an unknown name, a text that is not a value of its setting, or a setting of a section that
            another text disables.
    """
    kinds = dict(setting_types(type(config)))
    for given, text in changes.items():
        name = given.strip().replace("-", "_")
        if name not in kinds:
            raise InputError(_unknown_setting(name, list(kinds)))
        section, dot, _ = name.partition(".")
        if dot and changes.get(section, "").lower() == "none":
            raise InputError(f"{option(section)} none disables what {option(name)} sets; leave one out.")
        if dot and getattr(config, section) is None:
            config = replace_nested(config, {section: without_none(kinds[section])[0]()})
        config = replace_nested(config, {name: _from_text(kinds[name], text.strip(), name)})
    return config


def setting_types(kind: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and annotated types of the sections of a config class and of all settings."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        yield f"{prefix}{field.name}", hints[field.name]
        inner, _ = without_none(hints[field.name])
        if dataclasses.is_dataclass(inner):
            yield from setting_types(inner, f"{prefix}{field.name}.")


def without_none(kind: Any) -> tuple[Any, bool]:
    """An annotated type without None, and whether None is accepted."""
    if typing.get_origin(kind) not in (types.UnionType, typing.Union):
        return kind, False
    options = typing.get_args(kind)
    return next(option for option in options if option is not type(None)), type(None) in options


def _unknown_setting(name: str, known: list[str]) -> str:
    """Message about an unknown setting: the nearest of all settings, and the settings of the same section."""
    section, _, _ = name.rpartition(".")
    siblings = [other for other in known if other.rpartition(".")[0] == section]
    possible = siblings or [other for other in known if "." not in other]
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return f"unknown setting {name!r}.{hint} Possible: {', '.join(possible)}."


def _from_text(kind: Any, text: str, name: str) -> Any:
    """`text` converted to the annotated type of the setting `name`."""
    inner, optional = without_none(kind)
    origin, options = typing.get_origin(inner), typing.get_args(inner)
    if optional and text.lower() == "none":
        return None
    if origin is Literal:
        return check_choice(f"value of {name}", text, options)
    if origin is tuple:
        return tuple(_from_text(options[0], word, name) for word in text.replace(",", " ").split())
    if inner is str:
        return text
    section = ("default", lambda text: {"default": inner}[text.lower()]())
    expected, convert = _FROM_TEXT.get(inner, section)
    try:
        return convert(text)
    except (KeyError, ValueError):
        expected += " or none" if optional else ""
        raise InputError(f"{name} must be {expected}, got {text!r}.") from None


def _int_from_text(text: str) -> int:
    number = int(text)
    if abs(number) >= 2**63:  # files and arrays cannot hold it
        raise ValueError
    return number


_FROM_TEXT: dict[Any, tuple[str, Callable[[str], Any]]] = {
    bool: ("true or false", lambda text: {"true": True, "false": False}[text.lower()]),
    int: ("an integer", _int_from_text),
    float: ("a number", float),
}
"""Type -> what is expected, for messages, and the conversion, which raises a KeyError or a ValueError."""


def differences(old: Any, new: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Dotted names of the fields that two configs of one class differ in, with both values."""
    for field in dataclasses.fields(old):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if dataclasses.is_dataclass(before) and type(before) is type(after):
            yield from differences(before, after, f"{prefix}{field.name}.")
        elif before != after:
            yield f"{prefix}{field.name}", before, after


# JSON.


def to_json(config: Any) -> dict[str, Any]:
    """A config as nested plain values."""
    return dataclasses.asdict(config)


def from_json(kind: type[Any], values: Any, prefix: str = "") -> Any:
    """A config of a class from nested plain values.

    Raises:
        InputError: an unknown name or a value of the wrong type; the message names the field.
    """
    if not isinstance(values, Mapping):
        raise InputError(
            f"{prefix or kind.__name__}: expected a mapping of setting names to values, got {values!r}."
        )
    hints = typing.get_type_hints(kind)
    fields = sorted(field.name for field in dataclasses.fields(kind))
    for name in values:
        check_choice(f"setting {prefix}", str(name), fields)
    return kind(
        **{name: _from_plain(hints[name], value, f"{prefix}{name}") for name, value in values.items()}
    )


def merged(config: Config, values: Any, prefix: str = "") -> Config:
    """A config with changes as nested plain values, for example from a file.

    Raises:
        InputError: an unknown name or a value of the wrong type; the message names the field.
    """
    if not isinstance(values, Mapping):
        section = prefix.rstrip(".") or "settings"
        raise InputError(f"{section}: expected a mapping of setting names to values, got {values!r}.")
    hints = typing.get_type_hints(type(config))
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    changes = {}
    for name, value in values.items():
        check_choice(f"setting {prefix}".strip(), str(name), fields)
        if dataclasses.is_dataclass(fields[name]) and value is not None:
            changes[name] = merged(fields[name], value, f"{prefix}{name}.")
        else:
            changes[name] = _from_plain(hints[name], value, f"{prefix}{name}")
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def _from_plain(kind: Any, value: Any, name: str) -> Any:
    """`value` converted to the annotated type."""
    if dataclasses.is_dataclass(kind):
        return from_json(typing.cast(type[Any], kind), value, f"{name}.")
    inner, optional = without_none(kind)
    if inner is not kind:
        return None if value is None and optional else _from_plain(inner, value, name)
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal and value in options:
        return value
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_from_plain(options[0], item, name) for item in value)
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind in (int, str, bool) and type(value) is kind and not (kind is int and abs(value) >= 2**63):
        return value
    expected = (
        f"one of {', '.join(map(str, options))}" if origin is Literal else getattr(kind, "__name__", kind)
    )
    raise InputError(f"{name}: expected {expected}, got {value!r}.")
