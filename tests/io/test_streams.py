"""Standard streams that are closed, full, not read any more, or of few characters."""

import os
import signal
import subprocess
import sys

from official.io import quiet
from tests.conftest import ROOT

HEAD = """
import os, sys
sys.argv[0] = "/somewhere/tool.py"
from official.io import streams
streams.settle()
"""


def run(
    code: str, shell: str = "", flags: tuple[str, ...] = (), **variables: str
) -> tuple[int, bytes, bytes]:
    """Runs a program that begins as `HEAD` does, with redirections of a shell. Returns (exit code, stdout,
    stderr)."""
    words = [sys.executable, *flags, "-c", HEAD + code]
    done = subprocess.run(
        ["bash", "-c", f'"$@" {shell}', "bash", *words],
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=60,
        env={**os.environ, **variables},
    )
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
    lost = b"tool.py: stdout cannot be written (No space left on device); what does not fit is lost.\n"
    for shell, stderr in (
        (">/dev/full", b"told\n" * 3 + b"done\n"),
        (">&-", b"told\n" * 3 + b"done\n"),
        ("2>/dev/full", b""),
        ("2>&-", b""),
        (">&- 2>&- <&-", b""),
        (">/dev/full 2>&1", b""),
    ):
        for flags in ((), ("-u",)):
            found = run(code, shell, flags)
            assert found[0] == 7, (shell, flags, found)
            assert found[2].replace(lost, b"") == stderr and b"Traceback" not in found[2], (shell, flags)
            assert found[2].count(lost) == (shell == ">/dev/full"), (shell, flags)
            if ">&-" not in shell.replace("2>&-", "") and "full" not in shell.replace("2>/dev/full", ""):
                assert found[1].endswith(b"to the end\n"), (shell, flags)


def test_a_pipe_that_nobody_reads_is_no_error():
    code = """
print("x" * 100_000)
print("y", flush=True)
sys.stderr.write(f"unread: {streams.is_unread()}")
sys.exit(5)
"""
    for flags in ((), ("-u",)):
        found = run(code, "| true; exit ${PIPESTATUS[0]}", flags)
        assert found == (5, b"", b"unread: True")


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


def test_a_pipe_that_is_not_ready_is_waited_for():
    code = "os.set_blocking(1, False)\nfor _ in range(50): print('x' * 9999, flush=True)"
    assert run(code, "| (sleep 0.3; wc -c)")[1].strip() == b"500000"


def test_the_last_words_of_a_process_that_aborts_are_heard():
    """However much noise is kept back before."""
    code = """
from official.io import quiet
with quiet.without_noise():
    os.write(2, b"I0000 00:00:1795384536.594967 22802 x.cc:1] noise\\n" * 1000)
    os.write(2, b"F0000 00:00:1795384536.594967 22802 x.cc:1] Unknown flags\\nno line end")
    os.abort()
"""
    status, _, stderr = run(code)
    assert status == -signal.SIGABRT
    assert b"F0000 00:00:1795384536.594967 22802 x.cc:1] Unknown flags\nno line end" in stderr
    assert b"noise" not in stderr


def test_without_a_process_beside_it_the_noise_is_heard(capfd, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with quiet.without_noise():
        os.write(2, b"I0000 00:00:1795384536.594967 22802 x.cc:1] noise\n")
    assert capfd.readouterr().err.endswith("noise\n")


def test_without_docstrings_tensorflow_is_refused_in_one_line():
    for flags, variables in ((("-OO",), {}), ((), {"PYTHONOPTIMIZE": "2"})):
        code = """
from official.io.errors import ConfigError
for _ in range(2):
    try:
        import tensorflow
    except ConfigError as error:
        print(error)
"""
        status, stdout, _ = run(code, flags=flags, **variables)
        assert status == 0 and stdout.decode().count("PYTHONOPTIMIZE=2 take out the docstrings") == 2, stdout
