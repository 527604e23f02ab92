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
	$(BIN)/python -m pytest -n 2

check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py

# Folders that the studies were run on; they are not part of the project.
AG_NEWS ?=
DBPEDIA14 ?=
BERT_TINY ?=
RUN := $(BIN)/apportion run --jobs 2

study: $(VENV)/ready
	$(RUN) experiments/marked-64.toml
	$(RUN) experiments/marked-64-ablation.toml
	$(RUN) experiments/shapes.toml
	$(if $(AG_NEWS),$(RUN) experiments/ag-news.toml --data $(AG_NEWS),\
		@echo "AG News is left out; make study AG_NEWS=FOLDER runs it")
	$(if $(AG_NEWS),$(RUN) experiments/ag-news-minilm.toml --data $(AG_NEWS))
	$(if $(DBPEDIA14),$(RUN) experiments/dbpedia14-minilm.toml --data $(DBPEDIA14),\
		@echo "DBpedia14 is left out; make study DBPEDIA14=FOLDER runs it")
	$(if $(and $(AG_NEWS),$(BERT_TINY)),$(RUN) experiments/bert-tiny-reconstructed.toml \
		--data $(AG_NEWS) --model $(BERT_TINY),\
		@echo "BERT-Tiny is left out; make study AG_NEWS=FOLDER BERT_TINY=FOLDER runs it")

# Every study that has records: its page, the figures, and the Markdown that shows its tables.
docs: $(VENV)/ready
	for study in $(basename $(notdir $(wildcard experiments/results/*.jsonl))); do \
		$(BIN)/apportion report experiments/$$study.toml --out runs/$$study/report.html \
			--figures docs/figures $$(grep -l "table: $$study/" README.md docs/*.md \
			| sed 's/^/--fill /') > /dev/null || exit 1; \
	done

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
