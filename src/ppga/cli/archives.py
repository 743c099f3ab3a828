"""Commands about archives that are there: `evaluate`, `report`, `export`, `adapt`, `compare`, `view`."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text
from tyro.conf import Positional

from ppga import machine
from ppga.cli.common import OwnTask, check_seed, console, know
from ppga.errors import InputError, at_least_one, choose, import_extra

if TYPE_CHECKING:
    from ppga.adaptation import Recovery


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
    the figures (evaluation.json). An evaluation that was interrupted is resumed by the same command.

    Args:
        run: a run's folder, an archive's folder, an archive's file, or pretrained:NAME.
        episodes: each elite plays.
        physics: engine to judge on, mujoco or mjx; that of the archive by default.
        seed: of the episodes' starts.
        output: folder to write to; the archive's own by default, the one you are in for pretrained archives.
        task: where the robot is, FILE.py:CLASS, if it is one of your own.
    """
    at_least_one("--episodes", episodes)
    check_seed(seed)
    machine.check_devices()
    from rich.progress import Progress

    from ppga.analysis import corrected
    from ppga.archives.files import find_archive, load_archive
    from ppga.archives.shipped import beside

    file = find_archive(run)
    archive = load_archive(file, mapped=True)
    know(task, archive.description["task"]["name"])
    folder = output or beside(file)
    with Progress(console=console) as progress:
        bar = progress.add_task(f"{len(archive)} elites, {episodes} episodes each", total=len(archive))
        evaluation = corrected.evaluate(
            archive,
            episodes,
            physics=physics,
            seed=seed,
            progress=lambda done, _: progress.update(bar, completed=done),
            partial=folder / corrected.PARTIAL,
        )
    if not len(evaluation.corrected):
        raise InputError("physics diverged in an episode of every elite: nothing is left of the archive.")
    try:
        corrected.save(evaluation, folder)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}.") from None
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
    know(task)
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
    from ppga.storage import plain_name

    choose("format", format, (*FORMATS, "archive"))
    whole = format == "archive"
    every = all or (whole and not (best or cell))
    if best + bool(cell) + every != 1:
        raise InputError("which policies? One of --best, --cell NUMBER... and --all.")
    if (small or shape) and not whole:
        raise InputError("--small and --shape belong to --format archive.")
    source = find_archive(run) if which is None and not whole else choose_archive(run, which)
    archive = load_archive(source, mapped=True)
    name = plain_name(archive.description["task"]["name"])
    output = output or Path(f"{name}.safetensors" if whole else "policies")
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
        check_seed(one)
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
    know(task, archive.description["task"]["name"])
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
        console.print(f"physics diverged in {found.fallen:.0%} of the episodes", style="yellow")
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
    tasks = [one.description["task"]["name"] for one in (a, b)]
    if tasks[0] != tasks[1]:
        raise InputError(f"the archives are of {tasks[0]} and of {tasks[1]}.")
    if a.measure_names != b.measure_names:
        raise InputError(
            f"one archive measures {', '.join(a.measure_names)}, the other {', '.join(b.measure_names)}."
        )
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
        with console.status(Text(f"waiting for {run}")):
            while not Source(run).exists():
                time.sleep(0.5)
    except KeyboardInterrupt:
        sys.exit(130)
    source = Source(run)
    found = source.snapshot()
    if found.archive is None and found.version:  # it is there, and cannot be read; later the page says so
        raise InputError(found.problem or f"cannot read {run}.")
    machine.check_devices()
    know(task, source.task())
    import_extra("viser", "view")  # told here, not on the page
    from ppga.viewer.server import PageServer

    server = PageServer(run, host, port)
    if server.port != port:
        console.print(f"port {port} is taken; using {server.port}", highlight=False)
    console.print(f"{run} is at {server.address}    (Ctrl-C ends it)", highlight=False, soft_wrap=True)
    if not server.private:
        console.print(f"it listens on {host}: whoever can reach this machine may look", style="yellow")
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
