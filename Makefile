# Everything works on a fresh machine with Python 3.11+ and make: each target sets up what it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo wheel test test-fast test-long lint bench faults docs notebooks nano-sparse clean

setup: $(VENV)/.ready

# torch first and pinned: without the pin pip may take a build with gigabytes of GPU libraries.
$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

# First the tiny model, whose figures are there in a minute; then the real one, its page growing study by study.
demo: setup
	$(BIN)/headscope reproduce --models nano,nano-sparse --only 000,001,002 --format png --out runs/demo-nano
	$(BIN)/headscope reproduce --out runs/demo

# What users install: the wheel, in an environment of its own.
wheel:
	rm -rf dist build/wheel
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip install --quiet build torch==2.13.0
	build/wheel/bin/python -m build --wheel --outdir dist .
	build/wheel/bin/python -m pip install --quiet dist/*.whl
	cd build && HEADSCOPE_CACHE=$(CURDIR)/build/cache wheel/bin/headscope check nano --task ioi
	cd build && wheel/bin/headscope reproduce --only 000 --models nano --out demo-wheel

test: lint
	$(BIN)/python -m pytest

# Leaves out the tests marked slow.
test-fast: setup
	$(BIN)/python -m pytest -m 'not slow'

# The tests that take minutes: notebooks on SmolLM2, a share of the trials of `make faults`.
test-long: setup
	$(BIN)/python -m pytest -m long

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: setup
	$(BIN)/python bench/heads.py
	$(BIN)/python bench/edges.py
	$(BIN)/python bench/functions.py
	$(BIN)/python bench/memory.py
	$(BIN)/python bench/sparsify.py
	@echo "Left out: bench/roles.py (an environment of its own) and bench/role_presets.py, attribution.py, coverage.py (long); see their first lines"

# What goes wrong on purpose: counted trials, about an hour; the table goes into docs/reliability.md.
faults: setup
	PYTHONPATH=bench $(BIN)/python -m faults

# The notebooks of examples/, run again and kept as they ran.
notebooks: setup
	$(BIN)/python tools/run_notebooks.py

# The adapter in the package, trained again (a few minutes).
nano-sparse: setup
	$(BIN)/python tools/train_nano_sparse.py

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

$(VENV)/.docs: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) runs site build dist
