"""Loops of ppga and of other libraries, at the smallest scale, and the figures of a race."""

import json
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.harness import Result, environment
from benchmarks.loops import LIBRARY_LOOPS, LOOPS, PPGA_LOOPS
from benchmarks.race import History, figures, race_table


@pytest.mark.parametrize("loop", ["map-elites", *LIBRARY_LOOPS])  # ppga's loops differ by a name only
def test_every_loop_fills_an_archive_and_reports_it(loop: str) -> None:
    if loop.startswith("qdax"):
        pytest.importorskip("qdax")
    reports: list[tuple[int, float, float]] = []

    def report(*values: Any) -> bool:
        reports.append(values)
        return len(reports) < 3

    archive = LOOPS[loop]("hopper", "smoke", report, 100.0)
    assert len(reports) == 3
    steps, scores, coverages = zip(*reports, strict=True)
    assert 0 < steps[0] < steps[1] < steps[2]
    assert archive.description["network"]["sizes"] == [11, 8, 3], "all loops search the same policies"
    assert len(archive) > 0
    if loop.startswith("qdax"):  # it may count measures on a border to another cell
        assert archive.coverage <= coverages[-1]
        assert archive.qd_score <= scores[-1] + 1e-3
    else:
        assert archive.coverage == pytest.approx(coverages[-1])
        assert archive.qd_score == pytest.approx(scores[-1], rel=1e-5)
    if loop not in PPGA_LOOPS:  # the other libraries never remove elites
        assert list(coverages) == sorted(coverages)


def test_a_loop_runs_in_its_own_process_and_its_elites_are_re_evaluated() -> None:
    words = [sys.executable, "-m", "benchmarks.loops", "map-elites", "hopper", "smoke", "1", "0", "2"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment())

    history = History.of_lines([json.loads(line) | {"seconds": 2.0} for line in done.stdout.splitlines()])
    assert len(history.seconds) == 1, "its time was over before it began"
    assert history.peak > 0
    assert 0 < history.corrected_coverage <= 1


SLOW = History((10.0, 20.0, 30.0), (100, 300, 500), (1.0, 5.0, 8.0), 2.0, 6.0, 0.5)
FAST = History((5.0, 10.0, 30.0), (500, 1000, 3000), (4.0, 8.0, 9.0), 1.0, 9.0, 0.75)
POOR = History((40.0,), (400,), (0.5,), 1.0, 0.25, 0.25)


def test_the_goal_is_the_final_score_of_the_best_other_library() -> None:
    results = figures({"ppga": FAST, "map-elites": POOR, "qdax pga-me": SLOW, "pyribs cma-mae": POOR}, "x")
    by_name = {result.name: result for result in results}
    reference = "qdax pga-me"
    assert by_name["ppga: until 8/x"] == Result("ppga: until 8/x", 10.0, "s", 10 / 30, reference)
    assert by_name["map-elites: until 8/x"] == Result("map-elites: until 8/x", 40.0, "s, not reached")
    assert by_name["qdax pga-me: until 8/x"] == Result("qdax pga-me: until 8/x", 30.0, "s")
    assert by_name["ppga: speed/x"].value == 2500 / 25, "the first iteration compiles"
    assert by_name["ppga: speed/x"].ratio == 5.0
    assert by_name["map-elites: speed/x"].value == 10.0, "there is no other iteration"
    assert by_name["ppga: first iteration/x"].ratio == 0.5
    assert by_name["ppga: peak memory/x"].ratio == 0.5
    assert by_name["ppga: corrected QD-score/x"].ratio == 1.5
    assert by_name["ppga: corrected coverage/x"].ratio == 1.5
    table = race_table(results, "a race")
    assert table.row_count == 4
    assert list(table.columns[-1].cells) == ["10", "> 40", "30", "> 40"]
