# One gate, the same by hand and in CI. Every target makes or updates the environment first (nothing to do = no time).
VENV ?= .venv
PYTHON ?= python3
SOURCE ?=
QUERY ?=
QUICK ?=
OUT ?= out
PYTEST_ARGS ?=
BIN = $(VENV)/bin
unexport PYTHONDONTWRITEBYTECODE  # some containers set it; every program would compile torch's sources, 7 s of work
# A test that hangs in compiled code, where no time-out of Python reaches it, ends its worker with a traceback. A lost
# worker ends the run: pytest-xdist 3.8 would run the same test again for ever, or wait for ever (--dist loadfile).
HANG = -o faulthandler_timeout=650 -o faulthandler_exit_on_timeout=true --max-worker-restart 0

.PHONY: help setup demo pictures test test-all scenarios lint format docs bench minkowski constraints changelog sbom clean

help:
	@echo "make setup      environment in $(VENV): library, ROS 2 wheels, interface packages"
	@echo "make demo       simulated robot -> boxes, map and answers over ROS 2 topics -> $(OUT)/demo"
	@echo "                SOURCE=FOLDER_OR_BAG for real data, QUERY='the chair by the window' to ask"
	@echo "make pictures   the demo's top view and a sheet of a generated home -> docs/images"
	@echo "make test       tests, minutes       make test-all   slow ones too"
	@echo "make scenarios  things removed, moved, replaced, revisited: what the map of objects makes of it, as a table"
	@echo "make lint       ruff, mypy, hadolint make format     fix what can be fixed"
	@echo "make docs       the documentation site -> $(OUT)/site"
	@echo "make bench      benchmarks, tables and out/bench/*.json    QUICK=1: seconds each, whether they run"
	@echo "make minkowski  optional: builds MinkowskiEngine (CPU) from source into $(VENV), about 15 minutes"
	@echo "make constraints  pin the newest versions that pyproject.toml allows"
	@echo "make changelog  CHANGELOG.rst of the ROS packages   make sbom  bill of materials, CycloneDX"

setup:
	@$(PYTHON) .ci/setup.py --venv $(VENV)

demo: setup
	$(BIN)/embodied-perceptron demo $(if $(SOURCE),--source $(SOURCE)) $(if $(QUERY),--query '$(QUERY)') --out $(OUT)/demo

pictures: demo
	$(BIN)/embodied-perceptron generate --homes 1 --out $(OUT)/sheet
	$(BIN)/embodied-perceptron inspect $(OUT)/sheet --limit 1
	$(BIN)/python -c "import cv2; cv2.imwrite('docs/images/demo.jpg', cv2.imread('$(OUT)/demo/top_view.png'))"
	$(BIN)/python -c "import cv2; cv2.imwrite('docs/images/home_sheet.jpg', cv2.imread('$(OUT)/sheet/inspect/sheet_synthetic_0.png'))"

# One thread a worker: workers share the cores, and threads that wait for each other's would cost a sixth.
test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n 3 --dist loadfile $(HANG) $(PYTEST_ARGS)

test-all: setup
	$(BIN)/python -m pip install --quiet "ray>=2.9"
	$(BIN)/python -m pytest $(PYTEST_ARGS)

scenarios: setup
	$(BIN)/python tests/scenarios/table.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/hadolint docker/Dockerfile docker/Dockerfile.*

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs:
	@$(PYTHON) .ci/setup.py --venv $(VENV) --extra docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --site-dir $(OUT)/site

# The peers of benchmarks/fusion.py are optional: not every Python and machine has wheels of them.
bench: setup
	@$(PYTHON) .ci/setup.py --venv $(VENV) --extra bench || echo "without Open3D and OctoMap"
	$(BIN)/embodied-perceptron dev bench --all $(if $(QUICK),--quick)

# The optional second engine and its parity test; never needed, not part of the gate.
minkowski: setup
	$(BIN)/python -m pip install --quiet ninja
	PATH="$(abspath $(BIN)):$$PATH" PYTHON=python docker/minkowski/build.sh

# Universal pins (markers for every supported Python). torch is held: its newest build may lack a CPU wheel. The extra
# ros-kilted stays out: its versions exclude those of the extra ros.
EXTRAS = $(shell sed -n '/^\[project.optional/,/^\[project.scripts/s/^\([a-z][a-z0-9-]*\) = \[.*/\1/p' pyproject.toml)
constraints: setup
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.10 --upgrade --no-header --no-annotate --quiet \
	  $(addprefix --extra ,$(filter-out ros-kilted,$(EXTRAS))) --constraint .ci/held.txt --output-file constraints.txt

changelog:
	$(PYTHON) .ci/changelog.py

sbom: setup
	$(BIN)/python .ci/sbom.py

clean:
	rm -rf $(OUT) build dist ros_ws/build ros_ws/install ros_ws/log .pytest_cache .mypy_cache .ruff_cache
