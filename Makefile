# Every target prepares its own environment: a clean clone needs python3 (3.11 or newer), make, git.

PYTHON ?= python3
WORKERS ?= 2
# Tests of what is not installed are skipped; CI installs every extra.
TEST_EXTRAS ?= dev+lab+tables
# All that README shows: models of a table as well. Receipts are checked by a package that is always there.
DEMO_EXTRAS := estimators+lab+tables
TESTS ?= tests
CONSTRAINTS ?= constraints.txt

VENV := .venv
BIN := $(VENV)/bin
ROOT := $(CURDIR)
comma := ,

# One stamp per set of extras, e.g. .venv/.has-dev+train; a second run only compares its time.
has = $(VENV)/.has-$(1)

# Distributions of their own, beside prudent itself. In a set of extras `lab` stands for the first.
PACKAGES := packages/lab packages/verify
SOURCES := $(shell find src $(PACKAGES) -type f -not -path '*/__pycache__/*')
FOLDERS := src:packages/lab/src:packages/verify/src
# By this name Hypothesis takes the package for one of others, and leaves its sources unread: that
# takes seconds, and makes what it tries depend on what was imported before.
WHEEL_SITE := build/wheel-site/site-packages

# One thread per worker: on a small machine two layers of parallelism only get in each other's way.
export OMP_NUM_THREADS ?= 1
# Compiled modules are kept: an import of torch from source takes three times as long, in each of the
# many processes that tests start. (Where this variable is set, Python keeps none.)
unexport PYTHONDONTWRITEBYTECODE
# Without a folder of data sets, the one that ships: tests of a wheel run far from it.
PRUDENT_DATA ?= data
export PRUDENT_DATA := $(abspath $(PRUDENT_DATA))

.PHONY: venv demo quick proofs test test-thorough test-both test-slow test-peers test-federated test-oldest-torch fuzz lint docs check-site publish-docs bench dist clean
.NOTPARALLEL:

venv: $(call has,dev+docs+lab+lint+tables)

demo: $(call has,$(DEMO_EXTRAS))
	$(BIN)/prudent demo

# For the loop of a person at work: no torch, no server, no other process, and src/ as it is.
quick: $(call has,dev+tables)
	PYTHONPATH=$(FOLDERS) PRUDENT_TEST_QUICK=1 $(BIN)/python -m pytest -q -n $(WORKERS) -p no:cacheprovider $(TESTS)

# Theorems, checked by Coq, and the definitions of their statements run beside src/: docs/proofs.md.
proofs: has-coq $(call has,$(TEST_EXTRAS))
	$(MAKE) -C proofs BUILD=$(ROOT)/build/proofs
	PYTHONPATH=$(FOLDERS) PRUDENT_TEST_PROOFS=1 $(BIN)/python -m pytest -p no:cacheprovider tests/proofs

.PHONY: has-coq
has-coq:
	@command -v coqc >/dev/null && command -v ocamlopt >/dev/null || { \
		echo "make proofs needs Coq 8.16 and OCaml; Debian has them as: coq ocaml-nox"; exit 1; }

test: $(WHEEL_SITE)/.installed
	$(pytest)

test-thorough: $(WHEEL_SITE)/.installed
	$(pytest) -m "thorough and not slow"

# Both in one go, as CI does.
test-both: $(WHEEL_SITE)/.installed
	$(pytest) -m "not slow and not peers and not tutorials and not site"

test-slow: $(WHEEL_SITE)/.installed
	$(pytest) -m slow

# The tests dp_accounting ships with its accountants, run against ours.
test-peers: $(WHEEL_SITE)/.installed
	$(pytest) -m peers

# Each notebook of docs/tutorials from its first cell to its last; fails if one of them does.
.PHONY: test-tutorials run-tutorials tutorials
TUTORIAL_EXTRAS := dev+docs+huggingface+lab+peers+tables
test-tutorials:
	$(MAKE) run-tutorials TEST_EXTRAS=$(TUTORIAL_EXTRAS) TESTS=tests/test_tutorials.py

run-tutorials: $(WHEEL_SITE)/.installed
	$(pytest) -m tutorials

# The same, and writes what they print and draw into the notebooks: TUTORIALS='median budget' names some.
TUTORIALS ?=
tutorials: $(call has,$(TUTORIAL_EXTRAS))
	PATH="$(ROOT)/$(BIN):$$PATH" $(BIN)/python docs/run_tutorials.py $(TUTORIALS)

# Hostile input for every command and file format; see CONTRIBUTING.md.
FUZZ_INPUTS ?= 1000
FUZZ_ONLY ?=
fuzz: $(call has,$(TEST_EXTRAS))
	PRUDENT_TEST_INPUTS=$(FUZZ_INPUTS) PYTHONPATH=$(FOLDERS) $(BIN)/python -m pytest tests/fuzz/test_fuzz.py \
		-m thorough -k '$(FUZZ_ONLY)'

# Flower asks for older versions of what everything else uses: an environment of its own, in which
# both tiers run, because the second one has no other with Flower.
test-federated: build/constraints-federated.txt
	PYTEST_ADDOPTS="$$PYTEST_ADDOPTS -m 'not slow'" $(MAKE) test VENV=.venv-federated CONSTRAINTS=$< TEST_EXTRAS=dev+federated \
		WHEEL_SITE=build/wheel-site-federated/site-packages \
		TESTS='tests/training/adapters/federated tests/cli/test_errors.py tests/test_docs.py::test_the_code_on_a_page_runs[docs/federated.md]'

# Steps, gradients and runs with the oldest torch that pyproject.toml declares. Its wheel for Linux
# brings three gigabytes of CUDA along, so this is a job of its own.
test-oldest-torch: build/constraints-oldest-torch.txt
	$(MAKE) test VENV=.venv-oldest-torch CONSTRAINTS=$< TEST_EXTRAS=dev+lab+tables \
		WHEEL_SITE=build/wheel-site-oldest-torch/site-packages TESTS='tests/training tests/tune'

# What these do not name is as in constraints.txt.
build/constraints-%.txt: constraints-%.txt constraints.txt
	mkdir -p build
	awk -F== 'NR == FNR { named[$$1]; print; next } !($$1 in named)' $^ >$@

lint: $(call has,dev+lab+lint+tables)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(call has,docs+lab)
	mkdir -p docs/explore && $(BIN)/prudent explore --export docs/explore/page.html
	$(BIN)/prudent paper report --out docs/reproduction/report.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The site that `make docs` built: does everything fit at 1280 px and on a phone, does the search find.
check-site: $(call has,browser+dev+docs)
	$(BIN)/python -m pytest tests/site -m site

# One version of the site, on the branch gh-pages: VERSION=0.2.0 ALIAS=latest, or VERSION=dev; PUSH= keeps it here.
VERSION ?= dev
ALIAS ?=
PUSH ?= --push
publish-docs: $(call has,docs+lab)
	mkdir -p docs/explore && $(BIN)/prudent explore --export docs/explore/page.html
	$(BIN)/prudent paper report --out docs/reproduction/report.html
	PATH="$(ROOT)/$(BIN):$$PATH" mike deploy $(PUSH) --update-aliases $(VERSION) $(ALIAS)
	$(if $(ALIAS),PATH="$(ROOT)/$(BIN):$$PATH" mike set-default $(PUSH) $(ALIAS))

bench: $(call has,lab+peers+tables)
	$(BIN)/python -m benchmarks

# Wheels, and a source archive of prudent, each installed into an empty environment and tried there.
dist: $(VENV)/.ready
	rm -rf dist
	$(BIN)/python -m hatchling build --directory dist
	for package in $(PACKAGES); do (cd $$package && \
		$(ROOT)/$(BIN)/python -m hatchling build --target wheel --directory $(ROOT)/dist) || exit 1; done
	$(BIN)/python .ci/try_dist.py dist

clean:
	rm -rf build dist site

# The tests run against the installed wheel, from an empty directory: a file forgotten by the build fails here,
# and tests/conftest.py refuses to start when `import prudent` finds src/ instead.
define pytest
mkdir -p build/elsewhere
cd build/elsewhere && PRUDENT_TEST_WHEEL=1 PYTHONPATH=$(ROOT)/$(WHEEL_SITE) \
	PATH="$(ROOT)/$(WHEEL_SITE)/bin:$$PATH" \
	$(ROOT)/$(BIN)/python -m pytest -c $(ROOT)/pyproject.toml --rootdir $(ROOT) \
	$(foreach test,$(TESTS),'$(ROOT)/$(test)') -n $(WORKERS) --dist worksteal -p no:cacheprovider
endef

$(WHEEL_SITE)/.installed: $(call has,$(TEST_EXTRAS)) $(SOURCES) pyproject.toml README.md LICENSE
	rm -rf build/wheel $(WHEEL_SITE) && mkdir -p build
	for package in . $(PACKAGES); do \
		(cd $$package && $(ROOT)/$(BIN)/python -m hatchling build --target wheel --directory $(ROOT)/build/wheel) \
		>build/wheel.log 2>&1 || { cat build/wheel.log; exit 1; }; done
	$(BIN)/python -m pip install --quiet --no-deps --no-index --target $(WHEEL_SITE) build/wheel/*.whl
	touch $@

# Python compiles a module when it is first imported; pip would compile all 16,000, a minute's work.
pip = pip install --quiet --disable-pip-version-check --no-compile -c $(CONSTRAINTS)

# Without what it needs, prudent-lab still lists its commands, which tests compare with the pages.
space := $(subst ,, )
extras = $(subst $(space),$(comma),$(strip $(filter-out lab,$(subst +, ,$*))))
$(VENV)/.has-%: pyproject.toml $(PACKAGES:=/pyproject.toml) $(CONSTRAINTS) | $(VENV)/.ready
	$(BIN)/python -m $(pip) --no-build-isolation -e '.[$(extras)]' -e 'packages/verify[signatures]' \
		$(if $(filter lab,$(subst +, ,$*)),-e packages/lab)
	$(if $(filter lab,$(subst +, ,$*)),,$(BIN)/python -m $(pip) --no-build-isolation --no-deps -e packages/lab)
	touch $@

# The pip that came with Python may be years old, and takes three times as long to read an index.
# Then what builds packages, once, instead of in an environment of its own for each of them.
$(VENV)/.ready:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "prudent needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo missing)."; \
		echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m $(pip) --upgrade pip
	$(BIN)/python -m $(pip) --upgrade setuptools hatchling editables
	touch $@
