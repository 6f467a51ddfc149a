# Each target sets itself up in .venv and touches nothing else; only python3 (3.11 or later) is needed.
SHELL := /bin/bash
PYTHON ?= python3
# make test BACKENDS=jax ARGS="tests/layers -k rotary"
BACKENDS ?= tensorflow jax torch
ARGS ?=

needs_lint := ruff
needs_demo := -e .[examples]
needs_test := -e .[test]
# A change of what is to be installed begins a new environment.
wanted := $(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)
ready = .venv/.$(wanted)-$(1)

.PHONY: demo test soak lint public-api clean

demo: $(call ready,demo)
	@TF_CPP_MIN_LOG_LEVEL=$${TF_CPP_MIN_LOG_LEVEL:-2} .venv/bin/python examples/demo.py $(ARGS)

test: $(call ready,test)
	@.venv/bin/python tests/run.py $(BACKENDS) -- $(ARGS)

soak: $(call ready,test)
	@.venv/bin/python tests/run.py $(BACKENDS) -- -m soak $(ARGS)

lint: $(call ready,lint)
	.venv/bin/ruff check .

public-api: $(call ready,test)
	.venv/bin/python -m tests.structure.surface --update

clean:
	rm -rf .venv

# .whole marks an environment in which no installation was cut short. It is away while one runs, so
# that after an interruption the next call starts from nothing.
.venv/.$(wanted)-%:
	@if ! [ -e .venv/.whole-$(wanted) ]; then \
	  echo "Making .venv"; rm -rf .venv; $(PYTHON) -m venv .venv; fi
	@rm -f .venv/.whole-*
	@echo "Installing for '$*' into .venv (some minutes the first time)"
	@.venv/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt $(needs_$*)
	@touch .venv/.whole-$(wanted) $@
