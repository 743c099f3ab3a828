"""Tasks by name: in files, in installed packages, and as arguments of commands."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

import ppga
from ppga import InputError
from ppga.archives import load_archive
from ppga.cli import tasks as tasks_command
from ppga.tasks import TASKS, find, is_registered, make_task, names, robot, sample

from helpers.commands import command
from helpers.tasks import ARM, SLIDER, registry_restored


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    with registry_restored():
        yield


@pytest.fixture(scope="module")
def walkers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a few elites of walker2d, in episodes of 20 steps."""
    run = tmp_path_factory.mktemp("walkers") / "run"
    config, budget = ppga.preset("smoke", "walker2d", "map-elites")
    ppga.train("walker2d", config, budget=budget, output=run)
    return run


def test_a_task_in_a_file_is_registered_when_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "slider.py").write_text(SLIDER)
    assert not is_registered("slider")
    with pytest.raises(InputError, match="unknown task 'slider'"):
        make_task("slider")
    assert find(f"{tmp_path / 'slider.py'}:Slider") == "slider"
    assert is_registered("slider")
    task = make_task("slider", episode_length=7)
    assert (task.episode_length, sample("slider").episode_length) == (7, 20)


@pytest.mark.parametrize(
    ("content", "argument", "message"),
    [
        (SLIDER, "robot.py", "robot.py may contain several tasks; use"),
        (SLIDER, "robot.py:Glider", "has no 'Glider'. Its tasks: Slider"),
        (SLIDER, "other.py:Slider", "there is no file"),
        ("import nothing_like_it", "robot.py:Slider", "robot.py, line 1: ModuleNotFoundError"),
        ("def broken(:", "robot.py:Slider", "SyntaxError"),
        (SLIDER.replace("return -jnp", "return 0 * what"), "robot.py:Slider", "line .*NameError"),
        ("Slider = 3", "robot.py:Slider", "neither a class nor a function"),
        ("def Slider(): return 3", "robot.py:Slider", "returns int, which is not a task"),
        (SLIDER.replace('"slider"', '"ant"'), "robot.py:Slider", "has the name 'ant' of another task"),
        (SLIDER.replace('"slider"', '"../up"'), "robot.py:Slider", "must consist of letters, digits"),
        (SLIDER.replace('"slider"', '"all"'), "robot.py:Slider", "has the reserved name 'all'"),
        (SLIDER.replace('("place",)', "()"), "robot.py:Slider", "shape"),
        (SLIDER.replace("usual_length", "archive_shape = (0,); usual_length"), "robot.py:Slider", "shape"),
        (SLIDER.replace("usual_length", "measure_ranges = 0, 1; usual_length"), "robot.py:Slider", "pair"),
        (
            SLIDER.replace("return body.qpos\n", "return body.qpos[0] + 0.5\n"), "robot.py:Slider",
            r"proxies\(\) must return shape \(1,\) for one body, got \(\): 0.5",
        ),
        (
            SLIDER.replace("return body.qpos\n", "return body.qpos[0] + 0.5, 2.0\n"), "robot.py:Slider",
            r"proxies\(\) must return shape \(1,\) for one body, got tuple: \(0.5, 2.0\)",
        ),
        (
            SLIDER.replace("return jnp.concatenate", "return list"), "robot.py:Slider",
            r"observe\(\) must return shape \('any number',\) for one body, got list: \[\[0.0\]",
        ),
        (
            SLIDER.replace("return jnp.zeros(1), jnp.zeros(1)", "return jnp.zeros(1)"), "robot.py:Slider",
            r"initial\(\) must return positions \(1,\) and velocities \(1,\), got \(1,\)",
        ),
        (
            SLIDER.replace("usual_length", "measure_ranges = ((0, float('inf')),); usual_length"),
            "robot.py:Slider", "finite pair",
        ),
        (
            SLIDER.replace("return body.qpos\n", "return body.qpos + 1.05\n"), "robot.py:Slider",
            r"'place' is 1.05, which is not within its range \[0, 1\]",
        ),
        (
            SLIDER.replace("return body.qpos\n", "return body.qpos + 3\n"), "robot.py:Slider",
            r"'place' is 3, which is not within its range \[0, 1\]",
        ),
        (SLIDER.replace("return body.qpos\n", "return body.qpos / 0\n"), "robot.py:Slider", "'place' is nan"),
        (SLIDER.replace("name=\"x\"", "name=\"x\" wrong=\"1\""), "robot.py:Slider", "MuJoCo cannot read"),
        (SLIDER.replace("mjcf", "xml"), "robot.py:Slider", "has no robot"),
    ],
)  # fmt: skip
def test_mistakes_in_a_file_are_reported(content: str, argument: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "robot.py").write_text(content)
    with pytest.raises(InputError, match=message):
        find(str(tmp_path / argument))
    assert "slider" not in TASKS


def test_a_robot_is_mjcf_text_a_file_next_to_the_task_or_a_spec(tmp_path: Path) -> None:
    """All of them give the same robot, also when it is made twice."""
    xml = SLIDER.split("'''")[1]
    (tmp_path / "robot.xml").write_text(xml)
    spec = f"mujoco.MjSpec.from_string('''{xml}''')"
    masses = []
    for number, mjcf in enumerate((f"'''{xml}'''", "'robot.xml'", "pathlib.Path('robot.xml')", spec)):
        own = SLIDER.replace(f"'''{xml}'''", mjcf).replace('"slider"', f'"slider{number}"')
        (tmp_path / f"own{number}.py").write_text(f"import mujoco, pathlib\n{own}")
        name = find(f"{tmp_path}/own{number}.py:Slider")
        masses += [robot(name).model.body_mass.tolist() for _ in range(2)]
    assert masses == [masses[0]] * 8
    assert masses[0][1] > 0


def test_a_function_may_take_some_of_the_options(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(
        "from ppga.tasks import make_task\n"
        "def short(episode_length=5):\n"
        "    task = make_task('hopper', episode_length=episode_length)\n"
        "    task.name = 'short'\n"
        "    return task\n"
    )
    name = find(f"{tmp_path / 'tasks.py'}:short")
    assert make_task(name, physics="mujoco", episode_length=6).episode_length == 6
    with pytest.raises(InputError, match="no option physics; it takes episode_length"):
        make_task(name, physics="mjx")


def test_an_installed_package_offers_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an entry point in its metadata, as pip writes them."""
    (tmp_path / "sliders.py").write_text(SLIDER)
    info = tmp_path / "sliders-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sliders\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[ppga.tasks]\nslider = sliders:Slider\nbad = sliders:Nothing\nother = sliders:Slider\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert is_registered("slider")
    assert make_task("slider").action_size == 1
    with pytest.raises(InputError, match="installed task bad cannot be loaded"):
        make_task("bad")
    TASKS.pop("slider")
    with pytest.raises(InputError, match="other has the name 'slider'"):
        make_task("other")
    assert {"slider", "bad", "other", "ant"} <= set(names())


def test_the_list_of_tasks_includes_those_that_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ppga.tasks]\nbroken = no_such_module:Robot\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(tasks_command, "console", Console(width=200))
    done = command("tasks")
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.split()}
    assert "installed task broken cannot be loaded" in rows["broken"]
    assert rows["ant"].split()[1:3] == ["27", "8"]
    assert rows["point-maze"]


def test_python_functions_take_file_arguments_like_commands(tmp_path: Path) -> None:
    (tmp_path / "slider.py").write_text(
        SLIDER.replace("usual_length", "worst_idle_reward = -2.0; usual_length")
    )
    argument = f"{tmp_path / 'slider.py'}:Slider"
    config, _ = ppga.preset("laptop", argument)
    assert isinstance(config.archive, ppga.SoftArchiveConfig)
    assert config.archive.threshold_min == -40.0, "the offset of this task"
    TASKS.pop("slider")
    config, budget = ppga.preset("smoke", argument, "map-elites")
    ppga.train(argument, config, budget=budget, output=tmp_path / "run")
    TASKS.pop("slider")
    outcome = ppga.resume(tmp_path / "run", task=argument, budget=ppga.Budget(iterations=3))
    assert outcome.record is not None
    assert outcome.record["iteration"] == 3
    with pytest.raises(InputError, match="slider"):
        ppga.resume(tmp_path / "run", task="hopper", budget=ppga.Budget(iterations=4))


@pytest.mark.parametrize("order", ["after", "before", "joined"])
def test_the_task_is_not_a_value_of_the_option_before_it(order: str, tmp_path: Path) -> None:
    (tmp_path / "slider.py").write_text(SLIDER)
    task = ["--task", "slider.py:Slider"] if order != "joined" else ["--task=slider.py:Slider"]
    sizes = ["--network.actor", "16", "12"]
    words = [*task, *sizes] if order == "before" else [*sizes, *task]
    done = command("train", *words, "--preset", "smoke", "--dry-run", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ppga on slider" in done.stdout
    assert "(16, 12)" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--minutes", "1", "--task"), "--task needs a value"),
        (("--task", "ant", "--task=hopper"), "--task is given twice"),
        (("ant", "--task", "hopper"), "one task is trained at a time, got ant, hopper"),
    ],
)
def test_a_task_is_given_once(words: tuple[str, ...], message: str) -> None:
    done = command("train", *words)
    assert done.returncode == 2
    assert message in done.stderr


def test_the_help_says_how_to_name_a_file() -> None:
    done = command("train", "--help")
    assert done.returncode == 0
    assert "FILE.py:NAME" in done.stdout


@pytest.mark.parametrize("verb", ["evaluate", "adapt", "view"])
def test_another_task_than_that_of_the_archive_is_rejected(verb: str, walkers: Path) -> None:
    done = command(verb, str(walkers), "--task", ARM)
    assert done.returncode == 2
    assert "is 'arm', but the archive is of 'walker2d'" in done.stderr


def test_code_in_a_file_runs_only_if_the_file_is_named(tmp_path: Path) -> None:
    """Training, evaluation and resume run it with its name; nothing runs it otherwise."""
    file = tmp_path / "slider.py"
    file.write_text(SLIDER + f"\n(__import__('pathlib').Path({str(tmp_path)!r}) / 'ran').touch()\n")
    run, argument = tmp_path / "run", f"{file}:Slider"
    words = ["--algorithm", "map-elites", "--preset", "smoke", "--output", str(run)]
    done = command("train", "--task", argument, *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    archive = load_archive(run)
    assert archive.description["task"]["name"] == "slider"
    assert archive.description["task"]["episode_length"] == 20
    assert str(file) not in (run / "config.json").read_text()
    (tmp_path / "ran").unlink()

    resume = ["train", "--resume", str(run), "--iterations", "3"]
    for words in (["evaluate", str(run)], resume, [*resume, "--dry-run"]):
        rejected = command(*words, folder=tmp_path)
        assert rejected.returncode == 2, rejected.stdout
        assert "task of your own" in rejected.stderr
        assert "FILE.py:NAME" in rejected.stderr
    assert command("report", str(run), "--output", "page", folder=tmp_path).returncode == 0
    assert not (tmp_path / "ran").exists(), "the file was not named"

    evaluated = command("evaluate", str(run), "--episodes", "2", "--task", argument, folder=tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr
    resumed = command("train", argument, "--resume", str(run), "--iterations", "3", folder=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 3
    assert f"train slider.py:Slider --resume {run}" in resumed.stdout
    # a task of the same name with other measures
    file.write_text(SLIDER.replace('("place",)', '("speed",)'))
    for words in (
        ["evaluate", str(run), "--task", argument],
        ["train", argument, "--resume", str(run), "--iterations", "4"],
    ):
        changed = command(*words, folder=tmp_path)
        assert changed.returncode == 2, changed.stdout
        assert "place" in changed.stderr
        assert "speed" in changed.stderr
    # a run whose settings name a file
    config = json.loads((run / "config.json").read_text())
    (tmp_path / "ran").unlink(missing_ok=True)
    file.write_text(SLIDER + f"\n(__import__('pathlib').Path({str(tmp_path)!r}) / 'ran').touch()\n")
    (run / "config.json").write_text(json.dumps(config | {"task": argument}))
    assert command(*resume, "--dry-run", folder=tmp_path).returncode == 2
    assert not (tmp_path / "ran").exists()
    (run / "config.json").write_text(json.dumps(config))
    other = command("train", "hopper", "--resume", str(run), "--iterations", "4", folder=tmp_path)
    assert other.returncode == 2
    assert "is a run of slider, not of hopper" in other.stderr
