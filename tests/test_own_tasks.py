"""Tasks of one's own: from files and packages; measured by where one ends up; broken; checked before use."""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from rich.console import Console

import ppga
from ppga import InputError
from ppga.adaptation import draw, recover
from ppga.analysis.corrected import play_all
from ppga.analysis.proxies import _correlation, _rank_correlation, _ranks
from ppga.archives import load_archive
from ppga.cli import lists, main
from ppga.physics import Array
from ppga.rollouts import Recording, evaluate, record
from ppga.tasks import TASKS, find, is_known, make_task, names, robot, sample

from conftest import command, shared_task

EXAMPLES = Path(__file__).parent.parent / "examples"
ARM = f"{EXAMPLES / 'arm.py'}:Arm"
SLIDER = """
import jax.numpy as jnp
import ppga

class Slider(ppga.Task):
    name = "slider"
    substeps = 2
    usual_length = 20
    measure_names = ("place",)
    mjcf = '''<mujoco><worldbody><body><joint name="x" type="slide" axis="1 0 0"/>
    <geom name="box" size="0.1"/></body></worldbody>
    <actuator><motor joint="x" ctrlrange="-1 1"/></actuator></mujoco>'''

    def initial(self, key):
        return jnp.zeros(1), jnp.zeros(1)

    def observe(self, body):
        return jnp.concatenate([body.qpos, body.qvel])

    def reward(self, body, ctrl):
        return -jnp.square(ctrl).sum()

    def proxies(self, body):
        return body.qpos
"""


@pytest.fixture(autouse=True)
def _forget() -> Any:
    known = dict(TASKS)
    yield
    TASKS.clear()
    TASKS.update(known)
    sample.cache_clear()


@pytest.fixture(scope="module")
def walkers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a few elites of walker2d, in episodes of 20 steps."""
    run = tmp_path_factory.mktemp("walkers") / "run"
    config, budget = ppga.preset("smoke", "walker2d", "map-elites")
    ppga.train("walker2d", config, budget=budget, output=run)
    return run


def here(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of a command in this process, which has imported everything already."""
    monkeypatch.setattr(sys, "argv", ["ppga", *words])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_a_task_in_a_file_is_known_once_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "slider.py").write_text(SLIDER)
    assert not is_known("slider")
    with pytest.raises(InputError, match="unknown task 'slider'"):
        make_task("slider")
    assert find(f"{tmp_path / 'slider.py'}:Slider") == "slider"
    assert is_known("slider")
    task = make_task("slider", episode_length=7)
    assert (task.episode_length, sample("slider").episode_length) == (7, 20)


@pytest.mark.parametrize(
    ("content", "word", "message"),
    [
        (SLIDER, "robot.py", "which task of .*robot.py"),
        (SLIDER, "robot.py:Glider", "has no 'Glider'. Its tasks: Slider"),
        (SLIDER, "other.py:Slider", "there is no file"),
        ("import nothing_like_it", "robot.py:Slider", "robot.py, line 1: ModuleNotFoundError"),
        ("def broken(:", "robot.py:Slider", "SyntaxError"),
        (SLIDER.replace("return -jnp", "return 0 * what"), "robot.py:Slider", "line .*NameError"),
        ("Slider = 3", "robot.py:Slider", "neither a class nor a function"),
        ("def Slider(): return 3", "robot.py:Slider", "gives int, which is no task"),
        (SLIDER.replace('"slider"', '"ant"'), "robot.py:Slider", "is called 'ant', and so is another"),
        (SLIDER.replace('"slider"', '"../up"'), "robot.py:Slider", "made of letters, digits"),
        (SLIDER.replace('"slider"', '"all"'), "robot.py:Slider", "made of letters, digits"),
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
def test_what_is_wrong_with_a_file_is_told(content: str, word: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "robot.py").write_text(content)
    with pytest.raises(InputError, match=message):
        find(str(tmp_path / word))
    assert "slider" not in TASKS


def test_a_robot_is_text_a_file_beside_the_task_or_a_spec(tmp_path: Path) -> None:
    """All the same robot, also when made twice."""
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


def test_a_function_takes_the_options_it_knows(tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text(
        "from ppga.tasks import make_task\n"
        "def short(episode_length=5):\n"
        "    made = make_task('hopper', episode_length=episode_length)\n"
        "    made.name = 'short'\n"
        "    return made\n"
    )
    name = find(f"{tmp_path / 'some.py'}:short")
    assert make_task(name, physics="mujoco", episode_length=6).episode_length == 6
    with pytest.raises(InputError, match="no option physics; it takes episode_length"):
        make_task(name, physics="mjx")


def test_an_installed_package_brings_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its metadata names an entry point, as pip writes it."""
    (tmp_path / "sliders.py").write_text(SLIDER)
    info = tmp_path / "sliders-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sliders\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[ppga.tasks]\nslider = sliders:Slider\nbad = sliders:Nothing\nother = sliders:Slider\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert is_known("slider")
    assert make_task("slider").action_size == 1
    with pytest.raises(InputError, match="installed task bad cannot be loaded"):
        make_task("bad")
    TASKS.pop("slider")
    with pytest.raises(InputError, match="other calls itself 'slider'"):
        make_task("other")
    assert {"slider", "bad", "other", "ant"} <= set(names())


def test_the_list_of_tasks_survives_a_broken_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ppga.tasks]\nbroken = no_such_module:Robot\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(lists, "console", Console(width=200))  # that of the module has measured already
    assert here(monkeypatch, "tasks") == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.split()}
    assert "installed task broken cannot be loaded" in rows["broken"]
    assert rows["ant"].split()[1:3] == ["27", "8"]
    assert rows["point-maze"]


def test_in_python_a_file_is_named_as_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "slider.py").write_text(
        SLIDER.replace("usual_length", "worst_idle_reward = -2.0; usual_length")
    )
    word = f"{tmp_path / 'slider.py'}:Slider"
    config, _ = ppga.preset("laptop", word)
    assert config.archive.threshold_min == -40.0, "its own, not that of the robots we know"
    TASKS.pop("slider")
    config, budget = ppga.preset("smoke", word, "map-elites")
    ppga.train(word, config, budget=budget, output=tmp_path / "run")
    TASKS.pop("slider")
    outcome = ppga.resume(tmp_path / "run", task=word, budget=ppga.Budget(iterations=3))
    assert outcome.record is not None
    assert outcome.record["iteration"] == 3
    with pytest.raises(InputError, match="slider"):
        ppga.resume(tmp_path / "run", task="hopper", budget=ppga.Budget(iterations=4))


@pytest.mark.parametrize("order", ["after", "before", "joined"])
def test_no_option_takes_the_task_for_its_own(
    order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slider.py").write_text(SLIDER)
    monkeypatch.chdir(tmp_path)
    task = ["--task", "slider.py:Slider"] if order != "joined" else ["--task=slider.py:Slider"]
    sizes = ["--network.actor", "16", "12"]
    words = [*task, *sizes] if order == "before" else [*sizes, *task]
    assert here(monkeypatch, "train", *words, "--preset", "smoke", "--dry-run") == 0
    told = capsys.readouterr().out
    assert "ppga on slider" in told
    assert "(16, 12)" in told


def test_a_task_is_given_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert here(monkeypatch, "train", "--minutes", "1", "--task") == 2
    assert "--task takes one task, got none" in capsys.readouterr().err
    assert here(monkeypatch, "train", "--task", "ant", "--task=hopper") == 2
    assert "got ant, hopper" in capsys.readouterr().err
    assert here(monkeypatch, "train", "--help") == 0
    assert "--task FILE.py:CLASS" in " ".join(capsys.readouterr().out.replace("\u2502", "").split())


@pytest.mark.parametrize("verb", ["evaluate", "adapt", "view"])
def test_another_task_than_the_archives_is_refused(
    verb: str, walkers: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert here(monkeypatch, verb, str(walkers), "--task", ARM) == 2
    assert "is 'arm', and the archive is of 'walker2d'" in capsys.readouterr().err


@pytest.mark.parametrize("word", [ARM, f"{EXAMPLES / 'quadruped.py'}:Quadruped"])
def test_the_examples_train(word: str) -> None:
    config, budget = ppga.preset("smoke", word)
    outcome = ppga.train(word, config, budget=budget)
    archive = outcome.archive
    assert archive.description["task"]["name"] in word
    assert len(archive) >= 1
    assert outcome.record is not None
    assert outcome.record["iteration"] == 2
    low, high = np.array(archive.ranges).T
    measures = archive.elites["measures"]
    assert ((measures >= low) & (measures <= high)).all(), "its measures are what its ranges expect"
    assert np.ptp(measures, axis=0).max() > 0 or len(archive) == 1


def test_a_run_of_a_file_is_read_only_with_the_file(tmp_path: Path) -> None:
    """Trained, judged again and resumed with the file named; nothing runs it otherwise."""
    file = tmp_path / "slider.py"
    file.write_text(SLIDER + f"\n(__import__('pathlib').Path({str(tmp_path)!r}) / 'ran').touch()\n")
    run, word = tmp_path / "run", f"{file}:Slider"
    words = ["--algorithm", "map-elites", "--preset", "smoke", "--output", str(run)]
    done = command("train", "--task", word, *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    archive = load_archive(run)
    assert archive.description["task"]["name"] == "slider"
    assert archive.description["task"]["episode_length"] == 20
    assert str(file) not in (run / "config.json").read_text()
    (tmp_path / "ran").unlink()

    resume = ["train", "--resume", str(run), "--iterations", "3"]
    for words in (["evaluate", str(run)], resume, [*resume, "--dry-run"]):
        refused = command(*words, folder=tmp_path)
        assert refused.returncode == 2, refused.stdout
        assert "task of your own" in refused.stderr
        assert "FILE.py:NAME" in refused.stderr
    assert command("report", str(run), "--output", "page", folder=tmp_path).returncode == 0
    assert not (tmp_path / "ran").exists(), "nobody asked for the file"

    judged = command("evaluate", str(run), "--episodes", "2", "--task", word, folder=tmp_path)
    assert judged.returncode == 0, judged.stderr
    more = command("train", word, "--resume", str(run), "--iterations", "3", folder=tmp_path)
    assert more.returncode == 0, more.stderr
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 3
    assert f"train slider.py:Slider --resume {run}" in more.stdout
    # the same name, measured otherwise
    file.write_text(SLIDER.replace('("place",)', '("speed",)'))
    for words in (
        ["evaluate", str(run), "--task", word],
        ["train", word, "--resume", str(run), "--iterations", "4"],
    ):
        changed = command(*words, folder=tmp_path)
        assert changed.returncode == 2, changed.stdout
        assert "place" in changed.stderr
        assert "speed" in changed.stderr
    # and a run that names a file itself
    config = json.loads((run / "config.json").read_text())
    (tmp_path / "ran").unlink(missing_ok=True)
    file.write_text(SLIDER + f"\n(__import__('pathlib').Path({str(tmp_path)!r}) / 'ran').touch()\n")
    (run / "config.json").write_text(json.dumps(config | {"task": word}))
    assert command(*resume, "--dry-run", folder=tmp_path).returncode == 2
    assert not (tmp_path / "ran").exists()
    (run / "config.json").write_text(json.dumps(config))
    other = command("train", "hopper", "--resume", str(run), "--iterations", "4", folder=tmp_path)
    assert other.returncode == 2
    assert "is a run of slider, not of hopper" in other.stderr


@pytest.mark.parametrize("word", [ARM, f"{EXAMPLES / 'quadruped.py'}:Quadruped"])
def test_the_examples_are_judged_where_they_start(word: str) -> None:
    """At rest the arm's hand is where plain MuJoCo has it, and the quadruped stands."""
    task = robot(find(word), episode_length=5)

    def still(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
        return jnp.zeros((len(observation), task.action_size))

    scores = jax.jit(lambda key: evaluate(task, still, key, 3))(jax.random.key(0))
    seen: Recording = jax.jit(lambda key: record(task, still, key, 3, 5))(jax.random.key(0))
    data = mujoco.MjData(task.model)
    for number in range(3):
        data.qpos = seen.qpos[number, -1]
        mujoco.mj_forward(task.model, data)
        if task.name == "arm":
            np.testing.assert_allclose(scores.measures[number], data.site("hand").xpos[:2], atol=0.02)
        else:
            np.testing.assert_allclose(scores.measures[number, 0], data.body("body").xpos[2], atol=0.06)
    assert (scores.steps == 5).all()


@pytest.mark.parametrize("name", ["ant-omni", "point-maze"])
def test_where_it_ends_up_is_where_its_speeds_carried_it(name: str) -> None:
    task = shared_task(name, episode_length=30)

    def act(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
        return jax.random.uniform(key, (len(observation), task.action_size), minval=-1.0)

    scores = jax.jit(lambda key: evaluate(task, act, key, 4))(jax.random.key(1))
    # the same again, a step longer: positions are recorded before a step
    longer = shared_task(name, episode_length=31)
    seen: Recording = jax.jit(lambda key: record(longer, act, key, 4, 31))(jax.random.key(1))
    qpos, lived = np.asarray(seen.qpos), np.asarray(scores.steps)
    for number, steps in enumerate(lived):
        if steps < 30:
            continue  # it fell, and is not where it would have gone on
        way = qpos[number, 30, :2] - (qpos[number, 0, :2] if name == "ant-omni" else 0)
        # the ant's place is that before the last substep
        np.testing.assert_allclose(scores.measures[number], way, atol=0.05 if name == "ant-omni" else 1e-4)
    assert (lived == 30).any()


def test_in_the_maze_the_straight_way_ends_at_a_wall() -> None:
    task = shared_task("point-maze")
    goal = jnp.array([0.7, 0.75])

    def straight(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
        return jnp.sign(goal - observation[:, :2])

    def around(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
        legs = jnp.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        return legs[jnp.searchsorted(jnp.array([40, 65, 110, 135]), steps, side="right")]

    for act, reached in ((straight, False), (around, True)):
        score = jax.jit(lambda key, act=act: evaluate(task, act, key, 1))(jax.random.key(0))
        assert (float(score.measures[0, 1]) > 0.4) == reached


def test_damage_does_what_it_says() -> None:
    whole = shared_task("walker2d", episode_length=60)
    with pytest.raises(InputError, match="which damage"):
        ppga.damaged(whole, [])
    for word, message in (
        ("bend:foot_joint", "unknown damage"), ("lock:nose", "unknown joint with a motor 'nose'"),
        ("lock:rootx", "unknown joint with a motor"), ("weak:foot_joint", "is not a damage"),
        ("mass:torso:0", "is not a factor"), ("mass:hat:2", "unknown body"), ("friction:-1", "not a factor"),
        ("weak:foot_joint:much", "not a factor"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            ppga.damaged(whole, [word])

    def act(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
        return jax.random.uniform(key, (len(observation), 6), minval=-1.0)

    broken = ppga.damaged(whole, ["lock:foot_joint", "weak:leg_joint:0.5", "mass:torso:2", "friction:0.3"])
    assert broken.model.body("torso").mass[0] == 2 * whole.model.body("torso").mass[0]
    assert broken.model.geom("floor").friction[0] == 0.3 * whole.model.geom("floor").friction[0]
    strong, left = whole.model.actuator_gainprm[:, 0], broken.model.actuator_gainprm[:, 0]
    assert sorted((left / strong).tolist()) == [0.0, 0.5, 1.0, 1.0, 1.0, 1.0]
    angle = whole.model.joint("foot_joint").qposadr[0]
    turned = []
    for task in (whole, broken):
        seen: Recording = jax.jit(lambda key, task=task: record(task, act, key, 4, 20))(jax.random.key(0))
        turned.append(float(np.ptp(np.asarray(seen.qpos)[:, :, angle])))
    assert turned[0] > 0.2
    assert turned[1] < 0.02, "the joint is locked, but for where it starts"


def test_a_locked_joint_is_not_too_stiff_for_any_integrator() -> None:
    for integrator in ("fast", "gymnasium"):
        broken = ppga.damaged(robot("hopper", integrator=integrator, episode_length=30), ["lock:leg_joint"])

        def act(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
            return jax.random.uniform(key, (len(observation), 3), minval=-1.0)

        scores = jax.jit(lambda key, task=broken, act=act: evaluate(task, act, key, 4))(jax.random.key(0))
        assert not scores.diverged.any()


def test_a_weak_servo_still_knows_where_it_should_be() -> None:
    """Half as strong it gives half the force towards the same place."""
    whole = robot(find(f"{EXAMPLES / 'quadruped.py'}:Quadruped"), episode_length=30)
    broken = ppga.damaged(whole, ["weak:fl knee:0.5"])
    forces = []
    for task in (whole, broken):
        data = mujoco.MjData(task.model)
        motor = mujoco.mj_name2id(task.model, mujoco.mjtObj.mjOBJ_JOINT, "fl knee")
        number = int(np.flatnonzero(task.model.actuator_trnid[:, 0] == motor)[0])
        data.ctrl[number] = 0.1
        mujoco.mj_forward(task.model, data)
        forces.append(data.actuator_force[number])
        data.qpos[task.model.jnt_qposadr[motor]] = 0.1
        mujoco.mj_forward(task.model, data)
        np.testing.assert_allclose(data.actuator_force[number], 0, atol=1e-9)
    assert forces[0] > 0.1
    np.testing.assert_allclose(forces[1], forces[0] / 2)


def test_proxies_are_held_against_what_they_stand_for() -> None:
    task = shared_task("hopper", episode_length=40)
    own = ppga.check_proxies(task, policies=32)
    np.testing.assert_allclose(own.proxies, own.measures, atol=1e-6)
    np.testing.assert_allclose(own.rank_correlation, 1.0)
    assert own.problems() == []

    def opposite(seen: Recording) -> np.ndarray:
        lived = np.asarray(seen.alive).sum(axis=1)[:, None]
        return np.asarray(-np.asarray(seen.proxies).sum(axis=1) / lived)

    wrong = ppga.check_proxies(task, opposite, policies=32)
    np.testing.assert_allclose(wrong.correlation, -1.0, atol=1e-5)
    assert "hardly go together" in wrong.problems()[0]
    constant = ppga.check_proxies(task, lambda seen: np.ones(len(seen.reward)), policies=8)
    assert "always measure 1" in constant.problems()[0]
    with pytest.raises(InputError, match="is not a finite number of 1 of 8 episodes"):
        ppga.check_proxies(task, lambda seen: np.where(np.arange(len(seen.reward)) == 3, np.nan, 1.0), 8)
    assert own.plot().get_xlabel() == "mean of the proxy"


def test_a_proxy_that_only_rounding_moves_is_still(tmp_path: Path) -> None:
    """A third in every step, summed over episodes of all lengths and divided again."""
    content = SLIDER.replace("return body.qpos\n", "return 0 * body.qpos + 1 / 3\n")
    content = content.replace("jnp.zeros(1), jnp.zeros(1)", "jnp.zeros(1), jax.random.normal(key, (1,))")
    content += "\n    def terminated(self, body):\n        return jnp.abs(body.qpos[0]) > 0.03\n"
    (tmp_path / "slider.py").write_text("import jax\n" + content)
    task = make_task(find(f"{tmp_path / 'slider.py'}:Slider"))
    found = ppga.check_proxies(task, lambda seen: np.asarray(seen.alive).mean(axis=1), policies=16)
    assert np.ptp(found.measures) > 0.1
    assert "the proxy is always 0.333333: nothing to climb" in found.problems()[0]
    assert np.isnan(found.correlation).all()
    assert np.isnan(found.rank_correlation).all()
    noise = np.float32(1 / 3) + np.array([0, 1, 2, 3]) * 2e-8
    assert np.isnan(_correlation(noise, np.arange(4.0)))
    assert np.isnan(_rank_correlation(noise, np.arange(4.0)))


def test_ranks_share_their_mean_where_values_are_equal() -> None:
    from scipy.stats import rankdata

    for seed in range(5):
        values = np.random.default_rng(seed).integers(0, 6, 30).astype(float)
        np.testing.assert_allclose(_ranks(values), rankdata(values))


def test_adapting_by_command(walkers: Path, tmp_path: Path) -> None:
    words = ["--damage", "weak:foot_joint:0", "--trials", "2", "--episodes", "2", "--sets", "3"]
    done = command("adapt", str(walkers), *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "mean over 3 sets" in done.stdout
    assert "chosen gives" in done.stdout
    found = json.loads((tmp_path / "adaptation.json").read_text())
    assert found["damage"] == ["weak:foot_joint:0"]
    assert found["possible"] >= found["adapted"][-1]
    assert len(found["sets"]) == 3
    assert found["adapted"][-1] == pytest.approx(np.mean([one["adapted"][-1] for one in found["sets"]]))
    assert found["trials"] == pytest.approx(np.mean([len(one["cells"]) for one in found["sets"]]))
    assert (tmp_path / "adaptation.png").stat().st_size > 5000
    bad = command("adapt", str(walkers), "--damage", "lock:elbow", folder=tmp_path)
    assert bad.returncode == 2
    assert "Possible: thigh_joint" in bad.stderr


def test_sets_of_trials_are_those_of_their_seeds_and_judged_by_other_episodes(walkers: Path) -> None:
    archive = load_archive(walkers)
    broken = ppga.damaged(robot("walker2d", episode_length=20), ["friction:0.3"])
    both = recover(archive, broken, 2, 3, seed=4, sets=2)
    for number in range(2):
        played, _ = play_all(archive, broken, 3, 4 + number)
        gave = dict(zip(archive.elites["index"].tolist(), played[:, 0].tolist(), strict=True))
        alone = ppga.adapt(archive, gave.__getitem__, 2)
        found = both.adaptations[number]
        np.testing.assert_array_equal(found.cells, alone.cells)
        np.testing.assert_allclose(found.seen, alone.seen)
        others = played[:, 1:].mean(axis=1)
        chosen = [others[archive._row(int(cell))] for cell in alone.chosen]
        np.testing.assert_allclose(both.adapted[number, : len(chosen)], chosen)
        np.testing.assert_allclose(both.adapted[number, len(chosen) :], chosen[-1])
        assert both.champion[number] == pytest.approx(others[archive._row(archive.best())])
        assert both.possible[number] == pytest.approx(others.max())
    told = both.to_json()
    np.testing.assert_allclose(told["adapted"], both.adapted.mean(axis=0))
    axes = draw(both)
    np.testing.assert_allclose(np.asarray(axes.lines[0].get_ydata(), float), both.adapted.mean(axis=0))
    assert len(axes.collections) == 2, "bands of what the sets differ by"
    once = recover(archive, broken, 1, 1, seed=4)
    assert once.adapted[0, 0] == once.adaptations[0].seen[0], "there is nothing else to judge it by"
    assert not draw(once).collections
