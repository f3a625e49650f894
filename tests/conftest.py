"""Loads `tests.fixtures` where tests run. The process that hands them out to workers does without: TensorFlow
would take it seconds."""

import pytest

pytest.register_assert_rewrite("tests.fixtures")


def pytest_configure(config):
    if config.getoption("dist", "no") == "no" or config.option.collectonly:
        config.pluginmanager.import_plugin("tests.fixtures")
