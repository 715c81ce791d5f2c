"""`kvpressure generate`: rules, dashboards, runbooks and the Alertmanager example, from the thresholds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kvpressure.bundle import Options, bundle_files, write_bundle
from kvpressure.bundle.options import (
    EXPORTER,
    FLAVOURS,
    PAGE_URL,
    SCRAPE_SECONDS,
    SELECTOR,
    TICKET_URL,
    selector_of,
)
from kvpressure.bundle.rules import seconds
from kvpressure.cli.options import refuse, thresholds_of
from kvpressure.cli.say import say
from kvpressure.config.strict_yaml import ConfigError, Problem
from kvpressure.exposition.profile import Profile

_PATH = click.Path(path_type=Path)
_MATCHERS = "Label matchers that select the exporters' series, or with vllm-only the engines'."
_RUNBOOKS = (
    "Base URL of the runbooks, such as your wiki's or http://EXPORTER:10405/runbooks, which any exporter serves; "
    "without it alerts name the file in the bundle."
)


@click.command()
@click.option("--out", required=True, type=_PATH, help="Folder to write; replaced when it contains only a bundle.")
@click.option(
    "--thresholds", "overrides", type=_PATH, help="Overrides of thresholds, as in the exporter's thresholds_file."
)
@click.option(
    "--flavour",
    type=click.Choice(list(FLAVOURS)),
    default=EXPORTER.name,
    show_default=True,
    help="Whose series the rules query: the exporter's, or only vLLM's own, without an exporter; docs/vllm-only.md.",
)
@click.option("--selector", show_default=f"{SELECTOR}, with vllm-only none", help=_MATCHERS)
@click.option("--runbook-url", default="", help=_RUNBOOKS)
@click.option("--dashboard-url", default="", help="Grafana's URL; without it alerts have no such link.")
@click.option(
    "--scrape-interval",
    default=f"{SCRAPE_SECONDS}s",
    show_default=True,
    help="Prometheus' scrape interval, 1s to 1m; every window covers four.",
)
@click.option("--all-alerts", is_flag=True, help="Also the alerts that neither page nor need a ticket; docs/alerts.md.")
@click.option(
    "--profile",
    type=click.Choice([profile.value for profile in Profile]),
    default=Profile.FULL.value,
    show_default=True,
    help="The exporters' exposition.profile: rules on series that it does not export are left out.",
)
@click.option("--page-url", default=PAGE_URL, show_default=True, help="Webhook of Alertmanager for critical alerts.")
@click.option("--ticket-url", default=TICKET_URL, show_default=True, help="Webhook of Alertmanager for warnings.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label of the PrometheusRule objects.")
@click.option("--dashboards/--no-dashboards", default=True, show_default=True, help="Write the Grafana dashboards.")
def command(
    out: Path,
    overrides: Path | None,
    labels: tuple[str, ...],
    scrape_interval: str,
    dashboards: bool,
    **given: Any,
) -> None:
    """Write Prometheus rules, PrometheusRule objects, Grafana dashboards, an Alertmanager example and runbooks.

    Prints every problem and ends with exit code 2, with nothing written, when an option or a threshold is invalid.
    """
    if wrong := next((label for label in labels if "=" not in label), None):
        raise click.BadParameter(f"{wrong!r} is not KEY=VALUE", param_hint="--label")
    pairs = dict(label.partition("=")[::2] for label in labels)
    whose, matchers = selector_of(given.pop("flavour"), given.pop("selector"))
    try:
        scrape_seconds = seconds(scrape_interval)
    except ValueError as error:
        refuse(ConfigError([Problem("generate", None, "--scrape-interval", str(error))]), see="nothing was written")
    given |= {"scrape_seconds": scrape_seconds, "profile": Profile(given["profile"]), "labels": pairs}
    try:
        options = Options(thresholds_of(overrides), flavour=whose, selector=matchers, **given)
        files = bundle_files(options, with_dashboards=dashboards)
        write_bundle(out, files)
    except ConfigError as error:
        refuse(error, see="nothing was written")
    say(f"wrote {len(files)} files to {out}; thresholds {options.thresholds.hash}")
    at = out.resolve()
    say(f"prometheus.yml   rule_files: [{at}/prometheus/recording/*.yaml, {at}/prometheus/alerts/*.yaml]")
    say("reload it        kill -HUP $(pidof prometheus)")
    if dashboards:
        say(f"Grafana          Dashboards > New > Import: {at}/grafana/dashboards/*.json")
