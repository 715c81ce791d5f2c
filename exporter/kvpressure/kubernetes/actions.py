"""What is asked of the API server, in the words of its permissions. PURE."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Action:
    """What a request does, as RBAC names it: for sentences when it is refused. Without a namespace, in all of them."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        where = f"in namespace {self.namespace}" if self.namespace else "in the whole cluster"
        return f"{self.verb} {self.resource}{f' {self.name}' if self.name else ''} {where}"
