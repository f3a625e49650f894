"""The house rules that a machine can check: who may import whom, and what the repository must not say."""

import ast
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

# Package of official/ -> packages of official/ that it may import.
ALLOWED = {
    "io": set(),
    "config": {"io"},
    **{
        name: {"config", "io"}
        for name in ("modeling", "data", "optimization", "distribution", "checkpoint", "reporting")
    },
    "tasks": {"config", "io", "modeling", "data"},
    "serving": {"config", "io", "modeling", "data"},
    "training": {"config", "io", "optimization", "distribution", "checkpoint", "reporting"},
    "planning": {"config", "io", "modeling", "optimization", "distribution"},
    "cli": {"config", "io"},
}
SOURCES = sorted(
    path
    for folder in ("official", "tf2_bert", "checkpoints_tools", "scripts")
    for path in (ROOT / folder).rglob("*.py")
)


def imported_modules(path) -> set[str]:
    """Returns the dotted names that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def packages(path) -> set[str]:
    return {name.split(".")[1] for name in imported_modules(path) if name.startswith("official.")} & set(
        ALLOWED
    )


@pytest.mark.parametrize(
    "path",
    [path for path in SOURCES if path.is_relative_to(ROOT / "official")],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_import_layers(path):
    package = path.relative_to(ROOT / "official").parts[0].removesuffix(".py")
    if package == "__init__":
        return
    assert package in ALLOWED, f"{package} has no layer"
    assert packages(path) <= ALLOWED[package] | {package}


def test_nothing_imports_the_entry_points():
    for path in SOURCES:
        if path.is_relative_to(ROOT / "official"):
            outside = {name.split(".")[0] for name in imported_modules(path)} & {
                "train",
                "tf2_bert",
                "checkpoints_tools",
                "scripts",
                "tests",
            }
            assert not outside, path


def test_config_needs_no_tensorflow():
    code = (
        "import sys, official.config, official.cli.flags, official.distribution.batch_plan; assert"
        " 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_only_flags_reads_flags():
    for path in SOURCES:
        if path != ROOT / "official" / "cli" / "flags.py" and path.is_relative_to(ROOT / "official"):
            assert "absl.flags" not in imported_modules(path), path


def test_no_pickle_and_no_machine_paths():
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        assert not imported_modules(path) & {"pickle", "dill", "joblib"}, path
        assert not re.search(r"/(home|root|Users)/", text), path
