"""Plans of studies: systems, tasks and seeds, checked before anything runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ppga.algorithms import ALGORITHMS, AlgorithmConfig, find_preset, preset
from ppga.algorithms.presets import DESCRIPTIONS
from ppga.config import Budget, replace_from_text
from ppga.errors import InputError, check_choice
from ppga.runs.build import make_algorithm
from ppga.runs.folder import RunFolder
from ppga.storage import plain_name, read_json
from ppga.tasks import SPHERE, TASKS, find

ALL = "all"
"""Stands for every task, or for every system."""
VARIANTS: dict[str, tuple[str, dict[str, str]]] = {
    "ppga-cma-es": ("ppga", {"strategy.kind": "cma-es"}),
    "ppga-recombination": ("ppga", {"step": "recombination"}),
}
"""Names of changed algorithms: the algorithm, and the changes of its settings."""
NOT_COMPARED = ("ppo", "mcppo")
"""Algorithms that the paper does not compare PPGA with."""
SYSTEMS = (*(name for name in ALGORITHMS if name not in NOT_COMPARED), *VARIANTS)
"""All systems of the paper, and MAP-Elites."""


@dataclass(frozen=True)
class System:
    """An algorithm with changed settings.

    Attributes:
        name: name of an algorithm or in VARIANTS, which may be followed by changes of settings, as in
            "ppga:strategy.sigma0=1,archive.shape=50 50".
        algorithm: name of the algorithm.
        settings: changed settings, dotted name -> text.
    """

    name: str
    algorithm: str
    settings: Mapping[str, str]

    @property
    def customized(self) -> bool:
        """Whether the user changes settings."""
        return ":" in self.name

    @property
    def counts_iterations(self) -> bool:
        """Whether the paper's budget for this algorithm is a number of iterations."""
        return ALGORITHMS[self.algorithm].presets["paper"].budget.iterations is not None

    def config(self, task: str, preset_name: str) -> AlgorithmConfig:
        """Settings for a task, or an InputError if a changed setting does not exist or has a wrong type."""
        config, _ = preset(preset_name, task, self.algorithm)
        return replace_from_text(config, self.settings)


def parse_system(name: str) -> System:
    """The system of that name: ALGORITHM or ALGORITHM:OPTION=VALUE,OPTION=VALUE."""
    base, colon, changes = name.partition(":")
    algorithm, settings = VARIANTS.get(base, (base, {}))
    settings = dict(settings)
    for change in changes.split(",") if colon else ():
        option, equals, value = change.partition("=")
        if not (option.strip() and equals and value.strip()):
            raise InputError(f"a system is ALGORITHM or ALGORITHM:OPTION=VALUE,OPTION=VALUE, got {name!r}.")
        settings[option.strip().replace("-", "_")] = value.strip()
    return System(name, algorithm, settings)


@dataclass(frozen=True)
class StudyRun:
    """A run of a study.

    Attributes:
        task: name of the task.
        system: name of the system.
        seed: seed of the run.
        folder: folder of the run.
    """

    task: str
    system: str
    seed: int
    folder: Path

    @property
    def files(self) -> RunFolder:
        """Files of the run."""
        return RunFolder(self.folder)


@dataclass(frozen=True)
class Study:
    """A study.

    Attributes:
        tasks: names of the tasks.
        systems: names of the systems, see `System`.
        seeds: number of seeds; they are counted from 0.
        budget: budget of each run.
        preset: name of the preset of all runs.
        episodes: episodes of the re-evaluation of every elite; 0 for no corrected archives.
        output: folder of the study.
        task_files: task -> FILE.py:NAME, for tasks in files.
        max_iterations: also a limit for runs of algorithms that `counts_iterations`.
        report: name of the folder of the report, inside `output`.
    """

    tasks: tuple[str, ...]
    systems: tuple[str, ...]
    seeds: int
    budget: Budget
    preset: str
    episodes: int
    output: Path
    task_files: Mapping[str, str] = field(default_factory=dict)
    max_iterations: int | None = None
    report: str = "report"

    def runs(self) -> list[StudyRun]:
        """All runs, seed by seed, so that a study that is stopped has runs of all systems and tasks."""
        return [
            StudyRun(task, system, seed, self.output / task / f"{plain_name(system)}-{seed}")
            for seed in range(self.seeds)
            for task in self.tasks
            for system in self.systems
        ]

    def budget_of(self, run: StudyRun) -> Budget:
        """Budget of a run."""
        if self.max_iterations is None or not parse_system(run.system).counts_iterations:
            return self.budget
        return replace(self.budget, iterations=self.max_iterations)

    def task_argument(self, task: str) -> str:
        """The argument that names a task in commands: FILE.py:NAME of a task in a file."""
        return self.task_files.get(task, task)

    def corrects(self, run: StudyRun) -> bool:
        """Whether the elites of a run are re-evaluated."""
        return self.episodes > 0 and run.task != SPHERE


def plan_study(
    tasks: Sequence[str],
    systems: Sequence[str],
    seeds: int,
    budget: Budget,
    preset: str,
    episodes: int,
    output: Path,
) -> Study:
    """A study that can be run.

    Args:
        tasks: names, FILE.py:NAME, or all.
        systems: names, see `System`, or all.
        seeds: number of seeds.
        budget: budget of each run.
        preset: name of the preset of all runs.
        episodes: episodes of the re-evaluation of every elite; 0 for no corrected archives.
        output: folder of the study.

    Raises:
        InputError: the study cannot be run, or `output` contains a study with another preset.
    """
    budget.check()
    check_choice("preset", preset, DESCRIPTIONS)
    task_names = [name if name in (ALL, SPHERE) else find(name) for name in tasks]
    included = list(TASKS)
    for name in systems:
        check_choice("algorithm", name.partition(":")[0], [*ALGORITHMS, *VARIANTS, ALL])
    study = Study(
        _expand(task_names, included, "task"),
        _expand(systems, SYSTEMS, "algorithm"),
        seeds,
        budget,
        preset,
        episodes,
        output,
        {name: word for name, word in zip(task_names, tasks, strict=True) if ".py:" in word},
    )
    for system in map(parse_system, study.systems):
        find_preset(preset, system.algorithm)
        for task in study.tasks if system.customized else ():
            make_algorithm(task, system.config(task, preset))
    file = output / "study.json"
    earlier = read_json(file) if file.is_file() else {"preset": preset}
    if not isinstance(earlier, dict):
        raise InputError(f"{file} does not describe a study.")
    if earlier.get("preset") != preset:
        raise InputError(
            f"{output} contains a study with preset {earlier.get('preset')!r}; choose another --output."
        )
    return study


def _expand(names: Sequence[str], everything: Sequence[str], kind: str) -> tuple[str, ...]:
    """Names without duplicates, with `all` replaced by everything."""
    if not names:
        raise InputError(f"a study needs at least one {kind}.")
    expanded = [each for name in names for each in (everything if name == ALL else [name])]
    return tuple(dict.fromkeys(expanded))
