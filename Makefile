PYTHON ?= python3
TABLE ?= embedded
BIN := .venv/bin
STAMP := .venv/.installed-from-pyproject
export OMP_NUM_THREADS ?= 1

.PHONY: help venv reproduce cell tune results record figures test bench ui

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 12

venv: $(STAMP) ## .venv from pyproject.toml, rebuilt when that file changes

$(STAMP): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@

reproduce: $(STAMP) ## every unfinished cell of a table, claims, figures: make reproduce TABLE=embedded
	@$(BIN)/python -m reproduce grid $(TABLE) $(if $(SEEDS),--seeds $(SEEDS)); failed=$$?; \
	[ $$failed -le 1 ] || exit $$failed; \
	$(BIN)/python -m reproduce theory && \
	$(BIN)/python -m paper_figures --table $(TABLE) && \
	$(BIN)/python -m reproduce claims --table $(TABLE) && exit $$failed

cell: $(STAMP) ## one cell: make cell CELL=digits-resnet50/t1+t2 [TABLE=embedded]
	$(if $(CELL),,$(error which cell? make cell CELL=name; `python -m reproduce list` names them))
	$(BIN)/python -m reproduce run '$(CELL)' --table $(TABLE)

tune: $(STAMP) ## hyperparameters of one cell: make tune CELL=digits-resnet50/t1+t2 [TRIALS=30 TABLE=embedded]
	$(if $(CELL),,$(error which cell? make tune CELL=name; `python -m reproduce list` names them))
	$(BIN)/python -m ablations tune '$(CELL)' --table $(TABLE) $(if $(TRIALS),--trials $(TRIALS))

results: $(STAMP) ## the records of a table as CSV and as a printed table
	$(BIN)/python -m reproduce results --table $(TABLE)

record: $(STAMP) ## the records of a table into results/recorded and the README, to be committed
	$(BIN)/python -m reproduce results --table $(TABLE) --record
	env -u MLFLOW_TRACKING_URI REPRODUCE_RESULTS=results/recorded \
	  $(BIN)/python -m paper_figures --table $(TABLE)

figures: $(STAMP) ## every figure and report.html, from records alone: make figures [TABLE=embedded]
	$(BIN)/python -m paper_figures --table $(TABLE)

test: $(STAMP) ## lint, types, import contracts, tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest

bench: $(STAMP) ## side-by-side benchmark, on an idle machine; JSON=FILE writes the numbers
	@$(BIN)/python -c 'import torchgpipe' 2>&- || \
	  $(BIN)/pip install -q --disable-pip-version-check -e '.[bench]' || true
	$(BIN)/python -m reproduce bench $(if $(JSON),--json '$(JSON)')

ui: $(STAMP) ## MLflow's UI over the store
	@echo "The studies of make tune, beside it: $(BIN)/pip install -e '.[dashboard]', and then"
	@echo "  $(BIN)/optuna-dashboard sqlite:///$${REPRODUCE_RESULTS:-results}/tuning.db"
	$(BIN)/mlflow ui --backend-store-uri \
	  "$${MLFLOW_TRACKING_URI:-sqlite:///$${REPRODUCE_RESULTS:-results}/mlflow.db}"
