// kvpressure's rules and dashboards as a monitoring mixin, over built.json, which holds what `kvpressure generate` writes.
local built = import 'built.json';

local replaced(value, pairs) =
  if std.isString(value) then std.foldl(function(text, pair) std.strReplace(text, pair[0], pair[1]), pairs, value)
  else if std.isArray(value) then [replaced(each, pairs) for each in value]
  else if std.isObject(value) then { [key]: replaced(value[key], pairs) for key in std.objectFields(value) }
  else value;

{
  local config = self._config,
  local group = built.rules['%ds%s' % [config.scrapeIntervalSeconds, if config.allAlerts then '-all' else '']],
  local links = [
    [built.selector, config.selector],
    [built.runbookUrl, std.rstripChars(config.runbookUrl, '/')],
    [built.dashboardUrl, std.rstripChars(config.dashboardUrl, '/')],
  ],

  // An alert without its base URLs names the runbook's file, and has no link to a dashboard.
  local linked(rule) =
    if !std.objectHas(rule, 'annotations') then rule
    else rule {
      annotations: {
        [key]: rule.annotations[key]
        for key in std.objectFields(rule.annotations)
        if !(key == 'runbook_url' && config.runbookUrl == '') && !(key == 'dashboard_url' && config.dashboardUrl == '')
      } + if config.runbookUrl == '' then { runbook: 'runbooks/%s.md' % rule.alert } else {},
    },
  local linkedGroups(groups) = [each { rules: [linked(rule) for rule in each.rules] } for each in groups],

  _config+:: {
    // Label matchers of the exporters' series.
    selector: built.selector,
    // Base URL of the runbooks, such as http://EXPORTER:10405/runbooks, and Grafana's.
    runbookUrl: '',
    dashboardUrl: '',
    // Prometheus' scrape interval: 15, 30 or 60.
    scrapeIntervalSeconds: 15,
    // Also the alerts that neither page nor need a ticket.
    allAlerts: false,
    // As built: others need other rules, which `make mixin THRESHOLDS=thresholds.yaml` builds.
    thresholds: built.thresholds,
  },

  assert config.thresholds == built.thresholds : 'thresholds are built in: make mixin THRESHOLDS=thresholds.yaml',

  prometheusAlerts+:: { groups+: replaced(linkedGroups(group.alerts), links) },
  prometheusRules+:: { groups+: replaced(group.recording, links) },
  grafanaDashboards+:: replaced(
    built.dashboards,
    if config.runbookUrl == '' then [[built.runbookUrl, built.exporterRunbooks]] + links else links,
  ),
}
