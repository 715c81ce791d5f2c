"""Limits in a configuration file that an engine mounts from a ConfigMap, as the node's watch reads them."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kvpressure.kubernetes.watch import KubernetesSource
from kvpressure.kubernetes.watch import config_maps as module
from tests.stubs.kube_api import KubeApi, ReceivedRequest, answers, engine_pod, hangs
from tests.support.kube_watch import following, names, until, view
from tests.support.mounted_config import config_map, mounts_config

SEQS = "max-num-seqs: 24\nport: 9000\n"


@pytest.fixture
async def api() -> AsyncIterator[KubeApi]:
    async with KubeApi() as server:
        yield server


def limits(source: KubernetesSource) -> dict[str, float] | None:
    (target,) = source.targets
    return None if target.limits is None else {limit.name: limit.value for limit in target.limits}


def health(source: KubernetesSource) -> dict[str, tuple[bool, str]]:
    return {one.target: (one.up, one.error) for one in source.health() if one.source == module.CONFIG_MAPS}


def asked(api: KubeApi) -> list[ReceivedRequest]:
    return [one for one in api.asked if one.plural == "configmaps"]


async def test_the_limits_and_the_port_of_a_mounted_file_are_read_once(api: KubeApi, tmp_path: Path) -> None:
    api.put("configmaps", config_map(SEQS))
    api.put("configmaps", config_map("a: 1", name="somebody-elses"))
    async with following(api, tmp_path, config_maps=True) as source:
        api.put("pods", mounts_config(engine_pod("a-0")))
        await until(lambda: names(source) and limits(source) == {"max_num_seqs": 24.0})
        assert [target.url for target in source.targets] == ["http://10.244.3.17:9000"]
        # Every other change of the pod is read with what is known, and a change of the text counts for nobody.
        api.put("configmaps", config_map("max-num-seqs: 8", changed="2025-11-03T09:00:00Z"))
        api.put("pods", mounts_config(engine_pod("a-0", ready=False)))
        await until(lambda: [one.ready for one in view(source).containers.values()] == [False])
        assert limits(source) == {"max_num_seqs": 24.0}
        assert [(one.verb, one.namespace) for one in asked(api)] == [("get", "llm")]
        await until(lambda: health(source) == {"llm": (True, "")})
        assert view(source).hints == ()


async def test_a_start_script_from_a_configmap_is_read_too(api: KubeApi, tmp_path: Path) -> None:
    script = config_map("exec vllm serve m --max-num-seqs 24\n")
    script["data"] = {"serve.sh": script["data"]["config.yaml"]}
    api.put("configmaps", script)
    pod = mounts_config(engine_pod("a-0"), path="/scripts/serve.sh")
    pod["spec"]["containers"][0] |= {"command": ["/bin/bash"], "args": ["/scripts/serve.sh"]}
    async with following(api, tmp_path, config_maps=True) as source:
        api.put("pods", pod)
        await until(lambda: names(source) and limits(source) == {"max_num_seqs": 24.0})


async def test_a_restart_counts_with_the_text_of_then(api: KubeApi, tmp_path: Path) -> None:
    api.put("configmaps", config_map(SEQS))
    async with following(api, tmp_path, config_maps=True) as source:
        api.put("pods", mounts_config(engine_pod("a-0")))
        await until(lambda: names(source) and limits(source) == {"max_num_seqs": 24.0})
        api.put("configmaps", config_map("max-num-seqs: 8", changed="2025-11-03T09:00:00Z"))
        running = {"running": {"startedAt": datetime.now(UTC).isoformat()}}
        api.put("pods", mounts_config(engine_pod("a-0", restartCount=1, state=running)))
        await until(lambda: limits(source) == {"max_num_seqs": 8.0})


async def test_a_text_that_changed_after_the_start_is_nobodys_limit(api: KubeApi, tmp_path: Path) -> None:
    api.put("configmaps", config_map(SEQS, changed="2025-11-03T08:30:00Z"))
    async with following(api, tmp_path, config_maps=True) as source:
        api.put("pods", mounts_config(engine_pod("a-0")))
        await until(lambda: view(source).hints)
        assert limits(source) is None
        (hint,) = view(source).hints
        assert "pod llm/a-0 are not known: ConfigMap vllm-config: it changed at 2025-11-03T08:30:00Z, after" in hint
        assert len(asked(api)) == 1


async def test_nothing_is_asked_without_the_setting_and_the_hint_names_the_switch(api: KubeApi, tmp_path: Path) -> None:
    api.put("configmaps", config_map(SEQS))
    for settings in ({}, {"config_maps": True, "config_map_namespaces": ("elsewhere",)}):
        async with following(api, tmp_path, **settings) as source:
            api.put("pods", mounts_config(engine_pod("a-0")))
            api.put("pods", engine_pod("b-0", "10.244.3.18"))
            await until(lambda source=source: len(names(source)) == 2)  # type: ignore[misc]
            (hint,) = view(source).hints
            assert "(pods: llm/a-0)" in hint
            assert "kubernetes.configMaps.enabled=true" in hint
            assert health(source) == {}
    assert asked(api) == []


async def test_a_missing_permission_costs_these_limits_alone_and_is_noticed_when_it_comes(
    api: KubeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.put("configmaps", config_map(SEQS))
    api.forbidden.add(("configmaps", "get"))
    async with following(api, tmp_path, config_maps=True) as source:
        pod = mounts_config(engine_pod("a-0"))
        pod["spec"]["containers"][0]["args"] += ["--max-model-len", "8k"]
        api.put("pods", pod)
        await until(lambda: len(asked(api)) > 3)
        assert limits(source) == {"max_model_len": 8000.0}
        ((up, error),) = health(source).values()
        assert not up
        assert "give system:serviceaccount:monitoring:kvpressure a Role there" in error
        assert "verbs: [get]" in error
        api.forbidden.clear()
        await until(lambda: "max_num_seqs" in (limits(source) or {}))
        await until(lambda: health(source) == {"llm": (True, "")})
    told = capsys.readouterr()
    assert (told.out + told.err).count("not allowed to get configmaps") <= 1


@pytest.mark.parametrize("fault", [answers(500), answers(401), hangs])
async def test_what_goes_wrong_is_asked_again(api: KubeApi, tmp_path: Path, fault: Any) -> None:
    api.put("configmaps", config_map(SEQS))
    api.faults["configmaps", "get"] = [fault]
    hasty = module.Tuning(spacing_seconds=0.02, retry_seconds=0.02, list_seconds=0.5, watch_seconds=60)
    async with following(api, tmp_path, hasty, config_maps=True) as source:
        api.put("pods", mounts_config(engine_pod("a-0")))
        await until(lambda: names(source) and limits(source) == {"max_num_seqs": 24.0})


async def test_one_that_is_gone_is_not_asked_for_again_and_again(api: KubeApi, tmp_path: Path) -> None:
    async with following(api, tmp_path, config_maps=True) as source:
        api.put("pods", mounts_config(engine_pod("a-0")))
        await until(lambda: view(source).hints)
        assert "ConfigMap vllm-config: it is not there any more" in view(source).hints[0]
        await until(lambda: health(source) == {"llm": (True, "")})
        assert len(asked(api)) == 1


async def test_what_is_read_is_bounded_and_forgotten_with_the_pods(
    api: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_MAPS", 2)
    async with following(api, tmp_path, config_maps=True) as source:
        for number in range(4):
            api.put("configmaps", config_map(SEQS, name=f"config-{number}"))
            api.put("pods", mounts_config(engine_pod(f"a-{number}", f"10.244.3.{number + 1}"), f"config-{number}"))
        await until(lambda: sum(target.limits is not None for target in source.targets) == 2)
        assert sorted(name for (_, name), _ in source._maps._answers) == ["config-0", "config-1"]
        assert len(asked(api)) == 2
        for number in range(4):
            api.delete("pods", f"a-{number}", "llm")
        await until(lambda: not names(source))
        assert source._maps._answers == {}
        await until(lambda: health(source) == {})
