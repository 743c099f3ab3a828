"""The commands as a user calls them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ppga
from ppga.algorithms import ALGORITHMS
from ppga.cli import GROUPS, main, overview
from ppga.studies import VARIANTS

from helpers.commands import command

COMMANDS = [name for group in GROUPS.values() for name in group]


def test_the_overview_has_a_line_for_each_command() -> None:
    lines = overview().splitlines()
    assert len(lines) < 30
    for name in COMMANDS:
        assert sum(line.split()[:1] == [name] for line in lines) == 1
    assert command().stdout == command("--help").stdout == f"{overview()}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_or_no_arguments(name: str) -> None:
    result = command(name, "--help")
    assert result.returncode == 0, result.stderr
    assert f"usage: ppga {name}" in result.stdout
    assert f"ppga {name} " in result.stdout


def test_tasks_are_listed_with_their_sizes() -> None:
    result = command("tasks")
    assert result.returncode == 0
    row = next(line for line in result.stdout.splitlines() if "humanoid-full" in line)
    assert row.split()[:4] == ["humanoid-full", "270", "17", "10x10"]


def test_algorithms_are_listed_with_their_references() -> None:
    shown = " ".join(command("algorithms").stdout.split())
    for name in (*ALGORITHMS, *VARIANTS):
        assert name in shown
    assert shown.count("ICLR 2024") >= 6, "PPGA, its ablations of the algorithm and of its design"


@pytest.mark.parametrize("preset", ["smoke", pytest.param("laptop", marks=pytest.mark.long)])
def test_demo_trains_and_shows_gaits(preset: str, tmp_path: Path) -> None:
    """The budget ends it after one iteration; the archive has something to show all the same."""
    result = command("demo", "--task", "hopper", "--minutes", "0.01", "--preset", preset, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    for words in ("best: reward", "low foot", "cells", "QD-score", "ppga train --resume"):
        assert words in result.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "heatmap.png").exists()
    assert len(ppga.load_archive(folder)) > 0


def test_doctor_shows_the_machine_and_that_the_engines_agree() -> None:
    result = command("doctor", "--task", "hopper", "--environments", "12", "--threads", "1")
    assert result.returncode == 0, result.stderr
    for words in ("identical", "agree", "cpu:0", "1 threads", "jax", "mjx: installed"):
        assert words in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["taskz"], "unknown command 'taskz'. Did you mean 'tasks'?"),
        (["evaluate"], "an argument is missing: RUN"),
        (["evaluate", "a", "b"], "Unrecognized options: b"),
        (["evaluate", "run", "--epsiodes", "3"], "Did you mean '--episodes'?"),
        (["evaluate", "run", "--episodes", "many"], "Error parsing --episodes"),
        (["demo", "--seed", "-1"], "seed must lie in [0, 2^32), got -1"),
        (["demo", "--minutes", "-1"], "the budget of minutes must be positive, got -1.0"),
        (["demo", "--minutes", "many"], "many"),
        (["demo", "--task", "hoper"], "Did you mean 'hopper'?"),
        (["doctor", "--task", "cheetah"], "Did you mean 'halfcheetah'?"),
        (["doctor", "--threads", "0"], "threads must be an integer of at least 1, got 0"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(arguments: list[str], words: str, tmp_path: Path) -> None:
    result = command(*arguments, folder=tmp_path)
    assert result.returncode == 2
    assert words in result.stderr
    assert result.stderr.startswith("ppga: ")
    assert len(result.stderr.splitlines()) == 1, "one style of messages: a line"
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_a_missing_device_is_reported() -> None:
    environment = {**os.environ, "JAX_PLATFORMS": "cuda"}
    words = [sys.executable, "-c", "from ppga.cli import main; main()", "tasks"]
    result = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 2
    assert "ppga: JAX finds no device (JAX_PLATFORMS='cuda')" in result.stderr
    assert "Traceback" not in result.stderr


def test_help_and_early_errors_import_nothing_heavy() -> None:
    code = (
        "import sys, ppga\n"
        "from ppga.cli import main\n"
        "for words, wanted in (\n"
        "    (['--help'], 0), (['--version'], 0), (['taskz'], 2), (['evaluate', '--help'], 0),\n"
        "    (['evaluate', 'run', '--episodes', '0'], 2), (['study', '--help'], 0),\n"
        "):\n"
        "    sys.argv, code = ['ppga', *words], 0\n"
        "    try: main()\n"
        "    except SystemExit as end: code = end.code or 0\n"
        "    assert code == wanted, (words, code)\n"
        "    heavy = {'jax', 'mujoco', 'matplotlib', 'gymnasium', 'numpy', 'scipy'} & set(sys.modules)\n"
        "    assert not heavy, (words, heavy)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "doctor" in result.stdout
    assert f"ppga {ppga.__version__}\n" in result.stdout


def test_main_is_the_entry_point() -> None:
    assert main.__module__ == "ppga.cli"
