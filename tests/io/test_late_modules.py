"""Late modules run their code when something of them is first asked for, and are then as always."""

import importlib
import json
import subprocess
import sys
import threading

import pytest

from official.io import first_import, late_modules
from tests.conftest import ROOT


@pytest.fixture(name="package")
def _package(tmp_path, monkeypatch):
    """The name of a package that notes when its code runs."""
    folder = tmp_path / "late_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("import late_package_runs\nlate_package_runs.times += 1\nvalue = 3\n")
    (folder / "part.py").write_text("value = 4\n")
    (tmp_path / "late_package_runs.py").write_text("times = 0\n")
    (tmp_path / "late_broken.py").write_text("raise ImportError('no good')\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "late_package"
    for name in [name for name in sys.modules if name.startswith("late_")]:
        if name != "late_modules":
            del sys.modules[name]


def runs() -> int:
    return importlib.import_module("late_package_runs").times


def imported(name: str):
    with late_modules.late([name]):
        return importlib.import_module(name)


def test_the_code_runs_once_when_a_name_is_asked_for(package):
    module = imported(package)
    assert (module.__name__, module.__spec__.name, runs()) == (package, package, 0)
    assert (module.value, module.value, runs()) == (3, 3, 1)
    assert sys.modules[package] is module and type(module) is type(sys)
    with pytest.raises(AttributeError, match="late_package.*nothing"):
        _ = module.nothing


def test_the_import_of_a_part_runs_the_code_of_its_package(package):
    imported(package)
    assert (importlib.import_module(f"{package}.part").value, runs()) == (4, 1)


def test_a_part_that_the_package_imports_is_loaded_once(package, tmp_path):
    (tmp_path / package / "own.py").write_text("import late_package_runs\nlate_package_runs.times += 10\n")
    with open(tmp_path / package / "__init__.py", "a", encoding="utf-8") as file:
        file.write(f"from {package} import own as first\n")
    module = imported(package)
    own = importlib.import_module(f"{package}.own")
    assert (runs(), own is module.first, module.own is own) == (11, True, True)
    assert (own.__spec__.origin, own.__loader__) == (own.__file__, own.__spec__.loader)


def test_threads_that_ask_at_once_run_the_code_once(package):
    module, found = imported(package), []
    threads = [threading.Thread(target=lambda: found.append(module.value)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found, runs()) == ([3] * 8, 1)


def test_an_error_of_the_code_comes_each_time(package):
    module = imported("late_broken")
    for _ in range(2):
        with pytest.raises(ImportError, match="no good"):
            _ = module.value


def test_what_is_not_there_or_not_named_is_as_always(package):
    with late_modules.late(["late_nowhere"]):
        with pytest.raises(ModuleNotFoundError, match="late_nowhere"):
            importlib.import_module("late_nowhere")
        assert (importlib.import_module(package).value, runs()) == (3, 1)
    assert not any(isinstance(finder, late_modules._Finder) for finder in sys.meta_path)


def test_tensorflow_loads_none_of_them_and_all_of_them_work_after_it():
    code = f"""
import json, sys, official, tensorflow as tf
loaded = [name for name in {first_import.LATE!r} if type(sys.modules.get(name)) is type(sys)]
from tf_keras.src.engine import data_adapter
added = data_adapter.pd.Series([1, 2]).sum() if data_adapter.pd else 3
assert tf.lite.Interpreter and tf.compat.v1.lite.Interpreter and tf.compat.v2.compat.v1.Session
print(json.dumps([loaded, int(added)]))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], 3]
