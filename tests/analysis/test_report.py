"""Reports of runs, and the figures on them."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageSequence

import ppga
from ppga.analysis import plots, report
from ppga.analysis.runs import read_run
from ppga.archives import Archive, heatmaps
from ppga.errors import InputError
from ppga.storage import write_json

from helpers.commands import command

CONFIG = ppga.PPGAConfig().replace(
    **{"branches": 8, "strategy.sigma0": 5.0, "walk_updates": 1, "log.tensorboard": False}
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    for seed in range(2):
        config = replace(CONFIG, seed=seed)
        ppga.train("sphere", config, budget=ppga.Budget(iterations=6), output=folder / f"seed-{seed}")
    return [folder / "seed-0", folder / "seed-1"]


def test_a_report_is_self_contained_and_notes_what_is_missing(runs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    page = report.report([*runs, tmp_path / "broken", tmp_path / "nowhere"], tmp_path / "out")
    text = page.read_text()
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert "http" not in re.sub(r"base64,[^\"]*", "", text)
    for words in (
        "no up-to-date corrected archive of seed-0, seed-1",
        "broken/config.json",
        "nowhere is not a run",
    ):
        assert words in text
    drawn = {file.stem for file in (tmp_path / "out" / "figures").glob("*.svg")}
    assert drawn == {file.stem for file in (tmp_path / "out" / "figures").glob("*.png")}
    for name in (
        "sphere-qd_score-evaluations",
        "sphere-ccdf",
        "sphere-seed-0-heatmap",
        "sphere-seed-1-trajectory",
        "sphere-seed-0-strategy",
    ):
        assert name in drawn
    animations = {file.stem for file in (tmp_path / "out" / "figures").glob("*.gif")}
    assert animations == {"sphere-seed-0-growth", "sphere-seed-1-growth"}
    assert text.count("<figure>") == len(drawn) + len(animations)


def test_the_growth_of_an_archive_shows_each_snapshot(runs: list[Path], tmp_path: Path) -> None:
    run = read_run(runs[0])
    assert [snapshot["iteration"] for snapshot in run.snapshots()] == [2, 4, 6]
    with Image.open(plots.growth(run, tmp_path / "growth.gif")) as animation:
        assert animation.n_frames == 3  # type: ignore[attr-defined]
        frames = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(animation)]
    assert not np.array_equal(frames[0], frames[-1])
    with Image.open(plots.growth(run, tmp_path / "short.gif", most=2)) as animation:
        assert animation.n_frames == 2  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="no snapshots"):
        plots.growth(replace(run, path=tmp_path), tmp_path / "none.gif")


def test_the_growth_of_an_archive_ends_with_the_archive(tmp_path: Path) -> None:
    ppga.train("sphere", CONFIG, budget=ppga.Budget(iterations=3), output=tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert [snapshot["iteration"] for snapshot in run.snapshots()] == [2]
    with Image.open(plots.growth(run, tmp_path / "growth.gif")) as animation:
        assert animation.n_frames == 2  # type: ignore[attr-defined]


def test_the_table_has_means_and_intervals(runs: list[Path]) -> None:
    read = [read_run(path) for path in runs]
    table = report.summary(read)
    last = [run.metrics[-1]["qd_score"] for run in read]
    (row,) = table.to_dict("records")
    assert row["seeds"] == 2
    assert row["QD-score"].startswith(f"{np.mean(last):,.0f} [")
    assert row["corrected QD-score"] == "unknown"
    assert row["coverage of survivors"] == row["coverage"], "no episode of the sphere ends early"


def test_an_outdated_evaluation_is_left_out(runs: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs[0], folder)
    archive_folder = folder / "archive"
    archive = ppga.load_archive(folder)
    write_json(archive_folder / "evaluation.json", {"episodes": 2})
    archive.save(archive_folder / "corrected.safetensors")
    run = read_run(folder)
    assert run.corrected is not None
    assert run.evaluation == {"episodes": 2}
    earlier = replace(archive, description=archive.description | {"iteration": 3})
    earlier.save(archive_folder / "corrected.safetensors")
    run = read_run(folder)
    assert run.corrected is None
    assert run.evaluation is None


def test_differences_between_runs_of_a_group_are_noted(runs: list[Path], tmp_path: Path) -> None:
    config = CONFIG.replace(**{"strategy.sigma0": 4.0})
    ppga.train("sphere", config, budget=ppga.Budget(iterations=1), output=tmp_path / "other")
    text = report.report([*runs, tmp_path / "other"], tmp_path / "odd", ["a further note"]).read_text()
    assert "ppga on sphere: runs differ in more than the seed, strategy.sigma0 is 5.0 or 4.0." in text
    assert "ppga on sphere: several runs have the same seed" in text
    assert "a further note" in text
    assert text.count("differ in more than the seed") == 1
    text = report.report(runs, tmp_path / "same").read_text()
    assert "differ in more than the seed" not in text
    assert "have the same seed" not in text


def test_a_task_named_like_a_path_does_not_escape_the_folder(runs: list[Path], tmp_path: Path) -> None:
    archive = ppga.load_archive(runs[0])
    task = archive.description["task"] | {"name": f"{tmp_path}/elsewhere/task"}
    file = tmp_path / "evil.safetensors"
    replace(archive, description=archive.description | {"task": task}).save(file)
    page = report.report([file], tmp_path / "out")
    assert "elsewhere/task" in page.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.safetensors", "out"]
    assert command("export", str(file), "--format", "archive", folder=tmp_path).returncode == 0
    assert not (tmp_path / "elsewhere").exists()


def test_a_report_without_runs_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to report"):
        report.report([tmp_path], tmp_path / "out")


def archive(cells: list[int], objectives: list[float]) -> Archive:
    description = {
        "task": {"name": "test"},
        "network": None,
        "shape": [2, 2],
        "ranges": [[0, 1], [0, 1]],
        "measure_names": ["a", "b"],
        "qd_offset": 0.0,
    }
    elites = {"index": np.array(cells), "objective": np.array(objectives)}
    return Archive(description, elites)


def test_archives_are_compared_cell_by_cell() -> None:
    both, values, first, second = plots.compare_cells(
        archive([0, 1, 3], [1.0, 2.0, 3.0]), archive([1, 2, 3], [5.0, 0.0, 1.0])
    )
    assert list(both) == [1, 3]
    assert list(values) == [3.0, -2.0]
    assert list(first) == [0]
    assert list(second) == [2]


def test_a_difference_is_drawn_where_the_cells_are() -> None:
    first, second = archive([0, 1, 3], [1.0, 2.0, 3.0]), archive([1, 2, 3], [5.0, 0.0, 1.0])
    centroids = np.array([[0.1, 0.9], [0.2, 0.3], [0.6, 0.5], [0.8, 0.7]])
    axes = plots.difference(replace(first, centroids=centroids), replace(second, centroids=centroids))
    drawn = [np.asarray(each.get_offsets()) for each in axes.collections]
    for points, cells in zip(drawn, ([1, 3], [0], [2]), strict=True):
        np.testing.assert_allclose(points, centroids[cells])
    axes = plots.difference(first, second)
    shown = axes.get_images()[0].get_array()
    assert shown is not None
    values = np.ma.filled(shown, np.nan)
    np.testing.assert_array_equal(values, [[3.0, -2.0], [np.nan, np.nan]])  # the second measure upwards
    marks = [np.asarray(each.get_offsets()) for each in axes.collections]
    np.testing.assert_allclose(marks[0], [[0.25, 0.25]])
    np.testing.assert_allclose(marks[1], [[0.75, 0.25]])


def test_heatmaps_share_a_color_scale_and_leave_out_empty_cells() -> None:
    first, second = archive([0, 1], [1.0, 2.0]), archive([3], [10.0])
    scale = heatmaps.shared_scale([first, second])
    assert (scale.vmin, scale.vmax) == (1.0, 10.0)
    image = heatmaps.heatmap(first, scale=scale).get_images()[0]
    drawn = image.get_array()
    assert drawn is not None
    assert np.ma.getmaskarray(drawn).sum() == 2, "empty cells are not drawn"
    assert image.norm is scale
