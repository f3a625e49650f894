"""setup.py asks for what the code imports, in versions that work, for both stacks."""

import importlib.metadata
import re
import runpy
import sys

import pytest
import setuptools
from packaging.markers import Marker
from packaging.requirements import Requirement

from tests.fixtures import ROOT
from tests.test_architecture import imported_modules

OWN = {"official", "tf2_bert", "checkpoints_tools", "train"}
STACKS = {"tf215": ("3.10", "3.11"), "modern": ("3.12", "3.13")}  # and the Pythons that take it by themselves


@pytest.fixture
def settings_of(monkeypatch):
    """Returns a function: what setup.py hands to setuptools for a stack, or without one."""

    def settings(stack: str = "") -> dict:
        found = {}
        monkeypatch.setenv("BERT_STACK", stack)
        monkeypatch.setattr(setuptools, "setup", found.update)
        monkeypatch.chdir(ROOT)
        runpy.run_path("setup.py")
        return found

    return settings


def pinned(stack: str) -> dict[str, str]:
    """Returns {package: version} of a stack's constraints, on this Python."""
    lines = (ROOT / "constraints" / f"{stack}.txt").read_text().splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith(("#", "-c"))]
    own = [each for each in found if each.marker is None or each.marker.evaluate()]
    return {each.name: next(iter(each.specifier)).version for each in own}


def all_requirements(settings: dict) -> list[str]:
    """Returns those of the package, then those of its extras."""
    extras = settings["extras_require"].values()
    return [*settings["install_requires"], *(text for extra in extras for text in extra)]


def requirements(settings: dict) -> dict[str, Requirement]:
    """Returns {name: requirement} of the package and its extras."""
    found = map(Requirement, reversed(all_requirements(settings)))  # the package's own win
    return {canonical(requirement.name): requirement for requirement in found}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def python_files(folders: list[str]) -> list:
    found = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
    return [ROOT / "train.py", *(path for path in found if "peer_programs" not in path.parts)]


def test_all_that_is_imported_is_asked_for(settings_of):
    asked, providers = requirements(settings_of()), importlib.metadata.packages_distributions()
    scripts = {path.stem for folder in ("scripts", "checkpoints_tools") for path in (ROOT / folder).iterdir()}
    missing = set()
    # typing_extensions is of type checkers, which bring it; nothing imports it when it runs.
    known = OWN | scripts | {"typing_extensions"} | sys.stdlib_module_names
    for path in python_files(["official", "tf2_bert", "scripts", "checkpoints_tools"]):
        for name in {name.split(".")[0] for name in imported_modules(path)} - known:
            if not set(map(canonical, providers.get(name, [name]))) & set(asked):
                missing.add((str(path.relative_to(ROOT)), name))
    assert not missing


def test_what_is_installed_needs_nothing_else_of_the_repository(settings_of):
    assert {package.split(".")[0] for package in settings_of()["packages"]} == {"official", "tf2_bert"}
    for path in python_files(["official", "tf2_bert"])[1:]:
        others = {"scripts", "installed", "checkpoints_tools", "train"}
        assert not {name.split(".")[0] for name in imported_modules(path)} & others, path


@pytest.mark.parametrize("stack", STACKS)
def test_the_tested_versions_are_among_those_asked_for(settings_of, stack):
    settings, versions = settings_of(stack), pinned(stack)
    for requirement in map(Requirement, all_requirements(settings)):
        version = versions[canonical(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} and {version}"


def test_the_libraries_of_gpus_are_those_that_tensorflow_asks_for():
    """All of them and nothing else, over the other versions of the stack."""
    asked = map(Requirement, importlib.metadata.requires("tensorflow"))
    libraries = {each.name: each.specifier for each in asked if 'extra == "and-cuda"' in str(each.marker)}
    is_modern = importlib.metadata.version("tensorflow") == pinned("modern")["tensorflow"]
    versions = pinned("modern-gpu" if is_modern else "tf215-gpu")
    assert versions.keys() == libraries.keys() and len(libraries) > 10
    wrong = [name for name, allowed in libraries.items() if not allowed.contains(versions[name])]
    assert not wrong
    for each in STACKS:
        assert f"\n-c {each}.txt\n" in (ROOT / "constraints" / f"{each}-gpu.txt").read_text()
        assert not pinned(each).keys() & pinned(f"{each}-gpu").keys()


def test_python_chooses_the_stack(settings_of):
    parts = [text.partition(";") for text in settings_of()["install_requires"]]
    for stack, pythons in STACKS.items():
        expected = [Requirement(text) for text in settings_of(stack)["install_requires"]]
        for python in pythons:
            place = {"python_version": python}
            chosen = [text for text, _, marker in parts if not marker or Marker(marker).evaluate(place)]
            assert list(map(Requirement, chosen)) == expected


def test_a_stack_that_there_is_not(settings_of):
    with pytest.raises(SystemExit, match="BERT_STACK=newest is not one of tf215, modern"):
        settings_of("newest")


def test_tf215_has_addons_and_pkg_resources_and_modern_neither(settings_of):
    """tensorflow-hub, which tensorflow-text 2.15 needs, imports pkg_resources and does not ask for it;
    setuptools has it up to 80."""
    old, new = (requirements(settings_of(stack)) for stack in STACKS)
    assert "tensorflow-addons" in old and "tensorflow-addons" not in new and "tf-keras" in new
    allowed = old["setuptools"].specifier
    assert allowed.contains("80.9.0") and not allowed.contains("81.0.0")


def test_what_the_benchmark_driver_imports_fits_beside_tensorflow():
    """Its report needs google.cloud.bigquery, its process information psutil, and both a protobuf that
    TensorFlow 2.15 takes."""
    assert {"psutil", "google-cloud-bigquery"} <= pinned("tf215").keys() & pinned("modern").keys()
    assert pinned("tf215")["protobuf"].startswith("4.")
