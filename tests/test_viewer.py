"""The viewer: its parts, its web server, and its page in a real browser."""

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
from hypothesis import strategies as some
from PIL import Image

import ppga
from ppga.archives import Archive
from ppga.archives.files import MAIN_FIELDS
from ppga.cli import main
from ppga.errors import InputError
from ppga.policies import CLIP, Network, Policy, init_mlp
from ppga.rendering import Renderer
from ppga.rollouts import evaluate
from ppga.tasks import TASKS
from ppga.tasks.locomotion import HalfCheetah
from ppga.viewer.access import MOST_CLIENTS
from ppga.viewer.player import Episode, Player
from ppga.viewer.server import PageServer
from ppga.viewer.source import Source
from ppga.viewer.stage import SQUARE, Clock, Stage, mesh_of, world_size
from ppga.viewer.viewer import FILM_SECONDS, Viewer, film_pace, levels_of

from conftest import command, shared_task

STEPS = 100
CELLS = [11, 44, 47, 93]


def robots(name: str, cells: list[int]) -> Archive:
    """Random robots, one for each cell; their archived figures are made up."""
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
    made = PageServer(folder, "127.0.0.1", 8900)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.close()


def get(server: PageServer, place: str, **headers: str) -> bytes:
    question = urllib.request.Request(server.address.rstrip("/") + place, headers=headers)
    with urllib.request.urlopen(question, timeout=120) as answer:
        return bytes(answer.read())


def post(server: PageServer, place: str, content: Any, **headers: str) -> Any:
    question = urllib.request.Request(
        server.address.rstrip("/") + place, json.dumps(content).encode(), {"X-Ppga": "1"} | headers
    )
    with urllib.request.urlopen(question, timeout=120) as answer:
        return json.loads(answer.read())


# The parts.


def test_the_clock_runs_round_and_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert clock.told() == {"time": clock.time, "length": 10, "playing": True, "speed": 2, "follow": False}


def test_an_episode_is_what_the_judge_would_play(folder: Path) -> None:
    steps = 15  # few, or the rounding of two programs grows into other strides
    task = shared_task("halfcheetah", episode_length=steps)
    archive = ppga.load_archive(folder)
    network = Network.of(archive.description["network"])
    episode = Player(task, network).play(archive, 44, start=3)
    policy = Policy.of_elite(archive.elite(44))
    scores = jax.jit(lambda key: evaluate(task, lambda seen, *_: policy.mean_action(network, seen), key, 1))(
        jax.random.fold_in(jax.random.key(0), 3)
    )
    assert len(episode) == steps
    assert episode.objective == pytest.approx(float(scores.objective[0]), rel=1e-3)
    np.testing.assert_allclose(episode.measures, scores.measures[0], atol=1e-5)
    assert episode.archived[0] == 4567.0
    assert episode.archived[1] == pytest.approx([0.45, 0.45])
    data = mujoco.MjData(task.model)
    data.qpos[:] = episode.qpos[10]
    mujoco.mj_forward(task.model, data)
    np.testing.assert_allclose(episode.place[10], data.xpos, atol=1e-9)
    np.testing.assert_allclose(episode.turn[10], data.xquat, atol=1e-9)
    rows = episode.to_csv(task.control_dt, task.measure_names).splitlines()
    assert len(rows) == 1 + steps
    assert rows[0].startswith("time,reward,back foot,front foot,action 0")
    assert sum(float(row.split(",")[1]) for row in rows[1:]) == pytest.approx(episode.objective, rel=1e-3)


def test_geoms_become_meshes_of_their_size() -> None:
    """Volumes and extents against closed forms."""
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
    """A stage with nobody on it, and what a point did in its maze."""
    task = shared_task("point-maze", episode_length=STEPS)
    made = robots("point-maze", [44])
    stage = Stage(task.drawable(), task.control_dt, "127.0.0.1", 9050)
    yield stage, Player(task, Network.of(made.description["network"])).play(made, 44)
    stage.stop()


def test_walls_stand_still_around_the_robot(maze: tuple[Stage, Episode]) -> None:
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
            np.testing.assert_allclose(point.position - walls.position, episode.place[step, 1], atol=1e-6)
    np.testing.assert_array_equal(walls.position, 0)
    np.testing.assert_allclose(world_size(stage.model), 2.2)
    np.testing.assert_array_equal(world_size(shared_task("hopper").drawable()), 0)
    stage.show(0, None)
    assert not walls.visible


def test_the_floor_is_below_the_robot_and_its_lines_stay(maze: tuple[Stage, Episode]) -> None:
    """However far it walks, ahead or sideways, followed or not."""
    stage, episode = maze
    stage.show(0, replace(episode, place=episode.place + np.array([123.4, -56.7, 0.0])))
    lane, point = stage.robots[0].lane, stage.robots[0].bodies[1]
    gap = lane.width / len(lane.along)
    seen = set()
    for follow in (True, False):
        for step in (0, 30, 99):
            stage.clock.set(playing=False, at=(step + 0.5) * stage.dt, follow=follow)
            stage.draw()
            place = episode.place[step, 1] + np.array([123.4, -56.7, 0.0])
            np.testing.assert_allclose(lane.floor.position[:2], point.position[:2])
            np.testing.assert_allclose(point.position[:2], 0 if follow else place[:2], atol=1e-6)
            across = place[0] + lane.across.position[0]  # in the world
            assert across / SQUARE == pytest.approx(round(across / SQUARE), abs=1e-4)
            along = np.array([line.position[1] for line in lane.along])
            assert (np.abs(along) <= lane.width / 2).all()
            lines = (place[1] + along + lane.width / 2) / gap
            np.testing.assert_allclose(lines, np.round(lines), atol=1e-3)
            seen.add(tuple(along))
    assert len(seen) > 1, "they move as it does"
    stage.show(0, None)


def test_a_source_follows_its_file(tmp_path: Path) -> None:
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


def test_the_way_of_the_search_policy_breaks_at_restarts(tmp_path: Path) -> None:
    config = ppga.PPGAConfig(search=ppga.SearchConfig(branches=8, sigma0=5.0, walk_updates=1, leg=3))
    ppga.train("sphere", config, budget=ppga.Budget(iterations=8), output=tmp_path / "run")
    legs = Source(tmp_path / "run").path_of_search()
    assert [len(leg) for leg in legs] == [3, 3, 2]


# The web server.


def test_the_page_is_served_and_nothing_else(server: PageServer) -> None:
    assert b"<title>ppga</title>" in get(server, "/")
    assert b"drawMap" in get(server, "/page.js")
    for place in ("/../pyproject.toml", "/page.py", "/etc/passwd", "/api", "/archive.safetensors"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(server, place)


def test_only_its_own_page_may_ask(server: PageServer) -> None:
    """A foreign site's name that leads here, and a form that another site sends."""
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
            post(server, "/api/leave", {"slot": 0}, **headers)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        post(server, "/api/play", {"slot": "0" * 20_000})


def test_many_at_once_are_limited_and_stay_apart(server: PageServer) -> None:
    crowd = [
        socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(MOST_CLIENTS + 8)
    ]
    refused = [one for one in crowd[MOST_CLIENTS:] if b"503" in one.recv(100)]
    assert len(refused) == 8
    for one in crowd:
        one.close()
    until(lambda: b"<title>" in get_or_nothing(server, "/"), "the page for those who come later")
    with ThreadPoolExecutor(8) as pool:
        asked = [CELLS[number % len(CELLS)] for number in range(16)]
        answers = list(pool.map(lambda cell: post(server, "/api/play", {"slot": 1, "cell": cell}), asked))
    post(server, "/api/leave", {"slot": 1})
    archived = dict(zip(CELLS, [123.0, 4567.0, -89.0, 1011.0], strict=True))
    for cell, answer in zip(asked, answers, strict=True):
        assert answer["archived"]["objective"] == archived[cell], "everyone is answered what they asked"


def get_or_nothing(server: PageServer, place: str) -> bytes:
    try:
        return get(server, place)
    except urllib.error.HTTPError:
        return b""


@settings(max_examples=int(os.environ.get("PPGA_FUZZ", "40")), suppress_health_check=list(HealthCheck))
@given(
    some.binary(max_size=200),
    some.sampled_from([b"", b"GET ", b"POST /api/play HTTP/1.1\r\n", b"GET / HTTP/1.1\r\n"]),
)
def test_odd_bytes_do_no_harm(server: PageServer, data: bytes, first: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as one:
        one.sendall(first + data + b"\r\n\r\n")
        one.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            while one.recv(10_000):
                pass
    assert json.loads(get(server, "/api/clock"))


def test_it_tells_what_is_in_the_archive(server: PageServer, folder: Path) -> None:
    cells = json.loads(get(server, "/api/cells"))
    assert cells["index"] == CELLS
    assert cells["objective"] == [123.0, 4567.0, -89.0, 1011.0]
    assert cells["problem"] is None
    archive = ppga.load_archive(folder)
    assert cells["qd_score"] == pytest.approx(archive.qd_score)
    corrected = json.loads(get(server, "/api/cells?which=corrected"))
    assert "ppga evaluate" in corrected["problem"]
    about = until(lambda: (told := json.loads(get(server, "/api/about")))["stage_port"] and told, "a stage")
    assert about["task"] == "halfcheetah"
    assert about["shown"][0]["cell"] == 44, "the best, to begin with"
    assert about["problem"] is None


def test_a_click_plays_the_elite(server: PageServer) -> None:
    shown = post(server, "/api/play", {"slot": 1, "cell": 93, "start": 2})
    assert shown["archived"]["objective"] == 1011.0
    assert shown["steps"] == STEPS
    assert np.shape(shown["levels"]) == (2, STEPS)
    np.testing.assert_allclose(np.mean(shown["levels"], axis=1), shown["seen"]["measures"], atol=1e-6)
    news = post(server, "/api/clock", {"playing": False, "time": 1.0, "speed": 0.5})
    assert (news["playing"], news["time"], news["speed"]) == (False, 1.0, 0.5)
    assert news["length"] == pytest.approx(STEPS * 0.05)
    assert news["follow"]
    assert not post(server, "/api/clock", {"follow": False})["follow"]
    assert not json.loads(get(server, "/api/clock"))["follow"]
    assert post(server, "/api/clock", {"playing": True, "speed": 1.0, "follow": True})["follow"]
    rows = get(server, "/api/rollout.csv?slot=1").decode().splitlines()
    assert len(rows) == 1 + STEPS
    again = post(server, "/api/play", {"slot": 1, "start": 5})
    assert (again["cell"], again["start"]) == (93, 5)
    assert again["seen"]["objective"] != shown["seen"]["objective"]
    post(server, "/api/play", {"slot": 0, "cell": 47})
    pinned = post(server, "/api/pin", {})
    assert pinned["cell"] == 47
    assert json.loads(get(server, "/api/about"))["shown"] == [pinned, pinned]
    post(server, "/api/leave", {"slot": 1})
    for place, question, message in (
        ("/api/play", {"slot": 0, "cell": 5}, "cell 5 is empty"),
        ("/api/play", {"slot": 2, "cell": 44}, "there are 2 lanes"),
        ("/api/play", {"slot": 0, "cell": "x"}, "whole numbers"),
        ("/api/play", {"slot": 0, "cell": 44, "which": "corrected"}, "ppga evaluate"),
        ("/api/play", {"slot": 0, "cell": 44, "which": "secret"}, "which archive"),
        ("/api/clock", {"speed": 1000}, "speed must lie"),
        ("/api/clock", [], "not a question"),
    ):
        with pytest.raises(urllib.error.HTTPError) as refusal:
            post(server, place, question)
        with refusal.value as answer:
            assert message in json.loads(answer.read())["problem"]
    with pytest.raises(urllib.error.HTTPError, match="400"):
        get(server, "/api/rollout.csv?slot=1")


def test_what_is_seen_can_be_taken_home(server: PageServer, tmp_path: Path) -> None:
    post(server, "/api/play", {"slot": 0, "cell": 47})
    (tmp_path / "one.safetensors").write_bytes(get(server, "/api/policy?slot=0"))
    alone, all_of_them = ppga.load_archive(tmp_path / "one.safetensors"), cheetahs()
    assert alone.elites["index"].tolist() == [47]
    np.testing.assert_array_equal(alone.elites["solution"][0], all_of_them.elites["solution"][2])
    try:
        with Renderer(shared_task("halfcheetah", episode_length=STEPS).model, 8, 8):
            pass
    except InputError as error:
        pytest.skip(str(error))
    post(server, "/api/play", {"slot": 0, "cell": 44})
    film = Image.open(io.BytesIO(get(server, "/api/film.gif?slot=0")))
    frames, length = [], 0
    for number in range(film.n_frames):  # type: ignore[attr-defined]
        film.seek(number)
        frames.append(np.asarray(film.convert("RGB"), int))
        length += film.info["duration"]
    assert len(frames) > 10
    assert length == 1000 * FILM_SECONDS, "as fast as it was"
    assert np.abs(frames[0] - frames[-1]).max() > 50, "it moves"


@pytest.mark.parametrize(
    ("dt", "every", "milliseconds"),
    [(0.008, 5, 40), (0.015, 2, 30), (0.05, 1, 50), (0.01, 4, 40), (0.001, 40, 40), (0.2, 1, 200)],
)
def test_films_are_as_fast_as_what_they_show(dt: float, every: int, milliseconds: int) -> None:
    assert film_pace(dt) == (every, milliseconds)
    assert every * dt * 1000 == pytest.approx(milliseconds)


def test_a_damaged_archive_is_told_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "archive.safetensors").write_bytes(b"not an archive")
    broken = PageServer(tmp_path, "127.0.0.1", 8930)
    threading.Thread(target=broken.serve_forever, daemon=True).start()
    try:
        assert "cannot read" in json.loads(get(broken, "/api/cells"))["problem"]
        assert json.loads(get(broken, "/api/clock"))["stage_port"] is None
        assert json.loads(get(broken, "/api/about"))["stage_port"] is None
    finally:
        broken.close()


class Shy(HalfCheetah):
    """Cannot be drawn."""

    name = "shy"

    def drawable(self) -> mujoco.MjModel:
        raise RuntimeError("look away")


def test_what_cannot_be_shown_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's mistake in its own words, and whatever else goes wrong by its name."""
    monkeypatch.setitem(TASKS, "shy", Shy)
    for change, problem in (
        ({"name": "mine"}, "mine is a task of your own"),
        ({"physics": "marbles"}, "'marbles'"),
        ({"name": "shy"}, "RuntimeError: look away"),
    ):
        made = cheetahs()
        made.description["task"] |= change
        made.save(tmp_path / "archive.safetensors")
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
def test_an_archive_that_is_not_whole_is_told(missing: str, tmp_path: Path) -> None:
    made = cheetahs()
    del (made.description["task"] if missing in made.description["task"] else made.description)[missing]
    made.save(tmp_path / "archive.safetensors")
    problem = Source(tmp_path).snapshot().problem
    assert problem is not None
    assert "archive.safetensors" in problem


def test_a_taken_port_is_passed_over(folder: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        server = PageServer(folder, "127.0.0.1", taken)
        assert server.port > taken
        server.server_close()
    with pytest.raises(InputError, match="cannot listen"):
        PageServer(folder, "203.0.113.7", 8950)  # an address of nobody


@pytest.mark.parametrize(("host", "private"), [("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False)])
def test_it_knows_whether_others_can_look(folder: Path, host: str, private: bool) -> None:
    server = PageServer(folder, host, 8960)
    assert server.private == private
    server.server_close()


def test_the_command_refuses_what_is_not_there(tmp_path: Path) -> None:
    found = command("view", str(tmp_path / "nothing"))
    assert found.returncode == 2
    assert "no run and no archive" in found.stderr


def test_the_command_says_which_extra_is_missing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "viser", None)  # what cannot be imported
    monkeypatch.setattr(sys, "argv", ["ppga", "view", str(folder), "--no-browser"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "pip install 'ppga[view]'" in capsys.readouterr().err


def test_the_command_waits_for_a_run_and_serves_it(tmp_path: Path) -> None:
    """From a folder that is not there to a robot on its lane; ended as a user would. The port is taken."""
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
                said, address = [], None
                for line in viewing.stdout:
                    said.append(line)
                    address = re.search(r"http://127\.0\.0\.1:(\d+)", line)
                    if address:
                        break
                assert address, said
                assert f"port {taken} is taken; using {address[1]}\n" in said
                place = f"{address[0]}/api/about"

                def stage() -> Any:
                    with urllib.request.urlopen(place, timeout=60) as answer:
                        return json.loads(answer.read())["stage_port"]

                until(stage, "a stage")
            finally:
                viewing.send_signal(signal.SIGINT)
            try:
                assert viewing.wait(60) == 0
            finally:
                viewing.kill()  # or a process that does not end would never let this one
            assert "viser" not in viewing.stdout.read()


def test_levels_are_contacts_or_lie_between_extremes() -> None:
    proxies = np.array([[0.0, -3.0], [1.0, 1.0], [0.0, 5.0]])
    assert levels_of(proxies) == [[0.0, 1.0, 0.0], [0.0, 0.5, 1.0]]
    assert levels_of(np.ones((2, 1))) == [[1.0, 1.0]]
    assert levels_of(np.full((2, 1), 7.0)) == [[0.0, 0.0]]


# The page.


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, without a window, drawing in software."""
    driver, program = shutil.which("chromedriver"), shutil.which("chromium")
    if driver is None or program is None:
        pytest.skip("no chromium and chromium-driver on this machine")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for word in (
        "--headless=new", "--no-sandbox", "--window-size=1280,900", "--disable-dev-shm-usage",
        "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # what is fetched from elsewhere fails
    ):  # fmt: skip
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    made.set_script_timeout(60)
    yield made
    made.quit()


def until(condition: Any, what: str, seconds: float = 300) -> Any:
    """Wait for something to be so."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(f"never: {what}")


def press(browser: Any, selector: str) -> None:
    """Click on something, found again if the page drew it anew in between or has not yet."""
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

    until(pressed, f"something to press at {selector}")


def picture(browser: Any) -> np.ndarray:
    """The stage as it looks now, but for its top, where viser's notices slide in."""
    stage = browser.find_element("id", "stage")
    content = base64.b64decode(stage.screenshot_as_base64)
    seen = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"), int)
    return seen[len(seen) // 3 :]


def colours(browser: Any, colour: tuple[int, int, int]) -> int:
    """Pixels of the stage whose tint is about that of a robot."""
    seen = picture(browser).astype(float)
    wanted = np.array(colour, float) / np.linalg.norm(colour)
    length = np.linalg.norm(seen, axis=2)
    alike = (seen @ wanted) / np.maximum(length, 1)
    return int(((alike > 0.985) & (length > 30) & (length < 330)).sum())


def visit(browser: Any, server: PageServer) -> None:
    """Open the page; what was said before, about another that has gone, is forgotten."""
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get(server.address)


def visit_map(browser: Any, server: PageServer) -> None:
    """Open the page, with the stage there but empty: drawing robots takes long here."""
    visit(browser, server)
    until(lambda: browser.find_elements("tag name", "iframe"), "a stage")
    browser.execute_script("document.querySelector('iframe').src = 'about:blank'")
    until(lambda: "cell" in card(browser, 0), "the card of the first elite")


def errors(browser: Any) -> list[str]:
    """What the console was told since the page was opened."""
    return [line["message"] for line in browser.get_log("browser") if line["level"] == "SEVERE"]


def card(browser: Any, slot: int) -> str:
    """What the card of a robot says; in one go, for the page draws its cards anew."""
    script = "return document.querySelector(`.card[data-slot='${arguments[0]}']`)?.innerText ?? ''"
    return str(browser.execute_script(script, slot))


def text(browser: Any, name: str) -> str:
    """What an element of the page says."""
    return str(browser.execute_script("return document.getElementById(arguments[0]).textContent", name))


def stands_still(browser: Any) -> bool:
    """Whether two pictures half a second apart agree; what was drawn before may still arrive."""
    before = picture(browser)
    time.sleep(0.5)
    return bool(np.abs(picture(browser) - before).max() < 60)


def test_click_a_cell_watch_the_gait(browser: Any, server: PageServer) -> None:
    post(server, "/api/leave", {"slot": 1})
    visit(browser, server)
    until(lambda: browser.find_elements("css selector", ".cell.filled"), "cells on the map")
    assert len(browser.find_elements("css selector", ".cell.filled")) == 4
    assert len(browser.find_elements("css selector", ".cell.empty")) == 96
    first, second = (38, 70, 131), (196, 78, 32)
    until(lambda: colours(browser, first) > 200, "a robot on the stage")

    until(lambda: "cell" in card(browser, 0), "the card of the first elite")
    press(browser, '.cell[data-cell="93"]')
    until(lambda: "cell 93" in card(browser, 0), "the card of the cell")
    assert "1,011" in card(browser, 0)
    before = picture(browser)
    until(lambda: np.abs(picture(browser) - before).max() > 60, "a robot that moves")

    assert colours(browser, second) < 50
    press(browser, ".card .pin")
    until(lambda: "cell 93" in card(browser, 1), "a pinned card")
    press(browser, '.cell[data-cell="44"]')
    until(lambda: "4,567" in card(browser, 0), "the other cell beside it")
    assert "1,011" in card(browser, 1)
    until(lambda: colours(browser, second) > 200, "two robots")

    press(browser, "#playing")
    until(lambda: text(browser, "playing") == "play", "a pause")
    until(lambda: stands_still(browser), "a robot that stands still")
    now = text(browser, "clock")
    assert stands_still(browser)
    assert text(browser, "clock") == now
    press(browser, "#again")
    press(browser, ".card .remove")
    until(lambda: not card(browser, 1), "the second robot gone")
    assert errors(browser) == []


def test_no_other_page_can_connect_to_the_stage(browser: Any, server: PageServer) -> None:
    """Whatever site it is from, even another port of this machine; only viser's own, in the frame."""
    stage = until(lambda: server.viewer.stage, "a stage")
    address = f"127.0.0.1:{stage.port}"
    script = """
        const [address, version, done] = arguments;
        const socket = new WebSocket(`ws://${address}`, [`viser-v${version}`]);
        socket.onmessage = () => { socket.close(); done("let in"); };
        socket.onerror = () => done("refused");
    """
    pages = {"data:text/html,": "refused", server.address: "refused", f"http://{address}/": "let in"}
    for page, answer in pages.items():
        browser.get(page)
        assert browser.execute_async_script(script, address, version("viser")) == answer, page


def test_of_quick_clicks_the_last_one_counts(browser: Any, server: PageServer) -> None:
    """The first is on its way when the others come; of those, only the last is sent."""
    visit_map(browser, server)
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


def test_a_click_is_not_lost_when_the_map_is_drawn_anew_below_it(browser: Any, server: PageServer) -> None:
    from selenium.webdriver import ActionChains

    visit_map(browser, server)
    for cell in (47, 11):
        spot = browser.find_element("css selector", f'.cell[data-cell="{cell}"]')
        ActionChains(browser).click_and_hold(spot).perform()
        browser.execute_script("drawMap()")
        ActionChains(browser).release().perform()
        until(lambda cell=cell: f"cell {cell}" in card(browser, 0), "its card")
    spot = browser.find_element("css selector", '.cell[data-cell="93"]')
    spot.send_keys("\n")
    until(lambda: "cell 93" in card(browser, 0), "the card of a cell chosen by keys")
    assert errors(browser) == []


def test_a_refusal_is_told_until_something_works(browser: Any, server: PageServer) -> None:
    visit_map(browser, server)
    browser.execute_script("play(0, 5)")
    until(lambda: "cell 5 is empty" in text(browser, "problem"), "a refusal")
    assert browser.find_element("id", "problem").is_displayed()
    press(browser, '.cell[data-cell="47"]')
    until(lambda: not text(browser, "problem"), "no problem any more")
    assert not browser.find_element("id", "problem").is_displayed()


def test_what_does_not_walk_has_a_map_all_the_same(browser: Any, tmp_path: Path) -> None:
    """And the page says why nobody is on the stage."""
    made = cheetahs()
    elites = {name: made.elites[name] for name in MAIN_FIELDS}
    description = made.description | {"task": {"name": "sphere"}, "network": None}
    Archive(description, elites).save(tmp_path / "archive.safetensors")
    server = PageServer(tmp_path, "127.0.0.1", 9000)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        visit(browser, server)
        until(lambda: "cannot be shown walking" in text(browser, "problem"), "what is wrong")
        assert browser.find_element("id", "problem").is_displayed()
        assert "cannot be shown walking" in text(browser, "waiting")
        assert browser.find_elements("css selector", ".cell.filled")
        assert errors(browser) == []
    finally:
        server.close()


def test_an_archive_may_be_empty_or_large(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cheetahs().only().save(tmp_path / "archive.safetensors")
    monkeypatch.setattr(Viewer, "ready", lambda _: None)  # the map alone
    server = PageServer(tmp_path, "127.0.0.1", 9010)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        visit(browser, server)
        until(lambda: len(browser.find_elements("css selector", ".cell.empty")) == 100, "the empty map")
        assert text(browser, "low") == text(browser, "high") == "\N{EN DASH}"
        script = "return extremes(Array.from({ length: 300000 }, (_, at) => at - 7))"
        assert browser.execute_script(script) == [-7, 299_992]
        assert errors(browser) == []
    finally:
        server.close()


@pytest.mark.parametrize("kind", ["grid", "cvt"])
def test_of_a_huge_map_only_the_filled_cells_are_drawn(
    browser: Any, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A browser has no room for elements in millions."""
    made, draws = cheetahs(), np.random.default_rng(0)
    shape, centroids = [5000, 2000], None
    if kind == "cvt":
        shape, centroids = [30_000], draws.random((30_000, 2), np.float32)
    description = made.description | {"kind": kind, "shape": shape}
    Archive(description, made.elites, centroids).save(tmp_path / "archive.safetensors")
    monkeypatch.setattr(Viewer, "ready", lambda _: None)  # the map alone
    server = PageServer(tmp_path, "127.0.0.1", 9050)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        visit(browser, server)
        until(lambda: browser.find_elements("css selector", ".cell.filled"), "the map")
        script = "return [...document.querySelectorAll('.cell')].map((spot) => Number(spot.dataset.cell))"
        assert sorted(browser.execute_script(script)) == CELLS
        assert errors(browser) == []
    finally:
        server.close()


def test_slices_of_a_cvt_are_what_their_labels_say(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten ants along the third measure, all of them at 0.5 of the others."""
    made = robots("ant", [0, 1])
    centroids = np.full((10, 4), 0.5, np.float32)
    centroids[:, 2] = np.arange(10) / 10 + 0.05
    description = made.description | {"kind": "cvt", "shape": [10]}
    Archive(description, made.elites, centroids).save(tmp_path / "archive.safetensors")
    monkeypatch.setattr(Viewer, "ready", lambda _: None)  # the map alone
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
                const cells = [...document.querySelectorAll(".cell")].map((spot) => spot.dataset.cell);
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


def test_of_four_measures_two_are_shown_and_two_slid_through(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ants in the cells (2, 3, 4, 5) and, better, (2, 3, 4, 7)."""
    robots("ant", [2345, 2347]).save(tmp_path / "archive.safetensors")
    monkeypatch.setattr(Viewer, "ready", lambda _: None)  # the map alone
    server = PageServer(tmp_path, "127.0.0.1", 8980)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def filled() -> list[str]:
        script = "return [...document.querySelectorAll('.cell.filled')].map((spot) => spot.dataset.cell)"
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


def test_the_corrected_archive_and_the_way_of_the_search_are_shown(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    cheetahs().save(run / "archive" / "archive.safetensors")
    cheetahs().only(44).save(run / "archive" / "corrected.safetensors")
    (run / "config.json").write_text("{}")
    ways = ([[0.1, 0.1]], [[0.5, 0.4]], [[0.9, 0.2]])
    lines = [json.dumps({"iteration": number, "search_measures": way}) for number, way in enumerate(ways)]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(Viewer, "ready", lambda _: None)  # the map alone
    server = PageServer(run, "127.0.0.1", 8990)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def count(selector: str) -> int:
        return len(browser.find_elements("css selector", selector))

    try:
        visit(browser, server)
        until(lambda: count(".cell.filled") == 4, "the archive")
        assert count("#map polyline, #map path") == 0
        press(browser, "#path")
        until(lambda: count("#map polyline, #map path") > 0, "the way of the search policy")
        choose = "arguments[0].value = 'corrected'; arguments[0].dispatchEvent(new Event('change'))"
        browser.execute_script(choose, browser.find_element("id", "which"))
        until(lambda: count(".cell.filled") == 1, "the corrected archive")
        assert errors(browser) == []
    finally:
        server.close()


def test_the_page_says_what_is_wrong(browser: Any, tmp_path: Path) -> None:
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


def test_a_run_that_goes_on_is_followed(browser: Any, tmp_path: Path) -> None:
    """The page is open before the first archive is written, and takes in what comes."""
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
        until(lambda: len(browser.find_elements("css selector", ".cell.filled")) == 4, "the others")
        assert errors(browser) == []
    finally:
        live.close()
