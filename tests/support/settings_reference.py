"""Writes `docs/configuration.md` from the settings' models: `python -m tests.support.settings_reference`."""

import ast
import inspect
import itertools
import sys
import textwrap
import typing
from pathlib import Path
from typing import Final

from kvpressure.config.settings import types
from kvpressure.config.settings.keys import Key, keys
from kvpressure.config.settings.load import CONFIG_ENV, CONFIG_FLAG, FLAGS
from kvpressure.config.settings.model import Settings
from kvpressure.config.settings.section import REQUIRED, Derived, Section, Within, bare, fields_of
from kvpressure.daemon.node_sources import settings_model

_INTRO: Final = f"""\
# Configuration

<!-- Generated from exporter/kvpressure/config/settings; `make docs` writes it again. -->

All settings of the exporter. kvpressure reads them from a file, then from the environment, then from flags; later ones
win. Without any it monitors a single machine: an engine at `http://localhost:8000` and all of its GPUs.

- **File**: `--config` (also written `--{CONFIG_FLAG}`), else `{CONFIG_ENV}`, else `kvpressure.yaml` in the working
  directory, if there is one. A key without a value means its default. Paths in the file are relative to the file.
- **Environment**: the variable named beside each key; `__` separates sections. Lists are written as YAML:
  `KVPRESSURE_ENGINES__TARGETS='[{{url: "http://gpu-1:8000"}}]'`. An empty variable counts as unset. Paths are
  relative to the working directory. The variables that Kubernetes makes for a Service named `kvpressure` are ignored.
- **Flags**: {", ".join(f"`--{flag}`" for flag in ("config", *FLAGS))}.

Unknown keys, variables and flags are errors, and all problems are reported at once, each with its line:
`kvpressure.yaml:12: engines.targets[0].url: must start with http:// or https://, got 'gpu-1:8000'`.
Secrets are read from files only.
"""

_FILE_SD: Final = """\
## Targets in files (`engines.file_sd`)

The files have the format of Prometheus's file_sd, as JSON or YAML: a list of groups.

```yaml
- targets: ["10.0.0.5:8000", "10.0.0.6:8000"]
  labels:
    namespace: chat
```

| label | means | default |
|---|---|---|
| `__scheme__` | `http` or `https` | `http` |
| `__metrics_path__` | path of the page | `/metrics` |
| `kvpressure_name` | the `target` label; only in groups with one target | `namespace/pod:port`, else `host:port` |
| `namespace`, `pod` | where the engine runs | empty |
| `kvpressure_runtime` | runtime that serves the model | `auto`: detected from its metrics |
| `kvpressure_gpus` | `all`, or uuids or indices separated by commas | none joined |
| `kvpressure_kv_bytes_per_token` | KV cache bytes of one token | from the page |
| `kvpressure_kv_events_port` | port of its KV events, if the entry has `kv_events` | as `kv_events` of the entry |

Other labels are ignored. An invalid file keeps its last valid targets and is reported as
`kvpressure_source_up{source="file_sd"} 0`; the targets of a deleted file are removed. A change takes effect once two
checks in a row find it, so that a half-written file is not read. If two targets have the same address or the same
name, the first one is kept, fixed targets before files and files in alphabetical order; the others are counted.
"""


def settings_reference(model: type[Settings]) -> str:
    """Render the reference of every key: name, variable, type, default, meaning."""
    sections: dict[tuple[str, ...], list[Key]] = {}
    for key in keys(model):
        sections.setdefault(key.path[:-1], []).append(key)
    top = list(fields_of(model))
    order = sorted(sections, key=lambda path: (top.index(path[0].rstrip("[]")) if path else -1, path))
    shown: dict[str, str] = {}
    tables = [_section(".".join(path), sections[path], shown) for path in order]
    return "\n".join([_INTRO, *tables, _FILE_SD])


def _section(name: str, rows: list[Key], shown: dict[str, str]) -> str:
    about = (rows[0].section.__doc__ or "").strip()
    if name and about in shown:
        return f"## `{name}`\n\nThe same keys as in `{shown[about]}`.\n"
    shown[about] = name
    return _table(name, about, rows)


def _table(name: str, about: str, rows: list[Key]) -> str:
    lines = [f"## `{name}`", "", about, ""] if name else ["## At the top", ""]
    lines += ["| key | environment | type | default | meaning |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *map(_row, rows)]) + "\n"


def _row(key: Key) -> str:
    env = "" if key.in_list else f"`{key.env}`"
    bounds = _bounds(key)
    kind = f"{type_name(key)}, {bounds}" if bounds else type_name(key)
    return f"| `{key.path[-1]}` | {env} | {kind} | {_default(key)} | {meaning(key)} |"


_SCALARS: Final = {str: "string", Path: "path", float: "number", int: "integer", bool: "boolean"}
_LISTS: Final = {
    types.ListenAddresses: "address or list",
    types.Gpus: "`all` or list",
    types.Vendors: "`auto` or list",
    types.SdPatterns: "list of paths",
}


def type_name(key: Key) -> str:
    """Name the type of a key."""
    kind = bare(key.field.kind)
    for known, name in _LISTS.items():
        if kind == bare(known):
            return name
    if typing.get_origin(kind) is typing.Literal:
        return "one of " + ", ".join(typing.get_args(kind))
    return "list" if typing.get_origin(kind) is tuple else _SCALARS.get(kind, "mapping")


def meaning(key: Key) -> str:
    """Return the docstring of a key's field, from the source of the section that declares it; "" without one."""
    for section in key.section.__mro__[: -len(Section.__mro__)]:
        (declared,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
        assert isinstance(declared, ast.ClassDef)
        for field, text in itertools.pairwise(declared.body):
            if isinstance(field, ast.AnnAssign) and ast.unparse(field.target) == key.path[-1]:
                return " ".join(ast.literal_eval(text.value).split()) if isinstance(text, ast.Expr) else ""
    return ""


def _default(key: Key) -> str:
    value = key.field.default
    if isinstance(value, Derived):
        return value.words
    if value is REQUIRED:
        return "required"
    if value in (None, "", ()):
        return "none"
    if isinstance(value, tuple):
        value = ", ".join(map(str, value))
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _bounds(key: Key) -> str:
    kinds = [key.field.kind, *typing.get_args(key.field.kind)]
    for bounds in (rule for kind in kinds for rule in typing.get_args(kind) if isinstance(rule, Within)):
        return f"more than {bounds.low:g}" if bounds.above else f"{bounds.low:g} to {bounds.high:.10g}"
    return ""


if __name__ == "__main__":
    sys.stdout.write(settings_reference(settings_model()))
