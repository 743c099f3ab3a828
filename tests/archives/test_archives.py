"""Archives and their files: contents, policies, and checks of what is read."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ribs.archives import CVTArchive, GridArchive

from ppga.archives import Archive, ArchiveConfig, EliteArchive, load_archive
from ppga.archives.files import FORMAT, SINGLE_PRECISION
from ppga.errors import InputError
from ppga.policies.network import Network
from ppga.storage import write_tensors

RANGES = ((0.0, 1.0), (0.0, 1.0))
NETWORK = Network((3, 4, 2))
FIELDS: dict[str, tuple[int, ...]] = {
    "log_std": (2,), "observation_mean": (3,), "observation_variance": (3,), "observation_count": (),
    "extra": (),
}  # fmt: skip


def example(kind: Any = "grid", n: int = 50) -> Archive:
    """An archive of random policies."""
    rng = np.random.default_rng(0)
    config = ArchiveConfig(kind=kind, shape=(4, 5), cells=12)
    elites = EliteArchive(NETWORK.parameters, (4, 5), RANGES, FIELDS, -5.0, config)
    for _ in range(3):
        elites.add(
            rng.standard_normal((n, NETWORK.parameters)).astype(np.float32),
            rng.standard_normal(n).astype(np.float32),
            rng.uniform(size=(n, 2)).astype(np.float32),
            log_std=rng.standard_normal((n, 2)),
            observation_mean=rng.standard_normal((n, 3)),
            observation_variance=rng.uniform(0.1, 2.0, (n, 3)),
            observation_count=np.ones(n),
            extra=np.arange(n),
        )
    description = {
        "task": {"name": "test", "physics": "mujoco", "episode_length": 100, "integrator": "fast"},
        "network": {"sizes": list(NETWORK.sizes), "observation_clip": 10.0},
        "shape": list(elites.shape),
        "ranges": [list(bounds) for bounds in RANGES],
        "measure_names": ["left", "right"],
        "qd_offset": -5.0,
    }
    return Archive(description, elites.elites(), elites.centroids)


@pytest.mark.parametrize("kind", ["grid", "cvt"])
def test_archives_are_saved_loaded_and_converted_to_pyribs(kind: Any, tmp_path: Path) -> None:
    archive = example(kind)
    archive.save(tmp_path / "archive.safetensors")
    loaded = load_archive(tmp_path)
    assert loaded.description["task"] == archive.description["task"]
    for name, values in archive.elites.items():
        np.testing.assert_array_equal(loaded.elites[name], values)
        assert loaded.elites[name].dtype == values.dtype
    ribs = loaded.to_ribs()
    assert isinstance(ribs, GridArchive if kind == "grid" else CVTArchive)
    assert ribs.stats.qd_score == pytest.approx(loaded.qd_score, rel=1e-5)
    assert ribs.stats.coverage == pytest.approx(loaded.coverage)
    assert sorted(ribs.data("index")) == sorted(loaded.elites["index"])
    frame = loaded.to_pandas()
    assert list(frame.columns) == [
        "index", "objective", "left", "left std", "right", "right std",
        "objective_std", "length", "survival",
    ]  # fmt: skip
    np.testing.assert_array_equal(frame["objective"], loaded.elites["objective"])


def test_elites_are_found_by_objective_measures_and_cell() -> None:
    archive = example()
    best = archive.elite(archive.best())
    assert best["objective"] == archive.elites["objective"].max()
    target = np.array([0.3, 0.9])
    distances = np.linalg.norm(archive.elites["measures"] - target, axis=1)
    assert archive.nearest(target) == archive.elites["index"][distances.argmin()]
    number = int(archive.elites["index"][3])
    place = [int(at) for at in np.unravel_index(number, (4, 5))]
    np.testing.assert_array_equal(archive.elite(place)["solution"], archive.elite(number)["solution"])


def test_a_policy_normalizes_and_applies_its_network() -> None:
    archive = example()
    cell = archive.best()
    elite, act = archive.elite(cell), archive.policy(cell)
    observation = np.random.default_rng(0).standard_normal(3) * 3
    hidden = np.clip(
        (observation - elite["observation_mean"]) / np.sqrt(elite["observation_variance"] + 1e-8), -10, 10
    )
    weights = elite["solution"]
    first = np.tanh(hidden @ weights[:12].reshape(3, 4) + weights[12:16])
    expected = np.clip(first @ weights[16:24].reshape(4, 2) + weights[24:], -1, 1)
    np.testing.assert_allclose(act(observation), expected, atol=1e-5)
    many = act(np.stack([observation] * 7))
    np.testing.assert_allclose(many, np.stack([expected] * 7), atol=1e-5)


def test_an_archive_is_read_and_run_without_jax(tmp_path: Path) -> None:
    example().save(tmp_path / "archive.safetensors")
    code = (
        "import sys; sys.modules['jax'] = None\n"
        "import ppga, numpy as np\n"
        f"archive = ppga.load_archive({str(tmp_path)!r})\n"
        "print(archive.policy(archive.best())(np.zeros(3)).shape)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "(2,)"


def test_damaged_and_foreign_files_are_rejected_with_one_error(tmp_path: Path) -> None:
    archive = example()
    file = tmp_path / "archive.safetensors"
    archive.save(file)
    content = file.read_bytes()
    for size in (0, 7, 100, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:size])
        with pytest.raises(InputError, match="cannot read"):
            load_archive(file)
    with pytest.raises(InputError, match="no archive in"):
        load_archive(tmp_path / "nothing")
    write_tensors(file, {"x": np.zeros(1)}, {"format": "something else"})
    with pytest.raises(InputError, match="is not an archive"):
        load_archive(file)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("objective", np.full(20, np.nan, np.float32), "not finite"),
        ("objective", np.zeros(3, np.float32), "3 rows"),
        ("solution", np.zeros((20, 5), np.float32), "do not fit"),
        ("index", np.arange(20, dtype=np.int32)[::-1].copy(), "not distinct numbers"),
        ("index", np.arange(20, dtype=np.int32) + 100, "not distinct numbers"),
        ("index", None, "has no index"),
    ],
)
def test_inconsistent_archives_are_rejected(tmp_path: Path, field: str, value: Any, message: str) -> None:
    archive = example()
    assert len(archive) == 20
    elites = {**archive.elites, field: value}
    if value is None:
        del elites[field]
    Archive(archive.description, elites).save(tmp_path / "archive.safetensors")
    with pytest.raises(InputError, match=message):
        load_archive(tmp_path)


def test_queries_that_an_archive_cannot_answer() -> None:
    archive = example(n=2)
    empty = next(cell for cell in range(20) if cell not in archive.elites["index"])
    for ask, message in (
        (lambda: archive.policy(empty), "is empty"),
        (lambda: archive.elite((9, 9)), "not in an archive of shape"),
        (lambda: archive.nearest([0.5]), "expected 2 finite measures"),
        (lambda: archive.nearest([0.5, np.nan]), "expected 2 finite measures"),
    ):
        with pytest.raises(InputError, match=message):
            ask()


def test_archives_of_earlier_versions_are_rejected_with_a_plain_sentence(tmp_path: Path) -> None:
    """Their header says how elites were evaluated as `judge`, which is `actions` now."""
    file = tmp_path / "archive.safetensors"
    archive = example()
    arrays = {f"elites/{name}": values for name, values in archive.elites.items()}
    header = {"format": FORMAT, "version": SINGLE_PRECISION, **archive.description}
    write_tensors(file, arrays, header)
    assert len(load_archive(file)) == len(archive)
    write_tensors(file, arrays, header | {"judge": "mean"})
    with pytest.raises(InputError, match="was written by an earlier version of ppga and cannot be read"):
        load_archive(file)
