# The course's commands. `make help` lists them.
#
#   PYTHON=...      the Python to make the environment with (3.11 to 3.14)
#   PIP_ARGS=...    for the installation of torch alone, such as --index-url with the address that
#                   PyTorch's own selector gives for your GPU
#   VENV=...        another place for the environment
#
# No target installs what the system has to bring. Instructors want Debian's bubblewrap, which
# `dtcourse grade` runs students' answers in; `dtcourse doctor` says whether it works.

VENV ?= .venv
export VENV PYTHON PIP_ARGS
python = $(VENV)/bin/python
BENCH ?= $(sort $(wildcard benchmarks/*.py))

.DEFAULT_GOAL := help
.PHONY: help env lab test test-ci test-all test-bare test-python notebooks lint bench triton lock clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

env: ## make or refresh the environment in .venv, and nothing else
	@sh tools/setup

lab: env ## open JupyterLab on your copy of lesson 01 (LAB_ARGS=... go to JupyterLab)
	@$(VENV)/bin/dtcourse lab 01 -- $(LAB_ARGS)

test: env ## the suite: unit tests, then timing, then every lesson; the same everywhere
	@$(python) tools/test.py

test-ci: env ## what CI runs: all that is about what has changed, and of the rest a share
	@DTCOURSE_TEST_SHARE=drawn $(python) tools/test.py

test-all: env ## all: every wrong answer, every notebook at every number of ranks, ten times the random programs
	@DTCOURSE_TEST_SHARE=all DTCOURSE_FUZZ=10 $(python) tools/test.py

test-bare: env ## tests of what starts programs, where none of the optional ones is (Linux; CI runs it)
	@$(python) tools/bare_machine.py

test-python: env ## a part of them on Python 3.12 or 3.13, where one is here (6 GB; CI runs it)
	@$(python) tools/other_python.py

notebooks: env ## make exercises/ from solutions/, execute lessons and solutions, normalise them, list their claims
	@$(VENV)/bin/dtcourse exercises
	@$(python) -m dtcourse.course.notebooks
	@$(python) tools/claims.py

lint: env ## style, formatting, types, which package may import which, and flakes that are overdue
	@$(python) -m ruff check .
	@$(python) -m ruff format --check .
	@$(VENV)/bin/lint-imports --no-logo
	@$(python) -m mypy dtcourse
	@$(python) tools/flakes.py

bench: env ## time the course's code against PyTorch's own (BENCH=benchmarks/launch.py for one)
	@for script in $(BENCH); do echo "== $$script"; $(python) "$$script" || exit 1; done
	@echo; $(python) benchmarks/reporting/table.py

triton: env ## Triton in build/triton, for the tests of its kernels (Linux; nothing else needs it)
	@$(python) -m pip install -q --no-deps --upgrade --target build/triton triton==3.9.0

lock: env ## write requirements.lock from what is installed in .venv
	@$(python) tools/lock.py

clean: ## remove caches and executed copies (never .venv, never my/)
	@rm -rf build dist executed .cache .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find dtcourse tests benchmarks gallery tools lessons solutions exercises \
	    \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} + 2>/dev/null || true
