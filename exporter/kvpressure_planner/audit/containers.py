"""What a mapping starts, in the words of any format: image, entrypoint, command, arguments, variables, files.

Variables of the document are filled in where its format has any: compose's, those of Ansible's plays and of Terraform.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kvpressure.commandline.programs import SHELLS, base
from kvpressure.commandline.words import GPUS, Budget, Filling, as_written, filled_word, split, unless
from kvpressure.config.strict_yaml import Path
from kvpressure.kubernetes.objects.config_maps import mounted_maps
from kvpressure.launch import Start, read_start
from kvpressure_planner.audit.formats import SCRIPT
from kvpressure_planner.audit.manifests import Item, Manifests, flat, get, mapping, sequence, shape, text, texts
from kvpressure_planner.audit.model import Problem
from kvpressure_planner.audit.places import RESTARTED, given_gpus, nearest_value

IMAGES: Final = ("image", "imageName", "image_name", "Image", "container_image", "docker_image")
ENTRYPOINTS: Final = ("entrypoint", "entryPoint", "Entrypoint", "dockerEntrypoint")
COMMANDS: Final = ("command", "ExecStart", "run", "script", "shell", "cmd", "Cmd", "start_command")
ARGUMENTS: Final = (
    *("args", "arguments", "dockerStartCmd", "docker_start_cmd", "dockerArgs", "docker_args", "Exec", "extraArgs"),
)
VARIABLES: Final = ("env", "environment", "envs", "Env", "Environment", "env_vars", "environmentVariables", "extraEnv")
STARTS: Final = frozenset((*IMAGES, *ENTRYPOINTS, *COMMANDS, *ARGUMENTS, *VARIABLES))
"""Keys that a start is described by, in the words of any format."""

# Where `command` is what is passed to the image's entrypoint, as in compose, and does not take its place.
_DOCKER: Final = frozenset(("container_name", "restart", "restart_policy", "essential", "ports_published", "networks"))
SCRIPTS: Final = frozenset(("run", "script", "shell", "cmd", "start_command"))
_OPERATORS: Final = re.compile(r"[;|&\n]|\$\(|`")
_MODEL: Final = re.compile(r"-.*|[\w.-]+/[\w.-]+", re.ASCII)
_SLURM_COUNTS: Final = ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")
_EXEC_MARKS: Final = "-@:+!|"
_MAX_FILES: Final = 1000

Mounted = dict[str, tuple[Item, Path]]


@dataclass(frozen=True, slots=True)
class Described:
    """The start that a mapping describes; `wrong` is what cannot be read of it: its options are then not judged."""

    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: Mapping[str, str | None] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    mounted: Mounted = field(default_factory=dict)
    wrong: tuple[Problem, ...] = ()

    def start(self, budget: Budget | None = None) -> Start:
        """Return what it comes to, within a budget of its own if none is given."""
        return read_start(self.command, self.args, self.env, budget or Budget(), self.files, self.image)

    @property
    def in_shell(self) -> bool:
        """Whether a shell script in the manifest starts the program."""
        return any(base(word) in SHELLS for word in self.command[:2])


def describe(item: Item, at: Path, given: Manifests, stated: Mapping[str, str]) -> Described:
    """Read the start that the mapping at `at` describes; `stated` are the variables of the document around it."""
    spec = mapping(get(item.data, *at))
    # Those that the object can use: a manifest without a namespace may land in any.
    near = {"", item.namespace}
    readable = (each for each in given.of("ConfigMap") if not item.namespace or each.namespace in near)
    maps = {config_map.name: config_map for config_map in readable}
    mounted = _mounted(item, at, maps)
    fill = Documents(stated, item.source.budget)
    docker = _is_docker(at, spec)
    env = {name: None if value is None else fill.word(value) for name, value in _variables(item, at, maps).items()}
    entrypoint, command, args = (
        tuple(map(fill.word, _words(spec, keys, docker=docker))) for keys in (ENTRYPOINTS, COMMANDS, ARGUMENTS)
    )
    if "ExecStart" in spec:
        command = tuple(map(Filling(_of_unit(spec, env), item.source.budget).word, command))
    image = fill.word(image_text(spec) or text(get(spec, "resources", "image_id")).removeprefix("docker:"))
    if entrypoint:
        command, args = entrypoint, (*command, *args)
    elif command and (docker or _passes(command, image)):
        command, args = (), (*command, *args)
    return Described(
        image,
        command,
        args,
        env,
        templates(get(item.data, *at[:-1]))
        | {path: text(get(source.data, *key)) for path, (source, key) in mounted.items()},
        mounted,
        tuple(_wrong(item, at, spec)),
    )


def _of_unit(spec: Mapping[str, Any], env: Mapping[str, str | None]) -> Mapping[str, str | None]:
    """Return the variables that a unit's command is filled in with; a file of them may set each to something else."""
    if spec.get("EnvironmentFile") is None:
        return env
    return {name: None if word is None else filled_word(word, f"${{{name}}}", [name]) for name, word in env.items()}


def templates(task: Any) -> dict[str, str]:
    """Return the files that the templates of Nomad's task become, by their path in its container."""
    declared = get(task, "template")
    listed = map(mapping, declared if isinstance(declared, list) else [declared])
    return {
        f"/{text(template['destination']).lstrip('/')}": text(template.get("data"))
        for template in listed
        if "destination" in template
    }


def image_text(spec: Mapping[str, Any]) -> str:
    """Return the image of a mapping: a text, or its parts as charts have them; "" for none."""
    value = next((spec[key] for key in IMAGES if spec.get(key)), None)
    if isinstance(value, dict):
        if not {"command", "args"}.isdisjoint(value):
            return ""  # a container of its own
        name = "/".join(filter(None, (text(value.get("registry")), text(value.get("repository") or value.get("name")))))
        return ":".join(filter(None, (name, text(value.get("tag")))))
    if value is None and spec.get("repository") and spec.get("tag"):
        return f"{text(spec['repository'])}:{text(spec['tag'])}"
    return text(value)


def _words(spec: Mapping[str, Any], keys: Sequence[str], *, docker: bool) -> Iterator[str]:
    for key in keys:
        value = spec.get(key)
        if isinstance(value, str):
            written = value.lstrip(_EXEC_MARKS) if key == "ExecStart" else value
            if "{{" in written:
                written = _squeezed(written)
            in_shell = key in SCRIPTS or (key in COMMANDS and not docker and _OPERATORS.search(value.strip()))
            yield from ("sh", "-c", written) if in_shell else _split(written)
        elif is_list(value, str):
            yield from texts(value)
        elif not is_list(value, dict):
            yield from flat(value)


def _split(text: str) -> list[str]:
    """Return the words of a text, each with how it was written before variables were filled in."""
    words, written = split(text), split(as_written(text))
    if len(words) != len(written):  # blanks in a default
        written = [word if word[:1] == "-" else "a variable" for word in words] if unless(text) else words
    return [
        filled_word(word, before, [name for name in unless(text) if name in before])
        for word, before in zip(words, written, strict=True)
    ]


def _is_docker(at: Path, spec: Mapping[str, Any]) -> bool:
    module = any(str(part).endswith(("docker_container", "podman_container")) for part in at[-1:])
    return at[-2:-1] == ("services",) or module or "entryPoint" in spec or not _DOCKER.isdisjoint(spec)


def _passes(command: Sequence[str], image: str) -> bool:
    """Return whether a command is arguments of the image's own: options, or a model's name before them."""
    return bool(image) and _MODEL.fullmatch(command[0]) is not None and not command[0].endswith((".py", ".sh"))


def _variables(item: Item, at: Path, maps: Mapping[str, Item]) -> dict[str, str | None]:
    """Return the variables at a start and around it by name, None for those whose value is not known."""
    env: dict[str, str | None] = {}
    if (count := given_gpus(item, at)) is not None:
        counts = ("SKYPILOT_NUM_GPUS_PER_NODE",) if "run" in item.data else ()
        env |= dict.fromkeys((GPUS, *counts, *(_SLURM_COUNTS if SCRIPT in item.data else ())), count)
    for end in range(len(at) + 1):
        outer = get(item.data, *at[:end])
        for key in VARIABLES if isinstance(outer, dict) else ():
            if end == len(at) or key in {"env", "envs", "environment"}:
                env.update(_pairs(outer.get(key), maps))
        for source in sequence(get(outer, "envFrom")) if end == len(at) else ():
            if (config_map := maps.get(text(get(source, "configMapRef", "name")))) is not None:
                prefix = text(get(source, "prefix"))
                env.update({prefix + key: text(value) for key, value in mapping(config_map.data.get("data")).items()})
    return env


def _pairs(value: Any, maps: Mapping[str, Item]) -> Iterator[tuple[str, str | None]]:
    """Yield names and values of a mapping, of a list of NAME=VALUE, or of mappings with name (or key) and value."""
    if isinstance(value, dict):
        for name, entry in value.items():
            yield str(name), _value(entry, maps) if isinstance(entry, dict) else text(entry)
    for entry in sequence(value):
        if isinstance(entry, dict):
            yield text(entry.get("name") or entry.get("key")), _value(entry, maps)
        else:
            name, equals, written = text(entry).partition("=")
            yield name, filled_word(written, written, ()) if equals else None


def labels_of(value: Any) -> dict[str, str]:
    """Return the labels of a service, as a mapping or as a list of NAME=VALUE."""
    return {name: word for name, word in _pairs(value, {}) if word is not None}


def _value(entry: Mapping[str, Any], maps: Mapping[str, Item]) -> str | None:
    reference = entry.get("valueFrom")
    if reference is None:
        return text(entry.get("value"))
    key = get(reference, "configMapKeyRef")
    config_map = maps.get(text(get(key, "name")))
    value = None if config_map is None else get(config_map.data, "data", text(get(key, "key")))
    return None if value is None else text(value)


def _mounted(item: Item, at: Path, maps: Mapping[str, Item]) -> Mounted:
    """Return the files from ConfigMaps by path in the container: the ConfigMap, and the path of the text in it."""
    spec = mapping(get(item.data, *at))
    volumes = nearest_value(item, at[:-1], "volumes") or spec.get("volumes") or spec.get("extraVolumes")
    mounts = spec.get("volumeMounts") or spec.get("extraVolumeMounts")
    mounted: Mounted = {}
    for path, only, source in mounted_maps(sequence(volumes), sequence(mounts)):
        if (config_map := maps.get(text(source.get("name")))) is None:
            continue
        listed = {text(get(entry, "key")): text(get(entry, "path")) for entry in sequence(source.get("items"))}
        for key in mapping(config_map.data.get("data")):
            name = listed.get(key, key)
            if len(mounted) < _MAX_FILES and (not listed or key in listed) and only in {"", name}:
                mounted[path if only else posixpath.join(path, name)] = (config_map, ("data", key))
    return mounted


NOT_FOUND: Final = "no engine is found in it"
NOT_JUDGED: Final = "what it says is not judged"


def _wrong(item: Item, at: Path, spec: Mapping[str, Any]) -> Iterator[Problem]:
    strict = item.kind in RESTARTED  # the API server takes lists alone
    for key in (*ENTRYPOINTS, *COMMANDS, *ARGUMENTS):
        if strict or not isinstance(spec.get(key), (str, int)):
            yield from wrong_list(spec.get(key), item, (*at, key), "strings")
    for key in VARIABLES:
        value = spec.get(key)
        if not isinstance(value, dict if not strict else ()) and not is_list(value, str):
            yield from wrong_list(value, item, (*at, key), "mappings with name and value")


def wrong_list(value: Any, item: Item, at: Path, of: str) -> Iterator[Problem]:
    """Yield what to say of a value that is no list of these, nothing of one that is, or is absent."""
    kind = dict if "mapping" in of else str
    if is_list(value, kind):
        return
    inner = [shape(element) for element in sequence(value) if not is_list([element], kind)]
    actual = f"a list with {inner[0]} in it" if inner else shape(value)
    where = f"{item.kind} {item.name}".strip()
    name = ".".join(map(str, at))
    message = f"{name}{f' of {where}' if where else ''} is {actual} and should be a list of {of}"
    yield Problem(f"{message}; {NOT_JUDGED}", item.place(at))


def is_list(value: Any, kind: type) -> bool:
    """Whether a value is absent or a list of these; of strings, numbers pass for what they would be in quotes."""
    scalars = (str, int, float) if kind is str else (kind,)
    return value is None or (isinstance(value, list) and all(isinstance(element, scalars) for element in value))


_JINJA: Final = re.compile(
    r"\{\{\s*(\w+)\s*(?:\|\s*default\(\s*['\"]?([^'\")|]*)['\"]?\s*(?:,[^)|]*)?\))?(?:\s*\|\s*\w+)*\s*\}\}"
    r"|\$\{(?:var|local)\.(\w+)\}"
)


_TEMPLATE: Final = re.compile(r"\{\{[^\n{}]{0,400}\}\}")
_BLANK: Final = re.compile(" ")
_NO_WORD: Final = re.compile(r"[^\w.:/{}-]")


@dataclass(frozen=True, slots=True)
class Documents:
    """Fills in `{{ name }}` and `${var.name}` of a document's own variables."""

    stated: Mapping[str, str]
    budget: Budget

    def word(self, written: str) -> str:
        """Return a text with the variables that the document states, which another place may set too."""
        if "{{" not in written and "${" not in written:
            return written
        names: list[str] = []
        parts: list[str] = []
        at = 0
        for match in _JINJA.finditer(written):
            name = match[1] or match[3]
            value = self.stated.get(name, match[2])
            parts += [written[at : match.start()], match[0] if value is None else value]
            names += [name] if value is not None else []
            at = match.end()
            self.budget.take(len(parts[-1]))
        return filled_word("".join([*parts, written[at:]]), written, names) if names else written


def as_shell(written: str, stated: Mapping[str, str]) -> tuple[str, dict[str, str | None]]:
    """Return a script with a document's own variables as the shell's, and those that are known."""
    env: dict[str, str | None] = {}

    def shown(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        if known := name in stated or match[2] is not None:
            value = stated.get(name, match[2])
            env[name] = filled_word(value, f"${{{name}}}", [name])
        return f"${{{name}}}" if known or match[1] else match[0]

    return _squeezed(_JINJA.sub(shown, written)), env


def _squeezed(written: str) -> str:
    """Return a text with what a template fills in as one word each: without blanks, quotes and operators."""
    return _TEMPLATE.sub(lambda match: (_BLANK if _JINJA.fullmatch(match[0]) else _NO_WORD).sub("", match[0]), written)


def stated_in(outer: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the variables that a mapping states for what is below it: Ansible's `vars`, Terraform's and Nomad's."""
    for name, value in mapping(outer.get("vars")).items():
        if not isinstance(value, (dict, list)):
            yield str(name), text(value)
    for name, block in mapping(outer.get("variable")).items():
        if (value := get(block, "default")) is not None and not isinstance(value, (dict, list)):
            yield str(name), text(value)
    for name, value in mapping(outer.get("locals")).items():
        if not isinstance(value, (dict, list)):
            yield str(name), text(value)


def interpolated(value: Any, filling: Filling) -> Any:
    """Return a compose file's value with every text in it interpolated; what is not known stays as it is written."""
    if isinstance(value, dict):
        return {key: interpolated(element, filling) for key, element in value.items()}
    if isinstance(value, list):
        return [interpolated(element, filling) for element in value]
    return filling.word(value) if isinstance(value, str) and "$" in value else value
