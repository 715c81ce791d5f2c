"""`python -m tests.e2e_dynamo`: NVIDIA Dynamo's own worker and frontend, read as its users would have them read.

Dynamo's mocker schedules as vLLM does, without a GPU, and serves what its vLLM worker serves: `vllm:` names beside
`dynamo_component_*`. Its pool is too small for the clients, which then stop; the router in the frontend holds requests
back while the worker has prompts to compute. Then one worker prefills and another decodes: the frontend says which.
Last, under another DYN_METRICS_PREFIX, its queue is still read, and under its own one whom it refuses is counted.
Needs a Python 3.12 and, once, 600 MB from PyPI; takes eight minutes. Ends with 1 when something was read as something
else than it is.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Final

import yaml

from bench.world import process
from tests.support.e2e_pages import causes, check, get, wait_for
from tests.support.processes import free_port

VERSION: Final = "1.6.1"
REQUIREMENTS: Final = (
    *("aiohttp<4", "certifi", "kubernetes<33", "msgspec", "prometheus-client<1", "pydantic<=2.13.5", "pyzmq", "redis"),
    *("tokenizers", "tqdm", "transformers>=4.56", "typing-extensions", "uvloop", "zstandard<1"),
)
CACHE: Final = Path(__file__).parents[1] / ".cache" / "dynamo"
CLIENTS: Final = 24
LOAD_SECONDS: Final = 75.0
APART_SECONDS: Final = 20.0
PROMPT_CHARACTERS: Final = 400
ANSWER_TOKENS: Final = 300
BLOCKS: Final = 200
"""Of 16 tokens: room for four or five of the requests above, with a token for each character."""

_MODEL: Final = """
import json, sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
vocabulary = {token: i for i, token in enumerate(["<s>", "</s>", *alphabet])}
tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.save(sys.argv[1] + "/tokenizer.json")
"""
_CONFIG: Final = {
    "config.json": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "vocab_size": 258,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 8192,
        "bos_token_id": 0,
        "eos_token_id": 1,
    },
    "generation_config.json": {"bos_token_id": 0, "eos_token_id": 1},
    "tokenizer_config.json": {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 8192,
        "chat_template": "{% for one in messages %}{{ one['content'] }}{% endfor %}",
    },
}


def main() -> int:
    """Install, start, load, look."""
    python = _install()
    model = _model(python)
    worker, frontend, own = _low_port(), free_port(), free_port()
    with _dynamo(python, model, {worker: ()}, frontend), _exporter(own, worker, frontend):
        over, clients = _clients(frontend, CLIENTS)
        time.sleep(LOAD_SECONDS)
        (CACHE / f"worker-{VERSION}.prom").write_bytes(get(worker, "/metrics"))
        (CACHE / f"frontend-{VERSION}.prom").write_bytes(get(frontend, "/metrics"))
        under_load = get(own, "/metrics").decode()
        diagnosis = get(own, "/api/v1/diagnosis").decode()
        over.set()
        for client in clients:
            client.join()
        time.sleep(75)
        after = get(own, "/metrics").decode()
        targets = get(own, "/targets").decode()
    held = [
        check("the worker is one engine", 'source_up{source="engine",target="worker"} 1.0', under_load),
        check("its pool is named while clients wait", 'cause="kv_cache_pressure",engine="0"', causes(under_load)),
        check("nothing is named when they have gone", 'cause="idle",engine="0"', causes(after)),
        check("the frontend is no engine", 'source_up{source="engine",target="frontend"} 0.0', under_load),
        check("and its target says so", "Dynamo's frontend, not of an engine", targets),
        check("its queue is read", 'source_up{source="gateway",target="frontend"} 1.0', under_load),
        check("and is the engine's demand", "at least one", _queued(under_load)),
        check("and is named", "queued at the gateway: ", diagnosis),
    ]
    held.append(check("who decodes is known", 'role="decode",target="worker"} 1.0', _apart(python, model)))
    renamed = _limited(python, model, {"DYN_METRICS_PREFIX": "nim_llm"}, ())
    held.append(check("its queue under another prefix too", "at least one", _queued(renamed)))
    refusing = _limited(python, model, {}, ("--active-decode-blocks-threshold", "0.3"))
    held.append(check("whom it refuses is its own limit", '"held_at_gateway"', refusing))
    held.append(check("and how many are", "efused by the gateway: ", refusing))
    return int(not all(held))


def _limited(python: str, model: Path, env: Mapping[str, str], options: tuple[str, ...]) -> str:
    """Return what the exporter says of a worker behind a frontend with these settings, under load."""
    worker, frontend, own = _low_port(), free_port(), free_port()
    with _dynamo(python, model, {worker: ()}, frontend, env, options), _exporter(own, worker, frontend):
        over, clients = _clients(frontend, CLIENTS)
        time.sleep(LOAD_SECONDS)
        (CACHE / f"frontend-{VERSION}{'-renamed' if env else '-refusing'}.prom").write_bytes(get(frontend, "/metrics"))
        found = get(own, "/metrics").decode() + get(own, "/api/v1/diagnosis").decode()
        over.set()
        for client in clients:
            client.join()
    return found


def _apart(python: str, model: Path) -> str:
    """Return what the exporter says while one worker prefills and the one that it reads decodes."""
    decodes, frontend, own = _low_port(), free_port(), free_port()
    prefill = ("--disaggregation-mode", "prefill", "--bootstrap-ports", str(free_port()))
    workers = {_low_port(decodes + 1): prefill, decodes: ("--disaggregation-mode", "decode")}
    with _dynamo(python, model, workers, frontend), _exporter(own, decodes, frontend):
        over, clients = _clients(frontend, 4)
        time.sleep(APART_SECONDS)
        (CACHE / f"decode-worker-{VERSION}.prom").write_bytes(get(decodes, "/metrics"))
        (CACHE / f"frontend-{VERSION}-prefill-decode.prom").write_bytes(get(frontend, "/metrics"))
        metrics = get(own, "/metrics").decode()
        over.set()
        for client in clients:
            client.join()
    return "\n".join(line for line in metrics.splitlines() if line.startswith("kvpressure_role{"))


def _clients(frontend: int, many: int) -> tuple[threading.Event, list[threading.Thread]]:
    wait_for("the model", lambda: b"tiny" in get(frontend, "/v1/models"), 120, CACHE)
    over = threading.Event()
    clients = [threading.Thread(target=_client, args=(frontend, Random(k), over)) for k in range(many)]
    for client in clients:
        client.start()
    return over, clients


def _queued(text: str) -> str:
    found = [one for one in text.splitlines() if one.startswith("kvpressure_gateway_queue_requests{")]
    return "\n".join([*found, "at least one"] if any(float(one.split()[-1]) >= 1 for one in found) else found)


def _install() -> str:
    python = str(CACHE / "venv" / "bin" / "python")
    if not Path(python).exists():
        # pyenv's shim is on the PATH also where another version is active, and then runs nothing.
        versions = sorted(Path.home().glob(".pyenv/versions/3.12*/bin/python"))
        found = next(map(str, versions), None) or shutil.which("python3.12")
        if found is None:
            sys.exit("Dynamo's wheels need Python 3.12, and there is no python3.12 here: `pyenv install 3.12`")
        subprocess.run([found, "-m", "venv", str(CACHE / "venv")], check=True)
        own = [f"{name}=={VERSION}" for name in ("ai-dynamo", "ai-dynamo-runtime")]
        pip = [python, "-m", "pip", "install", "-q"]
        # Of its requirements, one is fetched from an index of NVIDIA's own, and the mocker runs without it.
        subprocess.run([*pip, "--no-deps", *own], check=True)
        subprocess.run([*pip, *REQUIREMENTS], check=True)
    return python


def _model(python: str) -> Path:
    folder = CACHE / "model" / "tiny"
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([python, "-c", _MODEL, str(folder)], check=True)
    for name, content in _CONFIG.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@contextlib.contextmanager
def _dynamo(
    python: str,
    model: Path,
    workers: Mapping[int, tuple[str, ...]],
    frontend: int,
    front_env: Mapping[str, str] = MappingProxyType({}),
    front_options: tuple[str, ...] = (),
) -> Iterator[None]:
    """Run workers, each with its options, by their port, and a frontend with its own in front of them."""
    shutil.rmtree(CACHE / "store", ignore_errors=True)
    plane = ["--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq"]
    env = {"DYN_FILE_KV": str(CACHE / "store"), "HF_HUB_OFFLINE": "1"}
    size = ["--num-gpu-blocks-override", str(BLOCKS), "--block-size", "16", "--max-num-seqs", "64"]
    mocker = [
        python,
        "-m",
        "dynamo.mocker",
        "--engine-type",
        "vllm",
        "--model-path",
        str(model),
        "--model-name",
        "tiny",
    ]
    queue = ["--router-mode", "kv", "--router-queue-threshold", "0", *front_options]
    front = [python, "-m", "dynamo.frontend", "--http-port", str(frontend), *queue]
    with contextlib.ExitStack() as running:
        for port, options in workers.items():
            system = {"DYN_SYSTEM_PORT": str(port), "DYN_SYSTEM_ENABLED": "true"}
            log = CACHE / f"worker-{port}.log"
            running.enter_context(process(*mocker, *size, *options, *plane, env=env | system, log=log))
        running.enter_context(process(*front, *plane, env=env | front_env, log=CACHE / "frontend.log"))
        yield


@contextlib.contextmanager
def _exporter(own: int, worker: int, frontend: int) -> Iterator[None]:
    named = {"worker": worker, "frontend": frontend}
    targets = [{"url": f"http://127.0.0.1:{port}", "name": name} for name, port in named.items()]
    gateways = {"targets": [targets[1]]}
    settings = {
        "web": {"listen_address": f"127.0.0.1:{own}"},
        "gpu": {"vendors": []},
        "engines": {"targets": targets},
        "gateways": gateways,
    }
    (CACHE / "kvpressure.yaml").write_text(yaml.safe_dump(settings))
    env = {"PYTHONPATH": os.environ.get("PYTHONPATH", "exporter")}
    command = [sys.executable, "-m", "kvpressure", "run", "--config.file", str(CACHE / "kvpressure.yaml")]
    with process(*command, env=env, log=CACHE / "exporter.log"):
        yield


def _client(port: int, random: Random, over: threading.Event) -> None:
    while not over.is_set():
        prompt = "".join(random.choice("abcdefgh") for _ in range(PROMPT_CHARACTERS))
        body = json.dumps({"model": "tiny", "prompt": prompt, "max_tokens": ANSWER_TOKENS}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                answer.read()
        except OSError:
            over.wait(1)


def _low_port(least: int = 18_000) -> int:
    """Return a free port that Dynamo can read: DYN_SYSTEM_PORT is a signed number of 16 bits."""
    for port in range(least, 2**15):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    sys.exit("no free port below 32768")


if __name__ == "__main__":
    sys.exit(main())
