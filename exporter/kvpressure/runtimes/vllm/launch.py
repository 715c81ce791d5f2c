"""Which programs and images are vLLM servers, and on which port they serve their API and `/metrics`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvpressure.commandline.options import (
    Dialect,
    Given,
    Options,
    fraction,
    human,
    parse_json,
    share,
    unresolved,
    whole,
)
from kvpressure.commandline.programs import SHELLS, Launch, base
from kvpressure.commandline.words import Budget, BudgetExceededError, Words, split
from kvpressure.model.environment import DECODE, PREFILL, ROLE_CODES
from kvpressure.runtimes.starting import DYNAMO, Flags, Sizing, Starting, image_name, start_script

Version = tuple[int, int]

NEWEST: Final[Version] = (999, 0)

REMOVED: Final[Mapping[str, tuple[Version | None, Version]]] = {
    **dict.fromkeys(
        (
            *("disable-async-output-proc", "enable-prompt-adapter", "enable-reasoning", "guided-decoding-backend"),
            *("lora-extra-vocab-size", "max-prompt-adapters", "max-seq-len-to-capture", "multi-step-stream-outputs"),
            *("num-lookahead-slots", "num-scheduler-steps", "num-speculative-tokens", "override-neuron-config"),
            *("override-pooler-config", "preemption-mode", "rope-scaling", "rope-theta", "scheduler-delay-factor"),
            *("speculative-model", "tokenizer-pool-size", "use-v2-block-manager", "worker-use-ray"),
        ),
        (None, (0, 12)),
    ),
    **dict.fromkeys(
        (
            *("cuda-graph-sizes", "disable-frontend-multiprocessing", "disable-log-requests", "swap-space", "task"),
            *("disable-mm-preprocessor-cache", "enable-multimodal-encoder-data-parallel", "logits-processor-pattern"),
        ),
        ((0, 12), (0, 22)),
    ),
    **dict.fromkeys(("max-long-partial-prefills", "max-num-partial-prefills"), ((0, 22), (0, 32))),
}
"""Options that vLLM once had, whose parser ends the server at an unknown one: the last version that is known to have
each, None for none of them, and the first that is known not to. From `engine/arg_utils.py` and `cli_args.py` of 0.12.0,
0.22.1, 0.32.0 and 0.33.0; which versions between these had an option is not known here."""

_UPSTREAM: Final = re.compile(r"(?:^|/)vllm/vllm-openai(?:-[a-z0-9]+)?(?::([^/@]*))?(?:@.*)?$|[:_-]vllm_?(\d[^/@]*)$")
# An image built on it has its version in the tag, where that looks like one of vLLM's; LMCache's are its own.
_NAMED: Final = re.compile(r"^(?!.*lmcache).*vllm[^/:@]*:v?(0)\.(\d{1,3})\.\d")
_TAG: Final = re.compile(r"v?(\d{1,3})\.(\d{1,3})\b.*")


def version_of(image: str) -> Version | None:
    """Return vLLM's version by an image's tag: the newest for `latest`, None where it says none."""
    tagged = _UPSTREAM.search(image)
    if tagged is None:
        named = _NAMED.search(image)
        return None if named is None else (int(named[1]), int(named[2]))
    tag = tagged[1] or tagged[2] or "latest"
    version = _TAG.fullmatch(tag)
    if version is None:
        return NEWEST if tag.startswith(("latest", "nightly")) else None
    return int(version[1]), int(version[2])


NAMES: Final[Mapping[str, str]] = {
    "backend": "backend",
    "block-size": "block-s",
    "config": "config",
    "convert": "convert",
    "data-parallel-size": "data-parallel-size",
    "data-parallel-size-local": "data-parallel-size-l",
    "device": "device",
    "disaggregation-mode": "disaggregation-mode",
    "dtype": "dtype",
    "enable-expert-parallel": "enable-ex",
    "generation-config": "generation-c",
    "gpu-memory-utilization": "gpu-memory-u",
    "headless": "headl",
    "hf-overrides": "hf-ov",
    "http-port": "http-port",
    "is-prefill-worker": "is-prefill-worker",
    "kv-cache-dtype": "kv-cache-dtype",
    "kv-cache-memory-bytes": "kv-cache-mem",
    "kv-transfer-config": "kv-tr",
    "max-model-len": "max-mo",
    "max-num-batched-tokens": "max-num-ba",
    "max-num-seqs": "max-num-se",
    "model": "model",
    "num-gpu-blocks-override": "num-gpu-b",
    "override-generation-config": "override-g",
    "pipeline-parallel-size": "pipeline",
    "port": "por",
    "quantization": "quantiz",
    "rope-scaling": "rope-s",
    "runner": "runner",
    "served-model-name": "served-",
    "speculative-config": "speculative-c",
    "tensor-parallel-size": "tensor-p",
    "watermark": "watermark",
}
"""Options that are looked for, and the shortest beginning that means them in every version from 0.6 on."""

_SWITCH: Final = re.compile(r"--(no|enable|disable|enforce|trust|headless|async|skip|use|fully|calculate)([-_]|$)")


def _output_caps(given: Mapping[str, Given], files: Mapping[str, str], budget: Budget) -> Iterator[Given]:
    """Yield `max_new_tokens` of the generation config, which caps every request's output; the override wins."""
    folder, override = given.get("generation-config"), given.get("override-generation-config")
    if folder is not None and folder.text not in {"auto", "vllm", ""}:
        path = f"{folder.text.rstrip('/')}/generation_config.json"
        if path in files:
            yield from _cap(files[path], f"max_new_tokens of {path}", budget)
    if override is not None:
        yield from _cap(override.text, override.written, budget, override.file)


def _cap(text: str, written: str, budget: Budget, file: str = "") -> Iterator[Given]:
    config = parse_json(text, budget)
    if isinstance(config, dict):
        value = config.get("max_new_tokens")
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            yield Given(str(value).removesuffix(".0"), written, file)
    elif unresolved(text):
        yield Given(text, written, file)


def _capacity(options: Mapping[str, Given]) -> tuple[float, str] | None:
    """Return blocks times block size, without vLLM's null block; None unless both are given."""
    blocks, size = options.get("num-gpu-blocks-override"), options.get("block-size")
    if blocks is None or size is None:
        return None
    count, tokens = whole(blocks.text), whole(size.text)
    if count is None or tokens is None or count <= 1:
        return None
    return (count - 1) * tokens, f"{blocks.written} {size.written}"


_CONFIG_WORK: Final = 1 << 16
"""Of one that is longer nothing is read; the longest in vLLM's documentation takes a tenth."""
_ROLES: Final = {"kv_producer": ROLE_CODES[PREFILL], "kv_consumer": ROLE_CODES[DECODE]}


def transfer_config(options: Mapping[str, Given]) -> Mapping[str, Any] | None:
    """Return what `--kv-transfer-config` says; None where it is not given or no JSON object."""
    given = options.get("kv-transfer-config")
    try:
        config = None if given is None else parse_json(given.text, Budget(_CONFIG_WORK))
    except BudgetExceededError:
        return None
    return config if isinstance(config, dict) else None


def _role(options: Mapping[str, Given]) -> tuple[float, str] | None:
    """Return the role by Dynamo's options, else of the KV connector; None for `kv_both`, which either role has."""
    mode, switch = options.get("disaggregation-mode"), options.get("is-prefill-worker")
    if mode is not None and mode.text in ROLE_CODES:
        return ROLE_CODES[mode.text], mode.written
    if switch is not None:
        return ROLE_CODES[PREFILL], switch.written
    config = transfer_config(options) or {}
    code = _ROLES.get(str(config.get("kv_role"))) if config.get("kv_connector") else None
    return None if code is None else (code, options["kv-transfer-config"].written)


_POOLING: Final = frozenset(("classify", "embed", "embedding", "pooling", "reward", "score"))


def pooling(options: Mapping[str, Given]) -> bool:
    """Return whether the options say that the model embeds, scores or classifies, and generates nothing."""
    return any(options[name].text in _POOLING for name in ("task", "runner", "convert") if name in options)


FLAGS: Final = Flags(
    dialect=Dialect(
        {**{name: name for name in REMOVED}, **NAMES},
        _SWITCH,
        output_caps=_output_caps,
        short={
            "-dp": "data-parallel-size",
            "-dpl": "data-parallel-size-local",
            "-pp": "pipeline-parallel-size",
            "-q": "quantization",
            "-tp": "tensor-parallel-size",
        },
    ),
    # `--max-model-len` and `--max-num-batched-tokens` are read by vLLM's `human_readable_int`.
    limits={
        "max_model_len": ("max-model-len", human),
        "max_num_seqs": ("max-num-seqs", whole),
        "max_num_batched_tokens": ("max-num-batched-tokens", human),
        "gpu_memory_utilization": ("gpu-memory-utilization", share),
        "kv_watermark_ratio": ("watermark", fraction),
    },
    capacity=_capacity,
    role=_role,
    # vLLM then sizes the pool by that alone, whatever the utilization says.
    sizes_pool="kv-cache-memory-bytes",
    output_cap="override-generation-config",
    data_local="data-parallel-size-local",
    tls="ssl-certfile",
    sizing=Sizing(
        tensor="tensor-parallel-size",
        pipeline="pipeline-parallel-size",
        data="data-parallel-size",
        expert="enable-expert-parallel",
        kv_cache_dtype="kv-cache-dtype",
        dtype="dtype",
        quantization="quantization",
        drafts="speculative-config",
        stretches=("rope-scaling", "hf-overrides"),
    ),
)


MODULES: Final = frozenset(("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server"))
"""Modules that `python -m` starts a server with; the second has no metrics page in old versions."""

COMMAND_MODULE: Final = "vllm.entrypoints.cli.main"
"""The module behind the command `vllm`: its first word says what it does."""

KSERVE_MODULE: Final = "huggingfaceserver"

KSERVE_PORT: Final = 8080

WORKER_MODULE: Final = f"{DYNAMO}vllm"

EXTRA_ARGUMENTS: Final = "VLLM_ADDITIONAL_ARGS"
"""Read by start scripts: KServe appends it to `vllm serve`."""

# SageMaker makes options of these.
_OPTION_VARIABLES: Final = "SM_VLLM_"

# Images whose entrypoint is the server. The name is the last part of the path: registries are mirrored.
_SERVERS: Final = re.compile(
    r"vllm|vllm-openai(-[a-z0-9.-]+)?|vllm-serve|pytorch-vllm-serve|vllm-omni|vllm-ascend"
    r"|vllm-(cpu|cuda|rocm|tpu|xpu|gaudi|hpu|neuron|spyre|server)(-[a-z0-9.-]+)?|odh-vllm-[a-z0-9.-]+"
    r"|llm-d(-(cuda|rocm|xpu|cpu|hpu|tpu|aws|gke|dev))*"
)
_OTHERS: Final = re.compile(
    r"router|bench|client|simulator|-sim\b|exporter|operator|controller|gateway|proxy|sidecar|scheduler|production-stack"
    r"|webui|frontend|dashboard|agent|download|init|loader|test|worker-(v1-)?vllm"
)
# Options that no other server has.
_OWN_OPTIONS: Final = frozenset(("max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization"))
# First words of arguments that replace what the entrypoint would serve.
_OTHER_COMMANDS: Final = SHELLS | frozenset(
    ("bench", "chat", "complete", "run-batch", "collect-env", "sleep", "tail", "cat", "ray", "python", "python3")
)
_SCRIPT: Final = re.compile(r"vllm|serv|start|entry")


def _launch(words: Words) -> Launch | None:
    for at, word in enumerate(words[:-1]):
        following = words[at + 1]
        if following == "serve" and (base(word) == "vllm" or word == COMMAND_MODULE):
            return Launch(words[at + 2 :])
        if word == "-m" and (following in MODULES or following in {KSERVE_MODULE, WORKER_MODULE}):
            return Launch(words[at + 2 :], "" if following in MODULES else following)
        if word.endswith("vllm/entrypoints/openai/api_server.py"):
            return Launch(words[at + 1 :])
    return None


def _serves(module: str, options: Options, image: str) -> bool:
    """Return whether it serves a page: workers of a multi-node engine (`--headless`, `ray start`) do not."""
    if module == KSERVE_MODULE:
        return _own_backend(options) and not image.rsplit("/", 1)[-1].endswith("-cpu")
    return module != WORKER_MODULE and not _worker(options)


def _worker(options: Options) -> bool:
    return "headless" in options.given


def _own_backend(options: Options) -> bool:
    return "backend" not in options.given or options.given["backend"].text in {"auto", "vllm"}


def _image_serves(image: str, command: Words, args: Words, options: Sequence[Options]) -> bool:
    name = image_name(image)
    if not command and _is_like_vllm(name, options):
        return not args or base(args[0]) not in _OTHER_COMMANDS
    if name == KSERVE_MODULE:
        # Without a registry's prefix it is one that is built or put in later, under KServe's name.
        on_gpu = not command and (image.rsplit(":", 1)[-1].endswith("-gpu") or "/" not in image)
        return on_gpu and all(map(_own_backend, options))
    if not _SERVERS.fullmatch(name) or _OTHERS.search(name):
        return False
    if command:
        script = start_script((*command, *args))
        named = _SCRIPT.search(script) is not None and not _OTHERS.search(script)
        return named and "worker" not in map(base, (*command, *args))
    if name == "vllm" and "rocm/" in image:
        return False  # its entrypoint is a shell
    return not args or base(args[0]) not in _OTHER_COMMANDS


def _is_like_vllm(name: str, options: Sequence[Options]) -> bool:
    """Return whether an image of another name serves: it has vLLM's own options, or its name and a model."""
    if _OTHERS.search(name) or _SERVERS.fullmatch(name) or name == KSERVE_MODULE:
        return False
    given = {option for read in options for option in read.given}
    return not given.isdisjoint(_OWN_OPTIONS) or ("vllm" in name and "model" in given)


def _port(module: str, options: Options) -> int | None:
    """Return the port of `--port`, None where none is given (vLLM then takes 8000) or it cannot be read.

    `VLLM_PORT` is not it: vLLM's documentation says that it is for internal use and not the API server's.
    """
    default = KSERVE_PORT if module == KSERVE_MODULE else None
    value = options.given.get("http-port" if default else "port")
    port = None if value is None else whole(value.text)
    return default if port is None else int(port) if port <= 65535 else None


def _completed(words: Words, args: Sequence[str], env: Mapping[str, str], budget: Budget) -> Words:
    text = "" if any(EXTRA_ARGUMENTS in word for word in args) else env.get(EXTRA_ARGUMENTS, "")
    budget.take(steps=len(text))
    return (*_from_env(env), *words, *split(text))


def _from_env(env: Mapping[str, str]) -> Iterator[str]:
    for name, value in env.items():
        if name.startswith(_OPTION_VARIABLES) and len(name) > len(_OPTION_VARIABLES):
            yield f"--{name.removeprefix(_OPTION_VARIABLES).lower()}"
            yield value


@dataclass(frozen=True, slots=True)
class Variables:
    """Images whose variables with a prefix are options, but for those of other `names`; `words` holds more options."""

    image: re.Pattern[str]
    prefix: str
    names: Mapping[str, str]
    words: str = ""


VARIABLES: Final = (
    # NVIDIA's NIM for language models; those of other models have other servers.
    Variables(
        re.compile(r"(^|/)nim/(?!.*(embed|rerank|retriev|ocr|parakeet|riva|asr|tts|diffusion|clip|fold|parse|guard))"),
        "NIM_",
        {
            "kvcache-percent": "gpu-memory-utilization",
            "kv-cache-percent": "gpu-memory-utilization",
            "gpu-mem-fraction": "gpu-memory-utilization",
            "model-name": "model",
        },
        "NIM_PASSTHROUGH_ARGS",
    ),
    # RunPod's serverless worker.
    Variables(re.compile(r"(^|/)worker-(v1-)?vllm"), "", {"model-name": "model"}),
)


def _variables(image: str, env: Mapping[str, str | None]) -> Words | None:
    own = next((variables for variables in VARIABLES if variables.image.search(image)), None)
    if own is None:
        return None
    words: list[str] = []
    for name, value in env.items():
        option = name.removeprefix(own.prefix).lower().replace("_", "-") if name.startswith(own.prefix) else ""
        option = own.names.get(option, option)
        if option in NAMES:
            words += [f"--{option}", f"${name}" if value is None else value]
    return (*words, *split(env.get(own.words) or ""))


STARTING: Final = Starting(FLAGS, _launch, _image_serves, _port, _worker, _serves, _completed, _variables)
