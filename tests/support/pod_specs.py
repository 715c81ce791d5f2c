"""Pods to be read, hostile and ordinary, one for each number: the same number is always the same pod."""

import json
from collections.abc import Callable
from random import Random
from typing import Any, Final

Container = dict[str, Any]

# The API server takes no object of more than a megabyte and a half.
_MAX_CHARACTERS: Final = 1_400_000


def pod(number: int) -> dict[str, Any]:
    """One pod; every tenth is ordinary, and every kind of attack comes in every size."""
    draw = Random(number)
    kind = KINDS[number % len(KINDS)] if number % 10 else _ordinary
    containers = kind(draw)
    for position, container in enumerate(containers):
        container.setdefault("name", f"c{position}")
        container.setdefault("image", draw.choice(("vllm/vllm-openai:v0.11.0", "own", "rocm/vllm", "lmcache/router")))
    return {
        "metadata": {"namespace": "llm", "name": f"p-{number}", "annotations": _annotations(draw)},
        "spec": {"containers": containers},
        "status": {"phase": "Running", "podIP": "10.244.3.17", "hostIP": "10.0.0.1"},
    }


def _annotations(draw: Random) -> dict[str, str]:
    many = {f"kvpressure.io/x{i}": "1" for i in range(draw.choice((0, 0, 0, 5000)))}
    known = {"scrape": "true", "port": ",".join(map(str, range(8000, 8016))), "max-input-tokens": "9" * _size(draw)}
    return many | {f"kvpressure.io/{key}": value for key, value in known.items() if draw.random() < 0.3}


def _size(draw: Random, most: int = _MAX_CHARACTERS) -> int:
    """As many small ones as large ones, whatever is called large."""
    return int(most ** draw.random())


def _letter(draw: Random) -> str:
    return draw.choice(("a", "é", "木", "𝄞"))  # 1, 1, 2 and 4 bytes each in memory


def _env(**values: str) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _shell(script: str, *positional: str, **env: str) -> Container:
    return {"command": ["sh", "-c"], "args": [script, *positional], "env": _env(**env)}


def _ordinary(draw: Random) -> list[Container]:
    flags = ["--max-num-seqs", "$(SEQS)", "--max-model-len=32k", "--port", "8000", "--served-model-name", "m"]
    lines = [f"export OPTION_{i}='{i}'  # {i}" for i in range(draw.randrange(60))]
    script = "\n".join(["set -euo pipefail", *lines, 'exec vllm serve "$MODEL" \\', " " + " \\\n ".join(flags)])
    env = _env(SEQS="64", MODEL="meta-llama/Llama-3.1-8B") + _env(**{f"NAME_{i}": "x" * 40 for i in range(40)})
    engine = draw.choice(({"command": ["bash", "-c", script]}, {"args": ["--model", "$(MODEL)", *flags]}))
    return [
        {"image": "istio/proxyv2", "args": ["proxy", "sidecar"]},
        {**engine, "env": env, "image": "vllm/vllm-openai:1"},
    ]


def _nested(draw: Random) -> list[Container]:
    again = draw.choice(
        ('sh -c "$B";', "sh -c '$B $B';", 'eval "$B" "$B";', "bash -ec $B\n", "$(sh -c $B);eval eval $B;")
    )
    many = again * _size(draw, 100_000)
    return [_shell(draw.choice(("$(B)", "$B", 'sh -c "$B"')), B=many[:_MAX_CHARACTERS])]


def _deep(draw: Random) -> list[Container]:
    script = "vllm serve m --max-num-seqs 8"
    for _ in range(draw.randrange(12)):
        script = f"vllm serve m; sh -c {json.dumps(script)}; echo x"
    return [_shell(script)]


def _doubling(draw: Random) -> list[Container]:
    line = draw.choice(("A=$A$A\n", 'A="$A $A"\n', "A=$A$A$A$A;export A B=$A;", "A=${A:-b}${A-c}$A\n"))
    return [_shell(f"A={_letter(draw)}\n" + line * _size(draw, 50_000) + "vllm serve $A", A="")]


def _chain(draw: Random) -> list[Container]:
    names = range(_size(draw, 20_000))
    chain = {f"A{i}": f"$(A{i - 1}){draw.choice(('', ' $$ '))}$(A{i - 1})" for i in names}
    return [{"args": ["--model", f"$(A{names[-1]})"], "env": _env(**{"A-1": _letter(draw)} | chain)}]


def _huge(draw: Random) -> list[Container]:
    value = draw.choice((_letter(draw), "a ", "--port=1 ", "a;", "'", "$A", " ", "\n"))
    arguments = draw.choice(("$(A)", "$A ", '"$A"', "${A:-b} ")) * _size(draw, 100_000)
    env = {draw.choice(("A", "VLLM_ADDITIONAL_ARGS", "SM_VLLM_X")): (value * _size(draw))[:_MAX_CHARACTERS]}
    return [draw.choice((_shell(arguments, **env), {"args": [arguments], "env": _env(**env)}))]


def _positional(draw: Random) -> list[Container]:
    script = draw.choice(('sh -c "$1" "$@" "$@"', '$@ "$@" $1$2', "eval $@;eval $@;", 'sh -c "$0" $@ $@ $@'))
    words = [draw.choice((script, "a b", "", "-c", "vllm", "serve"))] * _size(draw, 30_000)
    return [_shell(script * _size(draw, 2000), script, *words)]


def _soup(draw: Random) -> list[Container]:
    signs = draw.choice((" ;|&<>\n#", "'\"\\`", "$(){}@*19", "ab '\"\\$(){}`#\n;&|<>=@1:-é", "if then export A=$A "))
    piece = "".join(draw.choice(signs) for _ in range(draw.randrange(1, 40)))
    return [_shell((draw.choice(("", "vllm serve m ")) + piece * _size(draw))[:_MAX_CHARACTERS], A="b c")]


def _json(draw: Random) -> list[Container]:
    piece = draw.choice(("[", "{}", "[],", '{"a":', '{"a":0},', "9", "9,", "1e9,", '"\\u0000",', "é"))
    text = "[" + piece * _size(draw, 500_000) + "0]"
    option = draw.choice(
        ("--override-generation-config", "--override-generation-config.a.b", "--max-num-seqs" + ".x" * 99)
    )
    return [{"args": [option, text] * draw.choice((1, 1, 500))}]


def _options(draw: Random) -> list[Container]:
    word = draw.choice(
        ("--max-num-seqs=8", "--port", "--override-generation-config.a=1", "--config", "${A}", "-c", "if")
    )
    word = draw.choice((word, word + "9" * _size(draw, 100_000), "--" + "a" * _size(draw, 100_000) + "!"))
    words = [word] * max(1, min(_size(draw, 100_000), _MAX_CHARACTERS // len(word)))
    return [draw.choice(({"command": ["vllm", "serve"], "args": words}, {"args": words}, _shell(" ".join(words))))]


def _servers(draw: Random) -> list[Container]:
    serve = draw.choice(
        ("vllm serve m;", "vllm serve m --max-num-seqs=$X;", "python -m huggingfaceserver --port $((9));")
    )
    return [_shell(serve * _size(draw, 50_000), X="8")]


def _patterns(draw: Random) -> list[Container]:
    """What regular expressions may go back and forth over."""
    word = draw.choice(("serv", "-c", "c", "$(a", "A=", "x_", "--a.", "9_", "llm-d-cuda", "vllm-", ".")) * _size(
        draw, 300_000
    )
    word = draw.choice((word, f"-{word}!", f"/x/{word}!", f"--max-num-seqs={word}!"))
    return [{"image": word, "command": draw.choice(([word], ["sh", word], ["sh", word, "-c"])), "args": [word]}]


def _many(draw: Random) -> list[Container]:
    inner = draw.choice(KINDS)(draw) if draw.random() < 0.5 else _ordinary(draw)
    return [{**inner[-1], "name": f"c{i}"} for i in range(draw.choice((30, 1000)))]


def _lists(draw: Random) -> list[Container]:
    long = range(_size(draw, 40_000))
    entry = draw.choice(({"name": "A", "value": "b"}, {"name": "A"}, {}, "", None, {"containerPort": 1}))
    return [
        {"image": "own"},
        {
            draw.choice(("env", "ports", "args", "command")): [draw.choice((entry, "", "a"))] * len(long),
            "resources": {"limits": {f"x{i}": "1" for i in long}} if draw.random() < 0.5 else {},
            "ports": [{"name": f"p{i}", "containerPort": i} for i in long[:3000]] if draw.random() < 0.3 else [],
        },
    ]


KINDS: Final[tuple[Callable[[Random], list[Container]], ...]] = (
    *(
        _nested,
        _deep,
        _doubling,
        _chain,
        _huge,
        _positional,
        _soup,
        _json,
        _options,
        _servers,
        _patterns,
        _many,
        _lists,
    ),
)
