"""The files of the page as they are sent: complete, in the wheel, and needing nothing from outside."""

import fnmatch
import re

import setuptools

from official.serving.server import handlers
from tests.fixtures import ROOT


def test_the_name_of_the_model_is_text():
    text = handlers.page_files('a"><script>alert(1)</script>')["/"][1].decode()
    assert 'data-model="a&quot;&gt;&lt;script&gt;' in text and "<script>" not in text


def test_nothing_is_from_outside_or_inline():
    for path, (_, content) in handlers.page_files("bert").items():
        text = content.decode().replace("http://www.w3.org/2000/svg", "")  # a name, not an address
        assert not re.search(r"https?://|@import|url\(|<style|\sstyle=|\son\w+=", text), path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), path


def test_files_are_in_the_wheel(monkeypatch):
    """Those of the page, and whatever else of the package is no module."""
    found = {}
    monkeypatch.setattr(setuptools, "setup", found.update)
    monkeypatch.chdir(ROOT)
    exec(compile((ROOT / "setup.py").read_text(), "setup.py", "exec"), {"__name__": "setup"})
    assert set(found["package_data"]) - {"official.configs"} <= set(found["packages"])
    globs = [
        f"{name.replace('.', '/')}/{one}" for name, each in found["package_data"].items() for one in each
    ]
    names = [str(path.relative_to(ROOT)) for path in (ROOT / "official").rglob("*.*")]
    others = [name for name in names if not name.endswith((".py", ".pyc"))]
    assert len(others) > 20
    for name in others:
        assert any(fnmatch.fnmatch(name, each) for each in globs), name
