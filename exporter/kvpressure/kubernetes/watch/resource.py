"""What a reflector watches, and to whom it tells what it learns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from kvpressure.kubernetes.errors import Action

REFUSED: Final = frozenset({"forbidden", "unauthorized"})
"""Reasons that last until somebody grants something."""

_USER: Final = re.compile(r'User "([^"]{1,200})"')


def refused_user(message: str) -> str:
    """Return the user that the API server refuses, from the message of a 403."""
    return found[1] if (found := _USER.search(message)) else "our user"


class Record(Protocol):
    """An object reduced to what is kept."""

    @property
    def key(self) -> str:
        """The key of the record in its store."""


R_contra = TypeVar("R_contra", bound=Record, contravariant=True)


class Sink(Protocol[R_contra]):
    """Takes what a reflector learns."""

    def replaced(self, records: Sequence[R_contra]) -> None:
        """Take a whole list: what is not in it is gone."""

    def changed(self, record: R_contra, *, deleted: bool) -> None:
        """Take one that is new, different, or deleted."""


@dataclass(frozen=True, slots=True)
class Resource:
    """What to watch: `plural` in `namespace` ("" is all of them), narrowed by a field selector.

    `source` and `target` are those of its health.
    """

    source: str
    plural: str
    namespace: str = ""
    target: str = ""
    params: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The resource's path under the API server's address."""
        return f"api/v1/namespaces/{self.namespace}/{self.plural}" if self.namespace else f"api/v1/{self.plural}"

    def action(self, verb: str) -> Action:
        """Return the request's action, for messages."""
        return Action(verb, self.plural, self.namespace)

    def missing(self, verb: str, message: str) -> str:
        """Return the sentence for a 403: the permission that is missing, and the rule that grants it."""
        who = refused_user(message)
        scope = f"in namespace {self.namespace}" if self.namespace else "in the whole cluster"
        role = f"a Role in {self.namespace} (or a ClusterRole)" if self.namespace else "the ClusterRole"
        return (
            f"not allowed to {verb} {self.plural} {scope}: give {who} {role} with the rule "
            f'{{apiGroups: [""], resources: [{self.plural}], verbs: [list, watch]}}; asked again within a minute'
        )
