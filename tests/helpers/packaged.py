"""Test a wheel in an empty environment, as a user would install it: `make package`.

python tests/helpers/packaged.py WHEEL CONSTRAINTS
"""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

TRAINING = ("train", "hopper", "--preset", "smoke", "--iterations", "3", "--output", "run")
LOADING = """
import numpy, ppga
archive = ppga.load_archive("run")
assert len(archive) > 0, "the archive is empty"
action = archive.policy(archive.best())(numpy.zeros(11))
assert action.shape == (3,), action
print(ppga.__file__, len(archive), "elites")
"""


def run(folder: Path, *words: str | Path) -> str:
    """Output of a command, which must succeed and cannot import the source tree."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
    print("$", *(Path(words[0]).name, *words[1:]), flush=True)
    done = subprocess.run(list(map(str, words)), cwd=folder, env=clean, capture_output=True, text=True)
    print(done.stdout, flush=True)
    if done.returncode:
        sys.exit(f"{done.stderr}\nended with {done.returncode}")
    return done.stdout


def main(wheel: Path, constraints: Path) -> None:
    """Install the wheel, and run a few commands."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve()
        venv.create(folder / "env", with_pip=True)
        scripts = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
        python, ppga = scripts / "python", scripts / "ppga"
        run(folder, python, "-m", "pip", "install", "--quiet", "--constraint", constraints, wheel)
        run(folder, python, "-m", "pip", "check")
        version = run(folder, ppga, "--version").split()[1]
        assert wheel.name.startswith(f"ppga-{version}-"), version
        assert "evaluate" in run(folder, ppga, "--help")
        assert "humanoid" in run(folder, ppga, "tasks")
        assert "QD-score" in run(folder, ppga, *TRAINING)
        assert str(folder / "env") in run(folder, python, "-c", LOADING), "ppga was imported from elsewhere"
        assert "corrected" in run(folder, ppga, "evaluate", "run", "--episodes", "2")
    print(f"{wheel.name} works")


if __name__ == "__main__":
    main(*(Path(word).resolve() for word in sys.argv[1:3]))
