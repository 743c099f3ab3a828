"""Published results: the paper's table, and the curves of its authors' code, beside runs."""

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest

from ppga.analysis import plots, published
from ppga.analysis.report import beside_the_paper
from ppga.analysis.runs import Run, read_run


def test_means_in_the_paper_follow_from_its_qd_scores_and_offsets() -> None:
    """Those of PPGA are plausible; the one of sep-CMA-MAE on halfcheetah exceeds its best, a misprint."""
    means = {task: round(result.mean(task)) for task, result in published.PAPER["ppga"].items()}
    assert means == {"humanoid": 1962, "walker2d": 1305, "halfcheetah": 3286, "ant": 1260}
    assert all(means[task] < result.best for task, result in published.PAPER["ppga"].items())
    misprint = published.PAPER["sep-cma-mae"]["halfcheetah"]
    assert misprint.mean("halfcheetah") > misprint.best


def test_curves_of_the_authors_code_have_2000_iterations() -> None:
    curves = published.curves()
    assert set(curves) == {"ant", "halfcheetah", "hopper", "humanoid", "walker2d"}
    for task, curve in curves.items():
        assert (np.diff(curve["iteration"]) > 0).all(), task
        assert curve["iteration"][-1] == pytest.approx(2000, abs=10)
        np.testing.assert_array_equal(curve["evaluations"], 300 * curve["iteration"])
        assert ((curve["coverage"] > 0) & (curve["coverage"] <= 1)).all()
        assert (curve["mean"] <= curve["best"]).all()
    end = {name: values[-1] for name, values in curves["halfcheetah"].items()}
    assert (round(end["coverage"], 2), end["best"], end["mean"]) == (0.94, 8942, 2871)


def test_a_corrected_archive_has_the_paper_s_offset_beside_the_paper() -> None:
    run = read_run("pretrained:halfcheetah")
    assert run.archive is not None
    n = len(run.archive)
    length = {"length": np.full(n, 900, np.float32), "survival": np.ones(n, np.float32)}
    archive = replace(run.archive, elites={**run.archive.elites, **length})
    corrected: Run = replace(run, corrected=archive)
    table = beside_the_paper({("halfcheetah", "ppga"): [corrected], ("hopper", "ppga"): [corrected]})
    assert table[""].tolist() == ["paper, 4 seeds", "here, 1 seed"], "the paper has no hopper"
    objective = run.archive.elites["objective"].astype(float)
    assert table["QD-score"].tolist() == ["726,000", f"{(objective + 0.9 * 9231).sum():,.0f}"]
    assert table["mean reward of the elites"].tolist() == ["3,286", f"{objective.mean():,.0f}"]
    assert table["coverage"].tolist() == ["58.0%", f"{len(objective) / 100:.1%}"]
    assert len(beside_the_paper({("halfcheetah", "ppo"): [corrected]})) == 0
    unknown = beside_the_paper({("halfcheetah", "ppga"): [replace(run, corrected=run.archive)]})
    assert unknown["QD-score"].tolist() == ["726,000", "unknown"], "without the lengths of the episodes"
    bounds = beside_the_paper({("ant", "qdpg"): [run], ("ant", "ppga"): [run]})
    assert bounds["mean reward of the elites"].tolist() == ["unknown", "at least 1,260"]
    other = replace(run, corrected=run.archive.on_grid((5, 5)))
    assert len(beside_the_paper({("halfcheetah", "ppga"): [other]})) == 1, "of another number of cells"


def test_a_curve_is_drawn_beside_that_of_the_authors_code() -> None:
    lines = [{"iteration": number, "coverage": 0.1 * number} for number in (1, 2, 4)]
    run = replace(read_run("pretrained:halfcheetah"), metrics=lines)
    curve = published.curves()["halfcheetah"]
    axes = plots.curve(
        {"ppga": [run]},
        "coverage",
        "iteration",
        reference=("authors' code", curve["iteration"], curve["coverage"]),
    )
    (reference,) = [line for line in axes.get_lines() if line.get_label() == "authors' code"]
    np.testing.assert_array_equal(reference.get_ydata(), curve["coverage"])
    assert axes.get_xscale() == "log"
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["ppga (1 seed)", "authors' code"]
    plt.close("all")
