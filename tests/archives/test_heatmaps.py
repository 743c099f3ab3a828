"""Heatmaps of archives."""

import numpy as np

from ppga.archives import heatmaps


def test_a_plane_has_the_first_measure_to_the_right_and_the_second_one_up() -> None:
    cells = np.array([0, 5, 2])  # (0, 0), (1, 2), (0, 2) of 2 x 3
    image = heatmaps.plane((2, 3), cells, np.array([1.0, 2.0, 3.0]))
    nan = np.nan
    np.testing.assert_array_equal(image, [[3.0, 2.0], [nan, nan], [1.0, nan]])
    four = heatmaps.plane((2, 2, 2, 2), np.array([0b1011]), np.array([7.0]))
    # measures (1, 0, 1, 1): right half, its right column; lower half, its upper row
    assert [tuple(at) for at in np.argwhere(four == 7.0)] == [(2, 3)]
    assert heatmaps.plane((4,), np.array([1]), np.array([5.0])).shape == (1, 4)


def test_the_terminal_shows_the_best_elite_of_each_block_of_a_large_archive() -> None:
    text = heatmaps.text((100, 100), np.arange(10_000), np.arange(10_000.0), width=40)
    rows = text.plain.rstrip("\n").split("\n")
    assert len(rows) == 20
    assert all(len(row) == 40 for row in rows)
