# `make demo` and `make test` need nothing but python3 (or PYTHON=...); they set up .venv themselves.

PYTHON ?= python3
WORKERS ?= 2
# More for pytest: make test OPTIONS="--cpu x86-64-v2"
OPTIONS ?=

BIN := .venv/bin
# Each worker is one thread, so that workers do not compete for the cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(OPTIONS)

EVERY_TARGET := tests/capture tests/differentiate tests/partition tests/rules tests/runtime \
    tests/transforms tests/test_backend.py tests/test_compiler.py \
    tests/test_tiny.py --ignore tests/runtime/cpu --ignore tests/runtime/gpu

# With `--kept`: what compiles and differentiates most.
READ_BACK := tests/capture tests/transforms tests/models tests/runtime/test_bridge.py \
    tests/runtime/test_backward_calls.py \
    tests/test_derivatives.py tests/test_derivatives_inside.py

# These ask for old versions of what the others need (e3nn, sympy), or for torchvision, which has to be
# of the same build as torch; they run without.  So they are installed alone, and what else they need.
PACKAGES_ALONE := backpack-for-pytorch curvlinops-for-pytorch mace-torch schnetpack
THEIR_NEEDS := ase configargparse dirsync einconv einops fasteners GitPython h5py hydra-colorlog \
    linear_operator lmdb matplotlib matscipy opt_einsum orjson pandas prettytable python-hostlist \
    tensorboard tensorboardX torch-ema unfoldNd

.PHONY: venv demo docs dist test test-all test-packages check lint tidy format clean

venv: .venv/installed

# What adjoint itself needs.  torch goes first and alone, so that its version and build are settled
# before anything that depends on it. The package is built with the setuptools of the venv, not in an
# isolated environment.
.venv/runtime: pyproject.toml constraints.txt
	@echo "Setting up .venv. The first time torch is downloaded, which may take some minutes."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -c constraints.txt setuptools
	$(BIN)/python -m pip install -c constraints.txt torch
	$(BIN)/python -m pip install -c constraints.txt --no-build-isolation -e .
	touch $@

.venv/installed: .venv/runtime
	$(BIN)/python -m pip install -c constraints.txt --no-build-isolation -e '.[test]'
	touch $@

demo: .venv/runtime
	@echo "Training two networks on derivatives, beside eager. The first steps compile; it takes a"
	@echo "minute or two, with a bar for each network."
	$(BIN)/python -m demo

# The site: open build/site/index.html.  The developer documentation: open build/docs/index.html, of
# which only pages that changed are written.
docs: venv
	$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python -m adjoint atlas . --out build/docs --format html

# What is published: a wheel and an sdist, checked.
dist: venv
	$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation -e '.[publish]'
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

test: lint
	$(PYTEST) -n $(WORKERS) -m "not slow"

# The second run: what every target has to do, on the reference executor; the third, in plain Python,
# with the tests of kernels; the fourth, with every derivative and program read back from files.
test-all: lint
	$(PYTEST) -n $(WORKERS)
	$(PYTEST) -n $(WORKERS) -m "not slow" --target reference $(EVERY_TARGET)
	$(PYTEST) -n $(WORKERS) -m "not slow" --target loops $(EVERY_TARGET) tests/lower
	$(PYTEST) -n $(WORKERS) -m "not slow" --kept build/kept $(READ_BACK)

# Models of other packages: installs them, and trains each.  Without them `make test-all` skips these.
# setuptools-scm goes first: one of them comes as source, and is told its version by it.
test-packages: venv
	$(BIN)/python -m pip install -c constraints.txt setuptools-scm
	$(BIN)/python -m pip install -c constraints.txt --no-build-isolation -e '.[packages]' $(THEIR_NEEDS)
	$(BIN)/python -m pip install -c constraints.txt --no-deps $(PACKAGES_ALONE)
	$(PYTEST) -n $(WORKERS) tests/packages

check: lint tidy

lint: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

tidy: venv
	$(PYTEST) -q tests/test_tidy.py tests/test_architecture.py

format: venv
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist adjoint.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache \
	    .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
