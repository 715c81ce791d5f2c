"""A pod can only ever cause requests to its own IP."""

import ipaddress
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from yarl import URL

import kvpressure.kubernetes.objects.annotations as address
from kvpressure.config.settings.kubernetes import KubernetesSettings
from kvpressure.kubernetes.objects.annotations import AddressError
from kvpressure.kubernetes.objects.pods import MAX_TARGETS, PodReader

READER = PodReader(KubernetesSettings(node_name="gpu-1"))

REFUSED_IPS = [
    "169.254.169.254",
    "fe80::1",
    "fe80::1%eth0",
    "127.0.0.1",
    "::1",
    "::ffff:127.0.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "fd00::1%1",
    "localhost",
    "metadata.google.internal",
    "10.0.0.1:80",
    "10.0.0.1/metrics",
    "2130706433",
    "0x7f000001",
    "010.0.0.1",
    "10.1",
    "user@10.1.1.1",
    "[fd00::1]",
    "10.244.0.1#",
]


@pytest.mark.parametrize("ip", [*REFUSED_IPS, "", " 10.244.0.1", "10.244.0.1\n", "10.244.0.1\r\nHost: x", "٣.1.1.1"])
def test_what_is_no_ip_of_a_pod_is_refused(ip: str) -> None:
    with pytest.raises(AddressError):
        address.pod_ip(ip)


@pytest.mark.parametrize("ip", ["10.244.3.17", "192.168.0.9", "172.16.0.1", "100.64.1.1", "240.1.2.3", "fd00::17"])
def test_an_ip_that_pods_have_is_taken(ip: str) -> None:
    assert address.pod_ip(ip) == ip


REFUSED_PATHS = [
    "",
    "metrics",
    "//evil.example/metrics",
    "/a//b",
    "/\\evil.example",
    "\\\\evil.example",
    "/..",
    "/../metrics",
    "/a/../../b",
    "/./metrics",
    "/...",
    "/%2e%2e/x",
    "/a@evil.example",
    "@evil.example/",
    ":9999/metrics",
    "http://evil.example/",
    "/metrics?target=x",
    "/metrics#x",
    "/metrics;x",
    "/met rics",
    "/metrics\r\nHost: evil.example",
    "/metrics\n",
    "/metrics\x00",
    "/métrics",
    "/" + "a" * 256,
]


@pytest.mark.parametrize("path", REFUSED_PATHS)
def test_a_path_that_could_mean_something_else_is_refused(path: str) -> None:
    with pytest.raises(AddressError):
        address.url_path(path)


@pytest.mark.parametrize("path", ["/metrics", "/", "/metrics/", "/v1/engine-0/metrics.txt", "/.well-known/m_e~1"])
def test_an_ordinary_path_is_taken(path: str) -> None:
    assert address.url_path(path) == path


@pytest.mark.parametrize("port", ["0", "65536", "-1", "+80", "80 ", "080", "8e3", "", "٨٠", "99999", "80@x", "80/x"])
def test_what_is_no_port_is_refused(port: str) -> None:
    with pytest.raises(AddressError):
        address.port_number(port)


def pod(ip: str, annotations: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "a-0", "namespace": "llm", "uid": "u-1", "annotations": annotations},
        "spec": {"containers": [{"name": "vllm", "image": "vllm/vllm-openai:v0.11.0"}]},
        "status": {"phase": "Running", "podIP": ip},
    }


def assert_only_its_own_ip(ip: str, annotations: Any) -> None:
    record = READER.read(pod(ip, annotations))
    assert len(record.targets) <= MAX_TARGETS
    for target in record.targets:
        for whole in (URL(target.url + target.path), urlsplit(target.url + target.path)):
            host = whole.host if isinstance(whole, URL) else whole.hostname
            assert ipaddress.ip_address(host or "") == ipaddress.ip_address(ip)
            assert whole.scheme in ("http", "https")
            assert 1 <= (whole.port or 0) <= 65535
        again = URL(target.url + target.path)
        assert (again.user, again.password, again.query_string, again.fragment) == (None, None, "", "")
        assert again.raw_path == target.path


HOSTILE = st.sampled_from([*REFUSED_PATHS, "@evil.example", "80@evil.example", "1,2,3", "https", "true", "/x", "vllm"])
VALUES = st.one_of(HOSTILE, st.text(max_size=40), st.lists(HOSTILE, max_size=3).map("".join), st.integers())
NAMES = st.sampled_from(
    ["scrape", "port", "path", "scheme", "container", "kv-bytes-per-token", "host", "max-input-tokens"]
)
ANNOTATIONS = st.dictionaries(NAMES.map("kvpressure.io/{}".format), VALUES, max_size=6)
POD_IPS = st.one_of(
    st.ip_addresses(v=4, network="10.244.0.0/16"), st.ip_addresses(v=6, network="fd00:10:244::/48")
).map(str)


@given(POD_IPS, ANNOTATIONS)
@example("10.244.0.9", {"kvpressure.io/path": "//evil.example/"})
@example("10.244.0.9", {"kvpressure.io/port": "80@evil.example"})
@example(
    "fd00:10:244::9", {"kvpressure.io/path": "/x", "kvpressure.io/port": "1,65535", "kvpressure.io/scheme": "https"}
)
def test_whatever_the_annotations_say_the_host_is_the_pods_own_ip(ip: str, annotations: dict[str, Any]) -> None:
    assert_only_its_own_ip(ip, annotations)


@given(st.text(max_size=60) | st.sampled_from(REFUSED_IPS))
def test_a_status_with_anything_but_a_pods_ip_makes_no_target(ip: str) -> None:
    try:
        address.pod_ip(ip)
    except AddressError:
        record = READER.read(pod(ip, {"kvpressure.io/scrape": "true"}))
        assert record.targets == ()
        assert record.problems or not ip


def test_a_pod_never_makes_more_targets_than_it_could_have_ranks() -> None:
    annotations = {"kvpressure.io/port": ",".join(str(8000 + i) for i in range(17))}
    record = READER.read(pod("10.244.0.9", annotations))
    assert record.targets == ()
    assert "at most 16 entries" in record.problems[0]
