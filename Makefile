# Everything a newcomer needs: `make demo`, `make test`, `make ui`. Each sets up .venv first if it is not there.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
RECIPE ?= recipes/demo.yaml
# Without what they depend on: their samplers need no more than is in .venv and the small packages that follow.
PEERS := trl axolotl speculators datasets accelerate dill multiprocess xxhash
# Other implementations of DFlash at the versions that docs/oracles.md speaks of, then what they import beyond .venv.
ORACLES := dflash==0.1.0 specforge==0.2.0 speculators==0.9.0 hs-connectors==0.9.0 \
	datasets==5.0.1 dill multiprocess xxhash openai httpx httpcore jiter distro sniffio loguru pydantic-settings
ORACLES_INSTALLED := .oracle/.installed
POSTGRES_INSTALLED := .postgres/.installed

.PHONY: demo test ui check fmt test-slow explore faults mutation fuzz lowest wheel clean peers oracle gpu-test step-peers postgres pictures

# One pip call that names torch: with torch left to the resolver, pip takes a CUDA build of several GB.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "torch==2.13.0" -c constraints.txt -e ".[dev]"
	touch $@

demo: $(INSTALLED) ## the whole chain on the conversations and the small target in examples/
	$(BIN)/dflash run $(RECIPE)

ui: $(INSTALLED) ## the Dagster page and the MLflow page, on 127.0.0.1
	$(BIN)/dflash ui $(RECIPE)

test: $(INSTALLED) ## the test suite, under 10 minutes on 2 cores
	$(BIN)/python -m pytest -m "not slow and not faults" --durations=15

test-slow: $(INSTALLED) ## tests that take minutes
	$(BIN)/python -m pytest -m "slow and not faults"

explore: $(INSTALLED) ## the property tests with other examples each time, and eight times as many
	HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest -m "hypothesis and not slow and not faults"

faults: $(INSTALLED) ## kill -9 at every durable act, then the same command again
	$(BIN)/python -m pytest tests/faults -m faults $(FAULTS)

check: $(INSTALLED) ## format, lint, types, layers, definitions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	DAGSTER_HOME= $(BIN)/dagster definitions validate -m dflash_pipeline.assets.definitions

fmt: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

mutation: $(INSTALLED) ## changes contracts/ and planning/ one operator at a time; what survives is in docs/mutation.md
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "mutmut>=3.8,<4" -c constraints.txt
	OMP_NUM_THREADS=1 $(BIN)/mutmut run
	$(BIN)/mutmut results

fuzz: $(INSTALLED) ## any bytes at all through the reader of source files, for 60 s
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "atheris>=3.0,<4" -c constraints.txt
	$(BIN)/python -m tests.fuzz.reader -max_total_time=60

lowest: pyproject.toml ## the fast tests with the oldest versions that pyproject.toml allows
	$(PYTHON) -m venv .venv-lowest
	$(PYTHON) -c "import re,tomllib; [print(re.sub(r'>=([^,]+).*', r'==\1', d)) for d in tomllib.load(open('pyproject.toml','rb'))['project']['dependencies']]" > .venv-lowest/lowest.txt
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check "torch==2.13.0" -c .venv-lowest/lowest.txt -e ".[dev]"
	.venv-lowest/bin/python -m pytest -m "not slow and not faults and not browser"

peers: $(INSTALLED) ## batching side by side with other packages' samplers, which are put into .peers, apart from .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --no-deps --target .peers $(PEERS)
	PYTHONPATH=.peers $(BIN)/python bench/batching_peers.py

$(ORACLES_INSTALLED): Makefile | $(INSTALLED)
	rm -rf .oracle
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target .oracle $(ORACLES)
	touch $@

oracle: $(ORACLES_INSTALLED) ## loss, gradients and decoding against other implementations, put into .oracle, apart from .venv
	PYTHONPATH=.oracle $(BIN)/python -m pytest tests/oracle -m oracle

$(POSTGRES_INSTALLED): constraints.txt | $(INSTALLED)
	rm -rf .postgres
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target .postgres -c constraints.txt dagster-postgres psycopg2-binary
	touch $@

postgres: $(POSTGRES_INSTALLED) ## docs/deployment.md on a real PostgreSQL, which Debian's package `postgresql` brings
	PYTHONPATH=$(CURDIR)/.postgres $(BIN)/python -m pytest tests/packaging/test_postgres.py -m slow

step-peers: $(ORACLES_INSTALLED) ## one training step side by side with SpecForge's and speculators'
	PYTHONPATH=.oracle $(BIN)/python -W ignore bench/step_vs_peers.py

gpu-test: $(INSTALLED) ## what only a CUDA device can show; without one every test is skipped
	$(BIN)/python -m pytest -m gpu tests/gpu

pictures: $(INSTALLED) ## the pictures of docs/tour.md, by the tests that use the pages
	DFLASH_PICTURES=docs/pictures $(BIN)/python -m pytest -m browser tests/browser/test_compare_page.py \
		tests/browser/test_launching.py tests/browser/test_pages.py tests/browser/test_stopping.py

wheel: $(INSTALLED) ## build wheel and sdist into dist/
	$(BIN)/python -m build --outdir dist

clean:
	rm -rf $(VENV) .venv-lowest .peers .oracle .postgres build dist *.egg-info
