"""The house rules that a machine can check: who may import whom, and what is not there."""

import ast
import functools
import os
import pathlib
import re
import sys

import pytest

from tests import programs
from tests.fixtures import ROOT

GROUND = {"config", "io", "native"}
TOOLS = {"modeling", "data", "optimization", "distribution", "checkpoint", "reporting"}
# Package of official/ -> packages of official/ that it may import.
ALLOWED = {
    "io": set(),
    "config": {"io"},
    "native": {"io"},
    **dict.fromkeys(TOOLS, GROUND),
    "tasks": GROUND | {"modeling", "data"},
    "planning": GROUND | {"modeling", "optimization", "distribution"},
    "training": GROUND | TOOLS | {"planning"},
    "inference": GROUND | {"tasks", "modeling", "data", "checkpoint"},
    "models": GROUND | {"inference", "tasks", "modeling", "data", "checkpoint"},  # models.py, the Keras door
    "serving": GROUND | {"inference"},
    "launching": GROUND,
    "graphcore": GROUND | TOOLS | {"tasks", "planning", "training", "inference", "serving", "launching"},
}
ALLOWED["cli"] = ALLOWED["graphcore"] | {"graphcore", "models"}
LIGHT_OF_GRAPHCORE = ("__main__", "devices", "rules", "configurations", "poprun", "kubernetes")
OUTSIDE = ("train", "tf2_bert", "checkpoints_tools", "scripts", "tests")
ENTRY_POINTS = ("train.py", "setup.py", "tf2_bert", "checkpoints_tools", "scripts")
PACKAGE = sorted((ROOT / "official").rglob("*.py"))
SOURCES = PACKAGE + sorted(
    path
    for name in ENTRY_POINTS
    for path in [*(ROOT / name).rglob("*.py"), ROOT / name]
    if path.suffix == ".py"
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def name_of(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT))


@functools.cache
def parsed(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))


def imported_names(tree: ast.Module) -> set[str]:
    """Returns the dotted names that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import of {node.module}"
            names |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@functools.cache
def imported_modules(path: pathlib.Path) -> set[str]:
    return imported_names(parsed(path))


def test_import_walls():
    assert {path.parent.name for path in (ROOT / "official").glob("*/__init__.py")} <= set(ALLOWED)
    broken = []
    for path in PACKAGE:
        package = path.relative_to(ROOT / "official").parts[0].removesuffix(".py")
        allowed = {"io"} if package == "__init__" else ALLOWED[package] | {package}
        modules = [name.split(".") for name in imported_modules(path)]
        own = {parts[1] for parts in modules if parts[0] == "official" and len(parts) > 1} & set(ALLOWED)
        broken += [f"{name_of(path)} imports official.{name}" for name in sorted(own - allowed)]
        outside = {parts[0] for parts in modules} & set(OUTSIDE)
        broken += [f"{name_of(path)} imports {name}" for name in sorted(outside)]
    assert not broken


def test_the_ground_floor_needs_no_tensorflow():
    modules = [name_of(path).removesuffix(".py").replace("/", ".") for path in PACKAGE]
    light = GROUND | {"launching"}
    ground = [name.removesuffix(".__init__") for name in modules if name.split(".")[1] in light]
    ground += [f"official.graphcore.{name}" for name in LIGHT_OF_GRAPHCORE]
    code = f"import sys, {', '.join([*ground, 'official.cli.flags', 'official.distribution.batch_plan'])}"
    assert programs.run("-c", code + "; assert 'tensorflow' not in sys.modules").returncode == 0


def test_a_configuration_is_typed():
    untyped = [
        f"{name_of(path)}:{each.lineno}"
        for path in PACKAGE
        for node in ast.walk(parsed(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for each in (*node.args.args, *node.args.kwonlyargs)
        if each.arg == "config" and each.annotation is None
    ]
    assert untyped == []


def test_nothing_edits_the_search_path():
    edits = re.compile(r"\bsys\.path(\.\w+\(|\[.*\] *=[^=]| *\+?=[^=])")
    found = [name_of(path) for path in SOURCES if edits.search(path.read_text(encoding="utf-8"))]
    assert found == ["scripts/fuzz.py"]  # its cases are among the tests, which no installation has


def test_what_is_not_there():
    """Flags of absl; versions of TensorFlow, as what differs is asked for where it differs; pickle, paths of
    machines, and a drawer for the rest."""
    for path in PACKAGE:
        assert "absl.flags" not in imported_modules(path) or "cli" in path.parts, path
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"tf\.__version__|tf\.version\.VERSION|tensorflow\.__version__", text), path
    for path in SOURCES:
        assert not imported_modules(path) & {"pickle", "dill", "joblib"}, path
        assert not re.search(r"/(home|root|Users|work)/", path.read_text(encoding="utf-8")), path
    for path in SOURCES + TESTS:
        assert path.stem not in ("utils", "util", "helpers", "misc", "common"), path
    assert not (ROOT / "official" / "logging").exists()


def test_lint_format_and_types_are_clean():
    folder = pathlib.Path(sys.executable).parent
    for tool in ("ruff", "mypy"):
        if not (folder / tool).exists():
            pytest.skip(f"{tool} is not installed: ./scripts/setup_env.sh installs it")
    kept = {"VENV": str(folder.parent), "PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    done = programs.call(ROOT / "scripts" / "check.sh", without=os.environ, **kept)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
