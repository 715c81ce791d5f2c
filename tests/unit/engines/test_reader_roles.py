"""What a page says of an engine where prefill and decode are apart: its role, its queues, and its id at a gateway."""

import pytest

from kvpressure.engines.reader import PageReader
from kvpressure.model.samples import EngineSample
from tests.support.tools import FIXTURES

SGLANG = (FIXTURES / "sglang" / "0.5.12-two-ranks-priorities.prom").read_bytes()
DYNAMO = (FIXTURES / "dynamo" / "worker-1.4.0.prom").read_bytes()


def engines(page: bytes) -> tuple[EngineSample, ...]:
    return PageReader().read(page, 1.0).engines


@pytest.mark.parametrize(
    ("kind", "role"), [("unified", ""), ("dynamic", ""), ("prefill", "prefill"), ("decode", "decode"), ("", "")]
)
def test_the_label_of_sglangs_scheduler_says_what_it_does(kind: str, role: str) -> None:
    found = engines(SGLANG.replace(b'engine_type="unified"', b'engine_type="%s"' % kind.encode()))
    assert [one.role for one in found] == [role, role]


def test_requests_that_wait_for_room_or_for_their_kv_wait_although_they_are_in_no_queue_of_the_scheduler() -> None:
    labels = b'{engine_type="decode",model_name="m",pp_rank="0",tp_rank="0"}'
    names = (
        b"num_running_reqs",
        b"num_queue_reqs",
        b"num_decode_prealloc_queue_reqs",
        b"num_decode_transfer_queue_reqs",
    )
    page = b"".join(
        b"sglang:%s%s %d\n" % (name, labels, value) for name, value in zip(names, (8, 1, 5, 3), strict=True)
    )
    (decode,) = engines(page)
    assert decode.gauges == {"running": 8, "waiting": 9, "fetching": 3}
    (other,) = engines(page.replace(b" 5\n", b" 0\n").replace(b" 3\n", b" 0\n"))
    assert other.gauges == {"running": 8, "waiting": 1}, "what is not there is not 0"


def test_a_worker_of_dynamos_has_the_id_that_the_frontend_has_for_it() -> None:
    frontend = (FIXTURES / "dynamo" / "frontend-1.4.0.prom").read_text()
    (worker,) = engines(DYNAMO)
    assert f'worker_id="{worker.worker}"' in frontend


@pytest.mark.parametrize("worker", ["", "xyz", "0" * 17, "-1"])
def test_what_is_no_id_of_a_worker_is_none(worker: str) -> None:
    (found,) = engines(DYNAMO.replace(b"ce1b4bc80f98909d", worker.encode()))
    assert found.worker == ""


def test_a_page_of_several_workers_is_of_none() -> None:
    more = b'dynamo_component_inflight_requests{dynamo_component="backend",worker_id="1"} 0\n'
    assert engines(DYNAMO + more)[0].worker == ""
