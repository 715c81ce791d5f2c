"""The settings of Kubernetes: what is refused, and label selectors."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.config.settings import ConfigError
from kvpressure.config.settings.keys import validate
from kvpressure.config.settings.kubernetes import KubernetesSettings, parse_selector


def selects(selector: str, labels: dict[str, Any]) -> bool:
    return all(term.matches(labels) for term in parse_selector(selector))


@pytest.mark.parametrize(
    ("selector", "labels", "found"),
    [
        ("app=vllm", {"app": "vllm"}, True),
        ("app==vllm", {"app": "vllm", "more": "x"}, True),
        ("app=vllm", {"app": "other"}, False),
        ("app=vllm", {}, False),
        ("app!=vllm", {"app": "other"}, True),
        ("app!=vllm", {}, True),
        ("app!=vllm", {"app": "vllm"}, False),
        ("app in (vllm, sglang)", {"app": "sglang"}, True),
        ("app in (vllm,sglang)", {"app": "tgi"}, False),
        ("app notin (vllm,sglang),tier", {"tier": ""}, True),
        ("app notin (vllm)", {"app": "vllm"}, False),
        ("example.com/serves-llm", {"example.com/serves-llm": "no matter what"}, True),
        ("!canary, app=vllm", {"app": "vllm"}, True),
        ("! canary", {"canary": ""}, False),
        ("app=", {"app": ""}, True),
        ("app in (vllm)", {"app": ["vllm"]}, False),
        ("app!=vllm", {"app": {"vllm": 1}}, True),
        ("app=vllm", {"app": "vllm2"}, False),
    ],
)
def test_a_label_selector_means_what_kubectl_means_by_it(selector: str, labels: dict[str, Any], found: bool) -> None:
    assert selects(selector, labels) is found


@pytest.mark.parametrize("selector", ["app=a b", "=x", "app in ()(", "app in vllm", "a b", ",", "app=vllm,", "app>3"])
def test_what_is_no_label_selector_is_refused(selector: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a label selector|no label can have"):
        validate(KubernetesSettings, {"label_selector": selector})


@given(st.text(max_size=60))
def test_any_text_is_a_selector_or_a_value_error(text: str) -> None:
    try:
        terms = parse_selector(text)
    except ValueError:
        return
    assert isinstance(all(term.matches({"a": "b"}) for term in terms), bool)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("node_name", "gpu-1,metadata.name=x"),
        ("node_name", "GPU_1"),
        ("namespaces", ["llm", "../x"]),
        ("namespaces", "llm,llm"),
        ("namespaces", [f"n{i}" for i in range(33)]),
        ("port_name", "Metrics"),
        ("port_name", "0123"),
        ("path", "metrics"),
        ("port", 0),
        ("enabled", "yes"),
        ("unknown", 1),
    ],
)
def test_a_setting_that_cannot_be_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        validate(KubernetesSettings, {key: value})
    assert key in str(refused.value)


def test_namespaces_may_be_a_list_or_one_text_and_enabled_a_yaml_boolean() -> None:
    settings = validate(KubernetesSettings, {"namespaces": "llm, canary", "enabled": True})
    assert settings.namespaces == ("llm", "canary")
    assert settings.enabled == "true"
    assert validate(KubernetesSettings, {"enabled": False}).enabled == "false"
    assert validate(KubernetesSettings, {"port_name": ""}).port_name == ""
