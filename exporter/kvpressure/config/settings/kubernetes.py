"""Finding engines through the Kubernetes API server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from kvpressure.config.settings.polling import ClientSettings, KvEventsSettings
from kvpressure.config.settings.section import Before, Within
from kvpressure.config.settings.types import HttpPath, Switch, split_list
from kvpressure.net.urls import matching

_LABEL_KEY: Final = r"(?:[A-Za-z0-9][-A-Za-z0-9.]{0,252}/)?[A-Za-z0-9](?:[-\w.]{0,61}[A-Za-z0-9])?"
_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_REQUIREMENT: Final = re.compile(
    rf"(?P<absent>!\s*(?P<gone>{_LABEL_KEY}))"
    rf"|(?P<key>{_LABEL_KEY})(?:\s*(?P<sign>==?|!=)\s*(?P<value>[^\s,()=!]*)|\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?",
    re.ASCII,
)
_MAX_NAMESPACES: Final = 32


@dataclass(frozen=True, slots=True)
class Requirement:
    """One term of a label selector: `key` has one of `values`, or with `negated` has not (or is absent).

    With `values` None the key only has to be there.
    """

    key: str
    values: frozenset[str] | None = None
    negated: bool = False

    def matches(self, labels: Mapping[str, Any]) -> bool:
        """Return whether these labels meet the requirement."""
        value = labels.get(self.key)
        holds = self.key in labels if self.values is None else isinstance(value, str) and value in self.values
        return holds != self.negated


def parse_selector(text: str) -> tuple[Requirement, ...]:
    """Read a label selector as `kubectl -l` takes it: `a=b`, `a!=b`, `a in (b,c)`, `a notin (b)`, `a`, `!a`.

    All terms must hold; no term at all selects nothing. Raises ValueError.
    """
    terms = [term.strip() for term in re.split(r",(?![^(]*\))", text)] if text.strip() else []
    return tuple(map(_requirement, terms))


def _requirement(term: str) -> Requirement:
    match = _REQUIREMENT.fullmatch(term)
    if match is None:
        raise ValueError(f"is not a label selector: {term!r} must be like app=llama, app in (a,b), app or !app")
    if match["absent"]:
        return Requirement(match["gone"], negated=True)
    if not match["sign"] and not match["set"]:
        return Requirement(match["key"])
    values = frozenset([match["value"]] if match["sign"] else map(str.strip, match["values"].split(",")))
    if wrong := [value for value in sorted(values) if not _LABEL_VALUE.fullmatch(value)]:
        raise ValueError(f"has {wrong[0]!r}, which no label can have as value")
    return Requirement(match["key"], values, match["sign"] == "!=" or match["set"] == "notin")


def _selector(text: str) -> str:
    parse_selector(text)
    return text


# It becomes part of a field selector, where a comma would add terms.
_node_name: Final = matching(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?", "must be the name of a node: lower-case letters, digits, - and ."
)
_port_name: Final = matching(
    r"((?=.*[a-z])[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?)?",
    "must be a container port's name: up to 15 lower-case letters, digits and -",
)
_namespace: Final = matching(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "must be the name of a namespace")


def _namespaces(value: Any) -> Any:
    items = split_list(value)
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        raise ValueError("must be a list of namespaces, such as [llm, llm-canary]")
    if len(set(items)) < len(items):
        raise ValueError("lists a namespace twice")
    if len(items) > _MAX_NAMESPACES:
        raise ValueError(f"lists more than {_MAX_NAMESPACES} namespaces: leave it empty to watch all")
    return tuple(items)


_Namespaces = Annotated[tuple[Annotated[str, _namespace], ...], Before(_namespaces)]


class KubernetesSettings(ClientSettings):
    """Engines found among the pods of this node.

    Its tls, bearer_token_file and basic_auth are for engines, not for the API server; those of `poll` are never
    sent to a pod that was found.
    """

    enabled: Switch = "auto"
    """`auto` is on inside a cluster, where the service account is used."""
    node_name: Annotated[str, _node_name] = ""
    """This node; required. In a pod: `spec.nodeName` through the downward API."""
    namespaces: _Namespaces = ()
    """Namespaces to watch, each with its own watch; empty means all."""
    label_selector: Annotated[str, _selector] = ""
    """Pods with these labels are engines; in the syntax of `kubectl -l`."""
    port_name: Annotated[str, _port_name] = "metrics"
    """A container with a GPU and a port of this name is an engine; empty disables this rule."""
    port: Annotated[int, Within(1, 65535)] = 8000
    """Port of an engine that declares none."""
    path: HttpPath = "/metrics"
    """Path of the metrics, if no annotation sets it."""
    kv_events: KvEventsSettings | None = None
    """Read the KV events of every engine that is found, at its pod's own IP. Unset: of none."""
    config_maps: bool = False
    """Read limits from the file of `--config` if it is mounted from a ConfigMap; requires get on configmaps."""
    config_map_namespaces: _Namespaces = ()
    """Namespaces where ConfigMaps may be read; empty means all namespaces with engines."""
    events: bool = True
    """Watch the Kubernetes events of engines and of the node."""
    node_conditions: bool = True
    """Watch the node's condition MemoryPressure."""
