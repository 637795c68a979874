# Two commands do all set-up on a machine with only Python and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

# Neither venv nor pip says much while it installs, nor off a terminal while it downloads: meanwhile a line every two seconds.
PACKAGES = $$(ls -d $(VENV)/lib/python*/site-packages/*.dist-info 2>/dev/null | wc -l)
AUDIBLY = @( s=0; n=$(PACKAGES); while sleep 2 && kill -0 $$$$ 2>/dev/null; do s=$$((s + 2)); \
	[ -t 1 ] && [ $(PACKAGES) = $$n ] || echo "  $$s s, $(PACKAGES) packages installed"; done ) &

# A browser for the console's tests, where this may install one; without it they are skipped and say so.
CHROMIUM := command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	{ apt-get update && apt-get install -y --no-install-recommends chromium; } >/dev/null 2>&1; } || true

.PHONY: help demo test campaign wheels lint types openapi openapi-check clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(VENV)/.run: pyproject.toml hope_zoo/pyproject.toml constraints.txt $(wildcard agent_sdk/native/*.[ch] planner_api/planning/native/*.[ch])
	@echo "making $(VENV), then installing into it, once: this takes minutes"
	$(AUDIBLY) $(PYTHON) -m venv $(VENV) && $(INSTALL) -e '.[all,openvino]' -e ./hope_zoo
	@touch $@

$(VENV)/.dev: $(VENV)/.run tests/carried.txt
	$(AUDIBLY) $(INSTALL) -e '.[dev]' -e ./hope_zoo
	$(INSTALL) --no-deps -r tests/carried.txt
	@$(CHROMIUM)
	@touch $@

demo: $(VENV)/.run ## Run inception_v1 end to end on this machine: measure, plan, execute, check
	$(BIN)/hope-agent run inception_v1 --compare

test: $(VENV)/.dev ## Install what tests need and run them all, two files at a time
	$(BIN)/python -m pytest -n 2 --dist loadfile

campaign: $(VENV)/.dev ## Run the slow campaigns (fuzz, soak, chaos, exports) with their full counts
	$(AUDIBLY) $(INSTALL) -e '.[campaign]'
	HOPE_CAMPAIGN=1 $(BIN)/python -m pytest --timeout 3600

wheels: $(VENV)/.dev ## Make wheels for x86-64 and aarch64 in dist/
	for machine in x86_64 aarch64; do HOPE_WHEEL_MACHINE=$$machine $(BIN)/python -m pip wheel --disable-pip-version-check \
		--no-deps --no-build-isolation --wheel-dir dist . || exit 1; done

lint: $(VENV)/.dev ## Ruff: style and formatting; import-linter: which room may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.dev ## Mypy, strict where it matters most
	$(BIN)/mypy

openapi: $(VENV)/.dev ## Export the contract after an intended change
	$(BIN)/python -m planner_api.openapi --write openapi/openapi.json

openapi-check: $(VENV)/.dev ## Fail when openapi/ and the app differ
	$(BIN)/python -m planner_api.openapi --check openapi/openapi.json

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
