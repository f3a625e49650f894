"""Standard streams that are closed, full, not read any more, or of few characters; and noise that is kept
back."""

import os
import signal
import subprocess
import sys
from unittest import mock

import pytest

from official.io import quiet
from tests import programs
from tests.fixtures import ROOT

HEAD = """
import os, sys
sys.argv[0] = "/somewhere/tool.py"
from official.io import quiet, streams
streams.settle()
"""


def run(
    code: str, shell: str = "", flags: tuple[str, ...] = (), **variables: str
) -> tuple[int, bytes, bytes]:
    """Runs a program that begins as `HEAD` does, with redirections of a shell. Returns (exit code, stdout,
    stderr)."""
    command = ["bash", "-c", f'"$@" {shell}', "bash", sys.executable, *flags, "-c", HEAD + code]
    done = programs.call(*command, text=False, timeout=60, **variables)
    return done.returncode, done.stdout, done.stderr


def test_what_cannot_be_written_is_dropped_and_the_work_goes_on():
    code = """
for number in range(3):
    print("x" * 5000, flush=True)
    print("told", file=sys.stderr)
print("to the end")
print("done", file=sys.stderr)
sys.exit(7)
"""
    lost = b"tool.py: stdout cannot be written (No space left on device); the rest of the output is lost.\n"
    told = b"told\n" * 3 + b"done\n"
    for shell, printed, stderr in (
        (">/dev/full", False, told),
        (">&-", False, told),
        ("2>/dev/full", True, b""),
        ("2>&-", True, b""),
        (">&- 2>&- <&-", False, b""),
        (">/dev/full 2>&1", False, b""),
    ):
        for flags in ((), ("-u",)):
            found = run(code, shell, flags)
            assert found[0] == 7, (shell, flags, found)
            assert found[2].replace(lost, b"") == stderr, (shell, flags, found)
            assert found[2].count(lost) == (shell == ">/dev/full"), (shell, flags)
            assert found[1].endswith(b"to the end\n") == printed, (shell, flags)


def test_a_pipe_that_nobody_reads_is_no_error_and_one_that_is_not_ready_is_waited_for():
    code = """
print("x" * 100_000)
print("y", flush=True)
sys.stderr.write(f"unread: {streams.is_unread()}")
sys.exit(5)
"""
    for flags in ((), ("-u",)):
        assert run(code, "| true; exit ${PIPESTATUS[0]}", flags) == (5, b"", b"unread: True")
    code = "os.set_blocking(1, False)\nfor _ in range(50): print('x' * 9999, flush=True)"
    assert run(code, "| (sleep 0.3; wc -c)")[1].strip() == b"500000"


def test_a_file_never_gets_the_number_of_a_closed_stream(tmp_path):
    code = f"""
file = open({str(tmp_path / "file")!r}, "w")
print("to stdout", flush=True)
os.write(1, b"from C++")
os.write(2, b"from C++")
print(sys.stdin.read(), end="", flush=True)
assert file.fileno() > 2
import subprocess
code = "import sys; assert sys.stdin and sys.stdout and sys.stderr"
subprocess.run([sys.executable, "-c", code], check=True)
"""
    assert run(code, "<&- >&- 2>&-")[0] == 0
    assert (tmp_path / "file").read_text() == ""


def test_characters_that_the_encoding_does_not_have_are_escaped():
    code = "print('caf\\xe9 \\u20ac \\U0001f600 \\udc80'); print('caf\\xe9', file=sys.stderr)"
    for variables in (
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"},
    ):
        found = run(code, **variables)
        assert found == (0, b"caf\\xe9 \\u20ac \\U0001f600 \\udc80\n", b"caf\\xe9\n"), variables
    assert run("print('caf\\xe9 \\udc80')", PYTHONIOENCODING="utf-8")[1] == "café \\udc80\n".encode()


# ------------------------------------------------------------------------------------------------------------
# Noise


INFO = b"I0000 00:00:1795384536.594967 22802 x.cc:1] noise\n"


def test_only_log_lines_of_level_info_are_kept_back(capfd, monkeypatch):
    heard = b"E0000 00:00:1795384536.594967   22802 x.cc:1] Something is wrong.\nIllegal instruction"
    with quiet.without_noise():
        os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are for STDERR\n")
        os.write(2, INFO + heard)
    assert capfd.readouterr().err.encode() == heard
    monkeypatch.setattr(subprocess, "Popen", mock.Mock(side_effect=OSError))  # there is no other process
    with quiet.without_noise():
        os.write(2, INFO)
    assert capfd.readouterr().err.endswith("noise\n")


def test_the_last_words_of_a_process_that_aborts_are_heard():
    """However much noise is kept back before."""
    last = b"F0000 00:00:1795384536.594967 22802 x.cc:1] Unknown flags\nno line end"
    code = f"with quiet.without_noise(): os.write(2, {INFO!r} * 1000); os.write(2, {last!r}); os.abort()"
    status, _, stderr = run(code)
    assert status == -signal.SIGABRT and last in stderr and b"noise" not in stderr


def test_what_nobody_hears_holds_no_process_up():
    """A full disk, a reader that is gone, and no programs but Python."""
    said = b"E0000 " + b"x" * 999 + b"\n"
    code = f"""
with quiet.without_noise():
    for _ in range(500): os.write(2, {said!r})
sys.exit(7)
"""
    for shell in ("2>/dev/full", "2>&-", "2> >(exit)"):
        assert run("import time; time.sleep(0.1)" + code, shell) == (7, b"", b""), shell
    assert run("os.environ['PATH'] = '/nowhere'" + code) == (7, b"", said * 500)


@pytest.mark.slow
def test_the_first_import_of_a_package_is_quiet_and_tells_what_fails(tmp_path):
    model = "import tensorflow as tf; from official.modeling.layers import Dense; Dense('a', 4, 4, 0.1)\n"
    assert run(model + "tf.function(lambda x: x + 1, jit_compile=True)(1)") == (0, b"", b"")
    (tmp_path / "broken.py").write_text("import os\nos.write(2, b'before\\n')\nraise ValueError('no good')\n")
    status, _, stderr = run("quiet.prepare_import('broken'); import broken", PYTHONPATH=f"{ROOT}:{tmp_path}")
    assert status == 1 and stderr.startswith(b"before\n") and b"ValueError: no good" in stderr
    before = list(sys.meta_path)
    quiet.prepare_import("os")  # which is loaded
    assert sys.meta_path == before


def test_a_package_that_is_left_out_can_be_imported_later(tmp_path):
    (tmp_path / "optional.py").write_text("name = 'optional'\n")
    tried = "try:\n    import optional\nexcept ImportError as error:\n    optional = error\nimport json\n"
    (tmp_path / "asking.py").write_text(tried)
    code = """
quiet.prepare_import("asking")
quiet.leave_out("optional", "os")
import asking
import optional
print(type(asking.optional).__name__, optional.name, os.name)
"""
    assert run(code, PYTHONPATH=f"{ROOT}:{tmp_path}") == (0, b"ModuleNotFoundError optional posix\n", b"")


def test_without_docstrings_tensorflow_is_refused_in_one_line():
    code = """
from official.io.errors import ConfigError
for _ in range(2):
    try:
        import tensorflow
    except ConfigError as error:
        print(error)
"""
    for flags, variables in ((("-OO",), {}), ((), {"PYTHONOPTIMIZE": "2"})):
        status, stdout, _ = run(code, flags=flags, **variables)
        assert status == 0 and stdout.decode().count("PYTHONOPTIMIZE=2 remove the docstrings") == 2, stdout


def test_without_docstrings_commands_are_refused_in_one_line():
    """Their help is in docstrings."""
    done = programs.run("-OO", "-m", "official.cli", "pack", "--help")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "bert pack: python -OO and PYTHONOPTIMIZE=2 remove the docstrings" in done.stderr
