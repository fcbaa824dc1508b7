# Every target works as the first command on a fresh clone: it makes .venv with what it needs.
# The torch pin is for development; `make demo TORCH=torch` takes whatever build the registry offers.
PYTHON ?= python3
TORCH  ?= torch==2.13.0
TRITON ?= $(if $(filter torch==2.13.0,$(TORCH)),triton==3.7.1,triton)

VENV   := .venv
BIN    := $(VENV)/bin
DONE   := $(VENV)/.installed
CHECKS := $(VENV)/.installed-check
DOCS   := $(VENV)/.installed-docs
SITE   := docs/_build/html

.PHONY: demo docs docs-quick docs-external test test-slow test-gpu test-peer test-browser coverage check format bench-env bench bench-quick bench-peers bench-quality bench-kinds bench-small bench-sizes bench-scale report clean

demo: $(DONE)
	$(BIN)/torchgw demo

# The pages, with every example executed and every link within them followed; a warning is an error.
docs: $(DOCS)
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -W --keep-going -b html docs $(SITE)
	$(BIN)/python docs/links.py $(SITE)
	@echo "the documentation is in $(SITE)/index.html"

# Before each change of a page or an example: the pages with their links, without running the gallery, then the blocks of
# the pages, and examples at a small size.
docs-quick: $(DOCS)
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -W --keep-going -D plot_gallery=0 -b html docs $(SITE)-quick
	$(BIN)/python docs/links.py $(SITE)-quick
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto tests/test_documents.py tests/test_page_names.py tests/test_examples.py tests/test_gallery.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto -m '' -k 'not figures_are_drawn' tests/test_guides.py

# The links that leave the pages; needs a network.
docs-external: $(DOCS)
	$(BIN)/python -m sphinx -q -b linkcheck -D plot_gallery=0 docs docs/_build/external

# One process for each core: two torch programs with several threads each would slow each other down. A file stays in one
# of them, since its tests share what was solved, and the longest come first, as tests/conftest.py has them.
test: $(DONE)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test-slow: $(DONE)
	$(BIN)/python -m pytest -m slow

test-gpu: $(DONE)
	$(BIN)/python -m pytest -m gpu

test-peer: $(DONE)
	$(BIN)/python -m pip install -q -e '.[peers]'
	$(BIN)/python -m pytest -m peer

test-browser: $(DONE)
	$(BIN)/python -m pip install -q -e '.[browser]'
	$(BIN)/python -m pytest -m browser

coverage: $(DONE)
	$(BIN)/python -m pytest --cov --cov-report=term-missing --cov-fail-under=92

check: $(CHECKS)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(CHECKS)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Each peer in an environment of its own: they disagree about versions, and the published package has our import name.
PEERS           := pot ott published fugw
WITH_TORCH      := published fugw
pot_needs       := POT==0.9.7.post1
ott_needs       := ott-jax==0.6.0 jax==0.10.2
published_needs := torchgw==0.4.2
fugw_needs      := fugw==0.1.1

bench-env: $(PEERS:%=.venv-%/.installed)

# All packages on one problem, in one run on one machine, and the documents from it.
bench-peers: $(DONE) bench-env
	$(BIN)/python -m benchmarks verify
	$(BIN)/python -m benchmarks peers
	$(BIN)/python -m benchmarks tables

bench-quality: $(DONE) bench-env
	$(BIN)/python -m pip install -q -e '.[peers]'
	$(BIN)/python -m benchmarks verify
	$(BIN)/python -m benchmarks quality

bench-kinds: $(DONE)
	$(BIN)/python -m pip install -q -e '.[peers]'
	$(BIN)/python -m benchmarks verify
	$(BIN)/python -m benchmarks kinds

bench-small: $(DONE)
	$(BIN)/python -m pip install -q -e '.[peers]'
	$(BIN)/python -m benchmarks verify
	$(BIN)/python -m benchmarks small

bench-sizes: $(DONE)
	$(BIN)/python -m pip install -q -e '.[peers]'
	$(BIN)/python -m benchmarks verify
	$(BIN)/python -m benchmarks sizes

bench-scale: $(DONE)
	$(BIN)/python -m benchmarks verify
	$(BIN)/python -m benchmarks scale

# Small sizes, minutes: what it finds is printed and stored apart from the results that documents read.
bench-quick: $(DONE) bench-env
	$(BIN)/python -m benchmarks all --quick --report

# Everything, hours: the tests first, then every suite, the tables of the documents and the report.
bench: $(DONE) bench-env
	$(BIN)/python -m pip install -q -e '.[peers]'
	$(BIN)/python -m benchmarks all --report

report: $(DONE)
	$(BIN)/python -m benchmarks report

# torch comes first, as the build that is pinned; the log says why a package is missing.
.venv-%/.installed: Makefile
	$(PYTHON) -m venv .venv-$*
	$(if $(filter $*,$(WITH_TORCH)),.venv-$*/bin/python -m pip install -q '$(TORCH)')
	$(if $(filter $*,$(WITH_TORCH)),if [ "$$(uname -s)" = Linux ]; then .venv-$*/bin/python -m pip install -q '$(TRITON)'; fi)
	if .venv-$*/bin/python -m pip install -q --log .venv-$*/install.log $($*_needs); then touch $@; \
	else echo "no $*: its rows will say why; .venv-$*/install.log says more, and the next run tries again"; fi

$(CHECKS): $(DONE)
	$(BIN)/python -m pip install -q -e '.[check]'
	touch $@

$(DOCS): $(DONE)
	$(BIN)/python -m pip install -q -e '.[docs]'
	touch $@

# At once, which resolves once; of tens of thousands of files only those that are imported are worth compiling.
$(DONE): pyproject.toml Makefile
	$(PYTHON) -m venv $(VENV)
	if [ "$$(uname -s)" = Linux ]; then triton='$(TRITON)'; fi; \
	$(BIN)/python -m pip install -q --no-compile '$(TORCH)' $$triton -e '.[test]'
	touch $@

clean:
	rm -rf $(VENV) .venv-* build dist docs/_build docs/gallery *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage demo.png
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
