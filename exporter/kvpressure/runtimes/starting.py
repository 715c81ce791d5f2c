"""How a runtime is started: which programs and images are its servers, and how it spells its limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kvpressure.commandline.options import Dialect, Given, Options, whole
from kvpressure.commandline.programs import SHELLS, Launch, base
from kvpressure.commandline.words import Budget, Words

DYNAMO: Final = "dynamo."
"""How the modules of Dynamo's workers begin: they take the options of their engine."""


def image_name(image: str) -> str:
    """Return an image's name: `registry:5000/llm/server-cuda:v0.9@sha256:…` is `server-cuda`."""
    return base(image.split("@", 1)[0]).split(":", 1)[0].lower()


def start_script(words: Sequence[str]) -> str:
    """Return the name of the script, `*.sh`, that a command runs by itself or in a shell; "" where it is none."""
    script = base(words[1] if len(words) > 1 and base(words[0]) in SHELLS else words[0])
    return script if script.endswith(".sh") else ""


Read = Callable[[str], float | None]
"""A value of the command line to a number; None for what the server would refuse or choose itself."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """The options, without dashes, that memory follows from besides the limits: how the model is divided and stored.

    With `within` the data-parallel ranks are on the GPUs of the tensor-parallel ones. `stretches` may let the model
    take longer requests than its configuration says; `drafts` says how tokens are guessed ahead.
    """

    tensor: str = ""
    pipeline: str = ""
    data: str = ""
    expert: str = ""
    kv_cache_dtype: str = ""
    dtype: str = ""
    quantization: str = ""
    within: str = ""
    stretches: tuple[str, ...] = ()
    drafts: str = ""


@dataclass(frozen=True, slots=True)
class Flags:
    """The options of a runtime's command line.

    `limits` are those that are one option, by the name of the limit (`environment.LIMIT_NAMES`), and how its value is
    read. `capacity` computes the pool's tokens and where they are given from several options, `role` likewise the limit
    `kv_role`. `sizes_pool` is an option that sizes the pool by itself, so that the share of the memory says
    nothing, "" where there is none; `output_cap` one that bounds every request's output. `data_local` is how many of
    the data-parallel ranks are on this machine, if not all. `tls` makes it serve https. `sizing` are those that a plan
    needs.
    """

    dialect: Dialect
    limits: Mapping[str, tuple[str, Read]]
    capacity: Callable[[Mapping[str, Given]], tuple[float, str] | None] | None = None
    role: Callable[[Mapping[str, Given]], tuple[float, str] | None] | None = None
    sizes_pool: str = ""
    output_cap: str = ""
    model: str = "model"
    data_local: str = ""
    tls: str = ""
    sizing: Sizing = field(default_factory=Sizing)

    def divides(self, given: Mapping[str, Given]) -> tuple[str, str, str]:
        """Return the options whose ranks, multiplied, are the GPUs: of tensor, pipeline, and data parallelism or ""."""
        sizing = self.sizing
        return sizing.tensor, sizing.pipeline, "" if sizing.within in given else sizing.data

    def option(self, limit: str) -> str:
        """Return the option, without dashes, that gives a limit; "" where the runtime has none."""
        if limit == "max_output_tokens":
            return self.output_cap
        return self.limits[limit][0] if limit in self.limits else ""


@dataclass(frozen=True, slots=True)
class Starting:
    """What recognises a runtime's servers in commands and images.

    Nothing here raises but BudgetExceededError, where it uses the budget. `launch` is the server that a program's words
    start, None for any other program. `worker`: by its options it works for another server and has no API. `serves`
    says of a server that is started (its module and options, and the container's image) whether it is one of the
    runtime's with an API. `image_serves` says whether an image's own entrypoint, or a start script in it, is the
    server, from the image, the command, the arguments and the options among them. `port` is the port of the API, None
    where not known. `completed` are the words of an entrypoint with the options that it takes from the environment.
    `variables` are the options that an image's own entrypoint makes of its variables, as words, by the image and its
    variables; None for an image that is not known to do that.
    """

    flags: Flags
    launch: Callable[[Words], Launch | None]
    image_serves: Callable[[str, Words, Words, Sequence[Options]], bool]
    port: Callable[[str, Options], int | None]
    worker: Callable[[Options], bool] = field(default=lambda options: False)  # noqa: ARG005 - one of several
    serves: Callable[[str, Options, str], bool] = field(
        default=lambda module, options, image: True  # noqa: ARG005 - one of several
    )
    completed: Callable[[Words, Sequence[str], Mapping[str, str], Budget], Words] = field(
        default=lambda words, args, env, budget: words  # noqa: ARG005 - one of several
    )
    variables: Callable[[str, Mapping[str, str | None]], Words | None] = field(
        default=lambda image, env: None  # noqa: ARG005 - one of several
    )


def port_or(default: int) -> Callable[[str, Options], int | None]:
    """Return a reader of the option `port`, with that default; it gives None where the option cannot be read."""

    def port(module: str, options: Options) -> int | None:  # noqa: ARG001 - there is one
        value = options.given.get("port")
        number = float(default) if value is None else whole(value.text)
        return int(number) if number is not None and number <= 65535 else None

    return port


@dataclass(frozen=True, slots=True)
class Chart:
    """What the values of a Helm chart call a runtime's options.

    In the entry of a model `config` holds what becomes options: `flags` by its keys, and the words under `extra`,
    which come after them, as written. `command` starts the server in the container `container`. With the key `shares`
    the chart mounts a larger /dev/shm. Objects of `kind` have the same keys, in two places.
    """

    config: str
    extra: str
    flags: Mapping[str, str]
    command: tuple[str, ...]
    container: str
    shares: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class KServe:
    """`serves` says of a predictor's `model` whether KServe serves it with this runtime.

    `arguments` is the variable that more options are given in to an LLMInferenceService, "" where there is none;
    `by_default` is true where one without a container of its own runs this runtime.
    """

    serves: Callable[[Mapping[str, Any]], bool] = field(default=lambda model: False)  # noqa: ARG005 - one of several
    arguments: str = ""
    by_default: bool = False
