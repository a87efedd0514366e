# Each target works by itself from a fresh clone: it sets up what it needs first.
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
BIN := .venv/bin
SETUP := .venv/.setup-done
# Mesa's EGL with its software and open GPU drivers, and the libGL that PyOpenGL loads: installed if nothing renders.
GL_PACKAGES := libegl1 libgl1 libgl1-mesa-dri

.PHONY: help setup demo demo-quick test test-fast fuzz lint docs bench clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup: $(SETUP)  ## create .venv, install softaug with the tested versions, check headless rendering

$(SETUP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[dev,docs,export,hub,lab,ray,report,sb3,tune]'
	@$(BIN)/python -m softaug.envs.gl || { [ "$$(id -u)" = 0 ] && apt-get update --quiet && \
		apt-get install --yes --quiet --no-install-recommends $(GL_PACKAGES) && $(BIN)/python -m softaug.envs.gl; }
	@touch $@

ZOO := zoo:walker_stand-sac zoo:walker_stand-soda_overlay
PAGE := runs/demo.html
DEMO := --task walker_stand --method drq --preset small --decisions 15000 --seed 0 --eval-every 0 --eval-episodes 4 \
	--eval-modes train,color_easy,color_hard,video_easy,video_hard --workers 2 --eval-video

demo-quick: setup  ## play trained SAC and SODA agents in five modes, write a report page with their videos
	@for policy in $(ZOO); do $(BIN)/softaug eval $$policy --episodes 2 --workers 2 --video || exit; done
	@$(BIN)/softaug report $(ZOO) --out $(PAGE)

demo: demo-quick  ## the same, then train a DrQ agent (less than ten minutes on two cores; Ctrl-C is fine, the same command resumes) and add it to the page
	@if [ -f runs/demo/config.json ]; then $(BIN)/softaug train --resume runs/demo; \
	else $(BIN)/softaug train $(DEMO) --out runs/demo; fi
	@$(BIN)/softaug report $(ZOO) runs/demo --out $(PAGE)

test: setup lint  ## lint, then run the whole test suite, in two processes at once
	$(BIN)/python tests/halves.py

test-fast: setup  ## the tests that take seconds
	$(BIN)/python tests/halves.py -m 'not slow'

COUNT ?= 10000
SEED ?= 0

fuzz: setup  ## damaged files and strange arguments: COUNT of them from SEED; the summary is results/fuzz.json
	$(BIN)/python tests/fuzz/run.py --count $(COUNT) --seed $(SEED) --out results/fuzz.json

lint: setup  ## ruff, mypy and the layers of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup  ## build the documentation site into site/; broken links and references fail
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: setup  ## measure environment and update speed on this machine
	$(BIN)/softaug bench env
	$(BIN)/softaug bench update
	$(BIN)/softaug bench replay

clean:  ## remove the virtual environment and caches
	rm -rf .venv build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
