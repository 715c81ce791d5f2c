"""Roles of engines where prefill and decode are apart, as a Prometheus has them."""

from typing import cast

import pytest

from kvpressure.prometheus.client import Prometheus
from kvpressure.prometheus.declared import roles_there
from kvpressure.prometheus.names import Target
from kvpressure.prometheus.paging import Span

Labels = dict[str, str]
POD: Labels = {"namespace": "prod", "pod": "one"}
OF_POD: Labels = {"__name__": "kube_pod_labels", "label_llm_d_ai_role": "decode"}
WORKER: Labels = {"__name__": "dynamo_component_inflight_requests", **POD, "worker_id": "1b"}
MODEL: Labels = {"__name__": "dynamo_frontend_inflight_requests", "namespace": "prod", "model": "m"}


def frontend(worker: int, kind: str, **more: str) -> Labels:
    name = {"__name__": "dynamo_frontend_worker_active_decode_blocks", "namespace": "prod"}
    return {**name, "worker_id": str(worker), "worker_type": kind, **more}


class Server:
    def __init__(self, series: list[Labels]) -> None:
        self._series = series

    def series(self, matchers: list[str], start: float, end: float) -> list[Labels]:
        assert matchers
        assert start < end
        return self._series


def role(series: list[Labels], **labels: str) -> str:
    target = Target(tuple(sorted({**POD, **labels}.items())))
    return roles_there(cast("Prometheus", Server(series)), [target], Span(0.0, 1.0)).get(target, "")


@pytest.mark.parametrize(
    ("series", "labels", "expected"),
    [
        ([], {}, ""),
        ([], {"llm_d_ai_role": "prefill"}, "prefill"),
        ([], {"nvidia_com_dynamo_sub_component_type": "decode"}, "decode"),
        ([], {"llm_d_ai_role": "both"}, ""),
        ([{**OF_POD, **POD}], {}, "decode"),
        ([{**OF_POD, **POD}], {"llm_d_ai_role": "prefill"}, "prefill"),
        ([{**OF_POD, "pod": "kube-state-metrics", "exported_namespace": "prod", "exported_pod": "one"}], {}, "decode"),
        ([{**OF_POD, **POD, "pod": "another"}, {**OF_POD, **POD, "namespace": "dev"}], {}, ""),
        ([{**OF_POD, **POD}, {**OF_POD, **POD, "label_llm_d_ai_role": "prefill"}], {}, ""),
        ([{**OF_POD, **POD}], {"cluster": "west"}, ""),
        ([{**OF_POD, **POD, "cluster": "west"}], {"cluster": "west"}, "decode"),
        ([WORKER, MODEL, frontend(27, "decode"), frontend(28, "prefill")], {}, "decode"),
        ([WORKER, MODEL, frontend(27, "prefill")], {}, "prefill"),
        # None prefills: "decode" is said of those that do both.
        ([WORKER, MODEL, frontend(27, "decode")], {}, ""),
        ([WORKER, MODEL, {**MODEL, "model": "n"}, frontend(27, "prefill")], {}, ""),
        ([WORKER, MODEL, frontend(27, "prefill", namespace="dev")], {}, ""),
        ([{**WORKER, "worker_id": "not hexadecimal"}, MODEL, frontend(27, "prefill")], {}, ""),
        ([WORKER, {**WORKER, "worker_id": "1c"}, MODEL, frontend(27, "prefill"), frontend(28, "decode")], {}, ""),
    ],
)
def test_a_role_is_what_the_first_source_says_without_doubt(series: list[Labels], labels: Labels, expected: str):
    assert role(series, **labels) == expected
