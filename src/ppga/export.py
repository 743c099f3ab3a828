"""Export policies from an archive: as ONNX models, as plain arrays (npz), or as a smaller archive."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ppga.archives import Archive, load_archive
from ppga.archives.files import (
    ARCHIVE_FILE,
    ARCHIVED,
    CORRECTED,
    CORRECTED_FILE,
    EVALUATION_FILE,
    WHICH,
    find_archive,
)  # fmt: skip
from ppga.errors import InputError, check_choice, import_extra
from ppga.policies.network import VARIANCE_EPSILON, Network
from ppga.storage import NumpyArray, replacing
from ppga.version import __version__

if TYPE_CHECKING:
    from ppga.runs.folder import RunFolder

FORMATS = ("onnx", "npz")
CHECKED_OBSERVATIONS = 256
"""Number of random observations that an exported policy is checked on before its file is written."""
TOLERANCE = 1e-4
"""Largest accepted difference of actions, and of controls in units of their range."""
MACHINE_FIELDS = ("cpu", "cores", "devices", "python", "versions")
"""Fields of a run's machine that are written to an exported archive."""
OPSET = 17


def export(
    archive: Archive,
    cells: list[int],
    folder: Path,
    form: str,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> list[Path]:
    """Write the policies of some cells, one file each, such as `cell-00044.onnx`.

    Args:
        archive: an archive of policies.
        cells: cells of the elites.
        folder: folder to write to.
        form: onnx or npz.
        progress: called with the number of files and their total after each file.

    Raises:
        InputError: the elites are not policies, or an exported policy differs from the original.
    """
    archive.check_policies()
    write = {"onnx": to_onnx, "npz": to_npz}[form]
    files = []
    for cell in cells:
        file = folder / f"cell-{cell:05d}.{form}"
        write(archive, cell, file)
        files.append(file)
        progress(len(files), len(cells))
    return files


def choose_archive(run: Path, which: str | None = None) -> Path:
    """The file of one of a run's archives.

    Args:
        run: a run's folder, an archive's folder, an archive's file, or pretrained:NAME.
        which: archived or corrected; by default the corrected archive if there is one.

    Raises:
        InputError: there is no such archive; or `which` is None and the corrected archive is out of date.
    """
    if which is not None:
        check_choice("archive", which, WHICH)
    file = find_archive(run)
    if file.name != ARCHIVE_FILE or which == ARCHIVED:
        variant = which_of(load_archive(file, mapped=True))
        if which not in (None, variant):
            raise InputError(f"{file} is the {variant} archive, not the {which} one.")
        return file
    corrected = file.with_name(CORRECTED_FILE)
    if not corrected.is_file():
        if which == CORRECTED:
            raise InputError(
                f"there is no corrected archive in {file.parent}. To write it: ppga evaluate {run}."
            )
        return file
    iterations = [load_archive(each, mapped=True).description.get("iteration") for each in (file, corrected)]
    if which is None and iterations[0] != iterations[1]:
        raise InputError(
            f"{corrected} is of iteration {iterations[1]}, but the run has continued to iteration "
            f"{iterations[0]}. Update it with ppga evaluate {run}, or choose an archive with --which "
            f"{ARCHIVED} or --which {CORRECTED}."
        )
    return corrected


def which_of(archive: Archive) -> str:
    """Whether an archive is the one of the training (archived) or a corrected one."""
    return CORRECTED if "corrected" in archive.description else ARCHIVED


def to_archive(
    archive: Archive, source: Path, file: Path, *, small: bool = False, shape: Sequence[int] = ()
) -> Archive:
    """Write an archive to a file of its own, with a description of the run that it is from, and return it.

    Args:
        archive: the archive.
        source: file that it was read from.
        file: file to write.
        small: write solutions in half precision, and leave out fields that only learners need.
        shape: cells along each measure of another grid; empty to keep the cells.
    """
    export_record = {
        "which": which_of(archive),
        "shape": list(archive.shape),
        "elites": len(archive),
        "ppga": __version__,
    }
    description = archive.description | {"exported": export_record, **_origin(source.absolute())}
    exported = Archive(description, archive.elites, archive.centroids)
    exported = exported.without_learners() if small else exported
    exported = exported.on_grid(shape) if shape else exported
    exported.save(file, half=small)
    return exported


def _origin(source: Path) -> dict[str, Any]:
    """Description of an archive's origin from the files next to it.

    Returns:
        `run` (settings, budget, preset, machine and counters) if it is in a run's folder, and `evaluation`
        (metrics) if it is a corrected archive.
    """
    from ppga.analysis.corrected import read_evaluation
    from ppga.runs.folder import RunFolder, read_metrics

    origin: dict[str, Any] = {}
    evaluation, folder = source.with_name(EVALUATION_FILE), RunFolder(source.parent.parent)
    if source.name == CORRECTED_FILE and evaluation.is_file():
        origin["evaluation"] = read_evaluation(evaluation)
    if source.parent == folder.archive.parent and folder.config.is_file():
        content = folder.content()
        lines = list(read_metrics(folder.metrics)) if folder.metrics.is_file() else []
        last = lines[-1] if lines else {}
        machine = content.get("machine", {})
        origin["run"] = {
            **{name: content.get(name) for name in ("config", "budget", "begun", "commit")},
            **_preset(folder),
            "machine": {name: machine[name] for name in MACHINE_FIELDS if name in machine},
            **{name: last.get(name) for name in ("wall_time", "iteration", "env_steps", "evaluations")},
        }
    return origin


def _preset(folder: "RunFolder") -> dict[str, Any]:
    """The preset that is most similar to a run's settings, and the settings that differ from it."""
    from ppga.algorithms import find_algorithm, preset
    from ppga.config import differences

    task, config, _ = folder.read()
    changes = {}
    for name in find_algorithm(config.algorithm).presets:
        settings, _ = preset(name, task, config.algorithm)
        changes[name] = {
            option: value
            for option, _, value in differences(settings, config)
            if option not in ("seed", "label", "init_from", "cluster") and not option.startswith("log.")
        }
    nearest = min(changes, key=lambda name: len(changes[name]))
    return {"preset": nearest, "changed": changes[nearest]}


def arrays_of(archive: Archive, cell: int) -> dict[str, Any]:
    """The policy of a cell as plain arrays and texts.

    `apply_arrays` shows how they make an action of an observation: clip, normalize and clip the observation,
    apply the layers with the activation between them, apply the head, clip to [-1, 1], and scale to the range
    of the controls.
    """
    description, elite = archive.description, archive.elite(cell)
    network = Network.of(description["network"])
    layers = network.layers(elite["solution"])
    if "control_range" not in description["task"]:
        raise InputError("the archive lacks the range of its robot's controls (task.control_range).")
    low, high = np.array(description["task"]["control_range"], np.float32).T
    return {
        "task": description["task"]["name"],
        "control_dt": np.float32(description["task"].get("control_dt") or np.nan),
        "cell": cell,
        "objective": elite["objective"],
        "measures": elite["measures"],
        "input_clip": np.float32(description["task"].get("clip") or np.inf),
        "observation_mean": elite["observation_mean"].astype(np.float32),
        "observation_std": np.sqrt(elite["observation_variance"] + VARIANCE_EPSILON).astype(np.float32),
        "observation_clip": np.float32(description["network"]["observation_clip"]),
        **{f"weights{number}": np.asarray(weights) for number, (weights, _) in enumerate(layers)},
        **{f"biases{number}": np.asarray(biases) for number, (_, biases) in enumerate(layers)},
        "activation": network.activation,
        "head": network.head,
        "control_low": low,
        "control_high": high,
    }


def to_npz(archive: Archive, cell: int, file: Path) -> None:
    """Write the policy of a cell as plain arrays."""
    arrays = arrays_of(archive, cell)
    _check(archive, cell, lambda observation: apply_arrays(arrays, observation))
    with replacing(file) as aside, aside.open("wb") as output:
        np.savez(output, **arrays)


def apply_arrays(arrays: dict[str, Any], observation: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
    """Actions (n, a) in [-1, 1] and controls (n, a) for observations (n, o).

    Args:
        arrays: of the policy, see `arrays_of`.
        observation: (n, o)
    """
    clip, limit = arrays["observation_clip"], arrays["input_clip"]
    value = np.clip(observation, -limit, limit)
    value = (value - arrays["observation_mean"]) / arrays["observation_std"]
    value = np.clip(value, -clip, clip).astype(np.float32)
    layers = sum(name.startswith("weights") for name in arrays)
    for number in range(layers):
        value = value @ arrays[f"weights{number}"] + arrays[f"biases{number}"]
        if number < layers - 1:
            value = np.tanh(value) if str(arrays["activation"]) == "tanh" else np.maximum(value, 0)
    if str(arrays["head"]) == "gaussian":
        value = value[:, : len(arrays["control_low"])]
    if str(arrays["head"]) != "linear":
        value = np.tanh(value)
    action = np.clip(value, -1.0, 1.0)
    low, high = arrays["control_low"], arrays["control_high"]
    return action, low + (action + 1) / 2 * (high - low)


def to_onnx(archive: Archive, cell: int, file: Path) -> None:
    """Write the policy of a cell as an ONNX model.

    Its input is `observation` (n, o); its outputs are `action` (n, a) in [-1, 1] and `control` (n, a).
    """
    onnx, runtime = import_extra("onnx", "export"), import_extra("onnxruntime", "export")
    content = _model(onnx, archive, cell).SerializeToString()
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    _check(
        archive, cell, lambda observation: session.run(["action", "control"], {"observation": observation})
    )
    with replacing(file) as aside:
        aside.write_bytes(content)


def _model(onnx: Any, archive: Archive, cell: int) -> Any:
    arrays = arrays_of(archive, cell)
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    inputs, outputs = len(arrays["observation_mean"]), len(arrays["control_low"])
    nodes: list[Any] = []
    constants: list[Any] = []

    def constant(name: str, value: Any) -> str:
        constants.append(onnx.numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name

    def add(operation: str, *names: str, output: str | None = None) -> str:
        output = output or f"{operation.lower()}{len(nodes)}"
        nodes.append(helper.make_node(operation, list(names), [output]))
        return output

    clip, one, value = arrays["observation_clip"], constant("one", 1.0), "observation"
    if np.isfinite(limit := arrays["input_clip"]):
        value = add("Clip", value, constant("least_input", -limit), constant("largest_input", limit))
    value = add("Sub", value, constant("mean", arrays["observation_mean"]))
    value = add("Div", value, constant("std", arrays["observation_std"]))
    value = add("Clip", value, constant("lowest", -clip), constant("highest", clip))
    layers = sum(name.startswith("weights") for name in arrays)
    for number in range(layers):
        value = add("MatMul", value, constant(f"weights{number}", arrays[f"weights{number}"]))
        value = add("Add", value, constant(f"biases{number}", arrays[f"biases{number}"]))
        if number < layers - 1:
            value = add("Tanh" if arrays["activation"] == "tanh" else "Relu", value)
    if arrays["head"] == "gaussian":
        ends = [onnx.numpy_helper.from_array(np.array([index]), f"index{index}") for index in (0, outputs)]
        axis = onnx.numpy_helper.from_array(np.array([1]), "axis")
        constants.extend([*ends, axis])
        value = add("Slice", value, ends[0].name, ends[1].name, axis.name)
    if arrays["head"] != "linear":
        value = add("Tanh", value)
    action = add("Clip", value, constant("minus_one", -1.0), one, output="action")
    low, high = arrays["control_low"], arrays["control_high"]
    scaled = add("Mul", add("Add", action, one), constant("half", (high - low) / 2))
    add("Add", scaled, constant("low", low), output="control")
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info("observation", kind, ["n", inputs])],
        [helper.make_tensor_value_info(name, kind, ["n", outputs]) for name in ("action", "control")],
        constants,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="ppga", ir_version=9
    )
    task = archive.description["task"]
    elite = archive.elite(cell)
    control_dt = task.get("control_dt")  # unknown for some tasks
    helper.set_model_props(
        model,
        {
            "task": str(task["name"]),
            **({} if control_dt is None else {"control_dt": str(control_dt)}),
            "cell": str(cell),
            "objective": str(float(elite["objective"])),
            "measures": " ".join(str(float(value)) for value in elite["measures"]),
        },
    )
    onnx.checker.check_model(model)
    return model


def _check(archive: Archive, cell: int, exported: Callable[[NumpyArray], Any]) -> None:
    """Raise an InputError unless an exported policy acts as the archive's policy does.

    Args:
        archive: the archive.
        cell: cell of the policy.
        exported: observations (n, o) -> actions (n, a) and controls (n, a).
    """
    arrays, elite = arrays_of(archive, cell), archive.elite(cell)
    std = np.sqrt(elite["observation_variance"] + VARIANCE_EPSILON)
    noise = np.random.default_rng(0).normal(size=(CHECKED_OBSERVATIONS, len(std)))
    observation = (elite["observation_mean"] + 3 * std * noise).astype(np.float32)
    expected = archive.policy(cell)(observation)
    low, high = arrays["control_low"], arrays["control_high"]
    action, control = exported(observation)
    expected_control = low + (expected + 1) / 2 * (high - low)
    difference = max(
        float(np.abs(action - expected).max()),
        float(np.abs((control - expected_control) / (high - low)).max()),
    )
    if not difference <= TOLERANCE:
        raise InputError(
            f"the policy of cell {cell} was not exported: the file's actions differ from the policy's by "
            f"{difference:.2g}, and at most {TOLERANCE:g} is accepted."
        )
