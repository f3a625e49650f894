"""Every command with streams that are full, closed or not read: it ends as it does with plain ones."""

import pytest

from tests import programs


def wrong(folder, *flags: str) -> str:
    """Returns what `stream_table` finds, a line each."""
    done = programs.run("-m", "tests.stream_table", str(folder), *flags)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_command_that_has_finished_ends_with_0(tmp_path):
    assert wrong(tmp_path) == ""


@pytest.mark.slow
def test_of_whatever_input_a_command_ends_as_with_plain_streams(tmp_path):
    assert wrong(tmp_path, "--whole") == ""
