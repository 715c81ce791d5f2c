"""YAML that people read: block scalars for long and for many-line texts, keys in the order given."""

from __future__ import annotations

from typing import Any, Final

import yaml

_LONG: Final = 100


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002 - yaml's signature
        """Indent lists below their key."""
        super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - yaml's signature
        """Return True: everything is written out."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else ">" if len(text) > _LONG else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def dump(data: Any) -> str:
    """Return mappings, lists and scalars as YAML that reads back equal."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=118, allow_unicode=True)
