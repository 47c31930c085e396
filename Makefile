# Every target works on a fresh checkout: the first run makes .venv and installs into it.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready
SEEDS ?= 1000

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: install
install: $(READY) ## make .venv with the programs and the development tools

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python install"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

.PHONY: demo
demo: $(READY) ## play the main job on real processes and real knowledge (under 90 s)
	@$(BIN)/python -m examples.demo

.PHONY: test
test: $(READY) lint ## lint, type check, and run every fast test
	$(BIN)/python -m pytest

.PHONY: lint
lint: $(READY) ## style, types and import arrows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

.PHONY: bench
bench: $(READY) ## measure against the physical limits, a ratio each (some minutes)
	@$(BIN)/python -m bench

.PHONY: sim
sim: $(READY) ## simulate gossip among 2 to 16 replicas: make sim SEEDS=1000
	$(BIN)/python -m tests.sim --seeds $(SEEDS)

.PHONY: soak
soak: $(READY) ## the long runs: killed workers, fuzzed peers, replicas in network namespaces (needs root and ip)
	$(BIN)/python tests/soak/outbox_kill.py
	CKS_TEST_FUZZED=5000 $(BIN)/python -m pytest tests/net
	$(BIN)/python tests/soak/gossip_partition.py
	$(BIN)/python -m tests.sim --seeds $(SEEDS)

.PHONY: golden
golden: $(READY) ## renew the golden list of tools after a wanted change
	$(BIN)/python tests/golden/renew.py

.PHONY: clean
clean: ## remove .venv and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist *.egg-info
