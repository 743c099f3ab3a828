"""`ppga train`: options become a run.

The first stage finds the algorithm; the second one parses its settings, whose defaults depend on the task and
the preset.
"""

import dataclasses
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from rich.text import Text

from ppga import machine
from ppga.algorithms import ALGORITHMS, AlgorithmConfig, find_algorithm, preset
from ppga.archives import load_archive
from ppga.cli.common import console
from ppga.cli.options import Option, help_table, options_of, parse, value_of
from ppga.cli.summary import cost, make_display, show_outcome, show_plan
from ppga.config import Budget, common, differences, from_json, merged, replace_from_text, setting_types
from ppga.distributed.cluster import Cluster
from ppga.distributed.devices import is_primary, join
from ppga.errors import InputError
from ppga.runs import resume, train
from ppga.runs.build import make_algorithm, make_executor
from ppga.runs.display import Silent
from ppga.runs.estimate import estimate
from ppga.runs.folder import RunFolder
from ppga.runs.results import check_initial_archive
from ppga.runs.signals import exit_on_signals
from ppga.runs.trainer import check_known
from ppga.storage import parse_json
from ppga.tasks import SPHERE, TASKS, find

USAGE = """usage: ppga train TASK [options]
       ppga train --resume RUN [options]

Train an archive of many good and different policies.

  ppga train walker2d --minutes 10 --seed 1 --output runs/walker
  ppga train --resume runs/walker --minutes 20
"""
LARGEST_FILE = 1_000_000
"""Characters of a file of settings."""
HELP = ("-h", "--help", "--help-all")
PLACEHOLDERS = {
    "task": "TASK", "algorithm": "NAME", "preset": "NAME", "config": "FILE", "output": "FOLDER",
    "resume": "RUN", "address": "HOST:PORT",
}  # fmt: skip
"""Placeholders of options' values in the help."""


@dataclass(frozen=True)
class TrainOptions:
    """Options of `ppga train` besides the settings of the algorithm.

    Attributes:
        task: a name from `ppga tasks`, FILE.py:NAME, or sphere, a toy problem; may be given without --task
        algorithm: the algorithm
        preset: settings to start from
        config: a run's config.json, or YAML; options override it
        output: folder of the run [runs/TASK-ALGORITHM-TIME]
        resume: resume this run exactly; the budget may be larger
        iterations: stop after this many iterations
        minutes: stop after this many minutes, in all sessions together
        env_steps: stop after this many control steps of learning and evaluation
        evaluations: stop after this many evaluated policies
        address: address of a running Ray cluster, or auto; for --cluster jax, of the first process
        workers: number of Ray workers, on which results do not depend, or of processes for --cluster jax
        rank: for --cluster jax, the number of this process, from 0. The first one writes the run
        quiet: print warnings and the result only
        dry_run: show settings, memory and time, and stop
    """

    task: str | None = common(None)
    algorithm: str = common("ppga")
    preset: str = common("laptop")
    config: str | None = common(None)
    output: str | None = common(None)
    resume: str | None = common(None)
    iterations: int | None = common(None)
    minutes: float | None = common(None)
    env_steps: int | None = None
    evaluations: int | None = None
    address: str | None = None
    workers: int | None = None
    rank: int | None = None
    quiet: bool = common(False)
    dry_run: bool = common(False)

    @property
    def budget(self) -> Budget | None:
        """The budget, if one is given."""
        budget = Budget(self.iterations, self.minutes, self.env_steps, self.evaluations)
        return None if budget == Budget() else budget

    @property
    def cluster(self) -> Cluster:
        """Where the workers or processes are."""
        return Cluster(self.address, self.workers, self.rank)


@dataclass(frozen=True)
class Request:
    """The run that a command asks for.

    Attributes:
        options: options besides settings.
        task: the task, by its registered name.
        config: settings.
        budget: when to stop.
        resumed: whether the run exists.
    """

    options: TrainOptions
    task: str
    config: AlgorithmConfig
    budget: Budget
    resumed: bool = False


def main(words: list[str]) -> None:
    """Run the command with these words after `ppga train`."""
    if any(word in HELP for word in words):
        show_help([word for word in words if word not in HELP], everything="--help-all" in words)
        return
    request = parse_request(words)
    options, config = request.options, request.config
    request.budget.check()
    machine.prepare_jax()
    display = make_display(console, options.quiet) if is_primary() else Silent()
    if options.dry_run or (options.preset.startswith("paper") and not request.resumed):
        algorithm = make_algorithm(request.task, config, make_executor(config, options.cluster))
        if config.init_from:
            check_initial_archive(load_archive(config.init_from), algorithm)
        expected = estimate(algorithm, request.budget)
        if options.dry_run:
            show_plan(console, request.task, config, request.budget, expected)
            return
        display.say(cost(expected))
    with exit_on_signals():
        if request.resumed:
            run = Path(str(options.resume))
            outcome = resume(run, budget=request.budget, display=display, cluster=options.cluster)
        else:
            name = f"{request.task}-{config.algorithm}-{datetime.now():%Y%m%d-%H%M%S}"
            output = Path(options.output) if options.output else Path("runs") / name
            outcome = train(
                request.task, config, budget=request.budget, output=output, display=display,
                cluster=options.cluster,
            )  # fmt: skip
    if is_primary():
        show_outcome(console, outcome)


def parse_request(words: list[str]) -> Request:
    """Parse the command line; raise an InputError if it is invalid."""
    run, file = value_of("--resume", words), value_of("--config", words)
    old = RunFolder(Path(run)).read() if run else None
    content = _read(Path(file)) if file else {}
    algorithm = value_of("--algorithm", words) or content.get("algorithm", "ppga")
    kind = type(old[1]) if old else find_algorithm(algorithm).config
    options, positional, texts = _parse(words, kind)
    named = [word for word in (*positional, options.task) if word is not None]
    if len(named) > 1:
        raise InputError(f"one task is trained at a time, got {', '.join(named)}.")
    task = named[0] if named else content.get("task")
    if (old[1].cluster if old else texts.get("cluster", content.get("cluster"))) == "jax":
        join(options.cluster)  # before anything is computed
    if old is not None:
        return _resumed(words, options, old, task, texts)
    if task is None:
        raise InputError(
            f"no task given. Choose one of {', '.join((*TASKS, SPHERE))}, FILE.py:NAME; or --resume RUN."
        )
    task = task if task == SPHERE else find(task)
    preset_name = value_of("--preset", words) or content.get("preset", options.preset)
    config, budget = preset(preset_name, task, algorithm)
    about = ("task", "algorithm", "preset", "budget")
    settings = {name: value for name, value in content.items() if name not in about}
    config = replace_from_text(merged(config, settings), texts)
    if "budget" in content:
        budget = from_json(Budget, content["budget"])
    options = dataclasses.replace(options, preset=preset_name)
    return Request(options, task, config, options.budget or budget)


def _parse(words: list[str], kind: type[AlgorithmConfig]) -> tuple[TrainOptions, list[str], dict[str, str]]:
    """Options, positional words, and the texts that are given for the settings of a class."""
    own = dict(setting_types(TrainOptions))
    positional, texts = parse(words, {**dict(setting_types(kind)), **own})
    options = replace_from_text(TrainOptions(), {name: texts.pop(name) for name in own if name in texts})
    return options, positional, texts


def _resumed(
    words: list[str],
    options: TrainOptions,
    old: tuple[str, AlgorithmConfig, Budget],
    task: str | None,
    texts: dict[str, str],
) -> Request:
    """A request to resume a run, whose settings cannot change."""
    run = Path(str(options.resume))
    name, config, budget = old
    if value_of("--preset", words) is not None:
        raise InputError("a resumed run keeps its settings; leave --preset out.")
    if options.config is not None:
        raise InputError("a resumed run keeps its settings; leave --config out.")
    algorithm = value_of("--algorithm", words)
    if algorithm not in (None, config.algorithm):
        raise InputError(f"{run} is a run of {config.algorithm}, not of {algorithm}.")
    task = task if task in (None, SPHERE) else find(str(task))
    if task not in (None, name):
        raise InputError(f"{run} is a run of {name}, not of {task}.")
    if options.output is not None and Path(options.output) != run:
        raise InputError(f"a resumed run stays in its folder, {run}; leave --output out.")
    changed = [
        f"{setting} (was {before!r}, now {after!r})"
        for setting, before, after in differences(config, replace_from_text(config, texts))
    ]
    if changed:
        raise InputError(
            f"a resumed run keeps its settings; only its budget may change. Different: {', '.join(changed)}."
        )
    check_known(name, run)
    return Request(options, name, config, options.budget or budget, resumed=True)


def show_help(words: list[str], everything: bool) -> None:
    """Print the help for the run, or for the algorithm, task and preset that the words name.

    Args:
        words: words of the command besides those that ask for help.
        everything: show all settings; only common ones otherwise.
    """
    if run := value_of("--resume", words):
        task, config, _ = RunFolder(Path(run)).read()
        title = f"{config.algorithm} on {task}, as in {run}"
    else:
        algorithm, name = value_of("--algorithm", words) or "ppga", value_of("--preset", words) or "laptop"
        options, positional, _ = _parse(words, find_algorithm(algorithm).config)
        task = next(iter(positional), options.task or "halfcheetah")
        task = task if task == SPHERE else find(task)
        config, _ = preset(name, task, algorithm)
        title = f"{algorithm}, defaults of the preset {name} for {task}"
    settings = list(options_of(config))
    choices = {
        "algorithm": f"one of {', '.join(ALGORITHMS)}",
        "preset": f"one of {', '.join(find_algorithm(config.algorithm).presets)}",
    }
    own = [
        dataclasses.replace(
            option,
            text=choices.get(option.name, option.text),
            default=option.default or None,
            placeholder=PLACEHOLDERS.get(option.name),
        )
        for option in options_of(TrainOptions())
    ]
    console.print(Text(USAGE))
    console.print(help_table("Options (defaults in brackets)", _shown(own, everything)))
    console.print(help_table(f"\nSettings of {title}", _shown(settings, everything)))
    if not everything:
        hidden = sum(not option.common for option in (*own, *settings))
        console.print(Text(f"\n--help-all shows {hidden} more. The defaults depend on TASK and --preset."))


def _shown(options: list[Option], everything: bool) -> list[Option]:
    return [option for option in options if everything or option.common]


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """YAML in which 3e-4 is a number, as in JSON and Python."""


_Loader.yaml_implicit_resolvers = {  # PyYAML reads 3e-4 as text: YAML 1.1 requires 3.0e-4
    first: [resolver for resolver in resolvers if resolver[0] != "tag:yaml.org,2002:float"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$"),
    list("-+.0123456789"),
)


def _read(file: Path) -> dict[str, Any]:
    """Settings in a file, with `task`, `algorithm`, `preset` and `budget` where it has them."""
    try:
        text = file.read_text()
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise InputError(f"{file} is not a text file.") from None
    if len(text) > LARGEST_FILE:
        raise InputError(f"{file} is too large for a file of settings: {len(text):,} characters.")
    try:
        content = parse_json(text.encode()) if file.suffix == ".json" else yaml.load(text, _Loader)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"{file} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise InputError(f"{file} must contain a mapping of setting names to values.")
    if "config" in content:  # a run's config.json
        settings = content["config"]
        if not isinstance(settings, dict):
            raise InputError(
                f"{file}: config must be a mapping of setting names to values, got {settings!r}."
            )
        content = {**settings, **{name: content[name] for name in ("task", "budget") if name in content}}
    for name in ("task", "algorithm", "preset"):
        if not isinstance(content.get(name, ""), str):
            raise InputError(f"{file}: {name} must be a text, got {content[name]!r}.")
    return content
