"""Small archives, and the archives that are included in the package."""

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
from ppga.archives import Archive, included, load_archive
from ppga.archives.files import HALF_PRECISION, SINGLE_PRECISION
from ppga.errors import InputError
from ppga.policies.network import Network
from ppga.policies.normalizer import CLIP
from ppga.storage import read_json
from ppga.viewer.viewer import Viewer

from helpers.commands import command

SHAPES = {"walker2d": (10, 10), "ant": (6, 6, 6, 6)}
SIZES = {"walker2d": (17, 128, 128, 6), "ant": (27, 128, 128, 8)}
TRAINING = (
    "--preset", "smoke", "--algorithm", "map-elites", "--iterations", "1",
    "--simulation.episode-length", "30",
)  # fmt: skip
"""Options of a very short run."""
LARGEST = 25e6
"""Maximum bytes of all included archives."""


def archive_of(task: str, n: int = 40) -> Archive:
    """Random networks of the usual size; elites are in the cells of their measures."""
    rng, network, shape = np.random.default_rng(0), Network(SIZES[task]), SHAPES[task]
    layers = [
        (rng.normal(size=(n, a, b)).astype(np.float32) * np.float32(1.5 / np.sqrt(a)),
         rng.normal(size=(n, b)).astype(np.float32) / 10)
        for a, b in zip(network.sizes[:-1], network.sizes[1:], strict=True)
    ]  # fmt: skip
    observation_size, k = network.sizes[0], len(shape)
    cells = np.sort(rng.choice(np.prod(shape), n, replace=False)).astype(np.int32)
    place = np.stack(np.unravel_index(cells, shape), axis=1)
    elites = {
        "index": cells,
        "solution": np.concatenate([part.reshape(n, -1) for layer in layers for part in layer], axis=1),
        "objective": rng.normal(1000, 500, n).astype(np.float32),
        "measures": ((place + rng.uniform(0.1, 0.9, (n, k))) / shape).astype(np.float32),
        "log_std": rng.normal(size=(n, network.outputs)).astype(np.float32),
        "observation_mean": rng.normal(size=(n, observation_size)).astype(np.float32),
        "observation_variance": rng.uniform(0.1, 9, (n, observation_size)).astype(np.float32),
        "observation_count": np.full(n, 1e6 + 1, np.float32),
        "returns_covariance": rng.normal(size=(n, k + 1, k + 1)).astype(np.float32),
        "critics": rng.normal(size=(n, 2, 7)).astype(np.float32),
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
def test_only_solutions_are_rounded_to_half_precision_as_numpy_does(
    task: str, mapped: bool, tmp_path: Path
) -> None:
    archive, file = archive_of(task), tmp_path / "small.safetensors"
    archive.save(file, half=True)
    rounded = archive.elites["solution"].astype(np.float16)
    on_disk = safetensors.numpy.load_file(file)["elites/solution"]  # by the library's own reader
    assert on_disk.dtype == np.float16
    np.testing.assert_array_equal(on_disk, rounded)
    loaded = load_archive(file, mapped=mapped)
    assert loaded.description["version"] == HALF_PRECISION
    assert loaded.elites.keys() == archive.elites.keys()
    for name, values in archive.elites.items():
        expected = rounded.astype(np.float32) if name == "solution" else values
        np.testing.assert_array_equal(loaded.elites[name], expected, err_msg=name)
        assert loaded.elites[name].dtype == values.dtype
    loaded.save(tmp_path / "again.safetensors")  # in single precision
    again = load_archive(tmp_path / "again.safetensors")
    assert again.description["version"] == SINGLE_PRECISION
    np.testing.assert_array_equal(again.elites["solution"], rounded.astype(np.float32))


def rounding_bound(network: Network, solution: np.ndarray, observation: np.ndarray) -> np.ndarray:
    """Bound of the change of actions if each parameter is rounded by 2^-11 of its size, layer by layer."""
    u, tiny = 2.0**-11, 2.0**-25
    value, error = observation.astype(np.float64), np.zeros_like(observation, np.float64)
    layers = network.layers(solution.astype(np.float64))
    for number, (weights, biases) in enumerate(layers):
        each = u * np.abs(weights) + tiny
        error = error @ np.abs(weights) + (np.abs(value) + error) @ each + u * np.abs(biases) + tiny
        value = value @ weights + biases
        if number < len(layers) - 1:
            value = np.tanh(value)  # its slope is at most 1
    return error


@pytest.mark.parametrize("task", SIZES)
def test_half_precision_changes_actions_only_slightly(task: str, tmp_path: Path) -> None:
    archive = archive_of(task, 5)
    archive.save(tmp_path / "small.safetensors", half=True)
    small, network = load_archive(tmp_path / "small.safetensors"), Network(SIZES[task])
    for cell in archive.elites["index"].tolist():
        elite = archive.elite(cell)
        normalized = np.random.default_rng(1).normal(size=(200, SIZES[task][0])).astype(np.float32)
        observation = elite["observation_mean"] + np.sqrt(elite["observation_variance"]) * normalized
        change = np.abs(small.policy(cell)(observation) - archive.policy(cell)(observation))
        assert 0 < change.max() < 0.005
        assert (change <= rounding_bound(network, elite["solution"], normalized) + 1e-5).all()


def test_numbers_too_large_for_half_precision_are_rejected(tmp_path: Path) -> None:
    archive = archive_of("walker2d", 3)
    archive.elites["solution"][1, 5] = 7e4
    with pytest.raises(InputError, match="half precision"):
        archive.save(tmp_path / "small.safetensors", half=True)
    assert not list(tmp_path.iterdir())


def test_files_of_unknown_versions_are_rejected(tmp_path: Path) -> None:
    """Files that the safetensors library has written."""
    archive = archive_of("ant", 4)
    arrays = {f"elites/{name}": values for name, values in archive.elites.items()}
    for version in (1, 3):
        header = {"format": "ppga archive", "version": version, **archive.description}
        safetensors.numpy.save_file(arrays, tmp_path / f"{version}.safetensors", {"ppga": json.dumps(header)})
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


def test_a_cvt_is_converted_to_a_grid_whose_shape_must_fit(tmp_path: Path) -> None:
    archive = archive_of("walker2d", 20)
    centroids = archive.elites["measures"].copy()
    description = archive.description | {"kind": "cvt", "shape": [20]}
    cvt = Archive(description, {**archive.elites, "index": np.arange(20, dtype=np.int32)}, centroids)
    cvt.on_grid((10, 10)).save(tmp_path / "grid.safetensors")
    grid = load_archive(tmp_path / "grid.safetensors")
    np.testing.assert_array_equal(grid.elites["index"], archive.elites["index"])
    fields = archive.without_learners().elites.keys()
    assert archive.elites.keys() - fields == {"critics"}  # a run can still start from it
    for shape in ((4,), (4, 0), (2, 2, 2)):
        with pytest.raises(InputError, match="cells along each of foot 0, foot 1"):
            archive.on_grid(shape)


# Export of a run to an archive for the package.


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A very short run of walker2d, evaluated."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert command("train", "walker2d", *TRAINING, "--seed", "3", "--output", str(folder)).returncode == 0
    assert command("evaluate", str(folder), "--episodes", "2").returncode == 0
    return folder


@pytest.fixture
def package(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in place of the package's, with an archive of that run; nothing may be written there."""
    folder = tmp_path / "package"
    done = command(
        "export", str(run), "--format", "archive", "--small", "--output", str(folder / "walker2d.safetensors")
    )
    assert done.returncode == 0
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(included, "FOLDER", folder)
    content = (folder / "walker2d.safetensors").read_bytes()
    yield folder
    assert [file.name for file in folder.iterdir()] == ["walker2d.safetensors"]
    assert (folder / "walker2d.safetensors").read_bytes() == content


def test_an_exported_archive_describes_its_run(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "small.safetensors"
    done = command(
        "export", str(run), "--format", "archive", "--small", "--shape", "5", "5", "--output", str(file)
    )
    assert done.returncode == 0
    assert "elites of the corrected archive" in done.stdout
    corrected, small = load_archive(run / "archive" / "corrected.safetensors"), load_archive(file)
    expected = corrected.on_grid((5, 5))
    for name, values in small.elites.items():
        exact = expected.elites[name]
        rounded = exact.astype(np.float16) if name == "solution" else exact
        np.testing.assert_array_equal(values, rounded, err_msg=name)
    description = small.description
    assert description["evaluation"] == read_json(run / "archive" / "evaluation.json")
    assert description["exported"] == {
        "which": "corrected", "shape": [10, 10], "elites": len(corrected), "ppga": ppga.__version__,
    }  # fmt: skip
    run_description = description["run"]
    assert description["seed"] == run_description["config"]["seed"] == 3
    assert run_description["budget"]["iterations"] == 1
    assert run_description["machine"]["versions"]["ppga"] == ppga.__version__
    assert run_description["preset"] == "smoke"
    assert run_description["changed"] == {"simulation.episode_length": 30}
    assert "system" not in run_description["machine"]
    assert run_description["wall_time"] > 0
    assert run_description["env_steps"] > 0
    assert run_description["iteration"] == 1


def test_the_exported_archive_can_be_chosen(run: Path, tmp_path: Path) -> None:
    def export(place: Path, *words: str) -> tuple[int, str]:
        file = tmp_path / "exported.safetensors"
        done = command("export", str(place), "--format", "archive", "--output", str(file), *words)
        return done.returncode, done.stdout + done.stderr

    trained = load_archive(run)
    assert "of the archived archive" in export(run, "--which", "archived")[1]
    exported = load_archive(tmp_path / "exported.safetensors")
    for name, values in trained.elites.items():  # without --small
        np.testing.assert_array_equal(exported.elites[name], values)
    assert "of the corrected archive" in export(run / "archive")[1]
    assert (
        "of the archived archive" in export(run / "archive" / "archive.safetensors", "--which", "archived")[1]
    )
    assert export(run, "--best")[0] == 0
    assert len(load_archive(tmp_path / "exported.safetensors")) == 1
    # as if the run had continued
    continued = tmp_path / "continued"
    (continued / "archive").mkdir(parents=True)
    Archive(trained.description | {"iteration": 9}, trained.elites).save(
        continued / "archive" / "archive.safetensors"
    )
    load_archive(run / "archive" / "corrected.safetensors").save(
        continued / "archive" / "corrected.safetensors"
    )
    code, output = export(continued)
    assert code == 2
    assert "is of iteration 1, but the run has continued to iteration 9" in output
    assert export(continued, "--which", "corrected")[0] == 0
    (continued / "archive" / "corrected.safetensors").unlink()
    assert "no corrected archive" in export(continued, "--which", "corrected")[1]
    assert export(continued)[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--best", "--small"), "--small and --shape need --format archive"),
        (("--best", "--shape", "2", "2"), "--small and --shape need --format archive"),
        (("--format", "archive", "--shape", "4"), "cells along each of right foot, left foot"),
        (("--format", "archive", "--output", "folder"), "--output must be NAME.safetensors for an archive"),
        (("--format", "archive", "--which", "correct"), "Did you mean 'corrected'"),
        (("--format", "archive", "--best", "--all"), "choose the policies by one of --best"),
    ],
)
def test_inconsistent_options_of_export_are_rejected(
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
    monkeypatch.setattr(included, "FOLDER", package / "nothing")
    assert ppga.pretrained() == ()
    with pytest.raises(InputError, match="no pretrained archives"):
        ppga.pretrained("walker2d")


def test_commands_accept_pretrained_archives_and_write_to_the_working_directory(
    package: Path, run: Path
) -> None:
    name, n = "pretrained:walker2d", len(ppga.pretrained("walker2d"))
    corrected = str(run / "archive" / "corrected.safetensors")
    assert command("evaluate", name, "--episodes", "2").returncode == 0
    assert {file.name for file in Path().iterdir()} == {
        "corrected.safetensors",
        "evaluation.csv",
        "evaluation.json",
    }
    assert read_json(Path("evaluation.json"))["evaluated"] == n
    assert included.output_folder(package / "walker2d.safetensors") == Path()
    assert included.output_folder(run / "archive.safetensors") == run
    compared = command("compare", corrected, name)
    assert f"In the {n} cells that both occupy, the second is better by 0.0" in compared.stdout
    assert command("export", name, "--best", "--format", "npz").returncode == 0
    assert len(list(Path("policies").iterdir())) == 1
    refused = command("adapt", name, "--damage", "lock:wing")  # the message lists the joints
    assert refused.returncode == 2
    assert "foot_left_joint" in refused.stderr


def test_a_run_starts_from_pretrained_elites(package: Path) -> None:  # noqa: ARG001
    done = command("train", "walker2d", *TRAINING, "--init-from", "pretrained:walker2d", "--output", "run")
    assert done.returncode == 0
    assert read_json(Path("run/config.json"))["config"]["init_from"] == "pretrained:walker2d"
    trained, initial = load_archive("run"), ppga.pretrained("walker2d")
    assert trained.coverage >= initial.coverage
    assert set(initial.elites["index"]) <= set(trained.elites["index"])
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
        assert viewer.source.trajectory() == []
        assert (
            viewer.cells("corrected")["problem"]
            == "there is no corrected archive yet; ppga evaluate writes it"
        )
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


def test_a_report_of_an_archive_has_no_metrics_of_its_training(package: Path) -> None:  # noqa: ARG001
    assert command("report", "pretrained:walker2d", "--output", "report").returncode == 0
    page = Path("report/report.html").read_text()
    assert "walker2d: the file of an archive has no metrics of its training" in page
    drawn = {file.stem.removeprefix("walker2d-") for file in Path("report/figures").glob("*.png")}
    assert drawn - {"frames"} == {"ccdf", "ccdf-corrected", "heatmap", "heatmap-corrected", "gaits"}
    (row,) = summary([read_run("pretrained:walker2d")]).to_dict("records")
    best = f"{ppga.pretrained('walker2d').elites['objective'].max():,.0f}"
    assert (row["task"], row["best reward"], row["corrected best reward"]) == ("walker2d", best, best)


def test_included_archives_are_small_evaluated_and_complete() -> None:
    files = [included.FOLDER / f"{name}.safetensors" for name in ppga.pretrained()]
    assert sum(file.stat().st_size for file in files) <= LARGEST
    for name in ppga.pretrained():
        archive = ppga.pretrained(name)
        description: dict[str, Any] = archive.description
        assert description["task"]["name"] == name
        assert description["version"] == HALF_PRECISION
        assert description["exported"]["which"] == "corrected"
        assert description["evaluation"]["episodes"] >= 10
        task = ppga.make_task(name)
        action = archive.policy(archive.best())(np.zeros(task.observation_size))
        assert action.shape == (task.action_size,)


@pytest.mark.parametrize(
    "name",
    [name if name == "hopper" else pytest.param(name, marks=pytest.mark.long) for name in included.names()],
)
def test_included_elites_reproduce_their_archived_scores(name: str) -> None:
    """The best elite of each archive in new episodes, with the installed physics."""
    archive = ppga.pretrained(name)
    champion = archive.only(archive.best())
    evaluation = evaluate(champion, episodes=8, seed=12345)
    assert evaluation.objective[0] > 0.85 * evaluation.archived_objective[0]
    np.testing.assert_allclose(evaluation.measures, evaluation.archived_measures, atol=0.1)
