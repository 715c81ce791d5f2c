"""Which other engines could take an engine's requests."""

from dataclasses import replace

from kvpressure.model.verdict import Cause
from kvpressure.model.view import DecodeEngine, EngineKey, EngineView, Peer, Unreachable, decode_side_of, peers_of
from tests.support.advice_cases import diagnosis


def view(target: str, cause: Cause = Cause.IDLE, *, model: str = "m", namespace: str = "chat") -> EngineView:
    key = EngineKey(target, model, "0")
    derived = {"kv_cache_usage_ratio": 0.1, "requests_running": 1.0, "requests_waiting": 0.0}
    return EngineView(key, key, 0.0, derived, diagnosis(cause), namespace=namespace)


PRESSED = view("chat-0", Cause.KV_CACHE_PRESSURE)


def test_replicas_of_the_same_model_that_are_well():
    others = [PRESSED, view("chat-1"), view("chat-2", Cause.HEALTHY), view("chat-3", Cause.STUCK)]
    assert [peer.target for peer in peers_of(PRESSED, others)] == ["chat-1", "chat-2"]
    assert peers_of(PRESSED, others)[0] == Peer("chat-1", 0.1, 1.0, 0.0)


def test_nobody_elses_and_none_that_is_silent_or_tells_too_little():
    silent = replace(view("chat-1"), silence=Unreachable(20.0))
    others = [view("chat-1", model="other"), view("chat-1", namespace="b"), silent, replace(view("c"), derived={})]
    assert peers_of(PRESSED, others) == ()


def test_ranks_of_one_server_have_room_like_other_servers_and_are_named_by_their_rank():
    rank = view("chat-0")
    found = peers_of(PRESSED, [replace(rank, key=EngineKey("chat-0", "m", "1"))])
    assert [peer.target for peer in found] == ["chat-0 rank 1"]


def with_role(name: str, role: str, cause: Cause = Cause.HEALTHY) -> EngineView:
    found = view(name, cause)
    return replace(found, derived={**found.derived, "role": {role: 1.0}})


def test_where_prefill_and_decode_are_apart_nobody_of_the_other_role_takes_its_requests():
    prefill, decode = with_role("p-0", "prefill", Cause.KV_CACHE_PRESSURE), with_role("d-0", "decode")
    others = [prefill, decode, with_role("p-1", "prefill"), view("both")]
    assert [peer.target for peer in peers_of(prefill, others)] == ["p-1"]
    assert [peer.target for peer in peers_of(view("whole"), others)] == ["both"]


def test_the_decode_side_of_a_prefill_engine_are_those_of_its_model_that_answer():
    prefill, pressed = with_role("p-0", "prefill"), with_role("d-0", "decode", Cause.KV_CACHE_PRESSURE)
    silent = replace(with_role("d-1", "decode"), silence=Unreachable(20.0))
    other = replace(with_role("d-2", "decode"), namespace="b")
    others = [prefill, pressed, silent, other, view("both")]
    assert decode_side_of(prefill, others) == (DecodeEngine("d-0", Cause.KV_CACHE_PRESSURE),)
    assert decode_side_of(pressed, others) == decode_side_of(view("both"), others) == ()
