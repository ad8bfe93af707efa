# `make serve` and `make test` work from a clean clone: they make .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

# Tests of the repository and of its benchmarks: `make check` runs them, and `make test` the rest.
CHECKED := tests/benchmarks $(patsubst %,tests/test_%.py,clocks docs imports layers repository)

# With it, each worker of the tests, and each server that they start, would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help serve install test test-all coverage fuzz chaos clients parity check fix docs
.PHONY: lowest newest beside elsewhere companions package clean playground

help:  ## Show what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(BIN)/onward: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Onward needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@$(call need_room,500)
	@echo "Installing Onward into $(VENV) (once; a minute or two, 380 MB when it is done)"
	@$(call pip_install,-e .,$(PYTHON) -m venv $(VENV))

$(VENV)/.dev: pyproject.toml $(BIN)/onward
	@$(call need_room,2000)
	@echo "Installing what the tests need (once; 1.5 GB, some minutes)"
	@$(call pip_install,-e '.[dev]')

# Half a gigabyte, so only for the slow tests; without it, those of the cluster are skipped, and say so.
$(VENV)/.cluster: pyproject.toml $(VENV)/.dev
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[cluster]' && touch $@ || \
		echo "Ray could not be installed: the tests of the cluster are skipped"

install: $(VENV)/.dev  ## Make .venv with what serving, tests and checks need

# $(call need_room,MB): end with a sentence where the disk has no room for an installation of this size.
define need_room
has=$$(du -sm $(VENV) 2>/dev/null | cut -f1); free=$$(df -Pm . | awk 'NR == 2 { print $$4 }'); \
wanted=$$(($(1) - $${has:-0})); if [ "$${free:-$$wanted}" -lt $$wanted ]; then \
	echo "This folder's disk has $$free MB of free space, but the installation needs $$wanted MB: free some." >&2; exit 1; fi
endef

# $(call pip_install,WHAT,FIRST): run FIRST, install with pip, and touch the target. A terminal shows how much is there so
# far, with the wheels that are removed in the end, and for how long it has run. After Ctrl-C, which ends make as well, the
# recipe succeeds: else make would call it an error.
define pip_install
trap 'interrupted=yes' INT; mkdir -p $(VENV)/tmp; \
if [ -t 2 ] && [ "$$TERM" != dumb ]; then ( seconds=0; while kill -0 $$$$ 2>/dev/null; do \
	printf '\r  %s MB downloaded and installed, %s s ' "$$(du -sm $(VENV) 2>/dev/null | cut -f1)" $$seconds >&2; \
	sleep 1; seconds=$$((seconds + 1)); done ) & shown=$$!; fi; \
$(if $(2),( trap '' INT; $(2) ) && [ -z "$$interrupted" ] &&) \
TMPDIR="$(abspath $(VENV))/tmp" $(BIN)/python -m pip install --quiet --disable-pip-version-check $(1); status=$$?; \
if [ -n "$$shown" ]; then kill $$shown; wait $$shown 2>/dev/null; printf '\r\033[K' >&2; fi; \
rm -rf $(VENV)/tmp; if [ -n "$$interrupted" ]; then exit 0; fi; \
if [ $$status != 0 ]; then echo "It could not be installed: the reason is above. The same command tries again." >&2; exit 1; fi; \
touch $@
endef

serve: $(BIN)/onward  ## Serve the built-in model at http://127.0.0.1:8000 (ARGS="--port 8123" passes flags on)
	@trap : INT; $(BIN)/onward serve $(ARGS); status=$$?; [ $$status = 130 ] || exit $$status

test: $(VENV)/.dev  ## Run the fast tests (about a minute on two cores)
	$(BIN)/python -m pytest -n auto --dist worksteal --max-worker-restart 0 -o faulthandler_timeout=300 \
		$(CHECKED:%=--ignore=%) $(ARGS)

test-all: $(VENV)/.dev $(VENV)/.cluster playground/node_modules/.done  ## Run all tests, slow ones too
	$(BIN)/python -m pytest -m "" $(ARGS)

elsewhere: $(VENV)/.dev  ## Run the fast tests in random order as on another machine: ASCII, another time zone, umask 077, an empty home
	@home=$$(mktemp -d) && trap 'rm -rf "$$home"' EXIT && umask 077 && \
		env -u PYTHONUNBUFFERED -u XDG_CACHE_HOME -u XDG_CONFIG_HOME -u XDG_DATA_HOME HOME="$$home" TZ=Asia/Kathmandu \
		LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 $(BIN)/python -m pytest -p tests.shuffled \
		-n auto --dist worksteal --max-worker-restart 0 -o faulthandler_timeout=300 $(ARGS)

coverage: $(VENV)/.dev  ## Run the fast tests with coverage; fail below the floor in pyproject.toml
	$(BIN)/python -m pytest -n auto --dist worksteal --max-worker-restart 0 \
		-o faulthandler_timeout=300 --cov --cov-report=term:skip-covered $(ARGS)

companions: $(VENV)/.dev $(VENV)/.cluster playground/node_modules/.done  ## Run what is too heavy for every change: SDKs of other languages, Ray, editors, real models, the rest of long tables
	$(BIN)/python -m pytest -m companion -n 2 --dist loadfile --max-worker-restart 0 $(ARGS)

fuzz: $(VENV)/.dev  ## Run the property tests on new random examples (make test draws the same few every time)
	$(BIN)/python -m pytest -n auto --dist worksteal --max-worker-restart 0 -m hypothesis --hypothesis-profile=random $(ARGS)

chaos: $(VENV)/.dev  ## Crash, hang and kill engines and servers under load, and compare every answer (ARGS="--faults 20")
	$(BIN)/python -m tests.chaos.run $(ARGS)

clients: $(VENV)/.dev  ## Run real clients against real servers (installs each into .venv-clients/)
	$(BIN)/python -m tests.clients.run $(ARGS)

parity: $(VENV)/.dev  ## Run the parity table and write its page
	$(BIN)/python -m tests.parity.page
	$(BIN)/python -m pytest tests/parity $(ARGS)

check: $(VENV)/.dev  ## Lint, format and type checks; tests of the repository and of its benchmarks
	$(BIN)/ruff check src tests benchmarks docs training playground/openapi.py hatch_build.py
	$(BIN)/ruff format --check src tests benchmarks docs training playground/openapi.py hatch_build.py
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n auto --dist worksteal --max-worker-restart 0 $(CHECKED)

fix: $(VENV)/.dev  ## Format, and fix what the linter can
	$(BIN)/ruff check --fix src tests benchmarks docs training playground/openapi.py hatch_build.py
	$(BIN)/ruff format src tests benchmarks docs training playground/openapi.py hatch_build.py

docs: $(VENV)/.dev  ## Write the reference pages that come from the code
	$(BIN)/python docs/generate.py
	$(BIN)/python -m onward.cli.reference > docs/reference/cli.md

playground: $(BIN)/onward playground/node_modules/.done  ## Build the page at / from playground/ (needs Node 20 or newer)
	@mkdir -p build
	$(BIN)/python playground/openapi.py > build/openapi.json
	cd playground && npm run --silent types && npm run --silent build

# Without Node or a registry, the tests that need these packages are skipped, and say so.
playground/node_modules/.done: playground/package-lock.json
	@(cd playground && npm ci --ignore-scripts --no-audit --no-fund && touch node_modules/.done) || \
		echo "The playground's packages could not be installed: it is not built, and its own tests are skipped"

# An environment of its own for each of these: .venv stays as it is.
OTHER = .venv-$@
UV = $(OTHER)/bin/uv pip install --quiet --python $(OTHER)

define other_environment
	@rm -rf $(OTHER)
	@$(PYTHON) -m venv $(OTHER)
	@$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check uv
endef

lowest:  ## Run the fast tests on the lowest versions that pyproject.toml allows
	$(other_environment)
	@$(UV) --resolution lowest-direct -e '.[test,openvino,otel]'
	$(OTHER)/bin/python -m pytest -n auto --dist worksteal $(ARGS)

newest:  ## Run the fast tests on the newest released versions of dependencies
	$(other_environment)
	@$(UV) --upgrade -e '.[test,openvino,otel]'
	$(OTHER)/bin/python -m pytest -n auto --dist worksteal $(ARGS)

beside:  ## Install Onward beside transformers 4 and click 8.1, and run it
	$(other_environment)
	@$(UV) -e . 'transformers==4.57.*' 'click==8.1.*'
	$(OTHER)/bin/uv pip check --python $(OTHER)
	@$(OTHER)/bin/onward --help > $(OTHER)/help.txt
	$(OTHER)/bin/python -c 'import transformers, onward.compose; print("transformers", transformers.__version__)'
	$(OTHER)/bin/onward completions create --prompt 'Once upon a time' --max-tokens 20 --temperature 0 --format text

package:  ## Build wheel and source distribution, check them, run the wheel in an environment of its own
	$(other_environment)
	@$(UV) build twine
	@rm -rf dist
	PACKAGE_KERNELS=1 $(OTHER)/bin/python -m build --installer uv --outdir dist .
	$(OTHER)/bin/python -m twine check --strict dist/*
	@$(PYTHON) -m venv --clear $(OTHER)/wheel
	@$(OTHER)/bin/uv pip install --quiet --python $(OTHER)/wheel dist/onward-*.whl
	cd $(OTHER) && XDG_CACHE_HOME="$(CURDIR)/$(OTHER)/cache" wheel/bin/onward completions create --prompt 'Once upon a time' --max-tokens 20 --temperature 0 --format text
	@test "$$(uname)" != Linux || test ! -e $(OTHER)/cache/onward/kernels || { echo "The wheel lacks kernels: they were compiled"; exit 1; }

clean:  ## Remove the environment and caches
	rm -rf $(VENV) .venv-clients .venv-lowest .venv-newest .venv-beside .venv-package dist .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
