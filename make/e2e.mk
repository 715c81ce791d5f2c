# Against real servers: each installs or builds what it needs, none is a part of `make test`.

.PHONY: e2e e2e-vllm e2e-kubernetes
e2e: $(VENV)/.dev tools ## all tests with real servers, with an incident told through Alertmanager (15 minutes)
	$(BIN)/python -m pytest -m e2e tests/e2e

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
	@$(BIN)/python -m kvpressure generate --out build/e2e-rules >/dev/null && cd build/e2e-rules/alertmanager && \
	  { cat receivers.yaml; echo 'route: {receiver: kvpressure-page}'; } > all.yaml && "$(CURDIR)/.tools/alertmanager-receivers" all.yaml | grep 'kvpressure triage' && rm all.yaml
	@for every in 15s 30s 60s; do for names in --flavour=exporter --flavour=vllm-only; do \
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
e2e-dynamo: $(VENV)/.dev tools ## NVIDIA Dynamo's worker and frontend, without a GPU, read by the exporter (Python 3.12, 600 MB, 8 minutes)
	PYTHONPATH=exporter $(BIN)/python -m tests.e2e_dynamo

e2e-kubernetes: $(VENV)/.dev tools-helm tools-kubernetes ## the chart and the exporter in a real kube-apiserver with etcd (root, 5 minutes)
	@$(MAKE) --no-print-directory tools DEBIAN="etcd-server:etcd gcc:gcc iproute2:ip libc6-dev:/usr/include/stdio.h openssl:openssl kubernetes-client:kubectl util-linux:unshare"
	$(BIN)/python -m tests.e2e_kubernetes

.PHONY: e2e-image
e2e-image: $(VENV)/.dev $(RELEASE)/.done ## the container image, built by buildah on two bases and run as the chart runs it (root, internet, minutes)
	@$(MAKE) --no-print-directory tools DEBIAN="binutils:strip buildah:buildah debian-archive-keyring:/usr/share/keyrings/debian-archive-keyring.gpg debootstrap:/usr/sbin/debootstrap iproute2:ip util-linux:unshare"
	PYTHONPATH=exporter $(BIN)/python -m tests.e2e_image

.PHONY: e2e-dashboards
e2e-dashboards: $(VENV)/.dev tools tools-dashboards ## every query of every dashboard on a real Prometheus; draws docs/images (8 minutes)
	PICTURES=docs/images $(BIN)/python -m pytest -m slow tests/dashboards
