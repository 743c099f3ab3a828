"""Archives made small, and those that come with the package."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from ribs.archives import GridArchive

import ppga
from ppga.analysis.corrected import evaluate
from ppga.analysis.report import summary
from ppga.analysis.runs import read_run
from ppga.archives import Archive, load_archive, shipped
from ppga.archives.files import HALF, PLAIN
from ppga.errors import InputError
from ppga.networks import Network
from ppga.policies import CLIP
from ppga.storage import read_json
from ppga.viewer.viewer import Viewer

from conftest import command

SHAPES = {"walker2d": (10, 10), "ant": (6, 6, 6, 6)}
SIZES = {"walker2d": (17, 128, 128, 6), "ant": (27, 128, 128, 8)}
TRAINING = (
    "--preset", "smoke", "--algorithm", "map-elites", "--iterations", "1",
    "--simulation.episode-length", "30",
)  # fmt: skip
"""A run of a moment."""
LARGEST = 25e6
"""Bytes of all archives that come with the package."""


def archive_of(task: str, n: int = 40) -> Archive:
    """Networks as large as they are trained, with numbers at random; elites in the cells they measure."""
    draws, network, shape = np.random.default_rng(0), Network(SIZES[task]), SHAPES[task]
    layers = [
        (draws.normal(size=(n, a, b)).astype(np.float32) * np.float32(1.5 / np.sqrt(a)),
         draws.normal(size=(n, b)).astype(np.float32) / 10)
        for a, b in zip(network.sizes[:-1], network.sizes[1:], strict=True)
    ]  # fmt: skip
    seen, k = network.sizes[0], len(shape)
    cells = np.sort(draws.choice(np.prod(shape), n, replace=False)).astype(np.int32)
    place = np.stack(np.unravel_index(cells, shape), axis=1)
    elites = {
        "index": cells,
        "solution": np.concatenate([part.reshape(n, -1) for layer in layers for part in layer], axis=1),
        "objective": draws.normal(1000, 500, n).astype(np.float32),
        "measures": ((place + draws.uniform(0.1, 0.9, (n, k))) / shape).astype(np.float32),
        "log_std": draws.normal(size=(n, network.outputs)).astype(np.float32),
        "observation_mean": draws.normal(size=(n, seen)).astype(np.float32),
        "observation_variance": draws.uniform(0.1, 9, (n, seen)).astype(np.float32),
        "observation_count": np.full(n, 1e6 + 1, np.float32),
        "returns_covariance": draws.normal(size=(n, k + 1, k + 1)).astype(np.float32),
        "critics": draws.normal(size=(n, 2, 7)).astype(np.float32),
    }
    description = {
        "task": {"name": task, "physics": "mujoco", "episode_length": 100, "integrator": "fast"},
        "network": {**network.describe(), "observation_clip": CLIP},
        "kind": "grid", "shape": list(shape), "ranges": [[0.0, 1.0]] * k,
        "measure_names": [f"foot {number}" for number in range(k)], "qd_offset": 0.0,
    }  # fmt: skip
    return Archive(description, elites)


# Half precision.


@pytest.mark.parametrize("task", SIZES)
@pytest.mark.parametrize("mapped", [False, True])
def test_solutions_in_half_precision_are_rounded_as_numpy_does_and_nothing_else_is(
    task: str, mapped: bool, tmp_path: Path
) -> None:
    archive, file = archive_of(task), tmp_path / "small.safetensors"
    archive.save(file, half=True)
    wanted = archive.elites["solution"].astype(np.float16)
    on_disk = safetensors.numpy.load_file(file)["elites/solution"]  # by the library's own reader
    assert on_disk.dtype == np.float16
    np.testing.assert_array_equal(on_disk, wanted)
    loaded = load_archive(file, mapped=mapped)
    assert loaded.description["version"] == HALF
    assert loaded.elites.keys() == archive.elites.keys()
    for name, values in archive.elites.items():
        expected = wanted.astype(np.float32) if name == "solution" else values
        np.testing.assert_array_equal(loaded.elites[name], expected, err_msg=name)
        assert loaded.elites[name].dtype == values.dtype
    loaded.save(tmp_path / "again.safetensors")  # in single precision, which older versions read
    again = load_archive(tmp_path / "again.safetensors")
    assert again.description["version"] == PLAIN
    np.testing.assert_array_equal(again.elites["solution"], wanted.astype(np.float32))


def rounding(network: Network, solution: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """How far rounding every parameter can move actions at most: u = 2^-11 of each, layer by layer."""
    u, tiny = 2.0**-11, 2.0**-25
    value, off = seen.astype(np.float64), np.zeros_like(seen, np.float64)
    layers = network.layers(solution.astype(np.float64))
    for number, (weights, biases) in enumerate(layers):
        each = u * np.abs(weights) + tiny
        off = off @ np.abs(weights) + (np.abs(value) + off) @ each + u * np.abs(biases) + tiny
        value = value @ weights + biases
        if number < len(layers) - 1:
            value = np.tanh(value)  # which moves no further than what goes in
    return off


@pytest.mark.parametrize("task", SIZES)
def test_actions_hardly_change(task: str, tmp_path: Path) -> None:
    archive = archive_of(task, 5)
    archive.save(tmp_path / "small.safetensors", half=True)
    small, network = load_archive(tmp_path / "small.safetensors"), Network(SIZES[task])
    for cell in archive.elites["index"].tolist():
        elite = archive.elite(cell)
        draws = np.random.default_rng(1).normal(size=(200, SIZES[task][0])).astype(np.float32)
        seen = elite["observation_mean"] + np.sqrt(elite["observation_variance"]) * draws
        moved = np.abs(small.policy(cell)(seen) - archive.policy(cell)(seen))
        assert 0 < moved.max() < 0.005
        assert (moved <= rounding(network, elite["solution"], draws) + 1e-5).all()


def test_numbers_too_large_for_half_precision_are_refused(tmp_path: Path) -> None:
    archive = archive_of("walker2d", 3)
    archive.elites["solution"][1, 5] = 7e4
    with pytest.raises(InputError, match="half precision"):
        archive.save(tmp_path / "small.safetensors", half=True)
    assert not list(tmp_path.iterdir())


def test_files_of_version_1_are_read_and_others_refused(tmp_path: Path) -> None:
    """Written by the safetensors library, as any version of this package did."""
    archive = archive_of("ant", 4)
    arrays = {f"elites/{name}": values for name, values in archive.elites.items()}
    for version in (1, 3):
        told = {"format": "ppga archive", "version": version, **archive.description}
        safetensors.numpy.save_file(arrays, tmp_path / f"{version}.safetensors", {"ppga": json.dumps(told)})
    loaded = load_archive(tmp_path / "1.safetensors")
    np.testing.assert_array_equal(loaded.elites["solution"], archive.elites["solution"])
    with pytest.raises(InputError, match="archive format 3; this ppga reads 1 and 2"):
        load_archive(tmp_path / "3.safetensors")


# Coarser grids.


@pytest.mark.parametrize(
    ("task", "shape"), [("walker2d", (3, 4)), ("ant", (2, 3, 2, 2)), ("ant", (1, 1, 1, 1))]
)
def test_a_coarser_grid_keeps_the_best_of_each_cell(task: str, shape: tuple[int, ...]) -> None:
    archive = archive_of(task)
    coarse = archive.on_grid(shape)
    oracle = GridArchive(solution_dim=1, dims=shape, ranges=archive.ranges)
    rows = np.arange(len(archive))
    oracle.add(rows[:, None], archive.elites["objective"], archive.elites["measures"])
    kept = oracle.data()
    order = np.argsort(kept["index"])
    np.testing.assert_array_equal(coarse.elites["index"], kept["index"][order])
    chosen = kept["solution"][order, 0].astype(int)
    assert 0 < len(chosen) < len(archive)
    for name in archive.elites.keys() - {"index"}:
        np.testing.assert_array_equal(coarse.elites[name], archive.elites[name][chosen], err_msg=name)
    assert coarse.shape == shape
    assert max(coarse.elites["objective"]) == max(archive.elites["objective"])


def test_a_cvt_becomes_a_grid_and_a_grid_must_fit(tmp_path: Path) -> None:
    archive = archive_of("walker2d", 20)
    centroids = archive.elites["measures"].copy()
    told = archive.description | {"kind": "cvt", "shape": [20]}
    cvt = Archive(told, {**archive.elites, "index": np.arange(20, dtype=np.int32)}, centroids)
    cvt.on_grid((10, 10)).save(tmp_path / "grid.safetensors")
    grid = load_archive(tmp_path / "grid.safetensors")
    np.testing.assert_array_equal(grid.elites["index"], archive.elites["index"])
    left = archive.without_learners().elites.keys()
    assert archive.elites.keys() - left == {"critics"}  # a run can begin with what is left
    for shape in ((4,), (4, 0), (2, 2, 2)):
        with pytest.raises(InputError, match="cells along each of foot 0, foot 1"):
            archive.on_grid(shape)


# A run on its way into the package.


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of walker2d, a moment long, and evaluated."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert command("train", "walker2d", *TRAINING, "--seed", "3", "--output", str(folder)).returncode == 0
    assert command("evaluate", str(folder), "--episodes", "2").returncode == 0
    return folder


@pytest.fixture
def package(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in place of the package's, with that run in it; nothing may be written there."""
    folder = tmp_path / "package"
    done = command(
        "export", str(run), "--format", "archive", "--small", "--output", str(folder / "walker2d.safetensors")
    )
    assert done.returncode == 0
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(shipped, "FOLDER", folder)
    content = (folder / "walker2d.safetensors").read_bytes()
    yield folder
    assert [file.name for file in folder.iterdir()] == ["walker2d.safetensors"]
    assert (folder / "walker2d.safetensors").read_bytes() == content


def test_a_run_becomes_a_small_archive_that_tells_how_it_was_made(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "small.safetensors"
    done = command(
        "export", str(run), "--format", "archive", "--small", "--shape", "5", "5", "--output", str(file)
    )
    assert done.returncode == 0
    assert "elites of the corrected archive" in done.stdout
    corrected, small = load_archive(run / "archive" / "corrected.safetensors"), load_archive(file)
    wanted = corrected.on_grid((5, 5))
    for name, values in small.elites.items():
        rounded = wanted.elites[name].astype(np.float16) if name == "solution" else wanted.elites[name]
        np.testing.assert_array_equal(values, rounded, err_msg=name)
    told = small.description
    assert told["evaluation"] == read_json(run / "archive" / "evaluation.json")
    assert told["exported"] == {
        "which": "corrected", "shape": [10, 10], "elites": len(corrected), "ppga": ppga.__version__,
    }  # fmt: skip
    assert told["seed"] == told["run"]["config"]["seed"] == 3
    assert told["run"]["budget"]["iterations"] == 1
    assert told["run"]["machine"]["versions"]["ppga"] == ppga.__version__
    assert told["run"]["preset"] == "smoke"
    assert told["run"]["changed"] == {"simulation.episode_length": 30}
    assert "system" not in told["run"]["machine"]
    assert told["run"]["wall_time"] > 0
    assert told["run"]["env_steps"] > 0
    assert told["run"]["iteration"] == 1


def test_which_archive_is_taken_can_be_said(run: Path, tmp_path: Path) -> None:
    def export(place: Path, *words: str) -> tuple[int, str]:
        file = tmp_path / "made.safetensors"
        done = command("export", str(place), "--format", "archive", "--output", str(file), *words)
        return done.returncode, done.stdout + done.stderr

    trained = load_archive(run)
    assert "of the archived archive" in export(run, "--which", "archived")[1]
    made = load_archive(tmp_path / "made.safetensors")
    for name, values in trained.elites.items():  # nothing was asked to be small
        np.testing.assert_array_equal(made.elites[name], values)
    assert "of the corrected archive" in export(run / "archive")[1]
    assert (
        "of the archived archive" in export(run / "archive" / "archive.safetensors", "--which", "archived")[1]
    )
    assert export(run, "--best")[0] == 0
    assert len(load_archive(tmp_path / "made.safetensors")) == 1
    # as if the run had gone on
    went_on = tmp_path / "went on"
    (went_on / "archive").mkdir(parents=True)
    Archive(trained.description | {"iteration": 9}, trained.elites).save(
        went_on / "archive" / "archive.safetensors"
    )
    load_archive(run / "archive" / "corrected.safetensors").save(
        went_on / "archive" / "corrected.safetensors"
    )
    code, said = export(went_on)
    assert code == 2
    assert "is of iteration 1, and the run has gone on to 9" in said
    assert export(went_on, "--which", "corrected")[0] == 0
    (went_on / "archive" / "corrected.safetensors").unlink()
    assert "no corrected archive" in export(went_on, "--which", "corrected")[1]
    assert export(went_on)[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--best", "--small"), "belong to --format archive"),
        (("--best", "--shape", "2", "2"), "belong to --format archive"),
        (("--format", "archive", "--shape", "4"), "cells along each of right foot, left foot"),
        (("--format", "archive", "--output", "folder"), "an archive is a file"),
        (("--format", "archive", "--which", "correct"), "Did you mean 'corrected'"),
        (("--format", "archive", "--best", "--all"), "which policies?"),
    ],
)
def test_an_export_that_makes_no_sense_is_refused(
    words: tuple[str, ...], message: str, run: Path, tmp_path: Path
) -> None:
    refused = command("export", str(run), *words, folder=tmp_path)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert not list(tmp_path.iterdir())


# From the package.


def test_pretrained_archives_are_found_by_name(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ppga.pretrained() == ("walker2d",)
    archive = ppga.pretrained("walker2d")
    same = load_archive(package / "walker2d.safetensors")
    np.testing.assert_array_equal(archive.elites["solution"], same.elites["solution"])
    assert archive.policy(archive.best())(np.zeros(17)).shape == (6,)
    np.testing.assert_array_equal(load_archive("pretrained:walker2d").elites["index"], same.elites["index"])
    with pytest.raises(InputError, match=r"unknown pretrained archive 'walker'.*Possible: walker2d"):
        ppga.pretrained("walker")
    monkeypatch.setattr(shipped, "FOLDER", package / "nothing")
    assert ppga.pretrained() == ()
    with pytest.raises(InputError, match="no pretrained archives"):
        ppga.pretrained("walker2d")


def test_commands_take_pretrained_archives_and_write_here(package: Path, run: Path) -> None:
    name, n = "pretrained:walker2d", len(ppga.pretrained("walker2d"))
    corrected = str(run / "archive" / "corrected.safetensors")
    assert command("evaluate", name, "--episodes", "2").returncode == 0
    assert {file.name for file in Path().iterdir()} == {
        "corrected.safetensors",
        "evaluation.csv",
        "evaluation.json",
    }
    assert read_json(Path("evaluation.json"))["evaluated"] == n
    assert shipped.beside(package / "walker2d.safetensors") == Path()  # by its path, it is the package's too
    assert shipped.beside(run / "archive.safetensors") == run
    compared = command("compare", corrected, name)
    assert f"In the {n} cells that both fill, the second is better by 0.0" in compared.stdout
    assert command("export", name, "--best", "--format", "npz").returncode == 0
    assert len(list(Path("policies").iterdir())) == 1
    refused = command("adapt", name, "--damage", "lock:wing")  # it knows whose joints there are
    assert refused.returncode == 2
    assert "foot_left_joint" in refused.stderr


def test_a_run_begins_with_pretrained_elites(package: Path) -> None:  # noqa: ARG001
    done = command("train", "walker2d", *TRAINING, "--init-from", "pretrained:walker2d", "--output", "run")
    assert done.returncode == 0
    assert read_json(Path("run/config.json"))["config"]["init_from"] == "pretrained:walker2d"
    begun, given = load_archive("run"), ppga.pretrained("walker2d")
    assert begun.coverage >= given.coverage
    assert set(given.elites["index"]) <= set(begun.elites["index"])
    refused = command("train", "walker2d", *TRAINING, "--init-from", "pretrained:ant")
    assert refused.returncode == 2
    assert "Possible: walker2d" in refused.stderr


def test_the_viewer_plays_pretrained_elites(package: Path) -> None:
    archive = ppga.pretrained("walker2d")
    viewer = Viewer(Path("pretrained:walker2d"), "127.0.0.1", 8950)
    try:
        cells = viewer.cells("archived")
        assert cells["index"] == archive.elites["index"].tolist()
        shown = viewer.play({"slot": 0, "cell": archive.best()})
        assert shown["cell"] == archive.best()
        assert [len(foot) for foot in shown["levels"]] == [shown["steps"]] * 2
        assert viewer.source.path_of_search() == []
        assert viewer.cells("corrected")["problem"] == "ppga evaluate makes it"
    finally:
        viewer.close()
    for words, message in (
        ((), "ppga view --pretrained NAME"),
        ((str(package), "--pretrained", "walker2d"), "ppga view --pretrained NAME"),
        (("--pretrained", "walker"), "Did you mean 'walker2d'"),
    ):
        refused = command("view", *words)
        assert refused.returncode == 2
        assert message in refused.stderr


def test_a_report_tells_what_an_archive_by_itself_can(package: Path) -> None:  # noqa: ARG001
    assert command("report", "pretrained:walker2d", "--output", "report").returncode == 0
    page = Path("report/report.html").read_text()
    assert "walker2d: an archive by itself does not tell how it was trained" in page
    drawn = {file.stem.removeprefix("walker2d-") for file in Path("report/figures").glob("*.png")}
    assert drawn - {"film"} == {"ccdf", "ccdf-corrected", "heatmap", "heatmap-corrected", "gaits"}
    (row,) = summary([read_run("pretrained:walker2d")]).to_dict("records")
    best = f"{ppga.pretrained('walker2d').elites['objective'].max():,.0f}"
    assert (row["task"], row["best reward"], row["corrected best reward"]) == ("walker2d", best, best)


def test_what_comes_with_the_package_is_whole() -> None:
    files = [shipped.FOLDER / f"{name}.safetensors" for name in ppga.pretrained()]
    assert sum(file.stat().st_size for file in files) <= LARGEST
    for name in ppga.pretrained():
        archive = ppga.pretrained(name)
        told: dict[str, Any] = archive.description
        assert told["task"]["name"] == name
        assert told["version"] == HALF
        assert told["exported"]["which"] == "corrected"
        assert told["evaluation"]["episodes"] >= 10
        task = ppga.make_task(name)
        action = archive.policy(archive.best())(np.zeros(task.observation_size))
        assert action.shape == (task.action_size,)


@pytest.mark.parametrize(
    "name",
    [name if name == "hopper" else pytest.param(name, marks=pytest.mark.long) for name in shipped.names()],
)
def test_what_comes_with_the_package_walks_as_its_file_says(name: str) -> None:
    """The best elite of each in new episodes, by the physics that is installed here."""
    archive = ppga.pretrained(name)
    champion = archive.only(archive.best())
    found = evaluate(champion, episodes=8, seed=12345)
    assert found.objective[0] > 0.85 * found.claimed_objective[0]
    np.testing.assert_allclose(found.measures, found.claimed_measures, atol=0.1)
