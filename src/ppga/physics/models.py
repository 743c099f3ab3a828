"""From an MJCF description to the model both engines step: integrator, solver, contact sensors."""

import warnings
from collections.abc import Mapping

import mujoco

from ppga.errors import InputError, choose
from ppga.physics.mujoco_engine import silent

INTEGRATORS = ("fast", "gymnasium")
_CONTACT_FOUND = 1 << int(mujoco.mjtConDataField.mjCONDATA_FOUND)


def prepare_model(
    spec: mujoco.MjSpec,
    integrator: str = "fast",
    contacts: Mapping[str, tuple[str, ...]] | None = None,
    floor: str = "floor",
) -> mujoco.MjModel:
    """Compile `spec` with a contact sensor for every geom of `contacts` against the geom `floor`.

    Args:
        spec: the description; it is changed in place.
        integrator: "fast" sets Euler and the Newton solver, "gymnasium" keeps what the description says.
        contacts: measure name -> names of the geoms that count as that foot.
        floor: name of the geom that is touched.

    Returns:
        The model; the sensor of a geom is named `contact_sensor(geom)` and counts its contacts with the
        floor. A contact counts as soon as MuJoCo lists it: when the distance is below the sum of the two
        geoms' margins, not only when they overlap.
    """
    if choose("integrator", integrator, INTEGRATORS) == "fast":
        spec.option.integrator = mujoco.mjtIntegrator.mjINT_EULER
        spec.option.solver = mujoco.mjtSolver.mjSOL_NEWTON
    touching = dict.fromkeys(geom for geoms in (contacts or {}).values() for geom in geoms)  # each once
    known = [geom.name for geom in spec.geoms if geom.name]
    for geom in [floor, *touching] if touching else []:
        if geom not in known:
            raise InputError(
                f"the model has no geom named {geom!r}. Its geoms: {', '.join(known) or 'none'}."
            )
    for geom in touching:
        # geom against geom: the one kind of matching that MJX has as well
        spec.add_sensor(
            name=contact_sensor(geom),
            type=mujoco.mjtSensor.mjSENS_CONTACT,
            objtype=mujoco.mjtObj.mjOBJ_GEOM,
            objname=floor,
            reftype=mujoco.mjtObj.mjOBJ_GEOM,
            refname=geom,
            intprm=[_CONTACT_FOUND, 0, 1],
        )
    with silent(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Gymnasium's halfcheetah uses a deprecated attribute
        try:
            return spec.compile()
        except ValueError as error:
            raise InputError(f"MuJoCo cannot compile the model: {error}") from None


def contact_sensor(geom: str) -> str:
    """Name of the sensor that counts the contacts of `geom` with the floor."""
    return f"contact/{geom}"
