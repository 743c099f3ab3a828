"""Compilation of MJCF descriptions for both engines: integrator, solver and contact sensors."""

import warnings
from collections.abc import Mapping

import mujoco

from ppga.errors import InputError, check_choice
from ppga.physics.mujoco_engine import silent

INTEGRATORS = ("fast", "gymnasium")
_CONTACT_FOUND = 1 << int(mujoco.mjtConDataField.mjCONDATA_FOUND)


def prepare_model(
    spec: mujoco.MjSpec,
    integrator: str = "fast",
    contacts: Mapping[str, tuple[str, ...]] | None = None,
    floor: str = "floor",
) -> mujoco.MjModel:
    """Compile a model, with a sensor for the contacts of each foot's geoms with the floor.

    Args:
        spec: the description; it is changed in place.
        integrator: "fast" (Euler integrator, Newton solver) or "gymnasium" (those of the description).
        contacts: measure name -> names of the geoms of that foot.
        floor: name of the floor's geom.

    Returns:
        The model. The sensor of a geom is named `contact_sensor(geom)` and counts the geom's contacts with
        the floor. MuJoCo lists a contact when the distance is below the sum of the geoms' margins, not only
        when the geoms overlap.

    Raises:
        InputError: an unknown integrator, a missing geom, or a model that MuJoCo cannot compile.
    """
    if check_choice("integrator", integrator, INTEGRATORS) == "fast":
        spec.option.integrator = mujoco.mjtIntegrator.mjINT_EULER
        spec.option.solver = mujoco.mjtSolver.mjSOL_NEWTON
    feet = dict.fromkeys(geom for geoms in (contacts or {}).values() for geom in geoms)  # without duplicates
    known = [geom.name for geom in spec.geoms if geom.name]
    for geom in [floor, *feet] if feet else []:
        if geom not in known:
            raise InputError(
                f"the model has no geom named {geom!r}. Its geoms: {', '.join(known) or 'none'}."
            )
    for geom in feet:
        # MJX supports contact sensors between two geoms only
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
