"""What room SGLang's own decode queue keeps, against what is taken for it: its code, of the wheel, on a stand-in."""

import ast
import random
from types import SimpleNamespace
from typing import Any

import pytest

from kvpressure.model.environment import DECODE
from kvpressure.runtimes.sglang.metrics import cache_config
from kvpressure.runtimes.table import PageFacts
from kvpressure.signals.points import Point
from kvpressure.signals.reserve import reserved
from kvpressure.signals.windows import EngineWindow
from tests.lab.fetch import SGLANG, package

NAMES = {
    *("_active_req_count", "_active_reserved_tokens", "_allocatable_token_budgets"),
    *("_need_space_for_single_req", "_required_admission_tokens"),
}


CACHE = cache_config({"page_size": "1", "num_pages": "80000"}, PageFacts(1, labelled=False, names=frozenset()))


@pytest.fixture(scope="module")
def queue_class() -> type[Any]:
    """Return a class with those methods of `DecodePreallocQueue` that decide whether a request has room."""
    source = package(SGLANG.version) / "srt/disaggregation/decode.py"
    if not source.exists():
        pytest.skip(f"no SGLang {SGLANG.version} here: python -m tests.lab.sglang fetches it")
    tree = ast.parse(source.read_text())
    (found,) = [one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == "DecodePreallocQueue"]
    found.bases, found.body = [], [one for one in found.body if isinstance(one, ast.FunctionDef) and one.name in NAMES]
    assert len(found.body) == len(NAMES)
    future = ast.parse("from __future__ import annotations").body
    room = {
        "get_disagg": lambda: SimpleNamespace(disaggregation_decode_enable_radix_cache=False),
        "CLIP_MAX_NEW_TOKEN": 4096,
    }
    exec(compile(ast.Module([*future, found], []), "decode.py", "exec"), room)
    return room["DecodePreallocQueue"]


def queue(made: type[Any], running: int, fetching: int, free: int, generated: int) -> Any:
    """Return one with so many requests of 1,000 + 500 tokens that have generated so many each."""
    asked = SimpleNamespace(max_new_tokens=500)
    reqs = [SimpleNamespace(sampling_params=asked, origin_input_ids=range(1000)) for _ in range(running)]
    one = made()
    one.scheduler = SimpleNamespace(
        running_batch=SimpleNamespace(reqs=reqs), waiting_queue=[], enable_hisparse=False, last_batch=None
    )
    one.transfer_queue = SimpleNamespace(queue=[SimpleNamespace(host_staged=False)] * fetching)
    one.num_reserved_decode_tokens, one.retracted_queue = int(CACHE.decode_tokens), []
    one.token_to_kv_pool_allocator = SimpleNamespace(available_size=lambda: free)
    one._uses_swa_reservation = lambda: False
    one._rebootstrap_prefill_len = lambda req: len(req.origin_input_ids)
    one.generated = generated * running
    return one


def test_a_prompt_has_room_where_it_is_taken_to_have_some(queue_class: type[Any]) -> None:
    rng, fits, window = random.Random(3), set(), EngineWindow(60, 600)
    window.cache = CACHE
    for _ in range(500):
        running, fetching, free = rng.randrange(4, 60), rng.randrange(20), rng.randrange(80_000)
        prompt, one = rng.randrange(1, 4000), queue(queue_class, running, fetching, free, rng.randrange(300))
        budget = one._allocatable_token_budgets(retractable_tokens=one.generated)
        req = SimpleNamespace(sampling_params=SimpleNamespace(max_new_tokens=500), origin_input_ids=range(prompt))
        really = one._required_admission_tokens(req, prompt, 0, one.generated) <= budget
        point = Point(0.0, {"running": float(running), "fetching": float(fetching)}, {})
        assert really == (prompt + next(reserved([point], window, role=DECODE))[0] <= free)
        fits.add(really)
    assert fits == {True, False}
