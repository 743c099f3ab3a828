"""The commands and Python blocks of the pages: each is run, small or as a dry run.

A command on a page is checked in one of these ways, and none is left out:

- `train`, `study` and `reproduce` with `--dry-run`; commands that read a run, on a small one;
- commands that take minutes (`PARSED`) and benchmarks by their options alone, because other tests run them;
- `make` with `--dry-run`;
- a command without arguments is a name: its help must exist.
"""

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
from markdown_it import MarkdownIt

import ppga
from ppga.archives import included
from ppga.cli.train import parse_request
from ppga.config import setting_types
from ppga.errors import InputError
from ppga.rendering import Renderer
from ppga.runs.build import make_algorithm
from ppga.runs.results import to_archive
from ppga.tasks import find

from benchmarks.commands import parse as parse_benchmark
from helpers.commands import Done, benchmark, command

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
pytestmark = [  # of Brax, and of its dependencies
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Brax System:UserWarning"),
]

OTHER_LINES = {
    'pip install "./ppga[view]"': "extras are checked below",
    'pip install "ppga[ray]"': "extras are checked below",
    'pip install "ppga[compare,qdax,view]"': "extras are checked below",
    "sbatch study/study.sbatch": "needs SLURM; test_slurm.py runs the script as SLURM would",
}
"""Lines of blocks that are commands of other programs, and why they are not run."""
DRAWINGS = ("errors, limits, types", "PolicyProblem", "seconds = 2.7")
"""First words of blocks that contain no commands."""
PARSED = {
    "train ant --simulation.physics mjx ": "compiles for minutes; test_devices.py has a smaller task",
}
"""First words of commands whose options alone are checked, and why."""
PLACEHOLDERS = {
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
"""Values of words in capitals; some depend on the word before."""
SMALL_OPTIONS = {
    "evaluate": {"--episodes": "2"},
    "adapt": {"--episodes": "2", "--sets": "2", "--trials": "3"},
    "report": {"--output": "page"},
}
"""Options that make commands small."""
IGNORED_OPTIONS = ("--minutes", "--seed", "--output")
"""Options of `train` that do not change a dry run; `ALL_OPTIONS` has them all."""
ALL_OPTIONS = (
    "train", "walker2d", "--minutes", "10", "--seed", "1", "--output", "runs/new", "--dry-run",
)  # fmt: skip
HELP = ("--help", "--help-all", "--list")
COPIES = (
    "full.safetensors", "small.safetensors", "full/corrected.safetensors", "small/corrected.safetensors",
    "runs/walker2d/archive.safetensors", "src/ppga/pretrained/walker2d.safetensors",
    "src/ppga/pretrained/humanoid.safetensors",
)  # fmt: skip
"""Archives that other commands on the pages would have written."""
EXPORTED = ("--cell", "27", "44")
"""Cells that the pages export; a small run has others."""


# Blocks and commands on the pages.


@dataclass(frozen=True)
class Block:
    """A block of code, fenced or indented."""

    page: str
    language: str
    text: str


def read(page: str, text: str) -> tuple[list[Block], list[str]]:
    """The blocks of code of a page, and the code spans in its sentences."""
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


def is_command(line: str) -> bool:
    return re.match(r"(srun )?(ppga|make|python -m benchmarks) [a-z-]", line) is not None


def commands_of(line: str) -> Iterator[tuple[str, ...]]:
    """Commands that a line stands for: every alternative separated by |, with placeholders replaced."""
    words = shlex.split(line.removeprefix("srun ").replace("python -m benchmarks", "benchmarks"))
    for choice in itertools.product(*(word.split("|") for word in words)):
        yield tuple(
            PLACEHOLDERS.get(f"{before} {word}", PLACEHOLDERS.get(word, word))
            for before, word in zip(("", *choice), choice, strict=False)
        )


def small_command(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words after `ppga` as they are run here."""
    name, *rest = words
    if not rest:
        return words if name in ("tasks", "algorithms", "--help") else (name, "--help")
    if rest[-1] in HELP:
        return words
    if name == "train":
        for option in IGNORED_OPTIONS:
            if option in rest:
                del rest[(at := rest.index(option)) : at + 2]
        if "--init-from" in rest:  # of a small run of this task
            rest = ["walker2d", *rest[1:], "--preset", "smoke"]
    if name in ("train", "study", "reproduce"):
        return (name, *(word for word in rest if word != "--dry-run"), "--dry-run")
    if name == "report":  # a page takes long to draw; test_report.py has several seeds on one
        rest = list(dict.fromkeys(re.sub(r"^(runs/walker)-\d$", r"\1", word) for word in rest))
    for option, value in SMALL_OPTIONS.get(name, {}).items():
        if option in rest:
            del rest[(at := rest.index(option)) : at + 2]
        rest += [option, value]
    return (name, *rest)


READ = [read(page.name, page.read_text()) for page in PAGES]
BLOCKS = [block for blocks, _ in READ for block in blocks]
SPANS = [span for _, spans in READ for span in spans]
COMMANDS = [words for line in [*lines_of(BLOCKS), *SPANS] if is_command(line) for words in commands_of(line)]
PPGA_COMMANDS = sorted({ALL_OPTIONS, *(small_command(words[1:]) for words in COMMANDS if words[0] == "ppga")})
BENCHMARKS = sorted({words[1:] for words in COMMANDS if words[0] == "benchmarks"})
TARGETS = sorted({words[1:] for words in COMMANDS if words[0] == "make"})


def test_commands_are_found_in_all_places() -> None:
    fenced, indented = "```\nppga a  # b\n```\n", "    srun ppga c\n"
    wrapped, table, listed = "Or `ppga d\nRUN`.\n", "| |\n|-|\n| `make e\\|f` |\n", "1. x\n\n       make g\n"
    measured = "Or `python -m benchmarks h`."
    blocks, spans = read("page.md", "\n".join([fenced, indented, wrapped, table, listed, measured]))
    commands = [
        words for line in [*lines_of(blocks), *spans] if is_command(line) for words in commands_of(line)
    ]
    assert commands == [
        ("ppga", "a"), ("ppga", "c"), ("make", "g"),
        ("ppga", "d", "runs/walker"), ("make", "e"), ("make", "f"), ("benchmarks", "h"),
    ]  # fmt: skip
    assert small_command(("evaluate", "--episodes", "50", "RUN")) == ("evaluate", "RUN", "--episodes", "2")
    assert len(PPGA_COMMANDS) > 40
    assert len(BENCHMARKS) > 10
    assert len(TARGETS) > 5


def test_every_line_of_a_block_is_a_command_or_a_known_exception() -> None:
    assert {line for line in lines_of(BLOCKS) if not is_command(line)} == set(OTHER_LINES)
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
    """Variables of the README's Python block."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("place")
    (folder / "examples").symlink_to(ROOT / "examples")
    (theirs,) = (block.text for block in BLOCKS if "def swingup" in block.text)
    (folder / "theirs.py").write_text(theirs)
    readme = executed("README.md", folder, [('"laptop"', '"smoke"'), ("minutes=10", "iterations=1")])
    # what `ppga train` on the same page would have written
    shutil.copytree(folder / "runs" / "python", folder / "runs" / "walker")
    readme["archive"].only(readme["cell"]).save(folder / "one.safetensors")
    for copy in COPIES:
        readme["archive"].save(folder / copy)
    small = ("--preset", "smoke", "--iterations", "1", "--quiet", "--output")
    for seed in range(2):
        words = ("sphere", "--seed", str(seed), *small, f"runs/walker-{seed}")
        assert command("train", *words, folder=folder).returncode == 0
    single_elite("examples/quadruped.py:Quadruped").save(
        folder / "runs" / "quadruped" / "archive.safetensors"
    )
    single_elite("ant").save(folder / "runs" / "ant" / "archive.safetensors")
    return Place(folder, readme)


def single_elite(task: str) -> ppga.Archive:
    """An archive as a run would write it, with a single elite whose parameters are all 1."""
    known = dict(ppga.TASKS)
    word = str(ROOT / task) if ".py:" in task else task
    config, _ = ppga.preset("smoke", word, "map-elites")
    empty = to_archive(make_algorithm(find(word), config))
    ppga.TASKS.clear()
    ppga.TASKS.update(known)
    rows = {name: np.ones((1, *values.shape[1:])) for name, values in empty.elites.items()}
    return empty.with_elites(rows)


@pytest.mark.parametrize("words", PPGA_COMMANDS, ids=" ".join)
def test_a_command_on_the_pages_succeeds(
    place: Place, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(included, "FOLDER", place.folder / "src" / "ppga" / "pretrained")
    if " ".join(words).startswith(tuple(PARSED)):
        # JAX would wait for the other processes
        request = parse_request(["ray" if word == "jax" else word for word in words[1:-1]])
        assert request.task in ppga.TASKS
        return
    if words[:1] == ("export",) and EXPORTED[0] in words:
        cell = str(place.readme["archive"].best())
        words = tuple(cell if word in EXPORTED[1:] else word for word in words)
    before = files_in(place.folder)
    viewed = words[0] == "view" and "--help" not in words
    done = view_page(words, place.folder) if viewed else command(*words, folder=place.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    written = files_in(place.folder) - before
    if words[-1] in ("--dry-run", *HELP) or len(words) == 1:
        assert done.stdout
        assert not written


def files_in(folder: Path) -> set[Path]:
    return {file for file in folder.rglob("*") if file.is_file()}


def view_page(words: tuple[str, ...], folder: Path) -> Done:
    """Run `view` until its page has been fetched, and then interrupt it."""
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
        if not over.wait(0.5):  # it answers before it waits for Ctrl-C
            os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    visitor = threading.Thread(target=fetch)
    visitor.start()
    try:
        done = command(*words, "--port", str(port), "--no-browser", folder=folder)
    finally:
        over.set()
        visitor.join()
        signal.signal(signal.SIGUSR1, before)
    assert len(pages) == 1
    assert b"<title>ppga</title>" in pages[0]
    return done


@pytest.mark.parametrize("words", BENCHMARKS, ids=" ".join)
def test_a_benchmark_on_the_pages_exists(words: tuple[str, ...]) -> None:
    """It takes minutes, so only its options are parsed; tests/benchmarks runs them at a small size."""
    if "--help" in words:
        assert benchmark(*words).returncode == 0
        return
    parsed = parse_benchmark(words)
    assert parsed.name == words[0]
    assert parsed.task in ("all", *ppga.TASKS)


@pytest.mark.parametrize("words", TARGETS, ids=" ".join)
def test_a_target_of_make_exists(words: tuple[str, ...]) -> None:
    done = subprocess.run(["make", "--dry-run", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert phony is not None
    assert words[0] in phony[1].split(), "otherwise a file of that name would satisfy make"


def test_options_in_sentences_exist() -> None:
    of_train = [
        ["train", "--help"],
        *(["train", "--algorithm", name, "--help-all"] for name in ppga.ALGORITHMS),
    ]
    others = {words[0] for words in PPGA_COMMANDS} - {"train"}
    helps = [command(*words).stdout for words in [*of_train, *([name, "--help"] for name in others)]]
    helps += [benchmark(name, "--help").stdout for name in {words[0] for words in BENCHMARKS} - {"--help"}]
    known = {option for text in helps for option in re.findall(r"--[a-z][a-z0-9.-]*", text)}
    for entry in ppga.ALGORITHMS.values():  # options of absent sections, and switches set to false
        for name, kind in setting_types(entry.config):
            section, dot, setting = name.replace("_", "-").rpartition(".")
            known |= {f"--{section}{dot}{no}{setting}" for no in ["", *(["no-"] if kind is bool else [])]}
    spans = [span for span in SPANS if not span.startswith("sbatch ")]
    named = {option for span in spans for option in re.findall(r"(?:^| )(--[a-z][a-z0-9.-]*)", span)}
    assert len(named) > 30
    assert named - known == set()


def test_extras_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lists = re.findall(r"ppga\[(.*?)\]", "".join(page.read_text() for page in PAGES))
    named = {extra for extra_list in lists for extra in extra_list.split(",")}
    assert named >= {"view", "ray"}
    assert named - set(extras) == set()
    install = (ROOT / "docs" / "install.md").read_text()
    assert set(re.findall(r"^\| `([a-z]+)` \|", install, flags=re.MULTILINE)) == set(extras) - {"dev"}


# Python.


def executed(
    page: str, folder: Path, changes: list[tuple[str, str]] | None = None, **supplied: Any
) -> dict[str, Any]:
    """Variables after the Python blocks of a page have been executed, one after the other, in a folder."""
    blocks = [block.text for block in BLOCKS if block.page == page and block.language == "python"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in blocks:
            for old, new in changes or []:
                block = block.replace(old, new)
            exec(block, supplied)
    return supplied


def test_every_page_with_python_has_a_test() -> None:
    known = {
        "README.md", "adding-a-task.md", "api.md", "reading-results.md", "tutorial.md", "using-an-archive.md",
    }  # fmt: skip
    assert {block.page for block in BLOCKS if block.language == "python"} == known


def test_the_readmes_example(place: Place) -> None:
    assert place.readme["action"].shape == (6,)
    assert place.readme["outcome"].record["iteration"] == 1
    assert place.readme["archive"].description["task"]["name"] == "walker2d"


def test_the_page_on_the_api(tmp_path: Path) -> None:
    config = executed("api.md", tmp_path, ppga=ppga)["config"]
    assert (config.ppo.gamma, config.branches, config.confirm) == (0.98, 32, None)


def test_the_page_on_reading_results(place: Place) -> None:
    changes = [("episodes=20", "episodes=2")]
    try:
        Renderer(ppga.make_task("hopper").model, 64, 48).close()
    except InputError:  # the page says that this needs EGL or OSMesa
        changes.append(("frames.strips", "str"))
    variables = executed("reading-results.md", place.folder, changes)
    assert len(variables["frame"]) == 1
    assert len(variables["evaluation"].index) == len(place.readme["archive"])
    assert (place.folder / "growth.gif").read_bytes().startswith(b"GIF")


def test_the_tutorial(place: Place) -> None:
    variables = executed("tutorial.md", place.folder)
    observation = np.linspace(-1, 1, 17)
    action, _ = variables["agent"].predict(observation)
    cell = place.readme["archive"].nearest([0.3, 0.7])
    expected = place.readme["archive"].policy(cell)(observation)
    # controls in [-1, 1] are rounded as numbers of about 1, because 1 is added to actions before scaling
    np.testing.assert_allclose(action, expected, rtol=0, atol=1e-6)


def test_the_page_on_using_an_archive(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reward of the user's own robot is a function of the policy's action."""
    observation = np.linspace(-1, 1, 17)
    rewards: list[float] = []

    def reward_of_an_episode_with(act: Callable[[Any], Any]) -> float:
        rewards.append(float(act(observation).sum()))
        return rewards[-1]

    monkeypatch.setattr(included, "FOLDER", place.folder / "src" / "ppga" / "pretrained")
    variables = executed(
        "using-an-archive.md", place.folder, reward_of_an_episode_with=reward_of_an_episode_with
    )
    archive = place.readme["archive"]
    expected = archive.policy(archive.nearest([0.2, 0.8]))(observation)
    np.testing.assert_array_equal(variables["act"](observation), expected)
    assert 1 <= len(rewards) <= 10
    assert variables["adaptation"].best in variables["adaptation"].cells


def test_the_page_on_adding_a_task(place: Place) -> None:
    """The page's code is run as it is; then its task is compared with a plain MuJoCo loop."""
    variables = executed("adding-a-task.md", place.folder)
    scores = variables["scores"]
    assert np.isfinite(scores.objective).all()
    assert ((scores.measures > 0) & (scores.measures < 1)).all(), "the inchworm should lift both its ends"
    assert variables["task"].name == "InvertedPendulum-v5", "of the last block"
    task = variables["Inchworm"](episode_length=200)
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
        ppga.tasks.register(variables["Inchworm"])
        assert ppga.make_task("inchworm", episode_length=7).episode_length == 7
    finally:
        del ppga.TASKS["inchworm"]
