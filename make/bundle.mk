# What is generated: rules, dashboards, the chart's files, manifests, pictures.

.PHONY: rules
# Built, and not in git (docs/internals/decisions/0060-what-is-built-and-what-is-in-git.md). Tests build their own, which is never of yesterday.
.PHONY: bundle chart
bundle: dashboards ## build/bundle: rules, dashboards, Alertmanager example and runbooks, with the packaged thresholds; build/vllm-only
	$(BIN)/python -m kvpressure generate --out build/bundle
	$(BIN)/python -m kvpressure generate --flavour vllm-only --out build/vllm-only

chart: dashboards ## the rules and dashboards that deploy/helm/kvpressure takes along
	$(BIN)/python -m deploy.chart_files

.PHONY: mixin
mixin: dashboards ## mixin/built.json: the same rules and dashboards for jsonnet; THRESHOLDS=thresholds.yaml for your own
	$(BIN)/python -m deploy.mixin_files $(if $(THRESHOLDS),--thresholds $(THRESHOLDS))

rules: bundle ## write docs/alerts.md, rules/vllm-only/ready and deploy/upstream again, and the hash of the thresholds in rules/tests
	@$(BIN)/python -m deploy.ready_rules
	@$(BIN)/python -m deploy.upstream_files
	@hash='s/^Generated .* Thresholds `\([0-9a-f]*\)`\.$$/\1/p' && old=$$(sed -n "$$hash" docs/alerts.md) && \
	{ cat build/bundle/alerts.md && echo && sed -n '/^## An alert as it arrives/,$$p' docs/alerts.md; } > build/alerts.md && \
	cp build/alerts.md docs/alerts.md && new=$$(sed -n "$$hash" docs/alerts.md) && \
	sed -i "s/$${old:-none}/$$new/g" rules/tests/*.yaml

.PHONY: dashboards
dashboards: $(VENV)/.dev ## build dashboards/templates, which is not in git (docs/internals/decisions/0060-what-is-built-and-what-is-in-git.md)
	@echo "building the dashboards' templates"
	@$(BIN)/python -m dashboards

.PHONY: deploy
deploy: $(VENV)/.dev tools-helm ## write deploy/manifests and the chart's README again
	$(BIN)/python -m deploy.render

.PHONY: pictures
pictures: $(VENV)/.dev tools ## the page in its four stages, light, dark and on a phone, into build/pictures
	PYTHONPATH=exporter $(BIN)/python -m tests.support.pictures build/pictures
