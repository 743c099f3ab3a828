"""The benchmarks as commands: their options, and what each of them runs.

Heavy imports stay inside the methods, so that help and error messages appear at once.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from ppga.errors import InputError, check_choice, check_count

if TYPE_CHECKING:
    from rich.console import RenderableType

    from benchmarks.harness import Result

PROGRAM = "python -m benchmarks"
Show = Callable[[str], None]
"""Shows a message about the progress."""


@dataclass(frozen=True)
class Benchmark:
    """Base class of the benchmarks.

    Attributes:
        task: name of a task, FILE.py:NAME, or all.
        json: file that all results are also written to.
    """

    task: str = "all"
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None

    def check(self) -> None:
        """Raise an InputError for options that cannot work."""
        for name in ("environments", "steps", "rounds", "seeds", "parallel"):
            value = getattr(self, name, None)
            if value is not None:
                check_count(f"--{name}", value)
        minutes = getattr(self, "minutes", 1.0)
        if not 0 < minutes < math.inf:
            raise InputError(f"--minutes must be positive, got {minutes}.")

    @property
    def name(self) -> str:
        """Name of the benchmark on the command line."""
        return type(self).__name__.lower()

    def title(self, task: str) -> str:
        """Title of the table of a task."""
        return f"{self.name}, {task}"

    def measure(self, task: str, show: Show) -> "list[Result]":
        """Run the benchmark on a task."""
        raise NotImplementedError

    def table(self, results: "Sequence[Result]", task: str) -> "RenderableType":
        """The results of a task."""
        from benchmarks.harness import table

        return table(results, self.title(task))


@dataclass(frozen=True)
class TimedBenchmark(Benchmark):
    """Base class of the benchmarks that report medians.

    Attributes:
        rounds: how often everything is timed; medians are reported.
    """

    rounds: int = 5

    def title(self, task: str) -> str:
        """Title of the table of a task."""
        return f"{super().title(task)}: medians of {self.rounds} rounds"


@dataclass(frozen=True)
class All(Benchmark):
    """Everything below except scale, each in its own process; takes about a quarter of an hour.

    Attributes:
        preset: settings of the algorithms: laptop, paper or smoke.
        minutes: minutes of each loop of the race.
    """

    task: str = "walker2d"
    preset: str = "laptop"
    minutes: float = 1.0


@dataclass(frozen=True)
class Start(TimedBenchmark):
    """Seconds of `ppga --help`, of imports, and of a smallest run."""

    task: str = "walker2d"

    def measure(self, task: str, show: Show) -> "list[Result]":  # noqa: ARG002
        """See `Benchmark`."""
        from benchmarks.start import bench_start

        return bench_start(task, self.rounds)


@dataclass(frozen=True)
class Physics(TimedBenchmark):
    """Control steps/s of the engines, beside bare `mujoco.batch` and other simulators.

    Attributes:
        environments: number of environments that run at once.
        steps: control steps in one timed call.
        threads: threads of MuJoCo, here and in `mujoco.batch`; all visible cores by default.
        compare: also measure MJX, Brax and Gymnasium, where they are installed; takes minutes.
    """

    environments: int = 1024
    steps: int = 50
    threads: int | None = None
    compare: bool = False

    def measure(self, task: str, show: Show) -> "list[Result]":  # noqa: ARG002
        """See `Benchmark`."""
        from benchmarks.physics import bench_physics

        return bench_physics(task, self.environments, self.steps, self.rounds, self.threads, self.compare)


@dataclass(frozen=True)
class VPPO(TimedBenchmark):
    """Control steps/s of learning and of evaluation, beside what physics and updates alone would allow.

    Attributes:
        preset: settings of networks and batches: laptop, paper or smoke.
        environments: number of environments of the learner; that of the preset by default.
        steps: control steps of an episode, and in one timed call of the bare library.
        threads: threads of MuJoCo, here and in `mujoco.batch`; all visible cores by default.
    """

    preset: str = "laptop"
    environments: int | None = None
    steps: int = 50
    threads: int | None = None

    def measure(self, task: str, show: Show) -> "list[Result]":  # noqa: ARG002
        """See `Benchmark`."""
        from benchmarks.vppo import bench_vppo

        return bench_vppo(task, self.preset, self.environments, self.steps, self.rounds, self.threads)


@dataclass(frozen=True)
class Iteration(TimedBenchmark):
    """Seconds of the phases of PPGA's iterations, and the share that neither simulates nor learns.

    Attributes:
        preset: settings of PPGA: laptop, paper or smoke.
        threads: threads of MuJoCo; all visible cores by default.
    """

    preset: str = "laptop"
    threads: int | None = None

    def measure(self, task: str, show: Show) -> "list[Result]":  # noqa: ARG002
        """See `Benchmark`."""
        from benchmarks.iteration import bench_iteration

        return bench_iteration(task, self.preset, self.rounds, self.threads)


@dataclass(frozen=True)
class View(TimedBenchmark):
    """Seconds from a click in the viewer to the robot, and of drawing a frame."""

    def measure(self, task: str, show: Show) -> "list[Result]":  # noqa: ARG002
        """See `Benchmark`."""
        from benchmarks.view import bench_view

        return bench_view(task, self.rounds)


@dataclass(frozen=True)
class Memory(Benchmark):
    """Memory of full archives and of writing them, beside the estimate.

    Attributes:
        preset: settings of PPGA: laptop, paper or smoke.
        shape: cells along each measure; those of the task by default.
    """

    preset: str = "laptop"
    shape: tuple[int, ...] | None = None

    def measure(self, task: str, show: Show) -> "list[Result]":  # noqa: ARG002
        """See `Benchmark`."""
        from benchmarks.memory import bench_memory

        return bench_memory(task, self.preset, self.shape)


@dataclass(frozen=True)
class Race(Benchmark):
    """QD-score of ppga's loops beside those of QDax and pyribs, re-evaluated in fresh episodes.

    Attributes:
        preset: settings of ppga's algorithms: laptop, paper or smoke.
        minutes: minutes of each loop, its start included; the re-evaluation is not.
        seeds: each loop runs with the seeds 1 to this number.
        loops: names of the loops, such as ppga or "qdax dcrl-me", or of ppga's algorithms; by default ppga,
            pga-me, map-elites, and all installed ones of other libraries.
        episodes: fresh episodes of each elite, from which all reported scores come.
        parallel: loops that run at once, each on one core; 1 for one loop at a time on all cores.
        output: folder of the archives, runs/race-TASK-TIME by default. Loops that are complete in it are not
            run again.
    """

    task: str = "walker2d"
    preset: str = "laptop"
    minutes: float = 1.0
    seeds: int = 1
    loops: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ()
    episodes: int = 50
    parallel: int = 1
    output: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None

    def check(self) -> None:
        """Raise an InputError for options that cannot work."""
        super().check()
        check_count("--episodes", self.episodes, least=2)  # one half selects, the other one is reported
        if self.output is not None and self.task == "all":
            raise InputError("--output is the folder of one task: give --task, or leave --output out.")

    def title(self, task: str) -> str:
        """Title of the tables of a task."""
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return f"{task}: {self.minutes:g} minutes for each loop, {seeds}"

    def measure(self, task: str, show: Show) -> "list[Result]":
        """See `Benchmark`."""
        from ppga.storage import plain_name

        from benchmarks.race import Settings, bench_race

        settings = Settings(task, self.preset, self.minutes, self.episodes, self.parallel)
        folder = self.output or Path("runs") / f"race-{plain_name(task)}-{time.strftime('%Y%m%d-%H%M%S')}"
        image = self.json and self.json.with_name(f"{self.json.stem}-{plain_name(task)}.png")
        return bench_race(settings, self.loops, self.seeds, folder, image, show)

    def table(self, results: "Sequence[Result]", task: str) -> "RenderableType":
        """Tables with one row for each loop."""
        from benchmarks.race import race_table

        return race_table(results, self.title(task))


@dataclass(frozen=True)
class Scale(Benchmark):
    """Speed with more Ray workers, and a prediction for clusters.

    Attributes:
        rounds: iterations that are timed, after one that compiles; means are reported.
        preset: settings of PPGA: laptop, paper or smoke.
        environments: number of environments of the learner; that of the preset by default.
    """

    rounds: int = 5
    preset: str = "laptop"
    environments: int | None = None

    def measure(self, task: str, show: Show) -> "list[Result]":  # noqa: ARG002
        """See `Benchmark`."""
        from benchmarks.scale import bench_scale

        return bench_scale(task, self.preset, self.environments, self.rounds)


BENCHMARKS: dict[str, type[Benchmark]] = {
    kind.__name__.lower(): kind for kind in (All, Start, Physics, VPPO, Iteration, View, Memory, Race, Scale)
}
"""Name on the command line -> class of the options."""


def parse(words: Sequence[str]) -> Benchmark:
    """The benchmark that the words of a command line ask for.

    Raises:
        InputError: an unknown benchmark, or an option that cannot work.
        SystemExit: after help, or after a message about an unknown option.
    """
    if not words or words[0].startswith("-"):
        tyro.extras.subcommand_cli_from_dict(
            dict[str, Callable[..., Benchmark]](BENCHMARKS),
            prog=PROGRAM,
            description="Measure speed and memory on this machine, as ratios within one run.\n\n"
            f"Example: {PROGRAM} physics --task ant --json ant.json",
            args=words,
        )
    name = check_choice("benchmark", words[0], BENCHMARKS)
    benchmark = tyro.cli(BENCHMARKS[name], prog=f"{PROGRAM} {name}", args=words[1:])
    benchmark.check()
    return benchmark
