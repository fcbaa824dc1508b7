# Every target works as the first command on a fresh clone: it makes .venv with what it needs.
# The torch pin is for development; `make demo TORCH=torch` takes whatever build the registry offers.
PYTHON ?= python3
TORCH  ?= torch==2.13.0
TRITON ?= $(if $(filter torch==2.13.0,$(TORCH)),triton==3.7.1,triton)

VENV := .venv
BIN  := $(VENV)/bin
DONE := $(VENV)/.installed

.PHONY: demo test test-slow test-gpu test-peer coverage check format bench-env bench-quality bench-scale bench-gpu clean

demo: $(DONE)
	$(BIN)/torchgw demo

# One process for each core: two torch programs with several threads each would slow each other down.
test: $(DONE)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

test-slow: $(DONE)
	$(BIN)/python -m pytest -m slow

test-gpu: $(DONE)
	$(BIN)/python -m pytest -m gpu

test-peer: $(DONE)
	$(BIN)/python -m pip install -q -e '.[peers]'
	$(BIN)/python -m pytest -m peer

coverage: $(DONE)
	$(BIN)/python -m pytest --cov --cov-report=term-missing --cov-fail-under=90

check: $(DONE)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(DONE)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The published package shares our import name, so it lives in an environment of its own.
bench-env: .venv-published/.installed
bench-quality: $(DONE) bench-env
	$(BIN)/python -m pip install -q -e '.[peers]'
	$(BIN)/python -m benchmarks quality

bench-scale: $(DONE)
	$(BIN)/python -m benchmarks scale

bench-gpu: $(DONE)
	$(BIN)/python -m benchmarks gpu

.venv-published/.installed: Makefile
	$(PYTHON) -m venv .venv-published
	.venv-published/bin/python -m pip install -q '$(TORCH)'
	if [ "$$(uname -s)" = Linux ]; then .venv-published/bin/python -m pip install -q '$(TRITON)'; fi
	.venv-published/bin/python -m pip install -q torchgw==0.4.2
	touch $@

$(DONE): pyproject.toml Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q '$(TORCH)'
	if [ "$$(uname -s)" = Linux ]; then $(BIN)/python -m pip install -q '$(TRITON)'; fi
	$(BIN)/python -m pip install -q -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .venv-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage demo.png
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
