# Two commands are all it takes on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Idle threads wait without spinning, so that a busy neighbour does not slow every step.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: help demo test check study docs clean

help:
	@echo "make demo    set up, train the marked-token model, print its table, write runs/demo/report.html"
	@echo "make test    set up and run the whole test suite"
	@echo "make check   set up, then lint, types and layers"
	@echo "make study   set up and run the studies (what has records is not run again)"
	@echo "make docs    write the tables of README and docs anew from the records"
	@echo "make clean   remove the virtual environment and the caches, not the runs"

# One stamp file stands for the whole set-up; it is made anew when the dependencies change.
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[dev]" --constraint constraints.txt
	@touch $@

demo: $(VENV)/ready
	$(BIN)/apportion train --out runs/demo

test: $(VENV)/ready
	$(BIN)/python -m pytest

check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py

# The folder with the texts of AG News that the study was run on; they are not part of the project.
AG_NEWS ?=

study: $(VENV)/ready
	$(BIN)/apportion run experiments/marked-64.toml --jobs 2
	$(BIN)/apportion run experiments/marked-64-ablation.toml --jobs 2
	$(if $(AG_NEWS),$(BIN)/apportion run experiments/ag-news.toml --jobs 2 --data $(AG_NEWS),\
		@echo "AG News is left out; make study AG_NEWS=FOLDER runs it")

docs: $(VENV)/ready
	$(BIN)/apportion report experiments/marked-64.toml --out runs/marked-64/report.html \
		--fill README.md --fill docs/marked-64.md --figures docs/figures
	$(BIN)/apportion report experiments/marked-64-ablation.toml \
		--out runs/marked-64-ablation/report.html --fill docs/marked-64-ablation.md
	$(BIN)/apportion report experiments/ag-news.toml --out runs/ag-news/report.html \
		--fill README.md --fill docs/ag-news.md --figures docs/figures

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
