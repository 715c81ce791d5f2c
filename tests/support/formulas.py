"""Evaluates the calculation that a step of a plan shows, the way a reader would."""

import ast
import math
import operator
import re
from collections.abc import Callable

_UNITS = {"GiB": 2.0**30, "MiB": 2.0**20, "KiB": 2.0**10, "G": 1e9}
_TOKEN = re.compile(r"(?P<number>\d[\d,]*(?:\.\d+)?)(?: (?P<unit>GiB|MiB|KiB|G)\b)?|(?P<sign>[()]|(?<= )[x+/-](?= ))")
_REMARK = re.compile(r"\([A-Z, ]+\)|^[A-Z0-9-]+: |, (?=rounded|in whole|for comparison|but|at most|one may).*")
_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def evaluate(formula: str) -> float:
    """The value of "2 (K, V) x 32 layers x 8 KV heads x 128 x 2 B". Raises SyntaxError for what is no calculation."""
    text = "".join(_written(match) for match in _TOKEN.finditer(_REMARK.sub("", formula)))
    value = _of(ast.parse(text, mode="eval").body)
    unit = re.search(r"rounded down(?: to blocks of (\d+))?", formula)
    step = 0 if unit is None else int(unit[1] or 1)
    most = re.search(r", at most ([\d,]+)", formula)
    value = math.floor(value / step) * step if step else value
    return value if most is None else min(value, float(most[1].replace(",", "")))


def _written(token: re.Match[str]) -> str:
    if token["sign"]:
        return token["sign"].replace("x", "*")
    return repr(float(token["number"].replace(",", "")) * _UNITS.get(token["unit"] or "", 1.0))


def _of(node: ast.expr) -> float:
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_of(node.left), _of(node.right))
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    raise SyntaxError(ast.dump(node))
