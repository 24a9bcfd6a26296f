# Few targets; `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
CLUSTER ?= gpulet
PY := .venv/bin/python

.PHONY: help env generate lint unit test soak demo demo-down kubeconfig clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

env: .venv/.ready .venv-pods/.ready ## make both Python environments

.venv/.ready: pyproject.toml
	@echo "making .venv: pip installs half a gigabyte, some minutes the first time" >&2
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

# What runs in pods (Triton, TVM) pins an older numpy, so it has an environment of its own.
.venv-pods/.ready: pyproject.toml
	@echo "making .venv-pods: pip installs one gigabyte (Triton, TVM), some minutes the first time" >&2
	$(PYTHON) -m venv .venv-pods
	.venv-pods/bin/pip install --quiet --disable-pip-version-check -e '.[serving,tuning]'
	touch $@

generate: .venv/.ready ## write what is generated: CRDs, protocol stubs
	$(PY) -m gpulet.api.crds write crds
	$(PY) -m gpulet.agent.proto

lint: .venv/.ready ## ruff, mypy strict, import contracts, drift of what is generated
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	$(PY) -m gpulet.api.crds check crds

unit: env ## tests that need no cluster
	$(PY) -m pytest tests -m 'not soak' -n auto --maxprocesses 4 --dist loadfile

test: lint unit ## everything: lint, unit, real API server, real cluster, demo with kills
	$(PY) -m pytest e2e -m 'not soak' --ignore e2e/test_demo.py -n 2 --dist loadfile
	$(PY) -m pytest e2e/test_demo.py  # alone: it measures models

soak: env ## the long series: kills of the node's parts, kills in a cluster, churn
	$(PY) -m pytest tests -m soak -s
	$(PY) -m pytest e2e -m soak

demo: .venv/.ready ## a cluster, Gpulet, models, load, a tuning job, and a table of what happened
	$(PY) -m e2e.demo run --name $(CLUSTER)

demo-down: .venv/.ready ## take the demo and its cluster down, leaving nothing behind
	$(PY) -m e2e.demo down --name $(CLUSTER)

kubeconfig: .venv/.ready ## print the path of the demo cluster's kubeconfig (with -s nothing else)
	@$(PY) -m e2e.cluster kubeconfig --name $(CLUSTER)

clean: ## remove environments and caches of this checkout (not the shared cache)
	rm -rf .venv .venv-pods .mypy_cache .ruff_cache .pytest_cache
