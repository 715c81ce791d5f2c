"""Everything the API server can do wrong: what is known stays, the reason is told, and it is followed again."""

import asyncio
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvpressure.kubernetes.objects.pods import PodReader
from kvpressure.kubernetes.watch import KubernetesSource, connection
from kvpressure.kubernetes.watch.resource import Tuning
from kvpressure.model.samples import SourceHealth
from kvpressure.net import credentials
from tests.stubs import kube_api
from tests.stubs.kube_api import Fault, KubeApi, engine_pod
from tests.support import certificates
from tests.support.kube_watch import HASTY, following, following_as_it_is, names, until, view

IMPATIENT = replace(HASTY, list_seconds=0.3, open_seconds=0.3)
STALLING = Tuning(spacing_seconds=0.02, retry_seconds=0.02, watch_seconds=0, grace_seconds=0.2)


def pods_health(source: KubernetesSource) -> SourceHealth:
    return next(health for health in source.health() if health.source == "kubernetes_pods")


async def follows_again(api: KubeApi, source: KubernetesSource) -> None:
    """A change made now arrives, and all is well."""
    api.put("pods", engine_pod("proof-0", "10.244.3.99"))
    await until(lambda: "proof-0" in names(source), "a new pod is seen")
    await until(lambda: pods_health(source).up, "the source is up")
    assert pods_health(source).error == ""


async def test_a_list_in_chunks_is_followed_to_its_end(api: KubeApi, tmp_path: Path) -> None:
    api.page_limit = 2
    for i in range(1, 6):
        api.put("pods", engine_pod(f"a-{i}", f"10.244.3.{20 + i}"))
    api.put("pods", engine_pod("elsewhere-0", node="gpu-2"))
    async with following(api, tmp_path) as source:
        await until(lambda: names(source) == [f"a-{i}" for i in range(6)])
        lists = [asked.params for asked in api.asked if asked.verb == "list"]
        assert [params.get("continue") for params in lists] == [None, "2", "4"]
        assert [params.get("resourceVersion") for params in lists] == ["0", None, None]
        assert {params["limit"] for params in lists} == {"2"}


async def test_an_api_server_that_goes_away_leaves_the_last_known_pods(api: KubeApi, tmp_path: Path) -> None:
    async with following(api, tmp_path) as source:
        await until(lambda: names(source) == ["a-0"])
        (state,) = view(source).containers.values()
        await api.stop()
        await until(lambda: pods_health(source).reason == "unreachable")
        assert names(source) == ["a-0"]
        assert "no connection to the API server: connection refused by http://127.0.0.1:" in pods_health(source).error
        (stale,) = view(source).containers.values()
        await asyncio.sleep(0.05)
        assert next(iter(view(source).containers.values())).t == stale.t >= state.t
        await api.start()
        await follows_again(api, source)
        assert "a-0" in names(source)


async def test_an_api_server_that_comes_later_is_picked_up(api: KubeApi, tmp_path: Path) -> None:
    await api.stop()
    async with following(api, tmp_path) as source:
        await until(lambda: pods_health(source).reason == "unreachable")
        await api.start()
        await follows_again(api, source)


@pytest.mark.parametrize("in_the_stream", [True, False])
async def test_410_gone_means_a_new_list_past_the_cache(api: KubeApi, tmp_path: Path, in_the_stream: bool) -> None:
    api.put("pods", engine_pod("b-0", "10.244.3.18"))
    async with following(api, tmp_path) as source:
        await until(lambda: len(names(source)) == 2 and api.open_watches == 1)
        if not in_the_stream:
            await api.stop()
        api.delete("pods", "b-0", "llm")
        api.put("pods", engine_pod("c-0", "10.244.3.19"))
        api.compact()
        if not in_the_stream:
            await api.start()
        await until(lambda: names(source) == ["a-0", "c-0"])
        await until(lambda: api.open_watches == 1)
        assert "resourceVersion" not in [asked.params for asked in api.asked if asked.verb == "list"][-1]
        await follows_again(api, source)


async def test_a_server_that_only_ever_says_gone_is_asked_less_and_less(api: KubeApi, tmp_path: Path) -> None:
    api.always["pods", "watch"] = kube_api.answers(410)
    slow = Tuning(spacing_seconds=0.02, retry_seconds=0.1, retry_limit_seconds=30.0)
    async with following(api, tmp_path, slow) as source:
        await until(lambda: names(source) == ["a-0"])
        await asyncio.sleep(1.0)
        assert api.count("pods", "list") <= 6
        del api.always["pods", "watch"]
        await follows_again(api, source)


async def test_a_server_that_ends_every_watch_at_once_is_asked_less_and_less(api: KubeApi, tmp_path: Path) -> None:
    api.always["pods", "watch"] = kube_api.says(b"")
    slow = Tuning(spacing_seconds=5.0, retry_seconds=0.1, retry_limit_seconds=30.0)
    async with following(api, tmp_path, slow) as source:
        await until(lambda: names(source) == ["a-0"])
        await asyncio.sleep(1.0)
        assert api.count("pods", "watch") <= 6
        assert api.count("pods", "list") == 1


async def test_a_version_the_server_has_never_heard_of_is_given_up(api: KubeApi, tmp_path: Path) -> None:
    async def too_large(request: Any) -> Any:
        known = api.count("pods", "list") > 1
        return await api._watch(request, "pods", "") if known else kube_api.status(504, "Too large resource version")

    api.always["pods", "watch"] = too_large
    async with following(api, tmp_path) as source:
        await until(lambda: api.count("pods", "list") == 2, "listed anew")
        await follows_again(api, source)
        assert api.count("pods", "list") == 2


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_403_names_the_missing_permission_and_the_rule_and_recovers(
    api: KubeApi, tmp_path: Path, verb: str
) -> None:
    api.forbidden.add(("pods", verb))
    async with following(api, tmp_path) as source:
        await until(lambda: pods_health(source).reason == "forbidden")
        error = pods_health(source).error
        assert f"not allowed to {verb} pods in the whole cluster" in error
        assert "system:serviceaccount:monitoring:kvpressure" in error
        assert '{apiGroups: [""], resources: [pods], verbs: [list, watch]}' in error
        assert len(error) < 400
        api.forbidden.clear()
        await follows_again(api, source)


async def test_403_in_one_namespace_names_it_and_leaves_the_others_alone(api: KubeApi, tmp_path: Path) -> None:
    async def only_llm(request: Any) -> Any:
        if "/llm/" in request.path:
            return api._list(request, "pods", "llm")
        return kube_api.status(403, 'pods is forbidden: User "u" cannot list resource "pods"')

    api.always["pods", "list"] = only_llm
    async with following(api, tmp_path, namespaces=("llm", "other")) as source:
        await until(lambda: names(source) == ["a-0"])
        await until(lambda: any(h.reason == "forbidden" for h in source.health()))
        llm, other = source.health()
        assert (llm.target, llm.up, other.target, other.up) == ("llm", True, "other", False)
        assert "in namespace other: give u a Role in other" in other.error


async def test_a_watch_that_says_nothing_for_longer_than_its_timeout_is_begun_anew(
    api: KubeApi, tmp_path: Path
) -> None:
    async with following(api, tmp_path, STALLING) as source:
        api.always["pods", "watch"] = kube_api.hangs
        await until(lambda: pods_health(source).errors.get("stalled", 0) >= 2)
        assert names(source) == ["a-0"]
        assert api.count("pods", "list") == 1


async def test_a_stalled_watch_is_told_in_a_sentence_and_left_behind(api: KubeApi, tmp_path: Path) -> None:
    told: list[str] = []
    tuning = Tuning(spacing_seconds=0.02, retry_seconds=0.02, watch_seconds=1, grace_seconds=0.2)
    async with following(api, tmp_path, tuning) as source:
        await until(lambda: names(source) == ["a-0"])
        api.faults["pods", "watch"] = [kube_api.hangs]
        await until(lambda: told.append(pods_health(source).error) or pods_health(source).errors.get("stalled"))
        assert "the watch of pods said nothing for longer than its timeout" in told[-1]
        await follows_again(api, source)


async def test_a_watch_that_ends_in_time_goes_on_where_it_was(api: KubeApi, tmp_path: Path) -> None:
    tuning = Tuning(spacing_seconds=0.02, watch_seconds=1, grace_seconds=5.0)
    async with following(api, tmp_path, tuning) as source:
        await until(lambda: api.count("pods", "watch") >= 3)
        api.put("pods", engine_pod("b-0", "10.244.3.18"))
        await until(lambda: names(source) == ["a-0", "b-0"])
        assert api.count("pods", "list") == 1
        assert pods_health(source).errors == {}


async def test_bookmarks_carry_a_quiet_watch_over_a_compaction(api: KubeApi, tmp_path: Path) -> None:
    api.bookmark_seconds = 0.05
    tuning = Tuning(spacing_seconds=0.02, watch_seconds=1, grace_seconds=5.0)
    async with following(api, tmp_path, tuning) as source:
        await until(lambda: api.open_watches == 1)
        api.put("pods", engine_pod("elsewhere-0", node="gpu-2"))  # moves the version on, and is none of ours
        newest = str(api._version)
        await until(lambda: any(a.params.get("resourceVersion") == newest for a in api.asked if a.verb == "watch"))
        assert next(a.params for a in api.asked if a.verb == "watch")["allowWatchBookmarks"] == "true"
        assert api.count("pods", "list") == 1
        assert pods_health(source).up


async def test_a_watch_that_breaks_in_the_middle_of_an_event_loses_nothing(api: KubeApi, tmp_path: Path) -> None:
    api.faults["pods", "watch"] = [kube_api.breaks_after(b'{"type":"ADDED","object":{"metad')]
    async with following(api, tmp_path) as source:
        await follows_again(api, source)
        assert api.count("pods", "list") == 1
        assert pods_health(source).errors == {}


GARBAGE: dict[str, tuple[str, Fault, str]] = {
    "a list that is a web page": ("list", kube_api.says(b"<html>sign in</html>"), "garbage"),
    "a list cut short": (
        "list",
        kube_api.says(b'{"kind":"PodList","metadata":{"resourceVersion":"9"},"items":[{'),
        "garbage",
    ),
    "a list that is a Status": (
        "list",
        kube_api.says(json.dumps(kube_api.status_object(500, "x")).encode()),
        "garbage",
    ),
    "a list of no kind": ("list", kube_api.says(b'{"metadata":{"resourceVersion":"9"},"items":[]}'), "garbage"),
    "a list with items that are a text": (
        "list",
        kube_api.says(b'{"kind":"PodList","metadata":{},"items":"x"}'),
        "garbage",
    ),
    "a list of binary": ("list", kube_api.says(b"\xff\xfe\x00\x01" * 100), "garbage"),
    "a list nested without end": ("list", kube_api.says(b'{"kind":"PodList","metadata":' + b"[" * 100_000), "garbage"),
    "a list that never comes": ("list", kube_api.never_answers, "timeout"),
    "a list that never ends": ("list", kube_api.hangs, "timeout"),
    "a list that breaks": ("list", kube_api.breaks_after(b'{"kind":"PodList",'), "connection"),
    "an overloaded server": ("list", kube_api.answers(429, "too many requests"), "http_status"),
    "a server in trouble": ("list", kube_api.answers(500, "etcdserver: leader changed"), "http_status"),
    "no such path": ("list", kube_api.answers(404), "http_status"),
    "credentials that are refused": ("list", kube_api.answers(401), "unauthorized"),
    "a watch that never opens": ("watch", kube_api.never_answers, "timeout"),
    "a watch in trouble": ("watch", kube_api.answers(503), "http_status"),
    "a line that is no event": ("watch", kube_api.says(b"hello\n"), "garbage"),
    "a line without an object": ("watch", kube_api.says(b'{"type":"ADDED"}\n'), "garbage"),
    "an event without end": ("watch", kube_api.says(b'{"type":"' + b"x" * (5 << 20)), "too_large"),
    "an error in the stream": (
        "watch",
        kube_api.says(kube_api.watch_line("ERROR", kube_api.status_object(500, "internal"))),
        "watch_error",
    ),
}


@pytest.mark.parametrize("case", GARBAGE)
async def test_an_answer_that_is_no_answer_has_its_reason_and_costs_no_pod(
    api: KubeApi, tmp_path: Path, case: str
) -> None:
    verb, fault, reason = GARBAGE[case]
    async with following(api, tmp_path, IMPATIENT if reason == "timeout" else HASTY) as source:
        await until(lambda: names(source) == ["a-0"] and api.open_watches == 1)
        api.always["pods", verb] = fault
        if verb == "list":
            api.compact()
        else:
            await api.stop()
            await api.start()
        await until(lambda: pods_health(source).errors.get(reason), reason)
        assert names(source) == ["a-0"]
        api.always.clear()
        await follows_again(api, source)
        assert "a-0" in names(source)


async def test_what_a_garbled_watch_swallowed_is_learned_from_a_new_list(api: KubeApi, tmp_path: Path) -> None:
    async def garbled(_: Any) -> Any:
        api.put("pods", engine_pod("b-0", "10.244.3.18"))
        api._history.clear()
        return kube_api.web.Response(body=b"hello\n")

    api.faults["pods", "watch"] = [garbled]
    async with following(api, tmp_path) as source:
        await until(lambda: names(source) == ["a-0", "b-0"])
        assert api.count("pods", "list") == 2


JUNK_PODS: list[Any] = [
    {},
    {"metadata": None},
    {"metadata": {"name": 5, "namespace": []}},
    {"metadata": {"name": "x-0", "namespace": "llm", "uid": {}}, "spec": [], "status": "Running"},
    engine_pod("junk-0")
    | {"status": {"phase": "Running", "podIP": ["10.1.1.1"], "containerStatuses": {"name": "vllm"}}},
    engine_pod("junk-1") | {"spec": {"containers": [None, 5, {"name": None}, {"image": {}}]}},
]


@pytest.mark.parametrize("junk", JUNK_PODS)
async def test_a_pod_object_of_junk_ends_nothing_in_list_or_watch(api: KubeApi, tmp_path: Path, junk: Any) -> None:
    items = [junk, engine_pod("a-0"), "text", None, 7]
    page = {"kind": "PodList", "metadata": {"resourceVersion": "100"}, "items": items}
    api.faults["pods", "list"] = [kube_api.says(json.dumps(page).encode())]
    lines = b"".join(kube_api.watch_line(kind, junk) for kind in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "NEWS"))
    told = lines + b"\n" + kube_api.watch_line("ADDED", engine_pod("b-0", "10.244.3.18"))
    api.faults["pods", "watch"] = [kube_api.says(told)]
    async with following(api, tmp_path) as source:
        await until(lambda: "b-0" in names(source))
        assert "a-0" in names(source)
        await follows_again(api, source)
        assert pods_health(source).errors == {}


async def test_a_reader_that_fails_on_one_object_does_not_cost_the_others(
    api: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = PodReader.read

    def read(reader: PodReader, pod: Any) -> Any:
        if pod["metadata"]["name"] == "bad-0":
            raise ZeroDivisionError
        return whole(reader, pod)

    monkeypatch.setattr(PodReader, "read", read)
    async with following(api, tmp_path) as source:
        await until(lambda: names(source) == ["a-0"])
        api.put("pods", engine_pod("bad-0"))
        await follows_again(api, source)
        assert names(source) == ["a-0", "proof-0"]


@pytest.mark.fault(
    "a watch ends while one of its events is being read", "the next watch starts before that event, so it is not lost"
)
async def test_an_event_that_is_being_read_when_its_watch_ends_is_told_again(
    api: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, reading, released = PodReader.read, threading.Event(), threading.Event()

    def read(reader: PodReader, pod: Any) -> Any:
        if pod["metadata"]["name"] == "slow-0" and not reading.is_set():
            reading.set()
            released.wait(60)
        return whole(reader, pod)

    monkeypatch.setattr(PodReader, "read", read)
    async with following(api, tmp_path, replace(STALLING, watch_seconds=1)) as source:
        await until(lambda: names(source) == ["a-0"])
        api.put("pods", engine_pod("slow-0", "10.244.3.98"))
        await until(reading.is_set)
        await until(lambda: "slow-0" in names(source))
        released.set()


async def test_a_new_token_is_read_after_a_401(api: KubeApi, tmp_path: Path) -> None:
    async with following(api, tmp_path) as source:
        await until(lambda: names(source) == ["a-0"])
        api.token = "rotated"
        await api.stop()
        await api.start()
        await until(lambda: pods_health(source).reason == "unauthorized")
        assert names(source) == ["a-0"]
        api.account(tmp_path)
        await follows_again(api, source)


async def test_without_a_service_account_it_is_told_what_to_do_and_looked_for_again(
    api: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    async with following_as_it_is() as source:
        await until(lambda: pods_health(source).reason == "config")
        assert "name engines by engines.targets or engines.file_sd" in pods_health(source).error
        monkeypatch.setattr(connection, "service_account", lambda: api.account(tmp_path))
        await follows_again(api, source)


async def test_in_a_pod_the_service_account_and_its_rotated_token_are_used_over_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = certificates.authority(tmp_path)
    account = tmp_path / "serviceaccount"
    account.mkdir()
    (account / "ca.crt").write_bytes(authority.ca_file.read_bytes())
    (account / "namespace").write_text("monitoring")
    (account / "token").write_text("first")
    monkeypatch.setattr(credentials, "TOKEN_FILE", account / "token")
    context = certificates.server_context(*authority.issue("api"))
    async with KubeApi(token="first", tls=context) as api:
        api.put("pods", engine_pod("a-0"))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.port))
        async with following_as_it_is() as source:
            await until(lambda: names(source) == ["a-0"])
            (account / "token").write_text("second")
            api.token = "second"
            await api.stop()
            await api.start()
            await follows_again(api, source)
            assert {a.authorization for a in api.asked} >= {"Bearer first", "Bearer second"}


async def test_a_server_with_a_strangers_certificate_gets_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger, ours = certificates.authority(tmp_path, "stranger"), certificates.authority(tmp_path, "ours")
    async with KubeApi(tls=certificates.server_context(*stranger.issue("api"))) as api:
        (tmp_path / "ca.crt").write_bytes(ours.ca_file.read_bytes())
        (tmp_path / "token").write_text("secret")
        account = connection.ServiceAccount(f"https://127.0.0.1:{api.port}", tmp_path)
        monkeypatch.setattr(connection, "service_account", lambda: account)
        async with following_as_it_is() as source:
            await until(lambda: pods_health(source).reason == "tls")
            assert "check the scheme, the cluster's CA" in pods_health(source).error
            assert api.asked == []


async def test_redirects_are_not_followed_with_our_token(api: KubeApi, tmp_path: Path) -> None:
    async with KubeApi() as elsewhere:

        async def redirect(_: Any) -> Any:
            return kube_api.web.Response(
                status=302, headers={"Location": f"http://127.0.0.1:{elsewhere.port}/api/v1/pods"}
            )

        api.always["pods", "list"] = redirect
        async with following(api, tmp_path) as source:
            await until(lambda: pods_health(source).reason == "http_status")
            assert elsewhere.asked == []
