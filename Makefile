# Two commands are enough on a fresh machine: make say TEXT="..." and make test.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
TEXT ?= Hello there.
OUT ?= speech.wav

MINUTES ?= 30
SEED ?= 0

.PHONY: say test check bench soak mutations clean

$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) hatchling
	$(PIP) --no-build-isolation -e '.[dev]'
	touch $@

# The text goes through the environment, so that no character of it means anything to the shell.
say: export SPOKEN := $(value TEXT)
say: $(VENV)/installed
	$(BIN)/declaim say -o "$(OUT)" -- "$$SPOKEN"

test: $(VENV)/installed
	$(BIN)/python -m pytest

check: $(VENV)/installed
	$(BIN)/ruff format --check src tests scripts
	$(BIN)/ruff check src tests scripts
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/installed
	$(BIN)/declaim bench

soak: $(VENV)/installed
	OMP_WAIT_POLICY=passive $(BIN)/python scripts/soak --minutes $(MINUTES) --seed $(SEED)

mutations: $(VENV)/installed
	$(BIN)/python scripts/mutations --table docs/mutations.md

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist speech.wav
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
