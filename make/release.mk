# A release's files, in dist/.

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
