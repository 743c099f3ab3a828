"""The command line as a user calls it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ppga


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "120", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", "from ppga.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, check=False)


def test_tasks_are_listed_with_their_sizes() -> None:
    result = run("tasks")
    assert result.returncode == 0
    row = next(line for line in result.stdout.splitlines() if "humanoid" in line)
    assert row.split()[:4] == ["humanoid", "270", "17", "10x10"]


def test_demo_shows_a_table_and_gaits() -> None:
    result = run("demo", "--episodes", "2")
    assert result.returncode == 0, result.stderr
    rows = {line.split()[1]: line for line in result.stdout.splitlines() if line.startswith("│")}
    reward = {name: float(row.split("│")[2].split("±")[0].replace(",", "")) for name, row in rows.items()}
    assert reward["scripted"] > 0 > reward["random"]
    assert "█" in result.stdout


def test_bench_writes_the_shared_form(tmp_path: Path) -> None:
    size = ("--environments", "4", "--steps", "2", "--rounds", "1")
    result = run("bench", "physics", "--task", "hopper", *size, "--json", "out.json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["machine"]["versions"]["ppga"] == ppga.__version__
    results = {entry["name"]: entry for entry in content["results"]}
    for entry in results.values():
        assert set(entry) == {"name", "value", "unit", "ratio", "against"}
        assert entry["value"] > 0
        assert entry["unit"] == "steps/s"
    bare, ours = results["mujoco.batch/hopper"], results["physics/hopper"]
    assert ours["against"] == "mujoco.batch"
    assert ours["ratio"] == pytest.approx(ours["value"] / bare["value"])
    assert results["mjx/hopper"]["against"] == "physics/hopper"


def test_doctor_tells_what_is_there_and_that_the_engines_agree() -> None:
    result = run("doctor", "--task", "hopper", "--environments", "4", "--threads", "1")
    assert result.returncode == 0, result.stderr
    for words in ("identical", "agree", "cpu:0", "1 threads", "jax", "mjx: installed"):
        assert words in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bench", "physics", "--task", "humanoyd"], "Did you mean 'humanoid'?"),
        (["bench", "fysics"], "Did you mean 'physics'?"),
        (["bench", "physics", "--rounds", "0"], "--rounds must be a whole number of at least 1, got 0"),
        (["bench", "physics", "--json", "nowhere/x.json"], "cannot write to nowhere/x.json: No such file"),
        (["bench", "physics", "--json", "."], "cannot write to .: Is a directory"),
        (["bench", "physics", "--threads", "0"], "threads must be a whole number of at least 1, got 0"),
        (["demo", "--seed", "-1"], "--seed must lie in [0, 2^32), got -1"),
        (["demo", "--episodes", "-1"], "--episodes must be a whole number of at least 1, got -1"),
        (["demo", "--episodes", "many"], "many"),
        (["doctor", "--task", "cheetah"], "Did you mean 'halfcheetah'?"),
        (["doctor", "--threads", "0"], "threads must be a whole number of at least 1, got 0"),
        (["taskz"], "taskz"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert words in result.stderr + result.stdout
    assert "Traceback" not in result.stderr


def test_a_device_that_is_not_there() -> None:
    environment = {**os.environ, "JAX_PLATFORMS": "cuda"}
    command = [sys.executable, "-c", "from ppga.cli import main; main()", "tasks"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 2
    assert "ppga: JAX finds no device (JAX_PLATFORMS='cuda')" in result.stderr
    assert "Traceback" not in result.stderr


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from ppga.cli import main\n"
        "sys.argv = ['ppga', '--help']\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'jax', 'mujoco', 'gymnasium', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "doctor" in result.stdout
