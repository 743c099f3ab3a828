"""Policies out of an archive, to where they are used: as ONNX models, as plain arrays (npz), or in a smaller
archive.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ppga.archives import Archive, load_archive
from ppga.archives.files import ARCHIVED, CORRECTED, WHICH, find_archive
from ppga.errors import InputError, choose, import_extra
from ppga.networks import Network
from ppga.storage import NumpyArray, replacing
from ppga.version import __version__

if TYPE_CHECKING:
    from ppga.runs.folder import RunFolder

FORMATS = ("onnx", "npz")
TRIED = 256
"""Random observations that a file must answer as the policy does, before it is written."""
NEAR = 1e-4
"""How far the answers may be apart, in units of the control range."""
TOLD = ("cpu", "cores", "devices", "python", "versions")
"""What an archive that travels says of the machine it was made on."""
OPSET = 17


def export(
    archive: Archive, cells: list[int], folder: Path, form: str, progress: Callable[[], None] = lambda: None
) -> list[Path]:
    """Write the elites of some cells, a file each, `cell-00044.onnx`.

    Args:
        archive: whose elites are policies.
        cells: whose elites.
        folder: to write to.
        form: onnx or npz.
        progress: called after each.

    Raises:
        InputError: they are not policies, or a file would not answer as its policy does.
    """
    if archive.description.get("network") is None:
        raise InputError(f"the solutions of {archive.description['task']['name']} are not policies.")
    make = {"onnx": to_onnx, "npz": to_npz}[form]
    files = []
    for cell in cells:
        file = folder / f"cell-{cell:05d}.{form}"
        make(archive, cell, file)
        files.append(file)
        progress()
    return files


def choose_archive(run: Path, which: str | None = None) -> Path:
    """The file of one of a run's archives.

    Args:
        run: a run's folder, an archive's folder, an archive's file, or pretrained:NAME.
        which: archived or corrected; if it is not said, the corrected one of a folder that has one.

    Raises:
        InputError: there is none such; or it was not said which, and the corrected one is out of date.
    """
    if which is not None:
        choose("archive", which, WHICH)
    file = find_archive(run)
    if file.name != "archive.safetensors" or which == ARCHIVED:
        itself = which_of(load_archive(file, mapped=True))
        if which not in (None, itself):
            raise InputError(f"{file} is not the {which} archive, but the {itself} one.")
        return file
    corrected = file.with_name("corrected.safetensors")
    if not corrected.is_file():
        if which == CORRECTED:
            raise InputError(f"there is no corrected archive in {file.parent}: ppga evaluate makes it.")
        return file
    iterations = [load_archive(one, mapped=True).description.get("iteration") for one in (file, corrected)]
    if which is None and iterations[0] != iterations[1]:
        raise InputError(
            f"{corrected} is of iteration {iterations[1]}, and the run has gone on to {iterations[0]}: "
            f"ppga evaluate makes it anew; or choose, --which {ARCHIVED} or {CORRECTED}."
        )
    return corrected


def which_of(archive: Archive) -> str:
    """Whether an archive is as trained or as judged again."""
    return CORRECTED if "corrected" in archive.description else ARCHIVED


def to_archive(
    archive: Archive, source: Path, file: Path, *, small: bool = False, shape: Sequence[int] = ()
) -> Archive:
    """Write an archive to a file of its own, with what its run says of how it was made; return it.

    Args:
        archive: the elites to write.
        source: the file they are from.
        file: to write.
        small: solutions in half precision, and without what learners keep.
        shape: cells along each measure of another grid; empty to leave them.
    """
    about = {
        "exported": {
            "which": which_of(archive),
            "shape": list(archive.shape),
            "elites": len(archive),
            "ppga": __version__,
        },
        **_origin(source.absolute()),
    }
    made = Archive(archive.description | about, archive.elites, archive.centroids)
    made = made.without_learners() if small else made
    made = made.on_grid(shape) if shape else made
    made.save(file, half=small)
    return made


def _origin(source: Path) -> dict[str, Any]:
    """What the files around an archive say: settings, budget, preset and machine of its run; corrected
    figures.
    """
    from ppga.analysis.corrected import read_figures
    from ppga.runs.folder import RunFolder, read_metrics

    found: dict[str, Any] = {}
    figures, folder = source.with_name("evaluation.json"), RunFolder(source.parent.parent)
    if source.name == "corrected.safetensors" and figures.is_file():
        found["evaluation"] = read_figures(figures)
    if source.parent == folder.archive.parent and folder.config.is_file():
        told = folder.content()
        lines = list(read_metrics(folder.metrics)) if folder.metrics.is_file() else []
        last = lines[-1] if lines else {}
        machine = told.get("machine", {})
        found["run"] = {
            **{name: told.get(name) for name in ("config", "budget", "begun", "commit")},
            **_preset(folder),
            "machine": {name: machine[name] for name in TOLD if name in machine},
            **{name: last.get(name) for name in ("wall_time", "iteration", "env_steps", "evaluations")},
        }
    return found


def _preset(folder: "RunFolder") -> dict[str, Any]:
    """The preset that a run's settings are nearest to, and the settings that were changed."""
    from ppga.runs import PRESETS, preset
    from ppga.runs.config import differences

    task, config, _ = folder.read()
    changes = {}
    for name in PRESETS:
        plain, _ = preset(name, task, config.algorithm)
        changes[name] = {
            option: value
            for option, _, value in differences(plain, config)
            if option not in ("seed", "label", "init_from", "cluster") and not option.startswith("keeping.")
        }
    nearest = min(changes, key=lambda name: len(changes[name]))
    return {"preset": nearest, "changed": changes[nearest]}


def parts(archive: Archive, cell: int) -> dict[str, Any]:
    """A policy as plain arrays.

    To act: z = clip((observation - mean) / std, -clip, clip); then for each layer z @ weights + biases, with
    the activation between them; the head; clipped to [-1, 1]; controls = low + (action + 1) / 2 * (high -
    low).
    """
    description, elite = archive.description, archive.elite(cell)
    network = Network.of(description["network"])
    layers = network.layers(elite["solution"])
    if "control_range" not in description["task"]:
        raise InputError("this archive does not say what its robot's actuators take (task.control_range).")
    low, high = np.array(description["task"]["control_range"], np.float32).T
    return {
        "task": description["task"]["name"],
        "control_dt": np.float32(description["task"].get("control_dt") or np.nan),
        "cell": cell,
        "objective": elite["objective"],
        "measures": elite["measures"],
        "observation_mean": elite["observation_mean"].astype(np.float32),
        "observation_std": np.sqrt(elite["observation_variance"] + 1e-8).astype(np.float32),
        "observation_clip": np.float32(description["network"]["observation_clip"]),
        **{f"weights{number}": np.asarray(weights) for number, (weights, _) in enumerate(layers)},
        **{f"biases{number}": np.asarray(biases) for number, (_, biases) in enumerate(layers)},
        "activation": network.activation,
        "head": network.head,
        "control_low": low,
        "control_high": high,
    }


def to_npz(archive: Archive, cell: int, file: Path) -> None:
    """Write a policy as plain arrays."""
    content = parts(archive, cell)
    _check(archive, cell, lambda seen: apply_parts(content, seen))
    with replacing(file) as aside, aside.open("wb") as writing:
        np.savez(writing, **content)


def apply_parts(content: dict[str, Any], observation: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
    """Actions (n, a) in [-1, 1] and controls (n, a) for observations (n, o), as `parts` says."""
    bound = content["observation_clip"]
    value = (observation - content["observation_mean"]) / content["observation_std"]
    value = np.clip(value, -bound, bound).astype(np.float32)
    layers = sum(name.startswith("weights") for name in content)
    for number in range(layers):
        value = value @ content[f"weights{number}"] + content[f"biases{number}"]
        if number < layers - 1:
            value = np.tanh(value) if str(content["activation"]) == "tanh" else np.maximum(value, 0)
    if str(content["head"]) == "gaussian":
        value = value[:, : len(content["control_low"])]
    if str(content["head"]) != "linear":
        value = np.tanh(value)
    action = np.clip(value, -1.0, 1.0)
    low, high = content["control_low"], content["control_high"]
    return action, low + (action + 1) / 2 * (high - low)


def to_onnx(archive: Archive, cell: int, file: Path) -> None:
    """Write a policy as an ONNX model: `observation` (n, o) in; `action` in [-1, 1] and `control` out."""
    onnx, runtime = import_extra("onnx", "export"), import_extra("onnxruntime", "export")
    model = _model(onnx, archive, cell)
    content = model.SerializeToString()
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    _check(archive, cell, lambda seen: session.run(["action", "control"], {"observation": seen}))
    with replacing(file) as aside:
        aside.write_bytes(content)


def _model(onnx: Any, archive: Archive, cell: int) -> Any:
    content = parts(archive, cell)
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    inputs, outputs = len(content["observation_mean"]), len(content["control_low"])
    nodes: list[Any] = []
    numbers: list[Any] = []

    def constant(name: str, value: Any) -> str:
        numbers.append(onnx.numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name

    def then(operation: str, *names: str, to: str | None = None) -> str:
        made = to or f"{operation.lower()}{len(nodes)}"
        nodes.append(helper.make_node(operation, list(names), [made]))
        return made

    bound, one = content["observation_clip"], constant("one", 1.0)
    value = then("Sub", "observation", constant("mean", content["observation_mean"]))
    value = then("Div", value, constant("std", content["observation_std"]))
    value = then("Clip", value, constant("lowest", -bound), constant("highest", bound))
    layers = sum(name.startswith("weights") for name in content)
    for number in range(layers):
        value = then("MatMul", value, constant(f"weights{number}", content[f"weights{number}"]))
        value = then("Add", value, constant(f"biases{number}", content[f"biases{number}"]))
        if number < layers - 1:
            value = then("Tanh" if content["activation"] == "tanh" else "Relu", value)
    if content["head"] == "gaussian":
        ends = [onnx.numpy_helper.from_array(np.array([place]), f"at{place}") for place in (0, outputs)]
        axis = onnx.numpy_helper.from_array(np.array([1]), "axis")
        numbers.extend([*ends, axis])
        value = then("Slice", value, ends[0].name, ends[1].name, axis.name)
    if content["head"] != "linear":
        value = then("Tanh", value)
    action = then("Clip", value, constant("minus_one", -1.0), one, to="action")
    low, high = content["control_low"], content["control_high"]
    scaled = then("Mul", then("Add", action, one), constant("half", (high - low) / 2))
    then("Add", scaled, constant("low", low), to="control")
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info("observation", kind, ["n", inputs])],
        [helper.make_tensor_value_info(name, kind, ["n", outputs]) for name in ("action", "control")],
        numbers,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="ppga", ir_version=9
    )
    task = archive.description["task"]
    elite = archive.elite(cell)
    control_dt = task.get("control_dt")  # not everyone knows it
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


def _check(archive: Archive, cell: int, answer: Callable[[NumpyArray], Any]) -> None:
    """Raise an InputError unless what is about to be written acts as the policy does."""
    content, elite = parts(archive, cell), archive.elite(cell)
    spread = np.sqrt(elite["observation_variance"] + 1e-8)
    draws = np.random.default_rng(0).normal(size=(TRIED, len(spread)))
    seen = (elite["observation_mean"] + 3 * spread * draws).astype(np.float32)
    wanted = archive.policy(cell)(seen)
    low, high = content["control_low"], content["control_high"]
    action, control = answer(seen)
    apart = max(
        float(np.abs(action - wanted).max()),
        float(np.abs((control - (low + (wanted + 1) / 2 * (high - low))) / (high - low)).max()),
    )
    if not apart <= NEAR:
        raise InputError(f"the file for cell {cell} would not act as its policy: {apart:.2g} apart.")
