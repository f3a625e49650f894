"""The compiled library of data jobs."""

from official.data import compiled
from official.io import native_library


def test_without_a_compiler_a_line_says_so(monkeypatch, caplog):
    def fail(*_, **__):
        raise native_library.NotBuilt("there is no C++ compiler")

    monkeypatch.setattr(native_library, "built", fail)
    with caplog.at_level("INFO"):
        assert compiled.library.__wrapped__() is None
    assert "without a compiled library: there is no C++ compiler" in caplog.text
