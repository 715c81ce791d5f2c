"""Finds engines in an object of any format: a mapping, a list or a text that starts a known server, wherever it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kvpressure.commandline.options import unknown_names, unresolved
from kvpressure.commandline.programs import Program, base
from kvpressure.commandline.words import Budget, BudgetExceededError, Filling
from kvpressure.config.strict_yaml import Path
from kvpressure.launch import ANNOTATION_PREFIX, Reading, Server, Start, annotated, read_limits, runtime_of
from kvpressure.runtimes.registry import ASSUMED
from kvpressure_planner.audit import places
from kvpressure_planner.audit.containers import (
    ARGUMENTS,
    COMMANDS,
    ENTRYPOINTS,
    NOT_FOUND,
    NOT_JUDGED,
    SCRIPTS,
    STARTS,
    VARIABLES,
    Described,
    as_shell,
    describe,
    interpolated,
    labels_of,
    stated_in,
    templates,
    wrong_list,
)
from kvpressure_planner.audit.engine import Engine, Replicas, Style
from kvpressure_planner.audit.formats import SCRIPT
from kvpressure_planner.audit.kinds import Special, divided, special
from kvpressure_planner.audit.manifests import Item, Manifests, Source, flat, get, mapping, read, strings, text
from kvpressure_planner.audit.manifests import shape as shape_of
from kvpressure_planner.audit.model import Problem

NO_VARIABLES: Final[Mapping[str, str]] = {}
TOO_MUCH: Final = f"the file comes to more than is read; what is behind this is not read, and {NOT_JUDGED}"
MAX_DEPTH: Final = 24
# Nothing below these starts a server, whatever it says.
_SKIPPED: Final = frozenset(
    (
        *("metadata", "status", "initContainers", "annotations", "labels", "podAnnotations", "podLabels", "expr"),
        *("description", "summary", "title", "message", "help", "notes", "comment", "readme", "documentation"),
        *("livenessProbe", "readinessProbe", "startupProbe", "healthcheck", "lifecycle", "probes", "test", "tests"),
        *("base_image", "ExecStartPre", "ExecStop", "ExecStopPost", "ExecReload", "setup"),
    )
)
_BY_ITSELF: Final = (*ENTRYPOINTS, *(key for key in COMMANDS if key != "run"), *ARGUMENTS)
_MAY_START: Final = re.compile(r"serve|api_server|launch_server|dynamo\.|\brun\b|\bcurl\b|\brunpodctl\b")
_DOCUMENT: Final = re.compile(
    r"^\s*(services|llm_configs|applications|containers|engine_kwargs|\[Service\]|\[Container\]|kind|image|job\s.*\{)\b|"
    r"^\[(Service|Container)\]",
    re.MULTILINE,
)
_MAPPING: Final = re.compile(r"(?:[^\S\n]*(?:#[^\n]*)?\n)*+[ ]*[\w-]+:(?:[ ][^\n]*)?\n")
"""A text that begins as a YAML mapping does: a chart's values, whatever their keys."""
_ANNOTATED: Final = re.compile(rf"^#\s*({re.escape(ANNOTATION_PREFIX)}[\w-]+):\s*(.+?)\s*$", re.MULTILINE)
_EMBEDDED: Final = 3
_SHAPES: Final = {
    "llm_configs": "mappings",
    "modelSpec": "mappings",
    "applications": "mappings",
    "serveConfigV2": "text",
}
_POD: Final[Path] = ("spec", "template", "spec")
_LEADER = "leaderTemplate"
_WORKER = "workerTemplate"
_PLAY_VARIABLES = "vars"
_LAST: Final = (_WORKER, _PLAY_VARIABLES)
_SENT: Final = re.compile(
    r"\s(?:--data(?:-raw|-binary)?|-d|--json)[ =]+(?:'(\{[^']*\})'|\"(\{(?:[^\"\\]|\\.)*\})\")", re.DOTALL
)
"""JSON that a script sends with curl, in either quotes."""
_MUTATION: Final = re.compile(r"\s*mutation\b")
_ARGUMENT: Final = re.compile(r'(\w+)\s*:\s*(?:"((?:[^"\\]|\\.)*)"|(\d+)\b)')
"""Arguments of a GraphQL mutation, such as those of RunPod's older interface."""


def engines(item: Item, given: Manifests, depth: int = _EMBEDDED) -> Iterator[Engine | Problem]:
    """Yield the engines of an object in reading order, and what cannot be read of it."""
    used = (get(service.data, "spec", "predictor", "model", "runtime") for service in given.of("InferenceService"))
    if item.kind in places.TEMPLATES and (given.complete or item.name in map(text, used)):
        return
    try:
        if isinstance(item.data.get("services"), dict) and "spec" not in item.data:
            filling = Filling(item.source.variables, item.source.budget, dollars=True)
            item = replace(item, data=interpolated(item.data, filling))
        yield from _Walk(item, given, depth).run()
    except BudgetExceededError:
        yield Problem(TOO_MUCH, item.place())


def in_config_map(item: Item, at: Path, value: str, given: Manifests) -> Iterator[Engine]:
    """Yield the engines of a text of a ConfigMap that no engine mounts."""
    try:
        parts = list(_Walk(replace(item, kind=""), given, 1).text(value, at))
    except BudgetExceededError:
        return
    title = f"{item.kind}/{item.name} {at[-1]}"
    yield from (replace(part, item=item, title=title) for part in parts if isinstance(part, Engine))


@dataclass(frozen=True, slots=True)
class _Walk:
    item: Item
    given: Manifests
    depth: int

    def run(self) -> Iterator[Engine | Problem]:
        yield from self._value(self.item.data, (), dict(stated_in(self.item.data)))

    def _value(self, value: Any, at: Path, stated: Mapping[str, str]) -> Iterator[Engine | Problem]:
        if len(at) > MAX_DEPTH:
            return
        self.item.source.budget.take()
        if isinstance(value, dict):
            yield from self._mapping(value, at, stated)
        elif isinstance(value, list):
            words = [text(word) for word in value if isinstance(word, (str, int, float))]
            if 1 < len(words) == len(value):
                parts = list(self._started(Described(command=tuple(words)), at)) if _runs(words[:4]) else []
                if not parts and any(" " in word for word in words if _runs([word])):  # whole commands, not words
                    parts = list(self.text("\n".join(words), at, stated))
                if parts:
                    yield from parts
                    return
            for position, element in enumerate(value):
                yield from self._value(element, (*at, position), stated)
        elif isinstance(value, str):
            yield from self.text(value, at, stated)

    def _mapping(self, value: Mapping[str, Any], at: Path, stated: Mapping[str, str]) -> Iterator[Engine | Problem]:
        if "vars" in value:
            stated = {**stated, **dict(stated_in(value))}
        described = special(self.item, at, self.given)
        if described is not None:
            yield from (*described.described.wrong, *described.problems)
            yield self._engine(described.described, described.reading, described.at or at, described)
            yield from self._below(value, at, stated, {*described.consumed, *STARTS})
            return
        if STARTS.isdisjoint(value):
            yield from self._below(value, at, stated, set())
            return
        script = next((key for key in COMMANDS if key in SCRIPTS and isinstance(value.get(key), str)), "")
        where = (*at, script) if script else at
        start = list(self._started(describe(self.item, at, self.given, stated), where))
        taken = any(isinstance(part, Engine) for part in start)
        if taken and not any(value.get(key) for key in _BY_ITSELF):
            # An image alone: what is below it may say how it is started.
            below = list(self._below(value, at, stated, set()))
            yield from below if any(isinstance(part, Engine) for part in below) else (*start, *below)
            return
        yield from start
        yield from self._below(value, at, stated, set(STARTS if taken else VARIABLES))

    def _below(
        self, value: Mapping[str, Any], at: Path, stated: Mapping[str, str], consumed: set[str]
    ) -> Iterator[Engine | Problem]:
        """Yield the engines below a mapping, but for the keys that describe one at it."""
        # The leader of a group before its workers, which are a part of it.
        # The variables of a play after its tasks, which use them.
        leads = starts = False
        for key in sorted(value, key=lambda key: key in _LAST):
            described = key in VARIABLES or (key in consumed and not (key in STARTS and isinstance(value[key], dict)))
            if key in _SKIPPED or described or str(key)[:2] == "x-" or (key == _WORKER and leads):
                continue
            if (key == _PLAY_VARIABLES and starts) or (key == "template" and _runs_template(value)):
                continue
            if wrong := list(self._wrong_shape(value[key], (*at, key))):
                yield from wrong
                continue
            for part in self._value(value[key], (*at, key), stated):
                starts = starts or isinstance(part, Engine)
                leads = leads or (key == _LEADER and isinstance(part, Engine))
                yield part

    def _wrong_shape(self, value: Any, at: Path) -> Iterator[Problem]:
        """Yield what to say of a value where engines are listed, and that is of another shape."""
        shape, item = _SHAPES.get(str(at[-1]), ""), self.item
        whose = f" of {item.kind} {item.name}" if item.kind else ""
        if at[-1] == "containers" and item.kind in {*places.RESTARTED, *places.ONE_BY_DEFAULT}:
            yield from wrong_list(value, item, at, "mappings")
        elif shape == "mappings" and isinstance(value, dict):
            yield from wrong_list(value, item, at, shape)
        elif (shape == "text" and isinstance(value, (dict, list))) or self._is_no_mapping(value, at):
            what = "text with a YAML mapping" if shape == "text" else "a mapping"
            name = ".".join(map(str, at))
            yield Problem(f"{name}{whose} is {shape_of(value)} and should be {what}; {NOT_FOUND}", item.place(at))

    def _is_no_mapping(self, value: Any, at: Path) -> bool:
        """Return whether a compose file's services, or a pod template, are not the mapping that they should be."""
        of_compose = not self.item.kind and at[0] == "services" and len(at) < 3 and "spec" not in self.item.data
        of_pod = self.item.kind in places.RESTARTED and at == _POD[: len(at)]
        return (of_compose or of_pod) and value is not None and not isinstance(value, dict)

    def text(self, value: str, at: Path, stated: Mapping[str, str] = NO_VARIABLES) -> Iterator[Engine | Problem]:
        """Yield what a text starts: as a script, or as a document of its own (a unit, a compose file, Ray Serve's).

        `stated` are the variables of the document around it.
        """
        if not self.depth or (at and self.item.kind in {"Secret", "ConfigMap"}):
            return
        if _MUTATION.match(value):
            pairs = {name: string or number for name, string, number in _ARGUMENT.findall(value)}
            yield from self._document(json.dumps(pairs), at)
            return
        looks_like_one = _DOCUMENT.search(value) or (at[:1] != ("data",) and _MAPPING.match(value))
        is_document = at != (SCRIPT,) and "\n" in value and bool(looks_like_one)
        if is_document:
            parts = list(self._document(value, at))
            yield from parts
            if any(isinstance(part, Engine) for part in parts):
                return
            if at[-1:] == ("serveConfigV2",) and ASSUMED.name in value.lower():
                whose = f"the applications of {self.item.kind} {self.item.name} are Python code"
                yield Problem(f"{whose}, which sets its engine's options itself; {NOT_JUDGED}", self.item.place(at))
        is_script = at[-1:] == (SCRIPT,) or ("\n" in value or " --" in value)
        if is_script and _MAY_START.search(value):
            env = dict(describe(self.item, at[:-1], self.given, {}).env) if at else {}
            script, known = as_shell(value, stated)
            described = Described(command=("sh", "-c", script), env=env | known)
            yield from self._started(described, at, by_command=True)
        for single, double in _SENT.findall(value) if is_script else ():
            yield from self._document(single or double.replace('\\"', '"'), at)

    def _document(self, value: str, at: Path) -> Iterator[Engine | Problem]:
        """Yield the engines of a document in a text, with its lines where it is written as a block."""
        begin, source = self.item.line(at) or 0, self.item.source
        first = value.lstrip("\n").split("\n", 1)[0].strip()
        in_block = begin < len(source.text) and source.text[begin].strip() == first != ""
        # What a script writes or sends is in another format than the script.
        own_format = at == (SCRIPT,) or value.lstrip()[:1] == "{"
        for inner in read(value, "" if own_format else source.name).items:
            lines = {path: line + begin for path, line in inner.source.lines.items()} if in_block else {}
            last = min(begin + value.count("\n") + 1, len(source.text))
            at_file = Source(source.name, source.text, lines, last, source.variables, source.budget)
            outer = replace(inner, source=at_file, name=inner.name or self.item.name, kind=inner.kind or self.item.kind)
            for part in engines(replace(outer, namespace=self.item.namespace), self.given, self.depth - 1):
                yield self._with_surroundings(part) if isinstance(part, Engine) else part

    def _with_surroundings(self, engine: Engine) -> Engine:
        """Return an engine of a document in a text with what the object around it says of its pods."""
        pods = next((path for path in _PODS if get(self.item.data, *path) is not None), None)
        if pods is None:
            return engine
        annotations = {**self._annotations((*pods, "metadata")), **engine.annotations}
        around = places.resources(self.item, (*pods, "spec", "containers", 0), annotations)
        gpu = engine.resources.gpu or around.gpu
        return replace(
            engine,
            title=f"{self.item.kind}/{self.item.name}",
            annotations=annotations,
            labels=strings(get(self.item.data, *pods, "metadata", "labels")),
            resources=replace(around, gpu=gpu, gpus=engine.resources.gpus, at=()),
            reading=annotated(engine.reading, annotations),
        )

    def _started(self, described: Described, at: Path, *, by_command: bool = False) -> Iterator[Engine | Problem]:
        """Yield the servers that a start runs: those of its command, else the image's own."""
        start = described.start(self.item.source.budget if not self.given.complete else Budget())
        runtime = runtime_of(described.image, start)
        serving = [server for server in start.servers if start.is_known and not server.is_worker]
        serving = [server for server in serving if self._serves(server, described.image)]
        if serving:
            readings = [read_limits(replace(start, servers=(server,))) for server in serving]
            counts: dict[tuple[object, ...], int | None] = {}
            for server, reading in zip(serving, readings, strict=True):
                counts[_kind(server, reading)] = _count(server.program, reading, counts.get(_kind(server, reading), 0))
            for number, (server, reading) in enumerate(zip(serving, readings, strict=True), 1):
                engine = self._engine(described, reading, at, server=server)
                title = f"{engine.title} server {number}" if len(serving) > 1 else engine.title
                replicas = _replicas_in_script(engine, counts[_kind(server, reading)])
                yield replace(engine, item=_at_command(engine, server.program), title=title, replicas=replicas)
        elif runtime is not None and not by_command:
            yield self._engine(described, replace(read_limits(start), runtime=runtime), at)
        if serving or runtime is not None:
            yield from described.wrong
        for written in self._written(start):
            yield from self._document(written, at)

    def _serves(self, server: Server, image: str) -> bool:
        starting = server.runtime.starting
        return server.behind_frontend or starting.serves(server.module, server.options, image)

    def _written(self, start: Start) -> list[str]:
        """Return the documents that here-documents write, but for those that a server of the script reads."""
        used = {word for server in start.servers for word in server.words}
        written = (value for path, value in start.written.items() if path not in used and value[:2] != "#!")
        return [value for value in written if _DOCUMENT.search(value) or value.lstrip()[:1] == "{"]

    def _engine(
        self,
        described: Described,
        reading: Reading,
        at: Path,
        more: Special | None = None,
        server: Server | None = None,
    ) -> Engine:
        item = self.item
        if described.wrong:
            reading = Reading(
                hidden=tuple(wrong.message for wrong in described.wrong), model=reading.model, runtime=reading.runtime
            )
        metadata = self._metadata(at)
        annotations = self._annotations(metadata)
        reading = annotated(reading, annotations)
        resources = places.resources(item, at, annotations)
        run = None if server is None else server.program.container
        image = described.image
        if run is not None:
            image = run.image
            resources = places.of_run(resources, run)
        resources = places.visible(resources, described.env if server is None else server.program.env)
        spec = mapping(get(item.data, *at))
        model = reading.model or text(get(item.data, "modelArtifacts", "name"))
        hidden = reading.hidden
        words = (*described.command, *described.args) if run is None else run.arguments
        is_upstream = reading.runtime.audit.version(f"{image[: -len(base(image))]}{base(image).partition(':')[0]}")
        if more is None and not (words or reading.options or reading.model or is_upstream):
            hidden += (f"what the entrypoint of {image} starts is not known",)
        if item.kind in places.TEMPLATES:
            hidden += ("the InferenceService that uses this runtime may give more, and is not among the manifests",)
        engine = Engine(
            item=item,
            title=self._title(at),
            container=self._container(spec, at, reading),
            at=at,
            pod=metadata,
            reading=divided(replace(reading, hidden=hidden), mapping(places.nearest_value(item, at, "parallelism"))),
            style=self._style(described, at),
            mounted=described.mounted,
            resources=resources,
            replicas=self._replicas(at),
            probes=places.probes(item, at),
            has_readiness_probe=places.has_readiness_probe(item, at),
            annotations=annotations,
            labels=strings(get(item.data, *metadata, "labels")),
            model=model,
            image=image,
        )
        return engine if more is None else more.applied(engine)

    def _metadata(self, at: Path) -> Path:
        """Return the path of the mapping that has the annotations of an engine's pods."""
        for outer in places.around(at):
            if outer and outer[-1] == "spec" and isinstance(get(self.item.data, *outer[:-1]), dict):
                return (*outer[:-1], "metadata")
            if any(get(self.item.data, *outer, key) is not None for key in ("annotations", "podAnnotations")):
                return outer
        return at

    def _annotations(self, metadata: Path) -> dict[str, str]:
        data = self.item.data
        annotations = strings(get(data, "metadata", "annotations"))
        for key in ("annotations", "podAnnotations"):
            annotations |= strings(get(data, *metadata, key))
        if "services" in data:
            annotations |= labels_of(get(data, *metadata, "labels"))
        script = data.get(SCRIPT)
        return annotations | (dict(_ANNOTATED.findall(script)) if isinstance(script, str) else {})

    def _replicas(self, at: Path) -> Replicas:
        replicas = places.counts(self.item, at, self.given)
        # A unit that is no template, a task, a container: a file that starts one server on one machine.
        data, file = self.item.data, base(self.item.source.name)
        is_alone = (file.endswith((".service", ".container")) and "@" not in file) or (
            "run" in data and not self.item.kind
        )
        if SCRIPT in data or (replicas.count is None and is_alone):
            return replace(replicas, count=1, why=_ONE, key="")
        # A second server of compose needs GPUs and a port of its own, which a larger number does not give it.
        if "services" in data and not self.item.kind:
            why = "replicas is not set, which means 1" if replicas.count is None else replicas.why
            return replace(replicas, count=1 if replicas.count is None else replicas.count, why=why, key="")
        return replicas

    def _title(self, at: Path) -> str:
        item, file = self.item, base(self.item.source.name)
        if item.kind:
            return " ".join((f"{item.kind}/{item.name}", *self._roles(at)))
        if SCRIPT in item.data:
            return f"script/{item.name}"
        if at[:1] == ("services",):
            return f"compose/{at[1]}"
        if at in {("Service",), ("Container",)}:
            return f"systemd unit/{item.name or file}"
        return f"task/{text(item.data.get('name')) or file}" if "run" in item.data else self._title_of_values(at, file)

    def _title_of_values(self, at: Path, file: str) -> str:
        """Return the title of a resource, a job, a step by its name, or the values of a chart."""
        item = self.item
        if at[:1] in {("resource",), ("job",)} and len(at) > 2:  # Terraform's, Nomad's
            return f"{at[1]}/{at[2]}" if at[0] == "resource" else f"job/{at[1]} {at[-2]}"
        for end in range(len(at), 0, -1):  # a step, a task, a container: an element with a name
            if (
                isinstance(at[end - 1], int)
                and at[end - 2 : end - 1] != ("containers",)
                and (name := text(get(item.data, *at[:end], "name")))
            ):
                return f"{str(at[end - 2]).removesuffix('s')}/{name}"
        names = [part for part in at if isinstance(part, str) and part not in {*SCRIPTS, "containers", "spec"}]
        is_script = not isinstance(get(item.data, *at), dict)
        own = text(get(item.data, *(at[:-1] if is_script else at), "name")) if is_script or not names else ""
        return f"values/{own or (names[-1] if names else file)}"

    def _roles(self, at: Path) -> Iterator[str]:
        """Yield the names of the parts of an object that a pod is in: `prefill`."""
        pod = next((outer for outer in places.around(at) if outer[-1:] == ("containers",)), at)
        for end, part in enumerate(pod[:-1], 1):
            named = part if end > 1 and pod[end - 2] == "services" else get(self.item.data, *pod[:end], "name")
            if name := text(named) if isinstance(part, int) or named is part else "":
                yield name

    def _container(self, spec: Mapping[str, Any], at: Path, reading: Reading) -> str:
        names = (text(spec.get(key)) for key in ("container_name", "ContainerName", "name"))
        if SCRIPT in self.item.data or "run" in self.item.data or not isinstance(get(self.item.data, *at), dict):
            return reading.runtime.name
        own = str(at[-1]) if at and at[0] not in {"Service", "Container", "resource", "job"} else reading.runtime.name
        return next((name for name in names if name and not unresolved(name)), own)

    def _style(self, described: Described, at: Path) -> Style:
        own = get(self.item.data, *at)
        texts = [mapping(own).get(key) for key in (*COMMANDS, *ENTRYPOINTS)]
        is_text = isinstance(own, str) or any(isinstance(element, str) for element in texts)
        return "shell" if described.in_shell or is_text else "args"


_ONE: Final = "one server is started here"

_PODS: Final[tuple[Path, ...]] = (("spec", "rayClusterConfig", "workerGroupSpecs", 0, "template"),)
"""Where an object that has its engines in a text describes their pods."""


def _kind(server: Server, reading: Reading) -> tuple[object, ...]:
    """Return what servers have in common that are replicas of each other."""
    return reading.model, reading.runtime.name, reading.limits.get("kv_role"), server.program.only_if


def _count(program: Program, reading: Reading, before: int | None) -> int | None:
    """Return how many servers are started with those before, None where that is not known of one model."""
    over = {f"${name}" for name in program.over}
    is_open = before is None or program.times is None or not over.isdisjoint(unknown_names(reading.model))
    return None if is_open else (before or 0) + (program.times or 0)


def _replicas_in_script(engine: Engine, count: int | None) -> Replicas:
    """Return what a script says of replicas that starts so many servers like one."""
    if engine.replicas.why != _ONE or count == 1 or not engine.model:
        return engine.replicas
    why = "a loop starts it; how many of one model are started is not known"
    return replace(
        engine.replicas, count=count, why=why if count is None else f"{count} servers of its model are started here"
    )


def _at_command(engine: Engine, program: Program) -> Item:
    """Return the object with the lines of the command where it is a script's: those of its own, and all before."""
    written = text(engine.item.data.get(SCRIPT))
    if engine.at != (SCRIPT,) or len(engine.item.source.text) != written.count("\n") + 1:
        return engine.item
    first, last = program.lines
    return replace(engine.item, source=replace(engine.item.source, lines={(): 1, engine.at: first}, last=last))


def _runs_template(task: Mapping[str, Any]) -> bool:
    """Return whether a task of Nomad starts what its template writes."""
    words = flat([mapping(task.get("config")).get(key) for key in (*ENTRYPOINTS, *COMMANDS, *ARGUMENTS)])
    return not templates(task).keys().isdisjoint(words)


def _runs(words: list[str]) -> bool:
    return any(_MAY_START.search(word) for word in words)
