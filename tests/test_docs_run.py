"""What the pages tell people to type: every command and every block of Python, small or as a dry run.

A command on a page is checked in one of these ways, and none is silently left out:

- `train`, `study` and `reproduce` with `--dry-run`; what reads a run, on a small one;
- what takes minutes by its options alone (`PARSED`), and only because another test runs it;
- `make` by what it would do;
- a command without its arguments is a name, whose help must be there.
"""

import functools
import itertools
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
import tyro
from markdown_it import MarkdownIt
from rich.console import Console

import ppga
from ppga import training
from ppga.archives import shipped
from ppga.cli import measuring
from ppga.errors import InputError
from ppga.rendering import Renderer
from ppga.runs.loop import make_algorithm, to_archive
from ppga.study import system
from ppga.tasks import find

from conftest import Done, command

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
pytestmark = [  # of Brax, and of what it needs
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Brax System:UserWarning"),
]

OTHER_LINES = {
    'pip install "./ppga[view]"': "extras are looked up below",
    'pip install "ppga[ray]"': "extras are looked up below",
    'pip install "ppga[compare,qdax,view]"': "extras are looked up below",
    "sbatch study/study.sbatch": "needs SLURM; test_study.py runs the script as SLURM would",
}
"""Lines of blocks that are neither ppga's nor make's, and why they are not run."""
DRAWINGS = ("errors, machine, storage", "PolicyProblem", "seconds = 2.7")
"""How blocks begin that are there to be looked at."""
PARSED = {
    "bench ": "measures for minutes; test_cli.py, test_cluster.py and test_bench.py run its parts at a small "
    "size, but for scale, of which only the model is tested",
    "train ant --simulation.physics mjx ": "compiles for minutes; test_devices.py has a smaller task",
}
"""How commands begin of which only the options are read, and why."""
FILLED_IN = {
    "TASK": "walker2d",
    "RUN": "runs/walker",
    "RUN...": "runs/walker",
    "A": "runs/walker-0",
    "B": "runs/walker-1",
    "N": "2",
    "DAMAGE": "friction:0.3",
    "--algorithm NAME": "ppga",
    "reproduce NAME": "fig-4",
}
"""What a reader would write for words in capitals, some of which depend on the word before."""
SMALLER = {
    "evaluate": {"--episodes": "2"},
    "adapt": {"--episodes": "2", "--sets": "2", "--trials": "3"},
    "report": {"--output": "page"},
}
"""Options by which commands are small."""
LEFT_OUT = ("--minutes", "--seed", "--output")
"""Options of `train` that a dry run does nothing about; `WHOLE` has them all."""
WHOLE = ("train", "walker2d", "--minutes", "10", "--seed", "1", "--output", "runs/new", "--dry-run")
COPIES = (
    "full.safetensors", "small.safetensors", "full/corrected.safetensors", "small/corrected.safetensors",
    "runs/walker2d/archive.safetensors", "src/ppga/pretrained/walker2d.safetensors",
    "src/ppga/pretrained/humanoid.safetensors",
)  # fmt: skip
"""What other commands of the pages, and this project's makers, would have left."""
EXPORTED = ("--cell", "27", "44")
"""Cells that the pages export; a small run has others."""


# What there is on the pages.


@dataclass(frozen=True)
class Block:
    """A block of code, fenced or indented."""

    page: str
    language: str
    text: str


def read(page: str, text: str) -> tuple[list[Block], list[str]]:
    """A page's blocks of code, and the code inside its sentences."""
    blocks, spans = [], []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type in ("fence", "code_block"):
            blocks.append(Block(page, token.info.strip().split(" ")[0], token.content))
        spans += [child.content for child in token.children or [] if child.type == "code_inline"]
    return blocks, spans


def lines_of(blocks: list[Block]) -> list[str]:
    """Lines that may be commands, without comments."""
    return [
        line.partition("  #")[0].strip()
        for block in blocks
        if block.language == "" and not block.text.startswith(DRAWINGS)
        for line in block.text.splitlines()
        if line.strip()
    ]


def is_ours(line: str) -> bool:
    return re.match(r"(srun )?(ppga|make) [a-z-]", line) is not None


def meant(line: str) -> Iterator[tuple[str, ...]]:
    """The commands that a line stands for: each of what is parted by |, words in capitals filled in."""
    words = shlex.split(line.removeprefix("srun "))
    for one in itertools.product(*(word.split("|") for word in words)):
        yield tuple(
            FILLED_IN.get(f"{before} {word}", FILLED_IN.get(word, word))
            for before, word in zip(("", *one), one, strict=False)
        )


def run_as(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words of a command of ours as they are run here."""
    name, *rest = words
    if not rest:
        return words if name in ("tasks", "algorithms", "--help") else (name, "--help")
    if rest[-1] in ("--help", "--list"):
        return words
    if name == "train":
        for option in LEFT_OUT:
            if option in rest:
                del rest[(at := rest.index(option)) : at + 2]
    if name in ("train", "study", "reproduce"):
        return (name, *(word for word in rest if word != "--dry-run"), "--dry-run")
    if name == "report":  # a page takes long to draw; several seeds on one are test_report.py's
        rest = list(dict.fromkeys(re.sub(r"^(runs/walker)-\d$", r"\1", word) for word in rest))
    for option, value in SMALLER.get(name, {}).items():
        if option in rest:
            del rest[(at := rest.index(option)) : at + 2]
        rest += [option, value]
    return (name, *rest)


READ = [read(page.name, page.read_text()) for page in PAGES]
BLOCKS = [block for blocks, _ in READ for block in blocks]
SPANS = [span for _, spans in READ for span in spans]
MEANT = [words for line in [*lines_of(BLOCKS), *SPANS] if is_ours(line) for words in meant(line)]
OURS = sorted({WHOLE, *(run_as(words[1:]) for words in MEANT if words[0] == "ppga")})
TARGETS = sorted({words[1:] for words in MEANT if words[0] == "make"})


def test_commands_are_found_wherever_they_are() -> None:
    fenced, indented = "```\nppga a  # b\n```\n", "    srun ppga c\n"
    wrapped, table, listed = "Or `ppga d\nRUN`.\n", "| |\n|-|\n| `make e\\|f` |\n", "1. x\n\n       make g\n"
    blocks, spans = read("page.md", "\n".join([fenced, indented, wrapped, table, listed]))
    found = [words for line in [*lines_of(blocks), *spans] if is_ours(line) for words in meant(line)]
    assert found == [
        ("ppga", "a"), ("ppga", "c"), ("make", "g"),
        ("ppga", "d", "runs/walker"), ("make", "e"), ("make", "f"),
    ]  # fmt: skip
    assert run_as(("evaluate", "--episodes", "50", "RUN")) == ("evaluate", "RUN", "--episodes", "2")
    assert len(OURS) > 50
    assert len(TARGETS) > 5


def test_every_line_of_a_block_is_a_command_or_said_to_be_none() -> None:
    assert {line for line in lines_of(BLOCKS) if not is_ours(line)} == set(OTHER_LINES)
    for beginning in DRAWINGS:
        assert any(block.text.startswith(beginning) for block in BLOCKS)
    known = {"", "python", "toml", "{include}", "{toctree}", "{eval-rst}"}
    assert {block.language for block in BLOCKS} <= known


# Commands.


@dataclass(frozen=True)
class Place:
    """A folder with small runs under the names that the pages use."""

    folder: Path
    readme: dict[str, Any]
    """What the README's own block has left."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("place")
    (folder / "examples").symlink_to(ROOT / "examples")
    (theirs,) = (block.text for block in BLOCKS if "def swingup" in block.text)
    (folder / "theirs.py").write_text(theirs)
    readme = executed("README.md", folder, [('"laptop"', '"smoke"'), ("minutes=10", "iterations=1")])
    # what `ppga train` on the same page would have left
    shutil.copytree(folder / "runs" / "python", folder / "runs" / "walker")
    readme["archive"].only(readme["cell"]).save(folder / "one.safetensors")
    for copy in COPIES:
        readme["archive"].save(folder / copy)
    small = ("--preset", "smoke", "--iterations", "1", "--quiet", "--output")
    for seed in range(2):
        words = ("sphere", "--seed", str(seed), *small, f"runs/walker-{seed}")
        assert command("train", *words, folder=folder).returncode == 0
    still("examples/quadruped.py:Quadruped").save(folder / "runs" / "quadruped" / "archive.safetensors")
    still("ant").save(folder / "runs" / "ant" / "archive.safetensors")
    return Place(folder, readme)


def still(task: str) -> ppga.Archive:
    """An archive as a run would leave it, of one robot that always does the same."""
    known = dict(ppga.TASKS)
    word = str(ROOT / task) if ".py:" in task else task
    config, _ = ppga.preset("smoke", word, "map-elites")
    empty = to_archive(make_algorithm(find(word), config))
    ppga.TASKS.clear()
    ppga.TASKS.update(known)
    rows = {name: np.ones((1, *values.shape[1:])) for name, values in empty.elites.items()}
    return empty.filled(rows)


@pytest.mark.parametrize("words", OURS, ids=" ".join)
def test_a_command_does_what_it_is_there_for(
    place: Place, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "FOLDER", place.folder / "src" / "ppga" / "pretrained")
    if " ".join(words).startswith(tuple(PARSED)) and "--help" not in words:
        check_options(words)
        return
    if words[0] == "study":
        check_systems(words, place.folder)
    if words[:1] == ("export",) and EXPORTED[0] in words:
        cell = str(place.readme["archive"].best())
        words = tuple(cell if word in EXPORTED[1:] else word for word in words)
    before = files_in(place.folder)
    served = words[0] == "view" and "--help" not in words
    done = (looked_at if served else by_itself)(words, place.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    written = files_in(place.folder) - before
    if words[-1] in ("--dry-run", "--help", "--list") or len(words) == 1:
        assert done.stdout
        assert not written


def files_in(folder: Path) -> set[Path]:
    return {file for file in folder.rglob("*") if file.is_file()}


def check_options(words: tuple[str, ...]) -> None:
    """A command's options are there, and what they name."""
    taken: dict[str, Any] = {}
    if words[0] == "train" and "--address" in words:  # JAX would wait for the others there
        words = tuple("ray" if word == "jax" else word for word in words)
    of = training.command(words[1:], Console()) if words[0] == "train" else measuring.bench

    @functools.wraps(of)
    def take(**given: Any) -> None:
        taken.update(given)

    tyro.cli(take, args=words[1:])
    assert taken["task"] in (None, "all", *ppga.TASKS)
    assert words[0] == "train" or taken["what"] in measuring.BENCHMARKS


def check_systems(words: tuple[str, ...], folder: Path) -> None:
    """Of systems with options of their own, a study's plan does not try these; a run's does."""
    for word in words:
        if ":" in word:
            algorithm, options = system(word)
            given = ("walker2d", "--algorithm", algorithm, *options, "--dry-run")
            done = command("train", *given, folder=folder)
            assert done.returncode == 0, done.stderr


def by_itself(words: tuple[str, ...], folder: Path) -> Done:
    """What a command does that ends without being told to."""
    return command(*words, folder=folder)


def looked_at(words: tuple[str, ...], folder: Path) -> Done:
    """What `view` does until its page has been fetched, and it is interrupted."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = min(free.getsockname()[1], 65000)
    pages, over = [], threading.Event()

    def fetch() -> None:
        while not over.is_set():
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
                    pages.append(answer.read())
                break
            except OSError:
                time.sleep(0.1)
        if not over.wait(0.5):  # it serves before it waits
            os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    visitor = threading.Thread(target=fetch)
    visitor.start()
    try:
        done = by_itself((*words, "--port", str(port), "--no-browser"), folder)
    finally:
        over.set()
        visitor.join()
        signal.signal(signal.SIGUSR1, before)
    assert len(pages) == 1
    assert b"<title>ppga</title>" in pages[0]
    return done


@pytest.mark.parametrize("words", TARGETS, ids=" ".join)
def test_make_would_do_it(words: tuple[str, ...]) -> None:
    done = subprocess.run(["make", "--dry-run", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert phony is not None
    assert words[0] in phony[1].split(), "or a file of that name would do"


def test_options_in_sentences_are_there() -> None:
    helps = "".join(
        command(*words, "--help").stdout
        for words in [["train"], *([name] for name in dict.fromkeys(words[0] for words in OURS))]
    )
    known = set(re.findall(r"--[a-z][a-z0-9.-]*", helps))
    said = {option for span in SPANS for option in re.findall(r"(?:^| )(--[a-z][a-z0-9.-]*)", span)}
    assert len(said) > 30
    assert said - known == set()


def test_extras_are_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found = re.findall(r"ppga\[(.*?)\]", "".join(page.read_text() for page in PAGES))
    said = {extra for one in found for extra in one.split(",")}
    assert said >= {"view", "ray"}
    assert said - set(extras) == set()
    install = (ROOT / "docs" / "install.md").read_text()
    assert set(re.findall(r"^\| `([a-z]+)` \|", install, flags=re.MULTILINE)) == set(extras) - {"dev"}


# Python.


def executed(
    page: str, folder: Path, changes: list[tuple[str, str]] | None = None, **supplied: Any
) -> dict[str, Any]:
    """What a page's blocks leave behind, run one after the other in a folder."""
    blocks = [block.text for block in BLOCKS if block.page == page and block.language == "python"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in blocks:
            for old, new in changes or []:
                block = block.replace(old, new)
            exec(block, supplied)
    return supplied


def test_no_page_with_python_is_left_out() -> None:
    """Each of these has a test below."""
    known = {"README.md", "adding-a-task.md", "reading-results.md", "tutorial.md", "using-an-archive.md"}
    assert {block.page for block in BLOCKS if block.language == "python"} == known


def test_the_readmes_example(place: Place) -> None:
    assert place.readme["action"].shape == (6,)
    assert place.readme["outcome"].record["iteration"] == 1
    assert place.readme["archive"].description["task"]["name"] == "walker2d"


def test_the_page_on_reading_results(place: Place) -> None:
    changes = [("episodes=20", "episodes=2")]
    try:
        Renderer(ppga.make_task("hopper").model, 64, 48).close()
    except InputError:  # it is said on that page that this needs EGL
        changes.append(("film.strips", "str"))
    left = executed("reading-results.md", place.folder, changes)
    assert len(left["frame"]) == 1
    assert len(left["evaluation"].index) == len(place.readme["archive"])
    assert (place.folder / "growth.gif").read_bytes().startswith(b"GIF")


def test_the_tutorial(place: Place) -> None:
    left = executed("tutorial.md", place.folder)
    seen = np.linspace(-1, 1, 17)
    action, _ = left["agent"].predict(seen)
    cell = place.readme["archive"].nearest([0.3, 0.7])
    np.testing.assert_allclose(action, place.readme["archive"].policy(cell)(seen), rtol=1e-6)


def test_the_page_on_using_an_archive(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The robot of one's own likes the elite that the last trial shows."""
    seen = np.linspace(-1, 1, 17)
    rewards: list[float] = []

    def reward_of_an_episode_with(act: Callable[[Any], Any]) -> float:
        rewards.append(float(act(seen).sum()))
        return rewards[-1]

    monkeypatch.setattr(shipped, "FOLDER", place.folder / "src" / "ppga" / "pretrained")
    left = executed("using-an-archive.md", place.folder, reward_of_an_episode_with=reward_of_an_episode_with)
    archive = place.readme["archive"]
    np.testing.assert_array_equal(left["act"](seen), archive.policy(archive.nearest([0.2, 0.8]))(seen))
    assert 1 <= len(rewards) <= 10
    assert left["found"].best in left["found"].cells


def test_the_page_on_adding_a_task(place: Place) -> None:
    """What the page says is run as it stands; then the task it made is held against a plain MuJoCo loop."""
    left = executed("adding-a-task.md", place.folder)
    scores = left["scores"]
    assert np.isfinite(scores.objective).all()
    assert ((scores.measures > 0) & (scores.measures < 1)).all(), "the inchworm should lift both its ends"
    assert left["task"].name == "InvertedPendulum-v5", "the last block's"
    task = left["Inchworm"](episode_length=200)
    state = jax.jit(lambda key: task.reset(key, 1))(jax.random.key(0))
    data = mujoco.MjData(task.model)
    data.qpos = np.asarray(state.bodies.qpos[0])
    mujoco.mj_forward(task.model, data)
    x = data.qpos[0]
    state = jax.jit(task.step)(state, jnp.full((1, 1), 0.5))
    data.ctrl = 0.5
    for _ in range(task.substeps):
        mujoco.mj_step(task.model, data)
    speed = (data.qpos[0] - x) / (4 * 0.005)
    np.testing.assert_allclose(state.reward[0], speed - 0.1 * 0.25, rtol=1e-5)
    try:
        ppga.tasks.register(left["Inchworm"])
        assert ppga.make_task("inchworm", episode_length=7).episode_length == 7
    finally:
        del ppga.TASKS["inchworm"]
