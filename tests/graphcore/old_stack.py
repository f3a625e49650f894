"""What a file imports, and what of Python and TensorFlow it uses, read with `ast`: for an older stack.

An import below `if TYPE_CHECKING:` is none, and one inside of a function is one.
"""

from __future__ import annotations

import ast
import functools
import pathlib
import re

import pytest

from tests.fixtures import ROOT
from tests.test_architecture import imported_names

NAMES_FILE = pathlib.Path(__file__).with_name("tensorflow_2_6_names.txt")


class _Executed(ast.NodeTransformer):
    """Leaves what Python runs: nothing below TYPE_CHECKING, and no annotations where they are postponed."""

    def __init__(self, postponed: bool):
        self._postponed = postponed

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test).endswith("TYPE_CHECKING") else self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if self._postponed and getattr(node, "returns", None) is not None:
            node.returns = None  # type: ignore[attr-defined]
        if self._postponed and getattr(node, "annotation", None) is not None:
            node.annotation = ast.Constant(0)  # type: ignore[attr-defined]
        return super().generic_visit(node)


@functools.cache
def parsed(path: pathlib.Path) -> ast.Module:
    """Returns the tree of what runs of a file that Python 3.8 can parse. Raises SyntaxError for another."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 8))
    return _Executed("from __future__ import annotations" in map(ast.unparse, tree.body)).visit(tree)


def closure(
    entries: tuple[str, ...], without: frozenset[str] = frozenset()
) -> tuple[dict[str, pathlib.Path], set[str]]:
    """Returns {module of the repository: file} of all that modules import, themselves among it, and the other
    packages that these files import; `without` some modules, and what only they import."""
    for module in (*entries, *without):
        base = ROOT.joinpath(*module.split("."))
        assert base.with_suffix(".py").is_file() or (base / "__init__.py").is_file(), f"no module {module}"
    left, files, others = list(entries), {}, set()
    while left:
        parts = left.pop().split(".")
        if parts[0] != "official":
            others.add(parts[0])
            continue
        for count in range(1, len(parts) + 1):
            module, base = ".".join(parts[:count]), ROOT.joinpath(*parts[:count])
            path = base.with_suffix(".py") if base.with_suffix(".py").is_file() else base / "__init__.py"
            if path.is_file() and module not in files and module not in without:
                files[module] = path
                left += imported_names(parsed(path))
    return files, others


def newer_python(path: pathlib.Path) -> list[str]:
    """Returns what of a file Python 3.8 does not know: the Python that it needs, by vermin, and what vermin
    does not find."""
    vermin = pytest.importorskip("vermin", reason="vermin is not installed: scripts/setup_env.sh installs it")
    text, config = ast.unparse(parsed(path)), vermin.Config()
    config.set_eval_annotations(True)  # finds dict[..] outside of annotations, too
    minimum = vermin.detect(text, config)[1] or (3, 0)
    found = re.findall(r"numpy\.typing|\.remove(?:prefix|suffix)\b", text)
    for node in ast.walk(parsed(path)):
        kinds = (getattr(node, "annotation", None), getattr(node, "returns", None))
        found += [ast.unparse(kind) for kind in kinds if isinstance(kind, ast.BinOp)]
        if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.BitOr):
            sides = [getattr(node, name, None) for name in ("left", "right", "value")]
            found += [ast.unparse(node) for side in sides if isinstance(side, (ast.Dict, ast.DictComp))]
    return found + ([f"Python {minimum}"] if minimum > (3, 8) else [])


@functools.cache
def known_names() -> dict[str, set[str] | None]:
    """Returns {public name of TensorFlow 2.6: names of its arguments; None where they are not known}."""
    names: dict[str, set[str] | None] = {"tf": None}
    scope = ""
    for line in NAMES_FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            scope = line.strip("[]")
            names.setdefault(scope, None)
        elif not line.startswith("#"):
            for text in line.split():
                name, bracket, arguments = text.partition("(")
                known = set(arguments.rstrip(")").split(",")) | {"name"} if bracket else None
                names[f"{scope}.{name}"] = None if known is None or "**" in known else known
    return names


def _chain(node: ast.AST) -> str | None:
    """Returns a dotted name that begins with `tf`; None for another expression."""
    text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
    return text if re.fullmatch(r"tf(\.\w+)+", text) else None


def _asked_for(tree: ast.Module) -> set[str]:
    """Returns the names that a file uses where there are such: hasattr(tf.X, "name"), or getattr."""
    return {
        f"{ast.unparse(node.args[0])}.{node.args[1].value}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("hasattr", "getattr")
        and isinstance(node.args[1], ast.Constant)
    }


def _is_known(chain: str) -> bool:
    """Tells whether TensorFlow 2.6 has a name; attributes of a class count as known where the class's own are
    not listed."""
    names = known_names()
    if chain in names:
        return True
    owner, _, last = chain.rpartition(".")
    if owner not in names:
        return _is_known(owner) if owner != "tf" and owner.count(".") > 1 else False
    is_listed = any(name.startswith(f"{owner}.") for name in names)
    return not is_listed and last.islower() or not is_listed and owner.split(".")[-1][:1].isupper()


def newer_tensorflow(path: pathlib.Path) -> list[str]:
    """Returns what of a file TensorFlow 2.6 does not have: names, and "name(argument=)"."""
    tree = parsed(path)
    allowed, found = _asked_for(tree), []
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        chain = _chain(node)
        if chain and id(node) not in inner and chain not in allowed and not _is_known(chain):
            found.append(chain)
        called = _chain(node.func) if isinstance(node, ast.Call) else None
        arguments = known_names().get(called) if called else None
        if arguments is not None:
            unknown = {str(each.arg) for each in node.keywords if each.arg} - arguments
            found += [f"{called}({name}=)" for name in sorted(unknown)]
    return found
