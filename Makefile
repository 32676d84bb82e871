PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: run install test test-long test-federation test-wheel test-all lint bench bench-peers docs pictures \
  results results-quick lock clean

run: install           ## the embedded digits: 100 clients as in the paper, then 10,000 small ones
	$(BIN)/locks run --seed 0
	$(BIN)/locks run experiments/many-clients.toml --seed 0

install: $(VENV)/.installed
test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n 2 -rs -m "not slow and not long and not federation and not wheel"
test-long: $(VENV)/.installed-test   ## more problems, inputs, kills and audits than CI tries
	$(BIN)/python -m pytest -n 2 -rs -m long
test-federation: $(VENV)/.installed-test   ## real processes on loopback, TLS and node keys on
	$(BIN)/python -m pytest -n 2 -rs -m federation tests/federation
test-wheel: $(VENV)/.installed-test   ## the built wheel with the newest and the oldest versions
	$(BIN)/python -m pytest -n 0 -rs -m wheel tests/test_wheel.py
test-all: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n 2 -rs

lint: $(VENV)/.installed-test
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

bench: install         ## this project and the peers that are installed, in one run
	$(BIN)/python -m benchmarks

bench-peers: bench-peer-pfl bench-peer-flwr bench-peer-fedjax bench-peer-torch
bench-peer-%:          ## an environment for each, with torch before what asks for less of it
	test -x benchmarks/.venv-$*/bin/python || $(PYTHON) -m venv benchmarks/.venv-$*
	for torch in $$(grep '^torch==' benchmarks/requirements-$*.txt); do \
	  benchmarks/.venv-$*/bin/python -m pip install --quiet $$torch; done
	benchmarks/.venv-$*/bin/python -m pip install --quiet -r benchmarks/requirements-$*.txt

docs: $(VENV)/.installed-docs   ## the site, from docs/ into site/html; a warning is an error
	$(BIN)/python -m sphinx -q -E -W --keep-going -b html docs site/html

pictures: $(VENV)/.installed-test   ## every picture in docs/, made anew; it needs Chromium
	$(BIN)/python scripts/make_pictures.py
	$(BIN)/python scripts/make_report_pictures.py
	$(BIN)/python -m benchmarks --show --json docs/performance.json --figure docs/performance.svg

QUICK := frontier clients cohorts natural shakespeare rounds two-classes records
RESULTS := $(QUICK) rules rules-local rules-shakespeare rules-no-privacy training turns rounds-digits
results: install       ## every comparison of docs/results.md, which says how long it takes
	for name in $(RESULTS); do \
	  $(BIN)/locks compare experiments/results/$$name.toml --out runs/results/$$name || exit; done
	$(BIN)/python -m scripts.make_results runs/results

results-quick: install ## most of them, small, on the embedded digits
	for name in $(QUICK); do \
	  $(BIN)/locks compare --quick experiments/results/$$name.toml \
	    --out runs/results-quick/$$name || exit; done

lock: $(VENV)/.installed   ## resolve constraints.txt anew
	$(PIP) uv
	$(BIN)/uv pip compile --universal --fork-strategy fewest --python-version 3.11 --all-extras \
	  --no-header --no-annotate --upgrade --quiet pyproject.toml -o constraints.txt
	sed -i '1i # Every version of a fresh install, resolved with all extras together: make lock' \
	  constraints.txt

clean:
	rm -rf $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) -e ".[flower,test,lint]"
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) -e ".[docs]"
	touch $@
