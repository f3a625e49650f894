"""Tasks for the processes of a job: functions of a module that loads in no time."""

import os
import pathlib
import signal
import time


def write_late(folder: str, number: int) -> None:
    """Says at once who is at work, and writes some seconds later."""
    began = pathlib.Path(folder, f"began-{number}")
    began.with_suffix(".tmp").write_text(str(os.getpid()), encoding="utf-8")
    time.sleep(0.05)
    began.with_suffix(".tmp").rename(began)
    time.sleep(5)
    pathlib.Path(folder, f"late-{number}").touch()


def write(folder: str, number: int) -> None:
    pathlib.Path(folder, f"done-{number}").touch()


def kill_itself(folder: str, number: int) -> None:  # pylint: disable=unused-argument
    os.kill(os.getpid(), signal.SIGKILL)


def fail(folder: str, number: int) -> None:
    """Says what is wrong with the third task, as a task does whose input is wrong."""
    from official.io.errors import ConfigError

    write(folder, number)
    if number == 2:
        raise ConfigError(f"{folder} holds nothing for task 2.")
    time.sleep(0.05)
