"""Start commands of engines, ordinary and hostile, for the targets that read them."""

import shlex
from collections.abc import Callable
from random import Random
from typing import Any

OPTIONS = {
    "max-model-len": ("8192", "32k", "1.5K", "auto", "-1", "1e400", "1e400Gi", "0", "9" * 30, "$LEN", "$(LEN)"),
    "max-num-seqs": ("64", "1", "0", "6_4", "+64", "\u0666", "$(SEQS)", "`nproc`", " 64 ", "\x1e64"),
    "max-num-batched-tokens": ("8192", "2k", "2K", "1.9999999999g", "9t", "1e5"),
    "gpu-memory-utilization": ("0.9", ".9", "1.0", "1.1", "9e-1", "9e-400", "0.0001", "\x1e0.9", "nan", "90%"),
    "num-gpu-blocks-override": ("1000", "1", "0", "10k"),
    "block-size": ("16", "32", "x"),
    "kv-cache-memory-bytes": ("10G", "1"),
    "port": ("8000", "0", "65536", "8000.0", "$(PORT)"),
    "served-model-name": ("m", "a b", "--x", "$(NAME)"),
    "model": ("meta/x", "", "/models/x"),
    "override-generation-config": ('{"max_new_tokens": 5}', '{"max_new_tokens": 1e400}', "[" * 300, "{", "$X"),
    "generation-config": ("auto", "vllm", "/g"),
    "config": ("/c.yaml", "/missing", "$C"),
    "headless": ("",),
}
LEAST = {"max-model-len": "max-mo", "max-num-seqs": "max-num-se", "max-num-batched-tokens": "max-num-ba"}
VARIABLES = (
    "LEN",
    "SEQS",
    "PORT",
    "NAME",
    "A",
    "B",
    "VLLM_ADDITIONAL_ARGS",
    "SM_VLLM_MAX_MODEL_LEN",
    "_x",
    "1",
    "a.b",
    "",
)
PIECES = (
    *(
        "$A",
        "${A}",
        "${A:-x y}",
        "${A:-$B}",
        "$(A)",
        "$$(A)",
        "$$",
        "$@",
        "$*",
        "$1",
        "$9",
        "$(echo x)",
        "$((1+1))",
        "${A",
        "$",
    ),
    *(
        "'",
        '"',
        "\\",
        "\\\n",
        "`x`",
        "`",
        "#",
        " # x\n",
        ";",
        "&&",
        "||",
        "|",
        "&",
        "\n",
        "(",
        ")",
        "{",
        "}",
        "<",
        ">",
        "2>&1",
    ),
    *(
        "if true; then",
        "fi",
        "export A=1",
        "A=1",
        "A=$A$A",
        "B=$A$A$A",
        "exec",
        "eval",
        "sh -c",
        "bash -lc",
        "time",
        "!",
        "\r\n",
    ),
    *(
        "vllm serve m",
        "--max-model-len 5",
        "python -m vllm.entrypoints.openai.api_server",
        "trtllm-serve serve m --max_batch_size",
        "echo",
        "{{ .Values.x }}",
        "\u2028",
        "\x00",
    ),
)


def option(random: Random) -> list[str]:
    """One option as one or two words, in one of the spellings that there are."""
    name = random.choice(list(OPTIONS))
    value = random.choice(OPTIONS[name])
    choice = random.getrandbits(3)
    written = "--" + (name.replace("-", "_") if choice == 0 else LEAST.get(name, name) if choice == 1 else name)
    if choice == 2:
        return [f"{written}.a.b", value]
    return [f"{written}={value}"] if random.getrandbits(1) else [written, value] if value else [written]


def words(random: Random) -> list[str]:
    """`vllm serve` with options."""
    return ["vllm", "serve", "m", *(word for _ in range(random.getrandbits(2)) for word in option(random))]


def script(random: Random) -> str:
    """A script of pieces of shell, maybe with a server started among them."""
    parts = [random.choice(PIECES) for _ in range(random.getrandbits(3))]
    if random.getrandbits(1):
        parts.insert(random.randrange(len(parts) + 1), shlex.join(words(random)))
    return random.choice(("", " ", "\n")).join(parts)


def environment(random: Random) -> dict[str, str]:
    """Some variables, which may hold each other."""
    values = ("64", "8192", "a b", "--max-num-seqs 5", "$(A)$(A)$(B)", "'", "x" * 50, "$A", "")
    return {name: random.choice(values) for name in random.sample(VARIABLES, random.getrandbits(2))}


def container(random: Random) -> dict[str, Any]:
    """What a container starts: `command`, `args` and `env`."""
    kinds: tuple[Callable[[], dict[str, Any]], ...] = (
        lambda: {"command": words(random), "args": []},
        lambda: {"command": [], "args": words(random)[2:]},
        lambda: {"command": ["sh", "-c"], "args": [script(random), *random.choices(PIECES, k=random.getrandbits(1))]},
        lambda: {"command": ["bash", "-ec", script(random)], "args": words(random)[2:]},
        lambda: {
            "command": ["sh", "-c", shlex.join(["sh", "-c", shlex.join(["bash", "-c", script(random)])])],
            "args": [],
        },
        lambda: {"command": random.choices(PIECES, k=2), "args": random.choices(PIECES, k=2)},
    )
    return random.choice(kinds)() | {"env": environment(random)}
