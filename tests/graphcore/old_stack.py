"""What a file imports, and what of Python and TensorFlow it uses, read with `ast`: for an older stack.

An import below `if TYPE_CHECKING:` is none, and one inside of a function is one.
"""

from __future__ import annotations

import ast
import functools
import pathlib
import re
from collections.abc import Iterator

from tests.conftest import ROOT

NAMES_FILE = pathlib.Path(__file__).with_name("tensorflow_2_6_names.txt")
_BUILTIN = {"dict", "list", "tuple", "set", "frozenset", "type"}
_METHODS = {"removeprefix", "removesuffix"}  # which vermin finds of a known string alone


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def nodes_of(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes that Python runs: not those for type checkers, and no annotations."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and not _is_type_checking(node):
                yield node
                yield from nodes_of(node)


@functools.cache
def parsed(path: pathlib.Path) -> ast.Module:
    """Returns the tree of a file that Python 3.8 can parse. Raises SyntaxError for another."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 8))


def file_of(module: str) -> pathlib.Path | None:
    """Returns the file of a module of the repository; None where there is none of the name."""
    path = ROOT.joinpath(*module.split("."))
    found = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in found if file.is_file()), None)


def imported_by(path: pathlib.Path) -> set[str]:
    """Returns the dotted names that a file imports, wherever in it."""
    names = set()
    for node in nodes_of(parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def closure(
    entries: tuple[str, ...], without: frozenset[str] = frozenset()
) -> tuple[dict[str, pathlib.Path], set[str]]:
    """Returns {module of the repository: file} of all that modules import, themselves among it, and the other
    packages that these files import; `without` some modules, and what only they import."""
    left, files, others = list(entries), {}, set()
    while left:
        name = left.pop()
        if name.split(".")[0] != "official":
            others.add(name.split(".")[0])
            continue
        parts = name.split(".")
        for module in (".".join(parts[:count]) for count in range(1, len(parts) + 1)):
            path = file_of(module)
            if path is not None and module not in files and module not in without:
                files[module] = path
                left += imported_by(path)
    return files, others


# ------------------------------------------------------------------------------------------------------------
# Python


def newer_python(path: pathlib.Path) -> list[str]:
    """Returns what of a file Python 3.8 does not know, and vermin does not find: "line: what"."""
    tree = parsed(path)
    found = []
    generic = _BUILTIN | {
        alias.asname or alias.name
        for node in nodes_of(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "collections.abc"
        for alias in node.names
    }
    for node in nodes_of(tree):
        is_generic = isinstance(node, ast.Subscript) and ast.unparse(node.value) in generic
        is_method = isinstance(node, ast.Attribute) and node.attr in _METHODS
        is_update = (
            isinstance(node, ast.AugAssign) and isinstance(node.op, ast.BitOr) and _is_dict(node.value)
        )
        is_union = isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)
        is_union = is_union and (_is_none(node.left) or _is_none(node.right) or _is_dict(node.right))
        is_typing = isinstance(node, (ast.Import, ast.ImportFrom)) and "numpy.typing" in ast.unparse(node)
        if is_generic or is_method or is_union or is_update or is_typing:
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found + _annotations_that_run(tree)


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_dict(node: ast.AST) -> bool:
    return isinstance(node, (ast.Dict, ast.DictComp))


def _annotations_that_run(tree: ast.Module) -> list[str]:
    """Returns a line where annotations that Python 3.8 cannot compute are not postponed."""
    postponed = "from __future__ import annotations" in map(ast.unparse, tree.body)
    annotations = (
        annotation
        for node in ast.walk(tree)
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if isinstance(annotation, ast.AST)
    )
    computed = any(
        isinstance(part, (ast.Subscript, ast.BinOp)) for each in annotations for part in ast.walk(each)
    )
    return ["1: annotations are not postponed"] if computed and not postponed else []


# ------------------------------------------------------------------------------------------------------------
# TensorFlow


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
    """Returns what of a file TensorFlow 2.6 does not have: "line: name" and "line: name(argument=)"."""
    tree = parsed(path)
    allowed, found = _asked_for(tree), []
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in nodes_of(tree):
        chain = _chain(node)
        if chain and id(node) not in inner and chain not in allowed and not _is_known(chain):
            found.append(f"{node.lineno}: {chain}")
        called = _chain(node.func) if isinstance(node, ast.Call) else None
        arguments = known_names().get(called) if called else None
        if arguments is not None:
            unknown = {str(each.arg) for each in node.keywords if each.arg} - arguments
            found += [f"{node.lineno}: {called}({name}=)" for name in sorted(unknown)]
    return found
