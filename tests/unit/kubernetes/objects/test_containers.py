"""What a container's options come to where a variable among them is given, missing, or from a Secret or ConfigMap."""

from typing import Any

import pytest

from kvpressure.kubernetes.objects.containers import limits_of, read_containers

GIVEN = {"env": [{"name": "EXTRA", "value": "--max-num-seqs 16"}]}
MISSING: dict[str, Any] = {}
CONFIG_MAP = {"env": [{"name": "EXTRA", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "extra"}}}]}
SECRET = {"env": [{"name": "EXTRA", "valueFrom": {"secretKeyRef": {"name": "s", "key": "extra"}}}]}
ALL_OF_A_MAP = {"envFrom": [{"configMapRef": {"name": "c"}}]}
ALL_OF_A_SECRET = {"envFrom": [{"secretRef": {"name": "s"}}]}
UNKNOWN = (MISSING, CONFIG_MAP, SECRET, ALL_OF_A_MAP, ALL_OF_A_SECRET)

BEFORE = "vllm serve m $EXTRA --max-num-seqs 8"
BEHIND = "vllm serve m --max-num-seqs 8 $EXTRA"
DEFAULT = "vllm serve m --max-num-seqs ${SEQS:-32}"


def sequences(script: str, more: dict[str, Any]) -> float | None:
    container = {"name": "vllm", "image": "vllm/vllm-openai:v0.11.0", "command": ["sh", "-c", script], **more}
    (found,) = read_containers({"spec": {"containers": [container]}})
    return {limit.name: limit.value for limit in limits_of(found, {}) or ()}.get("max_num_seqs")


@pytest.mark.parametrize("more", [GIVEN, *UNKNOWN])
def test_the_last_of_an_option_is_certain_whatever_stands_before_it(more: dict[str, Any]) -> None:
    assert sequences(BEFORE, more) == 8


@pytest.mark.parametrize(("more", "seqs"), [(GIVEN, 16), *((more, 8) for more in UNKNOWN)])
def test_one_as_written_is_known_with_an_unknown_variable_behind_it(more: dict[str, Any], seqs: float | None) -> None:
    assert sequences(BEHIND, more) == seqs


@pytest.mark.parametrize(
    ("more", "seqs"),
    [
        (MISSING, 32),
        (ALL_OF_A_MAP, None),
        (ALL_OF_A_SECRET, None),
        ({**ALL_OF_A_MAP, "env": [{"name": "SEQS", "value": "4"}]}, 4),
        ({"env": [{"name": "SEQS", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "n"}}}]}, None),
    ],
)
def test_a_default_holds_only_where_nothing_unseen_may_set_the_variable(more: dict[str, Any], seqs: float | None):
    assert sequences(DEFAULT, more) == seqs
