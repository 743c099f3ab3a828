# A fresh machine needs Python >= 3.11 and make. `make demo` and `make test` do the rest.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# written when an install has succeeded; a second run finds it and reinstalls nothing
RUN_READY := $(VENV)/run-installed
DEV_READY := $(VENV)/dev-installed
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# a half-made .venv is not taken for a whole one
.DELETE_ON_ERROR:

.PHONY: help demo test quick long fuzz system lint format docs bench package clean

help:
	@echo "make demo    install, train an archive for five minutes, and see it"
	@echo "make test    install, lint, and run all tests (about twelve minutes)"
	@echo "make quick   lint, and the tests without clusters, browsers and many runs (less than four minutes)"
	@echo "make long    the few tests that take minutes each"
	@echo "make fuzz    throw odd files, settings, requests and faults at it for long (an hour or so)"
	@echo "make lint    ruff, mypy, and the layers of the package"
	@echo "make format  let ruff fix and format the code"
	@echo "make docs    the pages as a site, in docs/_build"
	@echo "make bench   measure this machine (minutes)"
	@echo "make package build sdist and wheel, and try the wheel in an empty environment (minutes)"
	@echo "make clean   remove what the above made"

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit("ppga needs Python >= 3.11, and $(PYTHON) is " + sys.version.split()[0] + "; say make PYTHON=...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

$(RUN_READY): pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	$(PIP) install --constraint constraints.txt --editable '.[view]'
	@touch $@

$(DEV_READY): pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(RUN_READY)

demo: $(RUN_READY)
	$(BIN)/ppga demo

lint: $(DEV_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest tests/test_layers.py

test: lint system
	$(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

quick: lint system
	$(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder -m "not long and not slow"

long: $(DEV_READY)
	$(BIN)/pytest --numprocesses 2 --dist loadfile -m long

FUZZ ?= 20000
fuzz: $(DEV_READY)
	PPGA_FUZZ=$(FUZZ) $(BIN)/pytest tests/test_fuzz.py tests/viewer/test_viewer.py -k "arbitrary or damaged or malformed"
	PPGA_FAULTS=100 $(BIN)/pytest tests/runs/test_faults.py

# What draws robots without a window, and a browser to look at the viewer with, from Debian's packages. Where they
# cannot be installed, the tests that need them are skipped.
system:
	@if ldconfig -p 2>/dev/null | grep -q libEGL.so.1; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && apt-get install -qq -y libegl1 libgl1-mesa-dri >/dev/null || echo "could not install libegl1"; \
	else echo "no EGL here: pictures of robots are not tested (Debian: libegl1 libgl1-mesa-dri)"; fi
	@if ldconfig -p 2>/dev/null | grep -q libOSMesa.so; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && apt-get install -qq -y libosmesa6 >/dev/null || echo "could not install libosmesa6"; \
	else echo "no OSMesa here: drawing without EGL is not tested (Debian: libosmesa6)"; fi
	@if command -v chromedriver >/dev/null && command -v chromium >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && apt-get install -qq -y chromium chromium-driver >/dev/null || echo "could not install chromium"; \
	else echo "no chromium here: the viewer's page is not tested (Debian: chromium chromium-driver)"; fi

format: $(DEV_READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(DEV_READY)
	$(BIN)/sphinx-build -W --keep-going --quiet docs docs/_build
	@echo docs/_build/index.html

bench: $(DEV_READY)
	$(BIN)/python -m benchmarks all

# the wheel is built from the sdist, so both are known to be whole
package: constraints.txt | $(VENV)/pyvenv.cfg
	rm -rf dist
	$(PIP) install --constraint constraints.txt build
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m build
	$(BIN)/python tests/helpers/packaged.py dist/*.whl constraints.txt

clean:
	rm -rf $(VENV) dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis MUJOCO_LOG.TXT
