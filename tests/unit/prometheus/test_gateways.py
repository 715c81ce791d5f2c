"""Which engines are behind a gateway, by the pods that it lists and by where it is."""

import pytest

from kvpressure.prometheus.gateways import Pool, behind
from kvpressure.prometheus.names import Target
from kvpressure.runtimes.gateways import ROWS


def target(pod: str = "", **more: str) -> Target:
    return Target(tuple(sorted({**({"pod": pod} if pod else {}), **more}.items())))


def pool(name: str, *pods: str, namespace: str = "") -> Pool:
    return Pool("", namespace, "epp", name, by_load=True, pods=frozenset(pods))


@pytest.mark.parametrize(
    ("pools", "one", "name"),
    [
        ([pool("a", "x"), pool("b", "y")], target("y"), "b"),
        ([pool("a", "x")], target("y"), None),
        ([pool("a", "x")], target(instance="h:1"), "a"),
        ([pool("a"), pool("b")], target("y"), None),
        ([pool("a", namespace="n"), pool("b", namespace="m")], target("y", namespace="m"), "b"),
        ([pool("a", namespace="n")], target("y", namespace="m"), None),
    ],
)
def test_the_pool_that_lists_a_pod_has_it_else_the_only_one_near(
    pools: list[Pool], one: Target, name: str | None
) -> None:
    found = behind(pools, [one]).get(one)
    assert (None if found is None else found.name) == name


def test_names_that_promql_would_read_otherwise_are_quoted() -> None:
    text = pool('a"} or vector(1) {x="').expr(ROWS[0])
    assert 'inference_pool="a\\"} or vector(1) {x=\\""' in text
