"""Which lines tell of trouble, over the versions of vLLM, and which only look as if they did."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.model.environment import LOG_KINDS
from kvpressure.sources.logs.classify import MAX_LINES_OF_A_WORDING, locate, plain, telling_lines
from tests.support.log_kinds import classify
from tests.support.tools import FIXTURES

LOGS = FIXTURES / "logs"
TELLING = [tuple(line.split("\t", 1)) for line in (LOGS / "failures.tsv").read_text().splitlines()]
CHATTER = (LOGS / "chatter.log").read_text().splitlines()
FAILURES = [line for kind, line in TELLING if kind != "kv_capacity"]


@pytest.mark.parametrize(("kind", "line"), TELLING)
def test_a_wording_of_vllm_is_of_its_kind_in_any_case_of_letters(kind: str, line: str):
    assert classify(plain(line)) == kind
    assert kind in LOG_KINDS
    if kind != "kv_capacity":
        assert classify(plain(line.replace("INFO", "").upper())) == kind


@pytest.mark.parametrize("line", CHATTER)
def test_what_clients_sent_and_what_vllm_only_mentions_is_no_trouble(line: str):
    assert classify(line) is None


@pytest.mark.parametrize("line", FAILURES)
def test_a_failure_typed_by_a_user_is_none(line: str):
    text = plain(line)
    assert classify(f"INFO 11-06 11:21:05 [logger.py:43] anything a plugin logs: {text}") is None
    assert classify(f"ERROR 11-06 [logger.py:43] Received request cmpl-1: prompt: {text!r}, params: None") is None
    assert classify(f"[logger.py:43] Generated response cmpl-1: output: {text!r}") is None


@pytest.mark.parametrize("text", ["CUDA out of memory", "torch.OutOfMemoryError", "EngineDeadError", "NCCL error"])
@pytest.mark.parametrize(
    "line",
    [
        "[serving_chat.py:176] Error with model object='error' message='The model `{}` does not exist.' code=404",
        "[api_server.py:9] The model '{}' does not exist",
        "[protocol.py:70] The following fields were present in the request but ignored: {{'{}'}}",
        "[serving_chat.py:255] NotImplementedError: Unknown part type: {}",
        "[serving_chat.py:255] ValueError: Failed to load image: {}",
        "[serving_chat.py:255] jinja2.exceptions.TemplateError: {}",
        "[utils.py:3] aiohttp.client_exceptions.ClientResponseError: 404, message='Not Found', url='http://a/{}'",
        "[utils.py:3] cannot fetch https://images.example/{}",
    ],
)
def test_the_text_of_a_request_is_no_trouble_where_vllm_repeats_it_in_an_error(line: str, text: str):
    if "cannot fetch" in line:
        text = text.replace(" ", "%20")
    assert classify(f"ERROR 11-20 10:00:00 {line.format(text)}") is None


def test_the_address_in_a_device_ooms_own_advice_hides_nothing():
    line = "torch.OutOfMemoryError: CUDA out of memory. See https://pytorch.org/docs/stable/notes/cuda.html"
    assert classify(line) == "device_oom"


@pytest.mark.parametrize("count", [1, 99, 100, 101, 150, 200, 201, 5000])
def test_of_a_wording_that_is_repeated_the_first_and_the_last_lines_are_kept_in_their_order(count: int):
    lines = [b"%d CUDA out of memory and again out of memory" % i for i in range(count)]
    half = MAX_LINES_OF_A_WORDING // 2
    kept = lines if count <= MAX_LINES_OF_A_WORDING else lines[:half] + lines[-half:]
    assert telling_lines(b"quiet\n" + b"\nquiet\n".join(lines) + b"\nquiet") == kept


def test_a_log_that_repeats_one_wording_for_ever_hides_no_other():
    block = b"nccl\n" * 10_000 + b"torch.OutOfMemoryError: CUDA out of memory"
    found = telling_lines(block)
    assert found[-1].endswith(b"CUDA out of memory")
    assert len(found) <= MAX_LINES_OF_A_WORDING + 1


@pytest.mark.parametrize(("kind", "line"), TELLING)
def test_skimming_never_hides_a_line_that_tells(kind: str, line: str):
    raw = line.encode()
    assert telling_lines(b"some line\n" + raw + b"\nanother") == [raw]
    assert telling_lines(raw.upper()) == [raw.upper()]


def test_skimming_keeps_lines_whole_in_their_order_and_once():
    lines = [line.encode() for _, line in TELLING]
    padded = b"\n".join(b"quiet\n" + line for line in lines)
    assert telling_lines(padded) == lines


def test_ordinary_traffic_is_skimmed_over():
    access = b'INFO:     10.0.0.9:41412 - "POST /v1/completions HTTP/1.1" 200 OK\n' * 50
    assert telling_lines(access) == []
    stats = (
        b"(EngineCore pid=258) INFO 11-06 11:21:10 [loggers.py:1] Engine 000: Running: 1 reqs, GPU KV cache usage: 1%\n"
    )
    assert telling_lines(stats * 50) == []


def test_where_the_telling_words_begin_is_known():
    text = "x" * 500 + " torch.OutOfMemoryError: CUDA out of memory"
    assert locate(text) == ("device_oom", text.index("CUDA"))


@given(st.text(max_size=300))
def test_any_text_is_of_a_known_kind_or_none(text: str):
    assert classify(plain(text)) in {*LOG_KINDS, None}


@given(st.sampled_from(FAILURES), st.text(st.characters(exclude_characters="\n\r"), max_size=60))
def test_whatever_a_prompt_holds_besides_it_stays_a_prompt(line: str, more: str):
    assert classify(f"Received request a: prompt: '{more}{plain(line)}{more}', params: None") is None
