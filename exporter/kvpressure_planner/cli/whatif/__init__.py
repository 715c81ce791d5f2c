"""`kvpressure whatif`: what other flags and caps would do to an engine, and which would keep an objective."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from kvpressure.capacity.cards import CARDS
from kvpressure.cli.access import KV_EVENTS_OF_PODS, access_option, context_option, kv_events_option, limit_option
from kvpressure.cli.console import console, progress, show
from kvpressure.cli.options import EXISTING_FILE, UsualFirst, together
from kvpressure.cli.say import CANNOT_TELL, CliError, fail, say_json
from kvpressure.config.thresholds import load_thresholds
from kvpressure.kubernetes.objects.references import is_reference
from kvpressure.model.errors import SourceError
from kvpressure.runtimes.registry import ASSUMED, NAMES
from kvpressure.simulation.config_changes import ConfigChange
from kvpressure.simulation.steps import UnknownError
from kvpressure_planner.capacity.comparison import SearchResult, compared, over_load, search
from kvpressure_planner.capacity.described import DescriptionError
from kvpressure_planner.cli.whatif.changes import changes, names
from kvpressure_planner.cli.whatif.report import draw, json_of, table_report
from kvpressure_planner.cli.whatif.source import Source, onto_of, source_of

NOT_KEPT = 1
PICTURES = (".svg", ".png")

_TOKENS = click.FloatRange(1, 10_000_000)
_traffic_options = together(
    click.option("--prompt-mean", type=_TOKENS, help="Tokens of a prompt on average."),
    click.option("--prompt-p95", type=_TOKENS, help="Tokens that 5 % of the prompts exceed."),
    click.option("--answer-mean", "--output-mean", "answer_mean", type=_TOKENS, help="Tokens of an answer on average."),
    click.option("--answer-p95", "--output-p95", "answer_p95", type=_TOKENS, help="5 % of the answers are longer."),
    click.option("--rate", type=click.FloatRange(0.001, 10_000), help="Requests a second that come whatever happens."),
    click.option(
        "--concurrency", type=click.IntRange(1, 10_000), help="Clients that wait for answers, instead of --rate."
    ),
    click.option("--kv-cache-tokens", type=click.IntRange(16, 1_000_000_000), help="Size of the KV pool."),
    click.option("--gpu", metavar="NAME", help=f"The card: {', '.join(CARDS.values())}."),
    click.option("--model", metavar="NAME", help="By its name on the hub. [default: what the engine serves]"),
    click.option("--tensor-parallel-size", "tensor_parallel", type=click.IntRange(1, 64), help="Cards of one engine."),
    click.option("--step-seconds", type=click.FloatRange(0.0001, 60), help="Of one decoding step, such as 0.03."),
    click.option(
        "--prefill-tokens-per-second", type=click.FloatRange(1, 10_000_000), help="Prompt tokens computed a second."
    ),
)
"""Traffic, and an engine, that are described."""


@click.command(
    cls=UsualFirst,
    usual=(
        "given",
        "searching",
        "slo_p95_seconds",
        "trace",
        "prompt_mean",
        "prompt_p95",
        "answer_mean",
        "answer_p95",
        "rate",
        "concurrency",
        "gpu",
        "model",
        "as_json",
    ),
    epilog="Exit codes: 0 predicted, 1 --search found nothing that keeps the objective, 2 no prediction.",
)
@click.argument("url", required=False, metavar="[ADDRESS|KIND/NAME]")
@click.option("--trace", type=EXISTING_FILE, help="Start from a recording.")
@click.option("--at", type=click.FloatRange(0), metavar="SECOND", help="Of the recording; without it, its last one.")
@click.option("--engine", help="The data-parallel rank, where there are several. [default: the one with most requests]")
@click.option("--duration", default=30.0, show_default=True, type=click.FloatRange(10, 3600), help="Seconds to sample.")
@click.option(
    "--set", "given", multiple=True, metavar="NAME=VALUE", help=f"Repeat for several: {', '.join(names(ASSUMED))}."
)
@click.option("--search", "searching", is_flag=True, help="Search for the best limits, on top of what --set changes.")
@click.option("--slo-p95-seconds", type=click.FloatRange(0.01, 86_400), help="Objective: the longest p95 of an answer.")
@click.option(
    "--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw tokens/s and p95 over load: .svg or .png."
)
@click.option(
    "--runtime", default=ASSUMED.name, show_default=True, type=click.Choice(NAMES), help="A page says it itself."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@_traffic_options
@click.option("-n", "--namespace", default="", help="Kubernetes namespace of KIND/NAME.")
@kv_events_option
@context_option
@access_option
@limit_option
def command(**options: Any) -> None:
    """Simulate the engine at ADDRESS, of a pod, or of a recording, with other flags, and compare.

    KIND/NAME is a pod or workload as in triage; of several pods it is the engine with most requests.

    NAME is a flag that the server takes, max-input-tokens or max-output-tokens at the gateway, replicas, or the pool's
    kv-cache-tokens.

    Lengths and --rate or --concurrency describe other traffic than the engine's own. Without an engine give its card
    and model (--gpu h100_sxm --model llama-3.1-8b), or --kv-cache-tokens, --step-seconds and
    --prefill-tokens-per-second.

    With --gpu, step times are those that NVIDIA measured of the model on that card, as much faster or slower as the
    engine is; --set gpu=l40s is the same engine on another card. How far off predictions are: docs/advice.md.
    """
    _check(options)
    try:
        source = source_of(options, load_thresholds())
        config_changes = changes(
            options["given"], source.runtime, source.limits, source.model, onto_of(source, options)
        )
        searched = _searched(source, config_changes) if options["searching"] else None
        rows = compared(source.model, config_changes)
    except (SourceError, DescriptionError) as error:
        fail(error)
    except UnknownError as error:
        fail(f"nothing can be predicted: {error}")
    except KeyboardInterrupt:
        sys.exit(CANNOT_TELL)
    if searched is not None:
        shown = [row.changes for row in rows]
        rows += [row for row in (searched.best, searched.more) if row is not None and row.changes not in shown]
    curves = None
    if options["picture"] is not None:
        curves = [over_load(source.model, row.changes) for row in (rows[0], rows[-1])[: len(rows)]]
        try:
            draw(options["picture"], source, rows, curves)
        except CliError as error:
            fail(error)
    if options["as_json"]:
        say_json(json_of(source, rows, searched, curves))
    else:
        show(console(), table_report(source, rows, searched))
    sys.exit(NOT_KEPT if searched is not None and not searched.kept else 0)


def _check(options: dict[str, Any]) -> None:
    if options["url"] is not None and options["trace"] is not None:
        raise click.UsageError("give an engine (ADDRESS or KIND/NAME) or --trace FILE, not both")
    reached = [name for name in ("namespace", "context") if options[name]]
    if reached and not is_reference(options["url"] or ""):
        raise click.UsageError(f"--{reached[0]} is for a pod: name it as KIND/NAME, such as pod/llama-0")
    if options["kv_events_port"] is not None and (options["url"] is None or is_reference(options["url"])):
        raise click.UsageError(KV_EVENTS_OF_PODS)
    if options["at"] is not None and options["trace"] is None:
        raise click.UsageError("--at is a second of a recording: give --trace FILE")
    if options["searching"] and options["slo_p95_seconds"] is None:
        raise click.UsageError("--search needs --slo-p95-seconds")
    picture = options["picture"]
    if picture is not None and picture.suffix.lower() not in PICTURES:
        raise click.UsageError(f"--picture {picture}: the name must end in .svg or .png")


def _searched(source: Source, config_changes: list[ConfigChange]) -> SearchResult:
    with progress("sets") as bar:
        simulating = bar.add_task("simulating", total=0, visible=False)
        return search(
            source.model,
            config_changes,
            "watermark" in source.runtime.advice.flags.limits,
            lambda done, total: bar.update(simulating, completed=done, total=total, visible=True),
        )
