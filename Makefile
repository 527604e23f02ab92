# Two commands are all it takes on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Idle threads wait without spinning, so that a busy neighbour does not slow every step.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: help demo demo-paper test test-slow browser torture mutants quick check checkpoints study docs site clean

help:
	@echo "make demo    set up, give MiniLM a speed dial on film reviews, print its table, write runs/demo/report.html"
	@echo "make demo-paper  set up, train the paper's marked-token model, print its table, write runs/demo-paper/report.html"
	@echo "make test    set up and run the whole test suite"
	@echo "make test-slow  set up and run the tests that take minutes"
	@echo "make browser install Chromium, node and npm for the tests of pages, where apt and root are there"
	@echo "make torture set up and read 10,300 damaged checkpoint folders"
	@echo "make quick   set up and re-run every table of the paper, reduced to minutes"
	@echo "make check   set up, then lint, types and layers"
	@echo "make mutants set up, break the code in one place after the other and see whether a test notices"
	@echo "make checkpoints DATA=FOLDER  set up and train the first seed of each study's dense and nested model"
	@echo "make study   set up and run what the committed records lack"
	@echo "make docs    write the tables of README and docs anew from the records"
	@echo "make site    set up and build the documentation, strictly, into runs/site"
	@echo "make clean   remove the virtual environment and the caches, not the runs"

# One stamp file stands for the whole set-up; it is made anew when the dependencies change.
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[dev]" --constraint constraints.txt
	@touch $@

# Alone on a machine, threads that spin while they wait train half as fast again.
demo: $(VENV)/ready
	env -u OMP_WAIT_POLICY $(BIN)/apportion demo --out runs/demo

demo-paper: $(VENV)/ready
	$(BIN)/apportion train --out runs/demo-paper

test: $(VENV)/ready
	$(BIN)/python -m pytest -n 2 --dist loadfile

torture: $(VENV)/ready
	$(BIN)/python tools/torture.py

test-slow: $(VENV)/ready
	$(BIN)/python -m pytest -m slow -n 2 --dist loadfile --timeout=600

# Without them, the tests that open pages are skipped, with a reason.
browser:
	@missing="$$(command -v chromium > /dev/null || echo chromium) $$(command -v npm > /dev/null || echo nodejs npm)"; \
	if [ "$$missing" = " " ]; then echo "all there"; \
	elif command -v apt-get > /dev/null && [ "$$(id -u)" = 0 ]; then \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing; \
	else echo "install by hand:$$missing"; fi

check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py

# Not part of a change's checks: it takes some minutes.
mutants: $(VENV)/ready
	$(BIN)/python tools/mutants.py

DATA ?= data
checkpoints: $(VENV)/ready
	$(BIN)/python tools/checkpoints.py $(DATA)

quick: $(VENV)/ready
	$(BIN)/apportion reproduce --quick

# Folders that the studies were run on; they are not part of the project.
AG_NEWS ?=
DBPEDIA14 ?=
BERT_TINY ?=
REPRODUCE := $(BIN)/apportion reproduce --results experiments/results --runs runs --out runs/paper

# Completes the committed records. `apportion reproduce` by itself trains everything from nothing.
study: $(VENV)/ready
	$(REPRODUCE) $(if $(AG_NEWS),--data ag_news=$(AG_NEWS)) \
		$(if $(DBPEDIA14),--data dbpedia14=$(DBPEDIA14)) \
		$(if $(BERT_TINY),--model bert_tiny=$(BERT_TINY))

# Every study that has records: its page, the figures, and the Markdown that shows its tables.
docs: $(VENV)/ready
	for study in $(basename $(notdir $(wildcard experiments/results/*.jsonl))); do \
		$(BIN)/apportion report experiments/$$study.toml --out runs/$$study/report.html \
			--figures docs/figures $$(grep -l "table: $$study/" README.md docs/*.md \
			| sed 's/^/--fill /') > /dev/null || exit 1; \
	done
	$(REPRODUCE) --report-only --fill docs/reproduce.md > /dev/null
	cp runs/paper/report.md docs/paper-tables.md
	$(BIN)/python docs/record_tables.py
	$(BIN)/apportion report experiments/load/serving.jsonl --fill docs/serve.md > /dev/null
	$(BIN)/apportion report experiments/certificates/certified.jsonl --fill docs/guarantee.md > /dev/null
	$(BIN)/apportion report experiments/milliseconds/forecast.jsonl --fill docs/milliseconds.md > /dev/null
	$(BIN)/apportion report experiments/ray/jobs.jsonl --fill docs/ray.md > /dev/null
	$(BIN)/python docs/front_page.py
	$(BIN)/python docs/reference_pages.py
	$(BIN)/python docs/code_links.py

# Broken links and pages without a place in the navigation are errors.
site: $(VENV)/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
