"""`whatif` and `plan` with a card and a model: before anything runs, and the same engine on another card."""

import json
import math

import pytest
from click.testing import CliRunner, Result

from kvpressure.cli import main
from kvpressure.simulation.consequences import Span
from kvpressure_planner.cli.cards import Prediction, prediction_report
from tests.support.tools import FIXTURES

LOAD = ("--concurrency", "32")
TRAFFIC = ("--prompt-mean", "2000", "--prompt-p95", "6000", "--answer-mean", "300", "--answer-p95", "800", *LOAD)
LENGTHS = ("--prompt-p50", "1500", "--prompt-p95", "6000", "--output-p50", "250", "--output-p95", "800", *LOAD)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_described_traffic_on_a_card_needs_no_engine_and_no_numbers_of_it():
    on = ("whatif", "--gpu", "h100_sxm", "--model", "llama-3.1-8b", *TRAFFIC, "--set", "gpu=l40s", "--json")
    found = json.loads(run(*on).output)
    assert found["today"]["step_seconds"]["gpu"] == "h100_sxm"
    assert 400_000 < found["today"]["kv_cache_tokens"] < 500_000
    h100, l40s = (row["figures"] for row in found["rows"])
    assert found["rows"][1]["set"] == {"gpu": "l40s"}
    for figure in ("tokens_per_second", "latency_p95", "first_token_seconds"):
        assert h100[figure]["low"] <= h100[figure]["value"] <= h100[figure]["high"]
    # A card may be slower than its kernels: the range is of today as well.
    assert h100["tokens_per_second"]["low"] < 0.95 * h100["tokens_per_second"]["value"]
    assert l40s["tokens_per_second"]["value"] < 0.5 * h100["tokens_per_second"]["value"]


@pytest.mark.recorded
def test_a_recording_takes_the_model_that_its_engine_serves_unless_told():
    trace = str(FIXTURES / "lab" / "kv-collapse-0.33.0.jsonl.xz")
    assert "there is no table of" in run("whatif", "--trace", trace, "--gpu", "h100_sxm").output
    found = run("whatif", "--trace", trace, "--set", "gpu=l40s")
    assert "say with --gpu which card it runs on now" in found.output
    told = run("whatif", "--trace", trace, "--gpu", "h100_sxm", "--model", "llama-3.1-8b", "--set", "gpu=h200_sxm")
    assert "gpu h200_sxm" in told.output, told.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--gpu", "T4", "--model", "llama-3.1-8b"), "no step times are known of it; there are: a100_sxm, b200_sxm"),
        (("--gpu", "l40s"), "--gpu needs --model"),
        (("--gpu", "l40s", "--model", "microsoft/phi-4"), "pip install 'kvpressure[silicon]'"),
        (("--gpu", "l40s", "--model", "microsoft/phi-4"), "there are tables of llama-3.1-70b, llama-3.1-8b,"),
        (("--gpu", "l40s", "--model", "Qwen/Qwen3-32B"), "of qwen3-32b there are tables on a100_sxm (--tensor"),
        (("--gpu", "l40s", "--model", "Qwen/Qwen3-8b-Instruct"), " or Qwen/Qwen3-8B-Base?"),
        ((), "or its card and model: --gpu, --model"),
    ],
)
def test_what_is_missing_is_said_in_a_line(arguments, said):
    found = run("whatif", *arguments, *TRAFFIC)
    assert found.exit_code == 2
    assert said in " ".join(found.output.split())


@pytest.mark.parametrize(
    "name",
    ["meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B-Instruct", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B"],
)
def test_a_model_is_named_as_on_the_hub_or_without_its_owner(name):
    said, usual = (
        run("whatif", "--gpu", "h100_sxm", "--model", one, *TRAFFIC).output for one in (name, "llama-3.1-8b")
    )
    assert said == usual
    assert "llama-3.1-8b on 1 x h100_sxm" in said


def test_a_model_whose_only_table_has_its_cache_in_8_bits_is_taken_to_have_that():
    on = ("whatif", "--gpu", "h100_sxm", "--model", "Qwen/Qwen3-32B-FP8", *TRAFFIC, "--kv-cache-tokens", "280000")
    assert json.loads(run(*on, "--json").output)["today"]["step_seconds"]["kv_bits"] == 8
    refused = run(*on, "--set", "kv-cache-dtype=fp8")
    assert refused.exit_code == 2
    assert "the KV cache is fp8 already" in refused.output


def test_a_plan_takes_a_model_without_its_owner():
    said, usual = (
        run("plan", "--model", name, "--gpu", "H100", *LENGTHS).output
        for name in ("Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct")
    )
    assert said == usual
    assert "max-num-seqs" in said


def test_a_plan_says_what_its_limits_give_where_card_and_lengths_are_known():
    plan = ("plan", "--model", "meta-llama/Llama-3.1-8B", "--gpu", "H100", *LENGTHS)
    assert "Predicted at these limits, with what steps of llama-3.1-8b take on h100_sxm" in run(*plan).output
    told = json.loads(run(*plan, "--json").output)["predicted"]
    assert told["first_token_seconds"]["value"] < told["latency_p95_seconds"]["value"]
    assert "Predicted" not in run(*plan[:4], "T4", *LENGTHS).output
    for variant in ("H100 PCIe", "A100-PCIE-80GB"):
        found = run(*plan[:4], variant, *LENGTHS)
        assert found.exit_code == 0, found.output
        assert "Predicted" not in found.output


def test_a_plan_says_the_knee_where_its_limit_is_beyond_it():
    plan = ("plan", "--model", "meta-llama/Llama-3.1-8B", "--gpu", "H100", *LENGTHS)
    knee = json.loads(run(*plan, "--json").output)["predicted"]["knee_requests"]
    assert 20 < knee < 50
    assert f"Above about {math.ceil(knee)} running requests" in run(*plan).output
    any_span = Span(1.0, 1.0, 1.0)
    found = Prediction("h100_sxm", "llama-3.1-8b", any_span, any_span, any_span, knee)
    assert "running on" not in "".join(prediction_report(found, 20))
