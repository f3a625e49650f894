"""The first import of TensorFlow writes nothing to stderr, and hides nothing but log lines of level INFO."""

import os
import subprocess
import sys

from official.io import quiet
from tests.conftest import ROOT


def test_importing_tensorflow_writes_nothing():
    done = subprocess.run(
        [sys.executable, "-c", "import official, tensorflow"], cwd=ROOT, capture_output=True, check=True
    )
    assert (done.stdout, done.stderr) == (b"", b"")


def test_only_log_lines_are_kept_back(capfd):
    with quiet.without_noise():
        os.write(
            2, b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
        )
        os.write(2, b"I0000 00:00:1795384536.594967   22802 port.cc:153] oneDNN custom operations are on.\n")
        os.write(2, b"E0000 00:00:1795384536.594967   22802 x.cc:1] Something is wrong.\nIllegal instruction")
    assert capfd.readouterr().err == (
        "E0000 00:00:1795384536.594967   22802 x.cc:1] Something is wrong.\nIllegal instruction"
    )


def test_a_package_that_is_loaded_stays_as_it_is():
    before = list(sys.meta_path)
    quiet.prepare_import("os")
    assert sys.meta_path == before


def test_an_error_of_the_import_is_raised_and_its_output_shown(tmp_path):
    (tmp_path / "broken_package.py").write_text(
        "import os\nos.write(2, b'before\\n')\nraise ValueError('no good')\n"
    )
    code = "from official.io import quiet; quiet.prepare_import('broken_package'); import broken_package"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (
        done.returncode == 1 and done.stderr.startswith("before\n") and "ValueError: no good" in done.stderr
    )
