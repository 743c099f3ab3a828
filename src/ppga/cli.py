"""The command line. Heavy imports stay inside the commands, so that help answers at once."""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from tyro.conf import Positional

from ppga import machine
from ppga.errors import InputError, at_least_one, choose, import_extra

if TYPE_CHECKING:
    from ppga.adaptation import Recovery

console = Console()
BENCHMARKS = ("physics", "vppo", "iteration", "view", "scale", "memory")


OwnTask = Annotated[str | None, tyro.conf.arg(metavar="FILE.py:CLASS")]


def _know(task: str | None, theirs: str | None = None) -> None:
    """Make a task of the user's own known; its file is run for no other reason than being named.

    Args:
        task: FILE.py:CLASS, or a name.
        theirs: name of the task that it has to be, if that is known.
    """
    if task is None:
        return
    from ppga.tasks import find

    name = find(task)
    if theirs is not None and name != theirs:
        raise InputError(f"--task {task} is {name!r}, and the archive is of {theirs!r}.")


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**32:
        raise InputError(f"--seed must lie in [0, 2^32), got {seed}.")


def tasks() -> None:
    """List the tasks with their sizes."""
    machine.check_devices()
    from rich.text import Text

    from ppga.tasks import make_task, names

    table = Table(
        box=SIMPLE,
        caption="a foot is measured by its share of time on the floor; your own: ppga train FILE.py:CLASS",
    )
    for heading in ("task", "sees", "acts", "archive", "QD offset", "step", "measures"):
        table.add_column(heading, justify="left" if heading in ("task", "measures") else "right")
    for name in names():
        try:
            task = make_task(name)
        except InputError as error:  # of a package; the others are listed all the same
            table.add_row(name, *[""] * 5, Text(str(error)))
            continue
        table.add_row(
            name,
            str(task.observation_size),
            str(task.action_size),
            "x".join(map(str, task.archive_shape)),
            f"{task.qd_offset:g}",
            f"{1000 * task.control_dt:g} ms",
            ", ".join(task.measure_names),
        )
    console.print(table)


def demo(task: str = "halfcheetah", minutes: float = 5.0, seed: int = 0) -> None:
    """Train an archive for five minutes, and see how differently its elites walk.

    Example: ppga demo --task walker2d --minutes 10

    Args:
        task: the robot.
        minutes: how long to train.
        seed: of all randomness.
    """
    machine.check_devices()
    from ppga.demo import run, show_gaits
    from ppga.tasks import find, sample
    from ppga.training import make_display, show

    task = find(task)
    outcome = run(task, minutes, seed, make_display(console))
    if len(outcome.archive) and sample(task).has_feet:
        show_gaits(outcome.archive, console)
    show(console, outcome)


def evaluate(
    run: Annotated[Positional[Path], tyro.conf.arg(metavar="RUN")],
    episodes: int = 50,
    physics: str | None = None,
    seed: int = 0,
    output: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None,
    task: OwnTask = None,
) -> None:
    """Judge every elite of an archive again, and put each where it really lands: the corrected archive.

    Example: ppga evaluate runs/walker --episodes 20

    It is written beside the archive (corrected.safetensors), with a table of all elites (evaluation.csv) and
    the figures (evaluation.json).

    Args:
        run: a run's folder, an archive's folder, an archive's file, or pretrained:NAME.
        episodes: each elite plays.
        physics: engine to judge on, mujoco or mjx; that of the archive by default.
        seed: of the episodes' starts.
        output: folder to write to; the archive's own by default, the one you are in for pretrained archives.
        task: where the robot is, FILE.py:CLASS, if it is one of your own.
    """
    at_least_one("--episodes", episodes)
    _check_seed(seed)
    machine.check_devices()
    from rich.progress import Progress

    from ppga.analysis import corrected
    from ppga.archives.files import find_archive, load_archive
    from ppga.archives.shipped import beside

    file = find_archive(run)
    archive = load_archive(file, mapped=True)
    _know(task, archive.description["task"]["name"])
    with Progress(console=console) as progress:
        bar = progress.add_task(f"{len(archive)} elites, {episodes} episodes each", total=len(archive))
        evaluation = corrected.evaluate(
            archive,
            episodes,
            physics=physics,
            seed=seed,
            progress=lambda done, _: progress.update(bar, completed=done),
        )
    try:
        corrected.save(evaluation, output or beside(file))
    except OSError as error:
        raise InputError(f"cannot write to {output or beside(file)}: {error.strerror or error}.") from None
    found = corrected.figures(evaluation)
    table = Table(box=SIMPLE, caption=f"offset {found['qd_offset']:g}; judged on {found['physics']}")
    for heading in ("", "archived", f"corrected, {episodes} episodes"):
        table.add_column(heading, justify="left" if not heading else "right")
    objective = archive.elites["objective"]
    table.add_row("QD-score", f"{archive.qd_score:,.0f}", f"{found['qd_score']:,.0f}")
    table.add_row("coverage", f"{archive.coverage:.1%}", f"{found['coverage']:.1%}")
    table.add_row("best", f"{objective.max():,.0f}", f"{found['best']:,.0f}")
    table.add_row("mean", f"{objective.mean():,.0f}", f"{found['mean']:,.0f}")
    console.print(table)
    console.print(
        f"{found['stayed_in_cell']:.0%} of the elites land in their cell; the median one moves by "
        f"{found['moved_median']:.3f} of the ranges and loses {found['objective_lost_median']:,.0f}.",
        highlight=False,
        soft_wrap=True,
    )


def report(
    runs: Annotated[Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN")],
    output: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("report"),
    task: OwnTask = None,
) -> None:
    """Write a page about one run or many: curves, maps, gaits, and tables with intervals over seeds.

    Example: ppga report runs/walker-0 runs/walker-1 --output walker-report

    Args:
        runs: folders of runs; of an archive by itself, its file or pretrained:NAME, what it can tell.
        output: folder for report.html, which needs nothing else, and the figures as PNG and SVG.
        task: where the robot is, FILE.py:CLASS, if it is one of your own and its gaits are to be drawn.
    """
    if not runs:
        raise InputError("which runs? ppga report RUN...")
    machine.check_devices()
    _know(task)
    from ppga.analysis.report import report as write

    try:
        with console.status("drawing"):
            page = write(runs, output)
    except OSError as error:
        raise InputError(f"cannot write to {output}: {error.strerror or error}.") from None
    console.print(f"{page}", soft_wrap=True)


def export(
    run: Annotated[Positional[Path], tyro.conf.arg(metavar="RUN")],
    best: bool = False,
    cell: tuple[int, ...] = (),
    all: bool = False,
    format: str = "onnx",
    output: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None,
    which: str | None = None,
    small: bool = False,
    shape: tuple[int, ...] = (),
) -> None:
    """Write policies for use elsewhere: a file each, with normaliser and action scaling folded in; or all in
    one, as a smaller archive.

    Example: ppga export runs/walker --cell 27 44 --format onnx --output policies

    Example: ppga export runs/walker --format archive --small --output walker2d.safetensors

    Every file of a policy is tried on random observations against the policy before it is written.

    Args:
        run: a run's folder, an archive's folder, an archive's file, or pretrained:NAME.
        best: the elite with the highest objective.
        cell: the elites of these cells.
        all: every elite; what an archive has if nothing else is said.
        format: onnx (needs the extra export), npz, or archive.
        output: folder to write to, policies by default; of an archive the file, TASK.safetensors by default.
        which: archived (as trained) or corrected (by ppga evaluate); policies come from the archived one by
            default, an archive from the corrected one where there is one.
        small: with archive, solutions in half precision, and nothing large that only training needs.
        shape: with archive, cells along each measure of another grid: the best elite of each is kept.
    """
    from rich.progress import Progress

    from ppga.archives.files import find_archive, load_archive
    from ppga.export import FORMATS, choose_archive, to_archive, which_of
    from ppga.export import export as write

    choose("format", format, (*FORMATS, "archive"))
    whole = format == "archive"
    every = all or (whole and not (best or cell))
    if best + bool(cell) + every != 1:
        raise InputError("which policies? One of --best, --cell NUMBER... and --all.")
    if (small or shape) and not whole:
        raise InputError("--small and --shape belong to --format archive.")
    source = find_archive(run) if which is None and not whole else choose_archive(run, which)
    archive = load_archive(source, mapped=True)
    output = output or Path(f"{archive.description['task']['name']}.safetensors" if whole else "policies")
    if whole and output.suffix != ".safetensors":
        raise InputError(f"an archive is a file, --output NAME.safetensors; got {output}.")
    cells = [archive.best()] if best else archive.elites["index"].tolist() if every else list(cell)
    if not cells:
        raise InputError("the archive is empty.")
    for one in cells:
        archive.elite(one)  # before anything is written
    try:
        if whole:
            some = archive if every else archive.only(*cells)
            made = to_archive(some, source, output, small=small, shape=shape)
            size, grid = output.stat().st_size, "x".join(map(str, made.shape))
            console.print(
                f"{output}: {len(made)} elites of the {which_of(made)} archive in {grid} cells "
                f"({made.coverage:.1%}); {size / 1e6:.2f} MB, {size // len(made):,} bytes an elite",
                highlight=False, soft_wrap=True,
            )  # fmt: skip
            return
        with Progress(console=console) as progress:
            bar = progress.add_task(f"writing {format}", total=len(cells))
            files = write(archive, cells, output, format, lambda: progress.advance(bar))
    except OSError as error:
        raise InputError(f"cannot write to {output}: {error.strerror or error}.") from None
    console.print(f"{files[0] if len(files) == 1 else f'{len(files)} policies in {output}'}", soft_wrap=True)


def adapt(
    run: Annotated[Positional[Path], tyro.conf.arg(metavar="RUN")],
    damage: tuple[str, ...] = (),
    trials: int = 15,
    episodes: int = 10,
    sets: int = 1,
    seed: int = 0,
    output: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("adaptation.png"),
    task: OwnTask = None,
) -> None:
    """Break the robot, and find in a handful of trials an elite that still works.

    Example: ppga adapt runs/walker --damage weak:foot_joint:0.2 friction:0.5

    The archive is the prior: a trial of one elite tells about those that behave alike, and the next trial is
    the one that promises most. Beside it: the archive's best elite, and elites tried at random.

    Args:
        run: a run's folder, an archive's folder, an archive's file, or pretrained:NAME.
        damage: lock:JOINT, weak:JOINT:FACTOR, mass:BODY:FACTOR, friction:FACTOR; several may be given.
        trials: at most; an episode each.
        episodes: of every elite on the broken robot: the trial, and others to tell how well it went.
        sets: of trials, each in episodes of its own; all that is shown are means over them.
        seed: of the episodes' starts in the first set; the next set has the next.
        output: picture of reward over trials; the figures go beside it, as JSON.
        task: where the robot is, FILE.py:CLASS, if it is one of your own.
    """
    at_least_one("--trials", trials)
    at_least_one("--episodes", episodes)
    at_least_one("--sets", sets)
    for one in (seed, seed + sets - 1):
        _check_seed(one)
    if output.suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"--output must be a picture (.png, .svg or .pdf), got {output}.")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to {output}: {error.strerror or error}.") from None
    machine.check_devices()
    from rich.progress import Progress

    from ppga.adaptation import draw, recover
    from ppga.analysis import plots
    from ppga.analysis.corrected import task_of
    from ppga.archives import load_archive
    from ppga.storage import write_json
    from ppga.tasks import Task, damaged

    archive = load_archive(run, mapped=True)
    _know(task, archive.description["task"]["name"])
    robot = task_of(archive)
    if not isinstance(robot, Task):
        raise InputError(f"{robot.name} is not simulated by MuJoCo here, and cannot be broken.")
    broken = damaged(robot, damage)
    with Progress(console=console) as progress:
        bar = progress.add_task(f"{len(archive)} elites on the broken robot", total=sets * len(archive))
        found = recover(
            archive, broken, trials, episodes, seed, sets,
            lambda done, _: progress.update(bar, completed=done),
        )  # fmt: skip
    console.print(_trials(found, episodes))
    if found.fallen:
        console.print(f"[yellow]physics diverged in {found.fallen:.0%} of the episodes[/yellow]")
    first = found.adaptations[0]
    after = f"{found.trials[0]} trials, the elite of cell {first.best}" if sets == 1 else (
        f"{found.trials.mean():.1f} trials (mean over {sets} sets), the chosen elite"
    )  # fmt: skip
    console.print(
        f"The best elite gave the whole robot {found.whole:,.0f} and gives the broken one "
        f"{found.champion.mean():,.0f}. After {after} gives it {found.adapted[:, -1].mean():,.0f}; after as "
        f"many at random, {found.as_many.mean():,.0f}; the best there is, {found.possible.mean():,.0f}.",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    try:
        write_json(output.with_suffix(".json"), {"damage": list(damage), **found.to_json()})
        plots.save(draw(found, ", ".join(damage)), output)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write to {output}: {error}.") from None
    console.print(f"{output}", soft_wrap=True)


def _trials(found: "Recovery", episodes: int) -> Table:
    """A row a trial; of several sets of trials, means."""
    sets = len(found.adaptations)
    judged = f"means over {episodes - 1} other episodes" if episodes > 1 else "of the trial itself"
    over = "" if sets == 1 else f"; all means over {sets} sets"
    table = Table(box=SIMPLE, caption=f"chosen gives, random gives: {judged}{over}")
    for heading in ("trial", "cell" if sets == 1 else "sets", "gave", "chosen gives", "random gives"):
        table.add_column(heading, justify="right")
    for number, gave in enumerate(found.gave):
        which = found.adaptations[0].cells[number] if sets == 1 else (found.trials > number).sum()
        table.add_row(
            str(number + 1), str(which), f"{gave:,.0f}", f"{found.adapted[:, number].mean():,.0f}",
            f"{found.random[:, number].mean():,.0f}",
        )  # fmt: skip
    return table


def compare(
    first: Annotated[Positional[Path], tyro.conf.arg(metavar="A")],
    second: Annotated[Positional[Path], tyro.conf.arg(metavar="B")],
    output: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("difference.png"),
) -> None:
    """Compare two archives cell by cell.

    Example: ppga compare runs/a runs/b --output difference.png

    Args:
        first: a run, an archive's folder, an archive's file, or pretrained:NAME.
        second: another.
        output: picture of the difference, second minus first.
    """
    import numpy as np

    from ppga.analysis import plots
    from ppga.archives import load_archive

    a, b = load_archive(first, mapped=True), load_archive(second, mapped=True)
    if (a.shape, a.ranges, a.centroids is None) != (b.shape, b.ranges, b.centroids is None):
        raise InputError(f"the archives have other cells: {a.shape} in {a.ranges}, {b.shape} in {b.ranges}.")
    if a.centroids is not None and b.centroids is not None and not np.array_equal(a.centroids, b.centroids):
        raise InputError("the archives have cells around other centroids.")
    both, values, only_a, only_b = plots.compare_cells(a, b)
    table = Table(box=SIMPLE)
    for heading in ("", "first", "second"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, form in (("qd_score", ",.0f"), ("coverage", ".1%")):
        table.add_row(plots.NAMES[name], f"{getattr(a, name):{form}}", f"{getattr(b, name):{form}}")
    table.add_row("cells only it fills", str(len(only_a)), str(len(only_b)))
    table.add_row("cells where it is better", str(int((values < 0).sum())), str(int((values > 0).sum())))
    console.print(table)
    if len(both):
        console.print(
            f"In the {len(both)} cells that both fill, the second is better by {values.mean():,.1f}.",
            highlight=False,
        )
    try:
        plots.save(plots.difference(a, b), output)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write to {output}: {error}.") from None
    console.print(f"{output}", soft_wrap=True)


def algorithms() -> None:
    """List the algorithms, with their references."""
    from ppga.algorithms import ALGORITHMS

    table = Table(box=SIMPLE, caption="ppga train halfcheetah --algorithm NAME")
    table.add_column("algorithm")
    table.add_column("")
    for name, algorithm in ALGORITHMS.items():
        table.add_row(name, algorithm.summary)
    paper = "(Batra et al., ICLR 2024)"
    table.add_row(
        "ppga --strategy cma-es",
        f"ablation: CMA-ES adapts the gradient coefficients, not xNES {paper}; in studies ppga-cma-es",
    )
    table.add_row(
        "ppga --step recombination",
        f"ablation: no walk, a step to where the best branches are {paper}; in studies ppga-recombination",
    )
    console.print(table)


def study(
    tasks: tuple[str, ...] = ("halfcheetah",),
    algorithms: tuple[str, ...] = ("all",),
    seeds: int = 1,
    minutes: float | None = None,
    env_steps: int | None = None,
    evaluations: int | None = None,
    preset: str = "laptop",
    episodes: int = 20,
    output: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("study"),
    cluster: str = "none",
    address: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT")] = None,
    cores: int = 2,
    only: int | None = None,
) -> None:
    """Compare algorithms: run each on each task with each seed, one after the other, and write a report.

    Example: ppga study --tasks halfcheetah walker2d --algorithms pga-me ppga --seeds 2 --minutes 10

    It can be stopped with Ctrl-C and continued by the same command; what is done is skipped. More seeds,
    tasks, algorithms or minutes may be asked for later.

    Args:
        tasks: robots, see `ppga tasks`; or all.
        algorithms: see `ppga algorithms`; ppga-cma-es and ppga-recombination too; ALGORITHM:OPTION=VALUE with
            any options of `ppga train`; or all.
        seeds: how many, from 0.
        minutes: of each run; 10 if no budget is given.
        env_steps: of each run, in control steps.
        evaluations: of each run, in judged policies.
        preset: settings of all runs.
        episodes: by which every elite is judged again for the corrected figures; 0 for none.
        output: the study's folder: TASK/ALGORITHM-SEED, and report/.
        cluster: ray spreads the runs over a Ray cluster, many at once; slurm writes a script for sbatch.
        address: of the Ray cluster, or auto; one on this machine by default.
        cores: that a run takes of the cluster.
        only: run no other than this one, counted from 0, and write no report; for the jobs of an array.
    """
    at_least_one("--seeds", seeds)
    at_least_one("--cores", cores)
    choose("cluster", cluster, ("none", "ray", "slurm"))
    if episodes < 0:
        raise InputError(f"--episodes must be at least 0, got {episodes}.")
    machine.check_devices()
    from ppga.cluster.crew import Cluster
    from ppga.runs import PRESETS, Budget
    from ppga.study import do, finished, plan, run, write_slurm

    choose("preset", preset, PRESETS)
    given = Budget(minutes=minutes, env_steps=env_steps, evaluations=evaluations)
    budget = Budget(minutes=10.0) if given == Budget() else given
    if address is not None and cluster != "ray":
        raise InputError("an address belongs to --cluster ray.")
    with _stoppable(output):
        planned = plan(tasks, algorithms, seeds, budget, preset, episodes, output)
        if cluster == "slurm":
            console.print(f"sbatch {write_slurm(planned, cores)}", soft_wrap=True, highlight=False)
            return
        if only is not None:
            if not 0 <= only < len(planned.runs()):
                raise InputError(f"--only must lie in [0, {len(planned.runs()) - 1}], got {only}.")
            one = planned.runs()[only]
            sys.exit(0 if finished(one, planned) else do(one, planned))
        well = run(planned, console, Cluster(address) if cluster == "ray" else None, cores)
    sys.exit(0 if well else 1)


@contextlib.contextmanager
def _stoppable(output: Path) -> Iterator[None]:
    """Tell of a study that was stopped, or that cannot be written."""
    try:
        yield
    except KeyboardInterrupt:
        console.print("\nstopped; the same command goes on with the study", highlight=False)
        sys.exit(130)
    except OSError as error:
        raise InputError(f"cannot write to {output}: {error.strerror or error}.") from None


def reproduce(
    experiment: Annotated[Positional[str | None], tyro.conf.arg(metavar="NAME")] = None,
    scale: str = "laptop",
    tasks: tuple[str, ...] = (),
    seeds: int | None = None,
    minutes: float | None = None,
    output: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("reproduce"),
    list: bool = False,
    dry_run: bool = False,
) -> None:
    """Run the study behind one of the paper's tables and figures, and draw it.

    Example: ppga reproduce ablations --scale laptop --tasks halfcheetah

    It can be stopped and continued by the same command; experiments that share runs share them.

    Args:
        experiment: which one; see --list.
        scale: smoke, laptop or paper.
        tasks: other robots than the paper's.
        seeds: how many; 1 at the laptop's scale, 4 at the paper's.
        minutes: of each run; 10 at the laptop's scale.
        output: where the studies go, a folder for each scale.
        list: show all experiments.
        dry_run: show the runs, and stop.
    """
    from ppga.reproduce import EXPERIMENTS, SCALES, planned

    if list or experiment is None:
        table = Table(box=SIMPLE, title="ppga reproduce NAME")
        for heading in ("name", "shows", "systems", "on"):
            table.add_column(heading, overflow="fold")
        for name, one in EXPERIMENTS.items():
            table.add_row(name, one.shows, "\n".join(one.systems), " ".join(one.tasks))
        console.print(table)
        console.print(
            *(f"--scale {name}: {what}" for name, what in SCALES.items()), sep="\n", highlight=False
        )
        return
    if seeds is not None:
        at_least_one("--seeds", seeds)
    machine.check_devices()
    from ppga.study import run

    made = planned(experiment, scale, tasks, seeds, minutes, output)
    if dry_run:
        for run_of_it in made.runs():
            console.print(str(run_of_it.folder), soft_wrap=True, highlight=False)
        return
    with _stoppable(output):
        well = run(made, console)
    sys.exit(0 if well else 1)


def view(
    run: Annotated[Positional[Path | None], tyro.conf.arg(metavar="RUN")] = None,
    pretrained: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None,
    host: str = "127.0.0.1",
    port: int = 8750,
    wait: bool = False,
    browser: bool = True,
    task: OwnTask = None,
) -> None:
    """Look at an archive in the browser: click a cell, and watch its elite walk.

    Example: ppga view runs/walker

    Example: ppga view --pretrained walker2d

    A run that is still being trained is followed as it grows. The page needs no internet; on another machine,
    forward its port and the next one: ssh -L 8750:localhost:8750 -L 8751:localhost:8751 there.

    Args:
        run: a run's folder, an archive's folder, an archive's file, or pretrained:NAME.
        pretrained: look at an archive that comes with ppga.
        host: to listen on; only this machine by default.
        port: of the page; if it is taken, the next that is free. The stage takes one after it.
        wait: for a folder that is not there yet.
        browser: open the page.
        task: where the robot is, FILE.py:CLASS, if it is one of your own.
    """
    import threading
    import time
    import webbrowser

    from ppga.archives.shipped import PREFIX
    from ppga.viewer.source import Source

    if (run is None) == (pretrained is None):
        raise InputError("look at what? Either ppga view RUN or ppga view --pretrained NAME.")
    run = run or Path(f"{PREFIX}{pretrained}")
    if not 1 <= port <= 65000:
        raise InputError(f"--port must lie in [1, 65000], got {port}.")
    if run.is_file() and run.suffix != ".safetensors":
        raise InputError(f"{run} is not an archive.")
    if not wait and not Source(run).exists():
        raise InputError(f"no run and no archive in {run}; --wait waits for one.")
    try:
        with console.status(f"waiting for {run}"):
            while not Source(run).exists():
                time.sleep(0.5)
    except KeyboardInterrupt:
        sys.exit(130)
    machine.check_devices()
    _know(task, Source(run).task())
    import_extra("viser", "view")  # told here, not on the page
    from ppga.viewer.server import PageServer

    server = PageServer(run, host, port)
    if server.port != port:
        console.print(f"port {port} is taken; using {server.port}", highlight=False)
    console.print(f"{run} is at {server.address}    (Ctrl-C ends it)", highlight=False, soft_wrap=True)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    windowed = sys.platform != "linux" or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    if browser and windowed:
        webbrowser.open(server.address)
    told = False
    try:
        while serving.is_alive():
            serving.join(0.2)
            stage = server.viewer.stage
            if stage is not None and not told and stage.port != server.port + 1:
                console.print(f"the robots are on port {stage.port}", highlight=False)
            told = stage is not None
    except KeyboardInterrupt:
        console.print("")
    finally:
        server.close()


def doctor(task: str = "halfcheetah", environments: int = 256, threads: int | None = None) -> None:
    """Show what this machine has, check the physics engines against each other, and time them.

    The first thing to run on a new machine, and what to paste when asking for help.

    Args:
        task: the robot to check and time with.
        environments: how many run at once when timing.
        threads: threads of the mujoco engine; all visible cores by default.
    """
    machine.check_devices()
    from ppga.doctor import run

    healthy = run(task, at_least_one("--environments", environments), threads, console)
    sys.exit(0 if healthy else 1)


def bench(
    what: Positional[str],
    task: str = "all",
    preset: str = "laptop",
    environments: int | None = None,
    steps: int = 50,
    rounds: int = 5,
    threads: int | None = None,
    compare: bool = False,
    shape: tuple[int, ...] | None = None,
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
) -> None:
    """Measure speed on this machine, as ratios within one run.

    Example: ppga bench physics --task ant --json ant.json

    Args:
        what: physics (control steps/s of the engines beside the bare library), vppo (training and judging
            steps/s beside what physics and updates alone would allow), iteration (what PPGA spends on
            anything but simulating and learning), view (how long a click in the viewer takes), scale (how
            far Ray's workers carry) or memory (of full archives).
        task: a task, or all.
        preset: settings of vppo, iteration, scale and memory.
        environments: how many run at once; 1,024 for physics, the preset's for vppo and scale.
        steps: control steps in one timed call.
        rounds: how often each thing is timed, or iterations; medians are reported.
        threads: threads of MuJoCo, here and in the bare library; all visible cores by default.
        compare: with physics, measure MJX, Brax and Gymnasium too, where they are installed; takes minutes.
        shape: with memory, cells along each measure; the task's own by default.
        json: also write the results to this file.
    """
    choose("benchmark", what, BENCHMARKS)
    for option, value in (("--environments", environments), ("--steps", steps), ("--rounds", rounds)):
        if value is not None:
            at_least_one(option, value)
    if json is not None:
        try:
            json.open("a").close()
        except OSError as error:
            raise InputError(f"cannot write to {json}: {error.strerror}.") from None
    machine.check_devices()
    from ppga.bench.harness import table, write_json
    from ppga.tasks import TASKS, find

    names = list(TASKS) if task == "all" else [find(task)]
    results = []
    for number, name in enumerate(names, start=1):
        with console.status(f"measuring {name} ({number} of {len(names)})"):
            if what == "physics":
                from ppga.bench.physics import bench_physics

                new = bench_physics(name, environments or 1024, steps, rounds, threads, compare)
            elif what == "vppo":
                from ppga.bench.learning import bench_vppo

                new = bench_vppo(name, preset, environments, steps, rounds, threads)
            elif what == "view":
                from ppga.bench.viewer import bench_view

                new = bench_view(name, rounds)
            elif what == "scale":
                from ppga.bench.scale import bench_scale

                new = bench_scale(name, preset, environments, rounds)
            elif what == "memory":
                from ppga.bench.memory import bench_memory

                new = bench_memory(name, preset, shape)
            else:
                from ppga.bench.learning import bench_iteration

                new = bench_iteration(name, preset, rounds, threads)
        console.print(table(new, title=f"{what}, {name}: medians of {rounds} rounds"))
        results += new
    if json is not None:
        write_json(results, json)


def _train(words: list[str]) -> Callable[..., None]:
    """The command `train`; a stand-in when another is called, which would not need what it imports."""
    if words[:1] == ["train"]:
        from ppga.training import command

        return command(words[1:], console)

    def train() -> None:
        """Train an archive of many good and different policies."""

    return train


def _task_first(words: list[str]) -> list[str]:
    """The same words; what `train` is given by --task comes first, where no option takes it for its own."""
    if words[:1] != ["train"]:
        return words
    given = []
    left = iter(words[1:])
    rest = []
    for word in left:
        if word == "--task":
            given.append(next(left, ""))
        elif word.startswith("--task="):
            given.append(word.removeprefix("--task="))
        else:
            rest.append(word)
    if "" in given or len(given) > 1:
        raise InputError(f"--task takes one task, got {', '.join(filter(None, given)) or 'none'}.")
    return ["train", *given, *rest]


def main() -> None:
    """Run the command line; a user's mistake ends in one plain message and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows ? instead of failing
    try:
        words = _task_first(sys.argv[1:])
        tyro.extras.subcommand_cli_from_dict(
            {
                "report": report,
                "compare": compare,
                "train": _train(words),
                "evaluate": evaluate,
                "view": view,
                "export": export,
                "adapt": adapt,
                "study": study,
                "reproduce": reproduce,
                "demo": demo,
                "tasks": tasks,
                "algorithms": algorithms,
                "doctor": doctor,
                "bench": bench,
            },
            prog="ppga",
            args=words,
            description="Quality-diversity reinforcement learning: archives of good, different policies.",
        )
    except InputError as error:
        print(f"ppga: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print(
            "ppga: stopped at once; ppga train --resume RUN goes on from its last checkpoint", file=sys.stderr
        )
        sys.exit(130)
