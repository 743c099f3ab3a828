"""Studies: every algorithm on every task with every seed, one run after the other or many at once on a
cluster, then a report.

Runs are processes of their own, so each is what `ppga train` would give, and one that fails takes nothing
with it. A study can be stopped at any moment; the same command goes on with it.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import IO, Any

from rich.box import SIMPLE
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ppga.algorithms import ALGORITHMS
from ppga.analysis.corrected import PARTIAL, evaluated, read_figures
from ppga.analysis.report import report
from ppga.cluster import slurm
from ppga.cluster.crew import TRIES, Cluster, connected, is_transient, reason_of
from ppga.errors import InputError, choose
from ppga.runs import Budget, preset
from ppga.runs.checkpoints import last_iteration
from ppga.runs.estimate import estimate, span
from ppga.runs.folder import RunFolder, read_metrics
from ppga.runs.loop import make_algorithm
from ppga.runs.presets import LIKE_PPGA
from ppga.runs.signals import STOP_SIGNALS, replaced, stop_handlers
from ppga.storage import plain_name, read_json, write_json, write_text
from ppga.tasks import TASKS, find
from ppga.training import check

VARIANTS = {
    "ppga-cma-es": ("ppga", ("--strategy", "cma-es")),
    "ppga-recombination": ("ppga", ("--step", "recombination")),
}
"""Names for ways to run an algorithm: which one, and with what options. Any other way is written
ALGORITHM:OPTION=VALUE,OPTION=VALUE, as in "ppga:search.sigma0=1,archive.shape=50 50,ppo.fresh-adam=true"."""
SYSTEMS = (*(name for name in ALGORITHMS if name != "ppo"), *VARIANTS)
"""What `all` means: every system of the paper, and MAP-Elites."""
STOPPED = [code for number in STOP_SIGNALS for code in (128 + number, -number)]
"""Exit codes of a run that was told to stop."""
BOUND = """
import ctypes, signal, sys
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
from ppga.cli import main
main()
"""
"""The program `ppga`, killed with the process that started it: it would keep the lock on its folder."""
CORRECTION_SECONDS = 60.0
"""What judging an archive of a hundred elites again takes, roughly."""


@dataclass(frozen=True)
class Plan:
    """A study.

    Attributes:
        tasks: names.
        algorithms: names, of variants too, or ALGORITHM:OPTION=VALUE.
        seeds: how many, from 0.
        budget: of each run.
        preset: settings.
        episodes: by which every elite is judged again; 0 for no corrected archives.
        output: the study's folder.
    """

    tasks: tuple[str, ...]
    algorithms: tuple[str, ...]
    seeds: int
    budget: Budget
    preset: str
    episodes: int
    output: Path
    files: Mapping[str, str] = field(default_factory=dict)
    """FILE.py:CLASS of those tasks that are in files, by their names."""
    iterations: int | None = None
    """At most, of algorithms whose iterations are like PPGA's, where a budget of evaluations is another."""
    report: str = "report"
    """Folder of the report, in the study's."""

    def budget_of(self, one: "Planned") -> Budget:
        """A run's."""
        if self.iterations is None or system(one.algorithm)[0] not in LIKE_PPGA:
            return self.budget
        return replace(self.budget, iterations=self.iterations)

    def corrects(self, one: "Planned") -> bool:
        """Whether a run's elites are judged again."""
        return self.episodes > 0 and one.task != "sphere"

    def runs(self) -> list["Planned"]:
        """All runs, seed by seed, so that a study that is stopped has something of everything."""
        return [
            Planned(task, algorithm, seed, self.output / task / f"{plain_name(algorithm)}-{seed}")
            for seed in range(self.seeds)
            for task in self.tasks
            for algorithm in self.algorithms
        ]


@dataclass(frozen=True)
class Planned:
    """A run of a study."""

    task: str
    algorithm: str
    seed: int
    folder: Path


def system(name: str) -> tuple[str, tuple[str, ...]]:
    """The algorithm that a system's name means, and with what options."""
    algorithm, _, changes = name.partition(":")
    if not changes:
        return VARIANTS.get(name, (name, ()))
    words: list[str] = ["--label", name]
    for change in changes.split(","):
        option, equals, value = change.partition("=")
        if not (option and equals and value.split()):
            raise InputError(f"a system is ALGORITHM or ALGORITHM:OPTION=VALUE,OPTION=VALUE, got {name!r}.")
        if value.lower() in ("true", "false"):  # a switch has a name for each
            section, dot, switch = option.rpartition(".")
            words.append(f"--{section}{dot}{'' if value.lower() == 'true' else 'no-'}{switch}")
        else:
            words += [f"--{option}", *value.split()]
    algorithm, options = VARIANTS.get(algorithm, (algorithm, ()))
    return algorithm, (*options, *words)


def names(
    given: Sequence[str], everything: Sequence[str], known: Sequence[str], what: str
) -> tuple[str, ...]:
    """The names given, each known; `all` for everything."""
    if not given:
        raise InputError(f"a study needs at least one {what}.")
    for name in given:
        choose(what, name.partition(":")[0] if what == "algorithm" else name, [*known, "all"])
    meant = [one for name in given for one in (everything if name == "all" else [name])]
    return tuple(dict.fromkeys(meant))


def plan(
    tasks: Sequence[str],
    algorithms: Sequence[str],
    seeds: int,
    budget: Budget,
    preset: str,
    episodes: int,
    output: Path,
) -> Plan:
    """A study that can be run, or an InputError."""
    budget.check()
    everything = list(TASKS)
    named = [name if name in ("all", "sphere") else find(name) for name in tasks]
    files = {name: word for name, word in zip(named, tasks, strict=True) if ".py:" in word}
    made = Plan(
        names(named, everything, [*TASKS, "sphere"], "task"),
        names(algorithms, SYSTEMS, [*ALGORITHMS, *VARIANTS], "algorithm"),
        seeds,
        budget,
        preset,
        episodes,
        output,
        files,
    )
    for one in made.runs():
        if one.seed == 0 and ":" in one.algorithm:  # somebody's own options
            check(_begin_words(one, made)[1:])
    file = output / "study.json"
    before = read_json(file) if file.is_file() else {"preset": preset}
    if not isinstance(before, dict):
        raise InputError(f"{file} does not describe a study.")
    if before.get("preset") != preset:
        raise InputError(f"{output} holds a study with preset {before.get('preset')!r}.")
    return made


def run(plan: Plan, console: Console, cluster: Cluster | None = None, cores: int = 2) -> bool:
    """Run what is not done yet, then write the report; whether everything went well.

    Args:
        plan: the study.
        console: to print on.
        cluster: a Ray cluster to spread the runs over; one after the other here, without one.
        cores: that each run takes of it.

    Raises:
        KeyboardInterrupt: it was stopped; the same command goes on.
    """
    runs = plan.runs()
    waiting = [one for one in runs if not finished(one, plan)]

    def say(message: str) -> None:
        console.print(message, soft_wrap=True, markup=False, emoji=False, highlight=False)

    say(f"{len(runs)} runs: {', '.join(plan.algorithms)} on {', '.join(plan.tasks)}, {plan.seeds} seeds each")
    if len(waiting) < len(runs):
        say(f"{len(runs) - len(waiting)} of them are done already")
    if waiting:
        with console.status("estimating the time"):
            seconds = expected(waiting, plan)
        if seconds is None:
            say("how long it will take is not known beforehand")
        elif cluster is not None:
            say(f"about {span(seconds)} of {cores} cores each to go, shared by the cluster")
        else:
            until = time.strftime("%A %H:%M", time.localtime(time.time() + seconds))
            say(f"about {span(seconds)} to go, until {until}")
    write_json(
        plan.output / "study.json",
        {"preset": plan.preset, "tasks": plan.tasks, "algorithms": plan.algorithms, "seeds": plan.seeds},
    )
    failed: dict[Planned, str] = {}
    if cluster is not None and waiting:
        failed = spread(waiting, plan, console, cluster, cores)
    else:
        for number, one in enumerate(waiting, start=1):
            say(f"\n{number} of {len(waiting)}: {one.algorithm} on {one.task}, seed {one.seed}")
            code = do(one, plan)
            if code in STOPPED:
                raise KeyboardInterrupt
            if code:
                failed[one] = f"exit code {code}"
                say(f"{one.folder} failed ({failed[one]}); going on with the others")
    done = [one.folder for one in runs if RunFolder(one.folder).metrics.exists()]
    notes = [f"{one.folder} has gone on for longer than asked." for one in runs if went_on(one, plan)]
    for note in notes:
        say(note)
    if done:
        say(f"\n{report(done, plan.output / plan.report, notes)}")
    for one, reason in failed.items():
        say(f"failed: {one.folder} ({reason})")
    return not failed


def do(one: Planned, plan: Plan, errors: IO[str] | None = None) -> int:
    """Run one, and judge its elites again if that is asked for; the exit code.

    Args:
        one: of the plan's runs.
        plan: the study.
        errors: of a run on a cluster, a file for what it writes to stderr; it is killed with this process.
    """
    code = _call(_train_words(one, plan), errors)
    if code == 0 and plan.corrects(one) and _found(one):
        code = _call(_evaluate_words(one, plan), errors)
    return code


def count_attempt(one: Planned) -> None:
    """Count the attempts of a job that SLURM queues again, since its run last made progress.

    Progress is a newer checkpoint, or more elites of the archive re-evaluated. Counting begins anew with a
    job that is submitted by hand.

    Raises:
        InputError: there was none in the last `slurm.ATTEMPTS` attempts.
    """
    place, file = RunFolder(one.folder), one.folder / ".attempts.json"
    progress = [last_iteration(place.checkpoints), evaluated(place.archive.with_name(PARTIAL))]
    attempts = 1
    if os.environ.get("SLURM_RESTART_COUNT", "0") != "0" and file.exists():
        before = read_json(file)
        attempts += before["attempts"] if progress <= before["progress"] else 0
    if attempts > slurm.ATTEMPTS:
        raise InputError(
            f"{one.folder} has made no progress in {slurm.ATTEMPTS} attempts: no new checkpoint and "
            "no further elite re-evaluated within its time limit. Submit it with more: sbatch --time=..."
        )
    write_json(file, {"progress": progress, "attempts": attempts})


def spread(
    waiting: Sequence[Planned], plan: Plan, console: Console, cluster: Cluster, cores: int
) -> dict[Planned, str]:
    """Run them on a Ray cluster, as many at once as it has cores for; those that failed, and why.

    The study's folder must be the same on all nodes. A run that ends with its node, or because of another
    failure of the cluster, is resumed on whichever node has cores, until it has been tried `TRIES` times.
    """
    with connected(cluster) as ray:
        there = ray.cluster_resources().get("CPU", 0)
        if there < cores:
            raise InputError(f"a run takes {cores} cores, and the cluster has {there:g}.")
        remote = ray.remote(num_cpus=cores, max_retries=0)(_do_there)
        whole = replace(plan, output=plan.output.absolute())
        runs = {one.folder: one for one in whole.runs()}

        def start(one: Planned) -> Any:
            return remote.remote(runs[one.folder.absolute()], whole, os.getcwd())

        going = {start(one): one for one in waiting}
        states = dict.fromkeys(waiting, "waiting")
        failed: dict[Planned, str] = {}
        tried: Counter[Planned] = Counter()
        try:
            with Live(_table(states), console=console, refresh_per_second=1) as live:
                while going:
                    done, _ = ray.wait(list(going), num_returns=1, timeout=2.0)
                    for answer in done:
                        one = going.pop(answer)
                        try:
                            reason = ray.get(answer)
                        except ray.exceptions.RayError as error:
                            tried[one] += 1
                            if is_transient(ray, error) and tried[one] < TRIES:
                                going[start(one)] = one
                                continue
                            reason = reason_of(ray, error)
                        states[one] = "done"
                        if reason:
                            failed[one] = reason
                            states[one] = f"failed ({reason.partition(':')[0]})"
                    live.update(_table(states))
        except KeyboardInterrupt:
            for answer in going:
                ray.cancel(answer)
            ray.wait(list(going), num_returns=len(going), timeout=120)
            raise
    return failed


def _do_there(one: Planned, plan: Plan, place: str) -> str:
    """Do a run on another node, from the folder that the study was begun in; why it failed, if it did."""
    os.chdir(place)
    os.environ.pop("OMP_NUM_THREADS", None)  # Ray's
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        code = do(one, plan, errors)
        errors.seek(0)
        said = errors.read()
    sys.stderr.write(said)  # for Ray's log
    lines = said.strip().splitlines()
    return f"exit code {code}{': ' + lines[-1] if lines else ''}" if code else ""


def _table(states: Mapping[Planned, str]) -> Table:
    """How far all runs are."""
    table = Table(box=SIMPLE)
    for heading in ("run", "", "minutes", "iterations", "coverage", "best", "QD-score"):
        table.add_column(heading, justify="left" if heading in ("run", "") else "right")
    for one, state in states.items():
        place = RunFolder(one.folder)
        last = _last(place) if place.metrics.exists() else None
        figures = [] if last is None else [
            f"{last['wall_time'] / 60:.1f}", str(last["iteration"]), f"{last['coverage']:.0%}",
            "" if last["best"] is None else f"{last['best']:,.0f}", f"{last['qd_score']:,.0f}",
        ]  # fmt: skip
        state = "running" if state == "waiting" and last is not None else state
        table.add_row(Text(f"{one.task} {one.algorithm} {one.seed}"), Text(state), *figures)
    return table


def words_of(plan: Plan) -> list[str]:
    """The command that makes this plan, without `ppga`."""
    output = plan.output.absolute()
    tasks = [str(Path(plan.files[task]).absolute()) if task in plan.files else task for task in plan.tasks]
    return [
        "study", "--tasks", *tasks, "--algorithms", *plan.algorithms, "--seeds", str(plan.seeds),
        *_budget_words(plan.budget),
        "--preset", plan.preset, "--episodes", str(plan.episodes), "--output", str(output),
    ]  # fmt: skip


def write_slurm(plan: Plan, cores: int) -> Path:
    """An sbatch script beside the study's runs, one job each."""
    file = plan.output / "study.sbatch"
    minutes = plan.budget.minutes
    if minutes is not None:
        minutes += CORRECTION_SECONDS / 60 * (plan.episodes > 0)
    folder = plan.output.absolute()
    write_text(file, slurm.script(words_of(plan), len(plan.runs()), minutes, cores, folder))
    return file


def expected(runs: Sequence[Planned], plan: Plan) -> float | None:
    """Seconds that these runs will take, by their minutes or by measuring this machine; None if unknown."""
    whole: dict[tuple[str, str], float | None] = {}  # of a task and an algorithm
    for one in runs:
        kind = one.task, one.algorithm
        if kind not in whole:
            whole[kind] = 60 * plan.budget.minutes if plan.budget.minutes else _estimate(one, plan)
    total = 0.0
    for one in runs:
        seconds = whole[one.task, one.algorithm]
        if seconds is None:
            return None
        total += max(0.0, seconds - spent(one.folder))
        total += CORRECTION_SECONDS if plan.corrects(one) else 0.0
    return total


def _estimate(one: Planned, plan: Plan) -> float | None:
    algorithm, _ = system(one.algorithm)
    config, _ = preset(plan.preset, one.task, algorithm)
    try:
        return estimate(make_algorithm(one.task, config), config, plan.budget_of(one)).seconds
    except InputError:  # the run itself will say it
        return 0.0


def finished(one: Planned, plan: Plan) -> bool:
    """Whether a run has used up the budget, and was judged again if that was asked for."""
    place = RunFolder(one.folder)
    if not place.config.exists() or not place.metrics.exists():
        return False
    last = _last(place)
    if last is None:
        return False
    corrected = place.archive.parent / "evaluation.json"
    fresh = (
        corrected.exists()
        and corrected.stat().st_mtime >= place.archive.stat().st_mtime
        and read_figures(corrected).get("episodes") == plan.episodes
    )
    return _used(one, plan, last) >= 1 and (fresh or not plan.corrects(one) or not last["elites"])


def _used(one: Planned, plan: Plan, line: Mapping[str, Any]) -> float:
    """Share of its budget that a run had used up when it wrote a line of its metrics."""
    return plan.budget_of(one).spent(
        line["iteration"], line["wall_time"] / 60, line["env_steps"], line["evaluations"]
    )


def went_on(one: Planned, plan: Plan) -> bool:
    """Whether a run has had more than the budget: it was used up before its last iteration began."""
    metrics = RunFolder(one.folder).metrics
    lines = list(read_metrics(metrics)) if metrics.exists() else []
    return len(lines) > 1 and _used(one, plan, lines[-2]) >= 1


def _found(one: Planned) -> bool:
    """Whether a run has any elites."""
    last = _last(RunFolder(one.folder))
    return last is not None and last["elites"] > 0


def spent(folder: Path) -> float:
    """Seconds that a run has taken so far."""
    place = RunFolder(folder)
    last = _last(place) if place.metrics.exists() else None
    return 0.0 if last is None else float(last["wall_time"])


def _last(folder: RunFolder) -> dict[str, Any] | None:
    lines = list(read_metrics(folder.metrics))
    return lines[-1] if lines else None


def _train_words(one: Planned, plan: Plan) -> list[str]:
    """The command that begins a run, or goes on with it."""
    if not RunFolder(one.folder).config.exists():
        return _begin_words(one, plan)
    task = plan.files.get(one.task, one.task)
    return ["train", task, "--resume", str(one.folder), *_budget_words(plan.budget_of(one))]


def _begin_words(one: Planned, plan: Plan) -> list[str]:
    """The command that begins a run."""
    algorithm, options = system(one.algorithm)
    return [
        "train", plan.files.get(one.task, one.task), "--algorithm", algorithm, "--preset", plan.preset,
        "--seed", str(one.seed), "--output", str(one.folder), *_budget_words(plan.budget_of(one)), *options,
    ]  # fmt: skip


def _budget_words(budget: Budget) -> list[str]:
    """A budget as options."""
    return [
        word
        for name in ("iterations", "minutes", "env_steps", "evaluations")
        if (limit := getattr(budget, name)) is not None
        for word in (f"--{name.replace('_', '-')}", str(limit))
    ]


def _evaluate_words(one: Planned, plan: Plan) -> list[str]:
    """The command that judges a run's elites again."""
    own = ["--task", plan.files[one.task]] if one.task in plan.files else []
    return ["evaluate", str(one.folder), "--episodes", str(plan.episodes), *own]


def _call(words: Sequence[str], errors: IO[str] | None = None) -> int:
    """Run a command in a process of its own, on this terminal; its exit code.

    A terminal sends Ctrl-C, and that it closes, to all its processes. The command ignores both and is told by
    this process, with SIGTERM: a run then ends its iteration. A second Ctrl-C kills it, which loses no
    more than that iteration.
    """
    program = ["-m", "ppga"] if errors is None else ["-c", BOUND]
    started: list[subprocess.Popen[bytes]] = []
    received: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        impatient = number == signal.SIGINT and signal.SIGINT in received
        received.append(number)
        for process in started:
            process.send_signal(signal.SIGKILL if impatient else signal.SIGTERM)

    before = stop_handlers()
    with replaced(before, forward):
        with replaced(dict.fromkeys(before.keys() - {signal.SIGTERM}, forward), signal.SIG_IGN):
            process = subprocess.Popen([sys.executable, *program, *words], stderr=errors)
        started.append(process)
        if received:
            process.terminate()
        code = process.wait()
    return 128 + received[0] if received and code in (0, -signal.SIGKILL) else code
