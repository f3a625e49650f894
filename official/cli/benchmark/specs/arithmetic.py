"""Computes an expression of numbers, as `derived` metrics have them.

The published runner gives the text to Python's `eval`. Here it is parsed with `ast`, and only numbers,
+ - * / // % **, brackets and the functions of `_FUNCTIONS` are computed: a file of benchmarks runs the
commands that it shows, and no other code.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

_LONGEST = 1000  # characters
_OPERATIONS: dict[type, Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {
    "abs": abs,
    "float": float,
    "int": lambda value: float(int(value)),
    "max": max,
    "min": min,
    "round": lambda value, digits=0.0: round(value, int(digits)),
}


def evaluate(expression: str) -> float:
    """Returns the value of an expression; all numbers are floats, so that none grows without bound.

    Raises:
      ValueError: where it is no arithmetic, or its value is no real number.
      ArithmeticError: for a division by zero and the like.
    """
    if len(expression) > _LONGEST:
        raise ValueError(f"it has {len(expression)} characters, expected {_LONGEST} at most")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        value = _value(tree.body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError("it is no arithmetic") from None
    except TypeError as error:
        raise ValueError(str(error)) from None
    if not isinstance(value, float):
        raise ValueError(f"its value {value} is no real number")
    return value


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return float(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_value(node.operand))
    if isinstance(node, ast.Call) and not node.keywords and _name(node.func) in _FUNCTIONS:
        return _FUNCTIONS[_name(node.func)](*map(_value, node.args))
    raise ValueError(
        f"{ast.unparse(node)[:40]!r} is neither a number, an operation, nor one of {', '.join(_FUNCTIONS)}"
    )


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""
