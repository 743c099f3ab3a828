import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageSequence

import ppga
from ppga.analysis import plots, report
from ppga.analysis.runs import read_run
from ppga.archives import Archive, maps
from ppga.errors import InputError

CONFIG = ppga.PPGAConfig(
    search=ppga.SearchConfig(branches=8, sigma0=5.0, walk_updates=1),
    keeping=ppga.KeepingConfig(tensorboard=False),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    for seed in range(2):
        config = replace(CONFIG, seed=seed)
        ppga.train("sphere", config, budget=ppga.Budget(iterations=6), output=folder / f"seed-{seed}")
    return [folder / "seed-0", folder / "seed-1"]


def test_the_page_needs_nothing_from_outside_and_says_what_is_missing(
    runs: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    page = report.report([*runs, tmp_path / "broken", tmp_path / "nowhere"], tmp_path / "out")
    text = page.read_text()
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert "http" not in re.sub(r"base64,[^\"]*", "", text)
    for words in ("no corrected archive of seed-0, seed-1", "broken/config.json", "nowhere is not a run"):
        assert words in text
    drawn = {file.stem for file in (tmp_path / "out" / "figures").glob("*.svg")}
    assert drawn == {file.stem for file in (tmp_path / "out" / "figures").glob("*.png")}
    for name in (
        "sphere-qd_score-evaluations",
        "sphere-ccdf",
        "seed-0-heatmap",
        "seed-1-path",
        "seed-0-xnes",
    ):
        assert name in drawn
    moving = {file.stem for file in (tmp_path / "out" / "figures").glob("*.gif")}
    assert moving == {"seed-0-growth", "seed-1-growth"}
    assert text.count("<figure>") == len(drawn) + len(moving)


def test_the_growth_of_an_archive_shows_each_snapshot(runs: list[Path], tmp_path: Path) -> None:
    run = read_run(runs[0])
    assert [one["iteration"] for one in run.snapshots()] == [2, 4, 6]
    with Image.open(plots.growth(run, tmp_path / "growth.gif")) as moving:
        assert moving.n_frames == 3  # type: ignore[attr-defined]
        pictures = [np.asarray(one.convert("RGB")) for one in ImageSequence.Iterator(moving)]
    assert not np.array_equal(pictures[0], pictures[-1])
    with Image.open(plots.growth(run, tmp_path / "short.gif", most=2)) as moving:
        assert moving.n_frames == 2  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="no snapshots"):
        plots.growth(replace(run, path=tmp_path), tmp_path / "none.gif")


def test_the_table_has_means_and_intervals(runs: list[Path]) -> None:
    read = [read_run(path) for path in runs]
    table = report.summary(read)
    last = [run.metrics[-1]["qd_score"] for run in read]
    (row,) = table.to_dict("records")
    assert row["seeds"] == 2
    assert row["QD-score"].startswith(f"{np.mean(last):,.0f} [")
    assert row["corrected QD-score"] == "not known"
    assert row["paper (other physics)"] == ""


def test_nothing_to_report_is_told(tmp_path: Path) -> None:
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


def test_maps_share_their_colours_and_show_empty_cells_apart() -> None:
    one, other = archive([0, 1], [1.0, 2.0]), archive([3], [10.0])
    scale = maps.shared_scale([one, other])
    assert (scale.vmin, scale.vmax) == (1.0, 10.0)
    image = maps.heatmap(one, scale=scale).get_images()[0]
    drawn = image.get_array()
    assert drawn is not None
    assert np.ma.getmaskarray(drawn).sum() == 2, "empty cells are not drawn"
    assert image.norm is scale
