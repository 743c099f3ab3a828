"""The viewer: its components, its web server, and its page in a real browser."""

import base64
import contextlib
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import mujoco
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import ppga
from ppga.archives import Archive
from ppga.archives.files import MAIN_FIELDS
from ppga.cli import main
from ppga.errors import InputError
from ppga.policies.network import Network
from ppga.policies.normalizer import CLIP
from ppga.policies.policy import Policy, init_mlp
from ppga.rendering import Renderer
from ppga.rollouts import evaluate
from ppga.tasks import TASKS
from ppga.tasks.locomotion import HalfCheetah
from ppga.viewer.access import MOST_CLIENTS
from ppga.viewer.player import Episode, Player
from ppga.viewer.server import PageServer
from ppga.viewer.source import Source
from ppga.viewer.stage import SQUARE, Clock, Stage, mesh_of, obstacles_size
from ppga.viewer.viewer import ANIMATION_SECONDS, Viewer, frame_interval, levels_of

from helpers.browser import until
from helpers.commands import command
from helpers.tasks import shared_task

STEPS = 100
CELLS = [11, 44, 47, 93]


def robots(name: str, cells: list[int]) -> Archive:
    """Random robots, one for each cell, with invented scores."""
    task = shared_task(name, episode_length=STEPS)
    network = Network((task.observation_size, 8, task.action_size))
    keys = jax.random.split(jax.random.key(0), len(cells))
    n, k = len(cells), len(task.measure_names)
    places = np.stack(np.unravel_index(cells, (10,) * k), axis=1)
    elites = {
        "index": np.array(cells, np.int32),
        "solution": np.stack([np.asarray(network.flatten(init_mlp(key, network.sizes))) for key in keys]),
        "objective": np.array([123.0, 4567.0, -89.0, 1011.0][:n], np.float32),
        "measures": (places / 10 + 0.05).astype(np.float32),
        "log_std": np.zeros((n, task.action_size), np.float32),
        "observation_mean": np.zeros((n, task.observation_size), np.float32),
        "observation_variance": np.ones((n, task.observation_size), np.float32),
        "observation_count": np.ones(n, np.float32),
    }
    description = {
        "task": {
            "name": name, "physics": "mujoco", "episode_length": STEPS, "integrator": "fast",
            "control_dt": task.control_dt,
        },
        "network": {**network.describe(), "observation_clip": CLIP},
        "kind": "grid", "shape": [10] * k, "ranges": [[0.0, 1.0]] * k, "algorithm": "ppga",
        "measure_names": list(task.measure_names), "qd_offset": -600.0,
    }  # fmt: skip
    return Archive(description, elites)


def cheetahs() -> Archive:
    """Four random halfcheetahs."""
    return robots("halfcheetah", CELLS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cheetahs")
    cheetahs().save(folder / "archive.safetensors")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[PageServer]:
    server = PageServer(folder, "127.0.0.1", 8900)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.close()


def get(server: PageServer, path: str, **headers: str) -> bytes:
    request = urllib.request.Request(server.address.rstrip("/") + path, headers=headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return bytes(answer.read())


def post(server: PageServer, path: str, content: Any, **headers: str) -> Any:
    request = urllib.request.Request(
        server.address.rstrip("/") + path, json.dumps(content).encode(), {"X-Ppga": "1"} | headers
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read())


# Components.


def test_the_clock_starts_again_and_keeps_its_time_when_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    clock = Clock()
    assert clock.time == 0
    clock.set(length=10.0, at=0.0)
    now += 4
    assert clock.time == pytest.approx(4)
    clock.set(speed=0.5)
    now += 2
    assert clock.time == pytest.approx(5)
    clock.set(playing=False)
    now += 100
    assert clock.time == pytest.approx(5)
    clock.set(playing=True, speed=2.0)
    now += 3
    assert clock.time == pytest.approx(1)
    clock.set(follow=False)
    assert clock.state() == {
        "time": clock.time,
        "length": 10,
        "playing": True,
        "speed": 2,
        "follow": False,
    }


def test_an_episode_is_the_one_that_an_evaluation_plays(folder: Path) -> None:
    steps = 15  # few, because differences in rounding grow
    task = shared_task("halfcheetah", episode_length=steps)
    archive = ppga.load_archive(folder)
    network = Network.of(archive.description["network"])
    episode = Player(task, network).play(archive, 44, start=3)
    policy = Policy.of_elite(archive.elite(44))
    scores = jax.jit(
        lambda key: evaluate(task, lambda observation, *_: policy.mean_action(network, observation), key, 1)
    )(jax.random.fold_in(jax.random.key(0), 3))
    assert len(episode) == steps
    assert episode.objective == pytest.approx(float(scores.objective[0]), rel=1e-3)
    np.testing.assert_allclose(episode.measures, scores.measures[0], atol=1e-5)
    assert episode.archived[0] == 4567.0
    assert episode.archived[1] == pytest.approx([0.45, 0.45])
    data = mujoco.MjData(task.model)
    data.qpos[:] = episode.qpos[10]
    mujoco.mj_forward(task.model, data)
    np.testing.assert_allclose(episode.position[10], data.xpos, atol=1e-9)
    np.testing.assert_allclose(episode.quaternion[10], data.xquat, atol=1e-9)
    rows = episode.to_csv(task.control_dt, task.measure_names).splitlines()
    assert len(rows) == 1 + steps
    assert rows[0].startswith("time,reward,back foot,front foot,action 0")
    assert sum(float(row.split(",")[1]) for row in rows[1:]) == pytest.approx(episode.objective, rel=1e-3)


def test_geoms_become_meshes_of_their_size() -> None:
    """Volumes and extents are those of closed forms."""
    spec = mujoco.MjSpec()
    body = spec.worldbody.add_body()
    kinds = mujoco.mjtGeom
    for kind, size in (
        (kinds.mjGEOM_SPHERE, [0.5, 0, 0]),
        (kinds.mjGEOM_CAPSULE, [0.2, 0.5, 0]),
        (kinds.mjGEOM_CYLINDER, [0.2, 0.5, 0]),
        (kinds.mjGEOM_BOX, [0.1, 0.2, 0.3]),
        (kinds.mjGEOM_ELLIPSOID, [0.1, 0.2, 0.3]),
    ):
        body.add_geom(type=kind, size=size)
    body.add_geom(type=kinds.mjGEOM_SPHERE, size=[1, 0, 0], rgba=[1, 1, 1, 0])
    spec.worldbody.add_geom(type=kinds.mjGEOM_PLANE, size=[1, 1, 1])
    model = spec.compile()
    known: dict[int, tuple[float, list[float]]] = {
        int(kinds.mjGEOM_SPHERE): (4 / 3 * np.pi * 0.5**3, [1, 1, 1]),
        int(kinds.mjGEOM_CAPSULE): (np.pi * 0.2**2 * (1 + 4 / 3 * 0.2), [0.4, 0.4, 1.4]),
        int(kinds.mjGEOM_CYLINDER): (np.pi * 0.2**2, [0.4, 0.4, 1]),
        int(kinds.mjGEOM_BOX): (0.048, [0.2, 0.4, 0.6]),
        int(kinds.mjGEOM_ELLIPSOID): (4 / 3 * np.pi * 0.006, [0.2, 0.4, 0.6]),
    }
    drawn = 0
    for geom in range(model.ngeom):
        mesh = mesh_of(model, geom)
        if model.geom_rgba[geom, 3] == 0 or model.geom_type[geom] == kinds.mjGEOM_PLANE:
            assert mesh is None
            continue
        volume, extents = known[int(model.geom_type[geom])]
        assert mesh.volume == pytest.approx(volume, rel=0.06)
        np.testing.assert_allclose(mesh.extents, extents, rtol=0.03)
        np.testing.assert_allclose(mesh.bounds.mean(axis=0), 0, atol=1e-6)
        drawn += 1
    assert drawn == 5


@pytest.fixture(scope="module")
def maze() -> Iterator[tuple[Stage, Episode]]:
    """An empty stage, and an episode of a point in its maze."""
    task = shared_task("point-maze", episode_length=STEPS)
    archive = robots("point-maze", [44])
    stage = Stage(task.drawable(), task.control_dt, "127.0.0.1", 9050)
    yield stage, Player(task, Network.of(archive.description["network"])).play(archive, 44)
    stage.stop()


def test_walls_stay_in_place_around_the_robot(maze: tuple[Stage, Episode]) -> None:
    stage, episode = maze
    walls, point = stage.robots[0].bodies[0], stage.robots[0].bodies[1]
    assert not walls.visible
    stage.show(0, episode)
    assert walls.visible
    assert not stage.robots[1].bodies[0].visible
    for follow in (True, False):
        for step in (0, 30, 99):
            stage.clock.set(playing=False, at=(step + 0.5) * stage.dt, follow=follow)
            stage.draw()
            np.testing.assert_allclose(point.position - walls.position, episode.position[step, 1], atol=1e-6)
    np.testing.assert_array_equal(walls.position, 0)
    np.testing.assert_allclose(obstacles_size(stage.model), 2.2)
    np.testing.assert_array_equal(obstacles_size(shared_task("hopper").drawable()), 0)
    stage.show(0, None)
    assert not walls.visible


def test_the_floor_is_below_the_robot_and_its_lines_stay_in_place(maze: tuple[Stage, Episode]) -> None:
    """At any distance, ahead or sideways, followed or not."""
    stage, episode = maze
    stage.show(0, replace(episode, position=episode.position + np.array([123.4, -56.7, 0.0])))
    lane, point = stage.robots[0].lane, stage.robots[0].bodies[1]
    gap = lane.width / len(lane.along)
    positions = set()
    for follow in (True, False):
        for step in (0, 30, 99):
            stage.clock.set(playing=False, at=(step + 0.5) * stage.dt, follow=follow)
            stage.draw()
            place = episode.position[step, 1] + np.array([123.4, -56.7, 0.0])
            np.testing.assert_allclose(lane.floor.position[:2], point.position[:2])
            np.testing.assert_allclose(point.position[:2], 0 if follow else place[:2], atol=1e-6)
            across = place[0] + lane.across.position[0]  # in the simulation
            assert across / SQUARE == pytest.approx(round(across / SQUARE), abs=1e-4)
            along = np.array([line.position[1] for line in lane.along])
            assert (np.abs(along) <= lane.width / 2).all()
            lines = (place[1] + along + lane.width / 2) / gap
            np.testing.assert_allclose(lines, np.round(lines), atol=1e-3)
            positions.add(tuple(along))
    assert len(positions) > 1, "the lines move relative to the lane"
    stage.show(0, None)


def test_a_source_reads_a_changed_file_again(tmp_path: Path) -> None:
    source = Source(tmp_path / "run")
    assert not source.exists()
    assert source.snapshot().problem == "the run has not written an archive yet"
    file = tmp_path / "run" / "archive" / "archive.safetensors"
    cheetahs().save(file)
    assert source.exists()
    first = source.snapshot()
    assert first.archive is not None
    assert len(first.archive) == 4
    assert source.snapshot() is first, "read once"
    cheetahs().only(44).save(file)
    second = source.snapshot()
    assert second.archive is not None
    assert len(second.archive) == 1
    assert second.version != first.version
    file.write_bytes(file.read_bytes()[:-7])
    broken = source.snapshot()
    assert broken.archive is None
    assert str(file) in (broken.problem or "")
    assert source.snapshot("corrected").archive is None


def test_the_trajectory_of_the_search_policy_has_a_leg_for_each_restart(tmp_path: Path) -> None:
    config = ppga.PPGAConfig().replace(
        **{
            "branches": 8,
            "strategy.sigma0": 5.0,
            "walk_updates": 1,
            "phases": None,
            "legs.iterations": 3,
            "legs.first_iterations": 0,
        }
    )
    ppga.train("sphere", config, budget=ppga.Budget(iterations=8), output=tmp_path / "run")
    legs = Source(tmp_path / "run").trajectory()
    assert [len(leg) for leg in legs] == [3, 3, 2]
    assert np.shape(legs[0]) == (3, 2), "two measures after each iteration"


# The web server.


def test_only_the_page_is_served(server: PageServer) -> None:
    assert b"<title>ppga</title>" in get(server, "/")
    assert b"drawMap" in get(server, "/page.js")
    for place in ("/../pyproject.toml", "/page.py", "/etc/passwd", "/api", "/archive.safetensors"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(server, place)


def test_only_requests_of_its_own_page_are_accepted(server: PageServer) -> None:
    """Not those with another host name that resolves to this machine, nor forms of other sites."""
    for headers in (
        {"Host": "evil.example:8900"}, {"Host": ""}, {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://evil.example"}, {"Origin": "null"},
    ):  # fmt: skip
        with pytest.raises(urllib.error.HTTPError, match="403"):
            get(server, "/api/about", **headers)
    for name in ("localhost", "LocalHost", "192.168.7.7", "[::1]"):
        assert get(server, "/api/clock", Host=f"{name}:{server.port}")
    for headers in ({"X-Ppga": "0"}, {"X-Ppga": ""}):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            post(server, "/api/remove", {"slot": 0}, **headers)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        post(server, "/api/play", {"slot": "0" * 20_000})


def test_connections_are_limited_and_answers_are_not_mixed_up(server: PageServer) -> None:
    crowd = [
        socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(MOST_CLIENTS + 8)
    ]
    rejected = [connection for connection in crowd[MOST_CLIENTS:] if b"503" in connection.recv(100)]
    assert len(rejected) == 8
    for connection in crowd:
        connection.close()
    until(lambda: b"<title>" in get_or_nothing(server, "/"), "the page for later clients")
    with ThreadPoolExecutor(8) as pool:
        requested = [CELLS[number % len(CELLS)] for number in range(16)]
        answers = list(pool.map(lambda cell: post(server, "/api/play", {"slot": 1, "cell": cell}), requested))
    post(server, "/api/remove", {"slot": 1})
    archived = dict(zip(CELLS, [123.0, 4567.0, -89.0, 1011.0], strict=True))
    for cell, answer in zip(requested, answers, strict=True):
        assert answer["archived"]["objective"] == archived[cell], "each answer belongs to its request"


def get_or_nothing(server: PageServer, path: str) -> bytes:
    try:
        return get(server, path)
    except urllib.error.HTTPError:
        return b""


@settings(max_examples=int(os.environ.get("PPGA_FUZZ", "40")), suppress_health_check=list(HealthCheck))
@given(
    st.binary(max_size=200),
    st.sampled_from([b"", b"GET ", b"POST /api/play HTTP/1.1\r\n", b"GET / HTTP/1.1\r\n"]),
)
def test_malformed_requests_do_no_harm(server: PageServer, data: bytes, first: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(first + data + b"\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(10_000):
                pass
    assert json.loads(get(server, "/api/clock"))


def test_the_server_describes_the_archive(server: PageServer, folder: Path) -> None:
    cells = json.loads(get(server, "/api/cells"))
    assert cells["index"] == CELLS
    assert cells["objective"] == [123.0, 4567.0, -89.0, 1011.0]
    assert cells["problem"] is None
    archive = ppga.load_archive(folder)
    assert cells["qd_score"] == pytest.approx(archive.qd_score)
    corrected = json.loads(get(server, "/api/cells?which=corrected"))
    assert "ppga evaluate" in corrected["problem"]
    about = until(
        lambda: (content := json.loads(get(server, "/api/about")))["stage_port"] and content, "a stage"
    )
    assert about["task"] == "halfcheetah"
    assert about["shown"][0]["cell"] == 44, "the best elite at first"
    assert about["problem"] is None


def test_a_click_plays_the_elite(server: PageServer) -> None:
    shown = post(server, "/api/play", {"slot": 1, "cell": 93, "start": 2})
    assert shown["archived"]["objective"] == 1011.0
    assert shown["steps"] == STEPS
    assert np.shape(shown["levels"]) == (2, STEPS)
    np.testing.assert_allclose(np.mean(shown["levels"], axis=1), shown["episode"]["measures"], atol=1e-6)
    status = post(server, "/api/clock", {"playing": False, "time": 1.0, "speed": 0.5})
    assert (status["playing"], status["time"], status["speed"]) == (False, 1.0, 0.5)
    assert status["length"] == pytest.approx(STEPS * 0.05)
    assert status["follow"]
    assert not post(server, "/api/clock", {"follow": False})["follow"]
    assert not json.loads(get(server, "/api/clock"))["follow"]
    assert post(server, "/api/clock", {"playing": True, "speed": 1.0, "follow": True})["follow"]
    rows = get(server, "/api/rollout.csv?slot=1").decode().splitlines()
    assert len(rows) == 1 + STEPS
    again = post(server, "/api/play", {"slot": 1, "start": 5})
    assert (again["cell"], again["start"]) == (93, 5)
    assert again["episode"]["objective"] != shown["episode"]["objective"]
    post(server, "/api/play", {"slot": 0, "cell": 47})
    pinned = post(server, "/api/pin", {})
    assert pinned["cell"] == 47
    assert json.loads(get(server, "/api/about"))["shown"] == [pinned, pinned]
    post(server, "/api/remove", {"slot": 1})
    for path, request, message in (
        ("/api/play", {"slot": 0, "cell": 5}, "cell 5 is empty"),
        ("/api/play", {"slot": 2, "cell": 44}, "position of a robot, 0 to 1"),
        ("/api/play", {"slot": 0, "cell": "x"}, "must be integers"),
        ("/api/play", {"slot": 0, "cell": 44, "which": "corrected"}, "ppga evaluate"),
        ("/api/play", {"slot": 0, "cell": 44, "which": "secret"}, "which must be archived or corrected"),
        ("/api/clock", {"speed": 1000}, "speed must lie"),
        ("/api/clock", [], "expected a JSON object"),
    ):
        with pytest.raises(urllib.error.HTTPError) as error:
            post(server, path, request)
        with error.value as answer:
            assert message in json.loads(answer.read())["problem"]
    with pytest.raises(urllib.error.HTTPError, match="400"):
        get(server, "/api/rollout.csv?slot=1")


def test_policies_and_animations_can_be_downloaded(server: PageServer, tmp_path: Path) -> None:
    post(server, "/api/play", {"slot": 0, "cell": 47})
    (tmp_path / "one.safetensors").write_bytes(get(server, "/api/policy?slot=0"))
    single, original = ppga.load_archive(tmp_path / "one.safetensors"), cheetahs()
    assert single.elites["index"].tolist() == [47]
    np.testing.assert_array_equal(single.elites["solution"][0], original.elites["solution"][2])
    try:
        with Renderer(shared_task("halfcheetah", episode_length=STEPS).model, 8, 8):
            pass
    except InputError as error:
        pytest.skip(str(error))
    post(server, "/api/play", {"slot": 0, "cell": 44})
    animation = Image.open(io.BytesIO(get(server, "/api/animation.gif?slot=0")))
    frames, length = [], 0
    for number in range(animation.n_frames):  # type: ignore[attr-defined]
        animation.seek(number)
        frames.append(np.asarray(animation.convert("RGB"), int))
        length += animation.info["duration"]
    assert len(frames) > 10
    assert length == 1000 * ANIMATION_SECONDS, "in real time"
    assert np.abs(frames[0] - frames[-1]).max() > 50, "it moves"


@pytest.mark.parametrize(
    ("dt", "every", "milliseconds"),
    [(0.008, 5, 40), (0.015, 2, 30), (0.05, 1, 50), (0.01, 4, 40), (0.001, 40, 40), (0.2, 1, 200)],
)
def test_animations_play_in_real_time(dt: float, every: int, milliseconds: int) -> None:
    assert frame_interval(dt) == (every, milliseconds)
    assert every * dt * 1000 == pytest.approx(milliseconds)


def test_a_damaged_archive_is_reported_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "archive.safetensors").write_bytes(b"not an archive")
    broken = PageServer(tmp_path, "127.0.0.1", 8930)
    threading.Thread(target=broken.serve_forever, daemon=True).start()
    try:
        assert "cannot read" in json.loads(get(broken, "/api/cells"))["problem"]
        assert json.loads(get(broken, "/api/clock"))["stage_port"] is None
        assert json.loads(get(broken, "/api/about"))["stage_port"] is None
    finally:
        broken.close()


class Undrawable(HalfCheetah):
    """A task whose `drawable` raises an error."""

    name = "undrawable"

    def drawable(self) -> mujoco.MjModel:
        raise RuntimeError("not drawable")


def test_the_reason_for_a_missing_stage_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An InputError by its message, and any other error by its type and message."""
    monkeypatch.setitem(TASKS, "undrawable", Undrawable)
    for change, problem in (
        ({"name": "mine"}, "mine is a task of your own"),
        ({"physics": "marbles"}, "'marbles'"),
        ({"name": "undrawable"}, "RuntimeError: not drawable"),
    ):
        archive = cheetahs()
        archive.description["task"] |= change
        archive.save(tmp_path / "archive.safetensors")
        viewer = Viewer(tmp_path, "127.0.0.1", 8935)
        preparing = threading.Thread(target=viewer.prepare)
        preparing.start()
        try:
            assert problem in until(lambda viewer=viewer: viewer.problem, "a problem")
        finally:
            viewer.close()
            preparing.join()


@pytest.mark.parametrize(
    "missing", ["task", "qd_offset", "measure_names", "physics", "episode_length", "integrator"]
)
def test_an_incomplete_archive_is_reported(missing: str, tmp_path: Path) -> None:
    archive = cheetahs()
    description = archive.description
    del (description["task"] if missing in description["task"] else description)[missing]
    archive.save(tmp_path / "archive.safetensors")
    problem = Source(tmp_path).snapshot().problem
    assert problem is not None
    assert "archive.safetensors" in problem


def test_the_next_free_port_is_used(folder: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        server = PageServer(folder, "127.0.0.1", taken)
        assert server.port > taken
        server.server_close()
    with pytest.raises(InputError, match="cannot listen"):
        PageServer(folder, "203.0.113.7", 8950)  # an address of no machine


@pytest.mark.parametrize(("host", "private"), [("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False)])
def test_the_server_knows_whether_it_is_private(folder: Path, host: str, private: bool) -> None:
    server = PageServer(folder, host, 8960)
    assert server.private == private
    server.server_close()


def test_the_command_rejects_a_missing_folder(tmp_path: Path) -> None:
    done = command("view", str(tmp_path / "nothing"))
    assert done.returncode == 2
    assert "no run and no archive" in done.stderr


def test_the_command_names_the_missing_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "viser", None)  # cannot be imported
    monkeypatch.setattr(sys, "argv", ["ppga", "view", str(folder), "--no-browser"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "pip install 'ppga[view]'" in capsys.readouterr().err


def test_the_command_waits_for_a_run_and_serves_it(tmp_path: Path) -> None:
    """From a missing folder to a robot on its lane, ended by Ctrl-C; the port is in use."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        words = [sys.executable, "-m", "ppga", "view", "run", "--wait", "--no-browser", "--port", str(taken)]
        with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as viewing:
            try:
                time.sleep(1.0)
                assert viewing.poll() is None
                cheetahs().save(tmp_path / "run" / "archive.safetensors")
                assert viewing.stdout is not None
                output, address = [], None
                for line in viewing.stdout:
                    output.append(line)
                    address = re.search(r"http://127\.0\.0\.1:(\d+)", line)
                    if address:
                        break
                assert address, output
                assert f"port {taken} is in use; using {address[1]}\n" in output
                url = f"{address[0]}/api/about"

                def stage() -> Any:
                    with urllib.request.urlopen(url, timeout=60) as answer:
                        return json.loads(answer.read())["stage_port"]

                until(stage, "a stage")
            finally:
                viewing.send_signal(signal.SIGINT)
            try:
                assert viewing.wait(60) == 0
            finally:
                viewing.kill()  # otherwise the test would wait for it
            assert "viser" not in viewing.stdout.read()


def test_levels_are_contacts_or_scaled_proxies() -> None:
    proxies = np.array([[0.0, -3.0], [1.0, 1.0], [0.0, 5.0]])
    assert levels_of(proxies) == [[0.0, 1.0, 0.0], [0.0, 0.5, 1.0]]
    assert levels_of(np.ones((2, 1))) == [[1.0, 1.0]]
    assert levels_of(np.full((2, 1), 7.0)) == [[0.0, 0.0]]


# The page.


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, headless, with software rendering."""
    driver, program = shutil.which("chromedriver"), shutil.which("chromium")
    if driver is None or program is None:
        pytest.skip("no chromium and chromium-driver on this machine")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for word in (
        "--headless=new", "--no-sandbox", "--window-size=1280,900", "--disable-dev-shm-usage",
        "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # requests to other hosts fail
    ):  # fmt: skip
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    browser.set_script_timeout(60)
    yield browser
    browser.quit()


def press(browser: Any, selector: str) -> None:
    """Click on an element; again if the page has not drawn it yet or has redrawn it."""
    from selenium.common import exceptions

    def pressed() -> bool:
        try:
            browser.find_element("css selector", selector).click()
        except (
            exceptions.StaleElementReferenceException,
            exceptions.NoSuchElementException,
            exceptions.ElementClickInterceptedException,
            exceptions.ElementNotInteractableException,
        ):
            return False
        return True

    until(pressed, f"an element {selector}")


def picture(browser: Any) -> np.ndarray:
    """Screenshot of the stage without its top, where viser's notices appear."""
    stage = browser.find_element("id", "stage")
    content = base64.b64decode(stage.screenshot_as_base64)
    pixels = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"), int)
    return pixels[len(pixels) // 3 :]


def colors(browser: Any, color: tuple[int, int, int]) -> int:
    """Number of pixels of the stage with about that hue."""
    pixels = picture(browser).astype(float)
    direction = np.array(color, float) / np.linalg.norm(color)
    length = np.linalg.norm(pixels, axis=2)
    similarity = (pixels @ direction) / np.maximum(length, 1)
    return int(((similarity > 0.985) & (length > 30) & (length < 330)).sum())


def visit(browser: Any, server: PageServer) -> None:
    """Open the page, with an empty console log."""
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get(server.address)


def visit_heatmap(browser: Any, server: PageServer) -> None:
    """Open the page with an empty stage, because drawing robots takes long."""
    visit(browser, server)
    until(lambda: browser.find_elements("tag name", "iframe"), "a stage")
    browser.execute_script("document.querySelector('iframe').src = 'about:blank'")
    until(lambda: "cell" in card(browser, 0), "the card of the first elite")


def errors(browser: Any) -> list[str]:
    """Errors on the console since the page was opened."""
    return [line["message"] for line in browser.get_log("browser") if line["level"] == "SEVERE"]


def card(browser: Any, slot: int) -> str:
    """Text of a robot's card; by one script, because the page redraws its cards."""
    script = "return document.querySelector(`.card[data-slot='${arguments[0]}']`)?.innerText ?? ''"
    return str(browser.execute_script(script, slot))


def text(browser: Any, name: str) -> str:
    """Text of an element."""
    return str(browser.execute_script("return document.getElementById(arguments[0]).textContent", name))


def stands_still(browser: Any) -> bool:
    """Whether two screenshots half a second apart are equal."""
    before = picture(browser)
    time.sleep(0.5)
    return bool(np.abs(picture(browser) - before).max() < 60)


def test_a_click_on_a_cell_plays_its_elite(browser: Any, server: PageServer) -> None:
    post(server, "/api/remove", {"slot": 1})
    visit(browser, server)
    until(lambda: browser.find_elements("css selector", ".cell.filled"), "cells of the heatmap")
    assert len(browser.find_elements("css selector", ".cell.filled")) == 4
    assert len(browser.find_elements("css selector", ".cell.empty")) == 96
    first, second = (38, 70, 131), (196, 78, 32)
    until(lambda: colors(browser, first) > 200, "a robot on the stage")

    until(lambda: "cell" in card(browser, 0), "the card of the first elite")
    press(browser, '.cell[data-cell="93"]')
    until(lambda: "cell 93" in card(browser, 0), "the card of the cell")
    assert "1,011" in card(browser, 0)
    before = picture(browser)
    until(lambda: np.abs(picture(browser) - before).max() > 60, "a robot that moves")

    assert colors(browser, second) < 50
    press(browser, ".card .pin")
    until(lambda: "cell 93" in card(browser, 1), "a pinned card")
    press(browser, '.cell[data-cell="44"]')
    until(lambda: "4,567" in card(browser, 0), "the other cell beside it")
    assert "1,011" in card(browser, 1)
    until(lambda: colors(browser, second) > 200, "two robots")

    press(browser, "#playing")
    until(lambda: text(browser, "playing") == "play", "a pause")
    until(lambda: stands_still(browser), "a robot that stands still")
    now = text(browser, "clock")
    assert stands_still(browser)
    assert text(browser, "clock") == now
    press(browser, "#rewind")
    press(browser, ".card .remove")
    until(lambda: not card(browser, 1), "the second robot gone")
    assert errors(browser) == []


def test_space_plays_the_focused_cell_and_pauses_elsewhere(browser: Any, server: PageServer) -> None:
    from selenium.webdriver import ActionChains, Keys

    visit(browser, server)
    until(lambda: text(browser, "playing") == "pause", "a clock that runs")
    until(lambda: browser.find_elements("css selector", '.cell[data-cell="11"]'), "cells of the heatmap")
    browser.execute_script("document.querySelector('.cell[data-cell=\"11\"]').focus()")
    ActionChains(browser).send_keys(Keys.SPACE).perform()
    until(lambda: "cell 11" in card(browser, 0), "the card of the cell")
    assert text(browser, "playing") == "pause"
    browser.execute_script("document.activeElement.blur()")
    ActionChains(browser).send_keys(Keys.SPACE).perform()
    until(lambda: text(browser, "playing") == "play", "a pause")
    ActionChains(browser).send_keys(Keys.SPACE).perform()
    until(lambda: text(browser, "playing") == "pause", "a clock that runs again")


def test_no_other_page_can_connect_to_the_stage(browser: Any, server: PageServer) -> None:
    """Not even the viewer's page, which is on another port; only viser's own page in its frame."""
    stage = until(lambda: server.viewer.stage, "a stage")
    address = f"127.0.0.1:{stage.port}"
    script = """
        const [address, version, done] = arguments;
        const socket = new WebSocket(`ws://${address}`, [`viser-v${version}`]);
        socket.onmessage = () => { socket.close(); done("accepted"); };
        socket.onerror = () => done("rejected");
    """
    pages = {"data:text/html,": "rejected", server.address: "rejected", f"http://{address}/": "accepted"}
    for page, answer in pages.items():
        browser.get(page)
        assert browser.execute_async_script(script, address, version("viser")) == answer, page


def test_the_last_of_several_quick_clicks_is_played(browser: Any, server: PageServer) -> None:
    """The first request is sent at once; of the other clicks, only the last one sends a request."""
    visit_heatmap(browser, server)
    browser.execute_script("""
        window.sent = [];
        const before = window.fetch;
        window.fetch = (place, options) => {
            if (place === "/api/play") window.sent.push(JSON.parse(options.body).cell);
            return before(place, options);
        };
        for (const cell of [11, 44, 47, 93]) {
            const spot = document.querySelector(`.cell[data-cell="${cell}"]`);
            spot.dispatchEvent(new PointerEvent("pointerdown", { button: 0, bubbles: true }));
        }
    """)
    until(lambda: "cell 93" in card(browser, 0), "the last")
    assert browser.execute_script("return window.sent") == [11, 93]
    assert server.viewer.stage is not None
    shown = server.viewer.stage.episode(0)
    assert shown is not None
    assert shown.cell == 93
    assert errors(browser) == []


def test_a_click_is_not_lost_when_the_heatmap_is_redrawn(browser: Any, server: PageServer) -> None:
    from selenium.webdriver import ActionChains

    visit_heatmap(browser, server)
    for cell in (47, 11):
        spot = browser.find_element("css selector", f'.cell[data-cell="{cell}"]')
        ActionChains(browser).click_and_hold(spot).perform()
        browser.execute_script("drawMap()")
        ActionChains(browser).release().perform()
        until(lambda cell=cell: f"cell {cell}" in card(browser, 0), "its card")
    spot = browser.find_element("css selector", '.cell[data-cell="93"]')
    spot.send_keys("\n")
    until(lambda: "cell 93" in card(browser, 0), "the card of a cell chosen by the keyboard")
    assert errors(browser) == []


def test_an_error_is_shown_until_a_request_succeeds(browser: Any, server: PageServer) -> None:
    visit_heatmap(browser, server)
    browser.execute_script("play(0, 5)")
    until(lambda: "cell 5 is empty" in text(browser, "problem"), "an error")
    assert browser.find_element("id", "problem").is_displayed()
    press(browser, '.cell[data-cell="47"]')
    until(lambda: not text(browser, "problem"), "no error")
    assert not browser.find_element("id", "problem").is_displayed()


def test_an_archive_without_policies_has_a_heatmap(browser: Any, tmp_path: Path) -> None:
    """The page says why there is no stage."""
    archive = cheetahs()
    elites = {name: archive.elites[name] for name in MAIN_FIELDS}
    description = archive.description | {"task": {"name": "sphere"}, "network": None}
    Archive(description, elites).save(tmp_path / "archive.safetensors")
    server = PageServer(tmp_path, "127.0.0.1", 9000)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        visit(browser, server)
        until(lambda: "are not policies" in text(browser, "problem"), "the reason")
        assert browser.find_element("id", "problem").is_displayed()
        assert "are not policies" in text(browser, "waiting")
        assert browser.find_elements("css selector", ".cell.filled")
        assert errors(browser) == []
    finally:
        server.close()


def test_an_archive_may_be_empty_or_large(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cheetahs().only().save(tmp_path / "archive.safetensors")
    monkeypatch.setattr(Viewer, "ready", lambda _: None)  # the heatmap only
    server = PageServer(tmp_path, "127.0.0.1", 9010)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        visit(browser, server)
        until(lambda: len(browser.find_elements("css selector", ".cell.empty")) == 100, "the empty heatmap")
        assert text(browser, "low") == text(browser, "high") == "\N{EN DASH}"
        script = "return extremes(Array.from({ length: 300000 }, (_, at) => at - 7))"
        assert browser.execute_script(script) == [-7, 299_992]
        assert errors(browser) == []
    finally:
        server.close()


@pytest.mark.parametrize("kind", ["grid", "cvt"])
def test_only_occupied_cells_of_a_large_heatmap_are_drawn(
    browser: Any, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A browser cannot draw millions of elements."""
    archive, rng = cheetahs(), np.random.default_rng(0)
    shape, centroids = [5000, 2000], None
    if kind == "cvt":
        shape, centroids = [30_000], rng.random((30_000, 2), np.float32)
    description = archive.description | {"kind": kind, "shape": shape}
    Archive(description, archive.elites, centroids).save(tmp_path / "archive.safetensors")
    monkeypatch.setattr(Viewer, "ready", lambda _: None)  # the heatmap only
    server = PageServer(tmp_path, "127.0.0.1", 9050)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        visit(browser, server)
        until(lambda: browser.find_elements("css selector", ".cell.filled"), "the heatmap")
        script = "return [...document.querySelectorAll('.cell')].map((shape) => Number(shape.dataset.cell))"
        assert sorted(browser.execute_script(script)) == CELLS
        assert errors(browser) == []
    finally:
        server.close()


def test_slices_of_a_cvt_are_those_of_their_labels(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten cells along the third measure, all at 0.5 of the other measures."""
    archive = robots("ant", [0, 1])
    centroids = np.full((10, 4), 0.5, np.float32)
    centroids[:, 2] = np.arange(10) / 10 + 0.05
    description = archive.description | {"kind": "cvt", "shape": [10]}
    Archive(description, archive.elites, centroids).save(tmp_path / "archive.safetensors")
    monkeypatch.setattr(Viewer, "ready", lambda _: None)  # the heatmap only
    server = PageServer(tmp_path, "127.0.0.1", 9030)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        visit(browser, server)
        until(lambda: browser.find_elements("css selector", "#sliders input"), "sliders")
        for place in range(10):
            script = """
                const slider = document.querySelector("#sliders input");
                slider.value = arguments[0];
                slider.dispatchEvent(new Event("input"));
                const cells = [...document.querySelectorAll(".cell")].map((shape) => shape.dataset.cell);
                return [document.querySelector("#sliders span").textContent, cells.sort().map(Number)];
            """
            label, cells = browser.execute_script(script, place)
            low, high = (float(word) for word in label.split(" to "))
            inside = (centroids[:, 2] >= low) & (centroids[:, 2] <= high)
            assert cells == np.flatnonzero(inside).tolist(), label
            assert cells
        assert errors(browser) == []
    finally:
        server.close()


def test_of_four_measures_two_are_axes_and_two_have_sliders(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ants in the cells (2, 3, 4, 5) and, better, (2, 3, 4, 7)."""
    robots("ant", [2345, 2347]).save(tmp_path / "archive.safetensors")
    monkeypatch.setattr(Viewer, "ready", lambda _: None)  # the heatmap only
    server = PageServer(tmp_path, "127.0.0.1", 8980)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def filled() -> list[str]:
        script = "return [...document.querySelectorAll('.cell.filled')].map((shape) => shape.dataset.cell)"
        return list(browser.execute_script(script))

    try:
        visit(browser, server)
        until(lambda: filled() == ["2347"], "the slice of the best")
        sliders = browser.find_elements("css selector", "#sliders input")
        assert [slider.get_attribute("value") for slider in sliders] == ["4", "7"]
        script = "arguments[0].value = 5; arguments[0].dispatchEvent(new Event('input'))"
        browser.execute_script(script, sliders[1])
        assert filled() == ["2345"]
        script = "arguments[0].value = '3'; arguments[0].dispatchEvent(new Event('change'))"
        browser.execute_script(script, browser.find_element("id", "across"))
        assert filled() == ["2345", "2347"], "both, along the last measure"
        assert len(browser.find_elements("css selector", ".cell")) == 100
        assert errors(browser) == []
    finally:
        server.close()


def test_the_corrected_archive_and_the_trajectory_are_shown(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    cheetahs().save(run / "archive" / "archive.safetensors")
    cheetahs().only(44).save(run / "archive" / "corrected.safetensors")
    (run / "config.json").write_text("{}")
    trajectory = ([0.1, 0.1], [0.5, 0.4], [0.9, 0.2])
    lines = [
        json.dumps({"iteration": number, "search_measures": measures})
        for number, measures in enumerate(trajectory)
    ]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(Viewer, "ready", lambda _: None)  # the heatmap only
    server = PageServer(run, "127.0.0.1", 8990)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def count(selector: str) -> int:
        return len(browser.find_elements("css selector", selector))

    try:
        visit(browser, server)
        until(lambda: count(".cell.filled") == 4, "the archive")
        assert count("#map polyline, #map path") == 0
        press(browser, "#trajectory")
        until(lambda: count("#map polyline, #map path") > 0, "the trajectory of the search policy")
        choose = "arguments[0].value = 'corrected'; arguments[0].dispatchEvent(new Event('change'))"
        browser.execute_script(choose, browser.find_element("id", "which"))
        until(lambda: count(".cell.filled") == 1, "the corrected archive")
        assert errors(browser) == []
    finally:
        server.close()


def test_the_page_shows_a_damaged_archive_as_a_problem(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "archive.safetensors").write_bytes(b"not an archive")
    broken = PageServer(tmp_path, "127.0.0.1", 8940)
    threading.Thread(target=broken.serve_forever, daemon=True).start()
    try:
        visit(browser, broken)
        problem = browser.find_element("id", "problem")
        until(lambda: problem.is_displayed(), "a message")
        assert "archive.safetensors" in problem.text
        assert errors(browser) == []
    finally:
        broken.close()


def test_a_run_in_training_is_followed(browser: Any, tmp_path: Path) -> None:
    """The page is opened before the first archive is written, and updated with every new one."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text("{}")
    live = PageServer(run, "127.0.0.1", 8960)
    threading.Thread(target=live.serve_forever, daemon=True).start()
    try:
        visit(browser, live)
        until(lambda: "waiting for the first elites" in browser.find_element("id", "stage").text, "waiting")
        cheetahs().only(44).save(run / "archive" / "archive.safetensors")
        until(lambda: len(browser.find_elements("css selector", ".cell.filled")) == 1, "the first elite")
        until(lambda: browser.find_elements("tag name", "iframe"), "a stage")
        cheetahs().save(run / "archive" / "archive.safetensors")
        until(lambda: len(browser.find_elements("css selector", ".cell.filled")) == 4, "the other elites")
        assert errors(browser) == []
    finally:
        live.close()
