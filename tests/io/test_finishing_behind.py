"""`workers.finish`: what a task leaves to be done while the next one is at work."""

import threading

import pytest

from official.io import engines

_log: list[str] = []
_second_has_begun = threading.Event()


def _wait_for_the_next(name: str) -> None:
    engines.finish(_end_late, name)


def _end_late(name: str) -> None:
    assert _second_has_begun.wait(10)
    _log.append(name)


def _begin_next(name: str) -> None:
    _second_has_begun.set()
    engines.finish(_log.append, name)


def _fail_behind(name: str) -> None:
    engines.finish(_fail, name)


def _fail(name: str) -> None:
    raise OSError(28, "No space left on device", name)


def _note(name: str) -> None:
    engines.finish(_log.append, name)


@pytest.fixture(autouse=True)
def _empty():
    _log.clear()
    _second_has_begun.clear()


def _run(*tasks) -> None:
    engines.Local(1).run(engines.Round(tasks, len(tasks), 0, "Doing", "items", __name__))


def test_the_next_task_begins_meanwhile_and_the_order_is_kept():
    _run((_wait_for_the_next, "first"), (_begin_next, "second"))
    assert _log == ["first", "second"]


@pytest.mark.parametrize("others", [0, 1, 3])
def test_an_error_behind_a_task_stops_the_round_and_what_was_begun_is_finished(others):
    tasks = [(_note, str(number)) for number in range(others)]
    with pytest.raises(OSError, match="No space left"):
        _run((_fail_behind, "failing"), *tasks)
    assert _log == [str(number) for number in range(min(others, 1))]


def test_without_a_round_it_is_done_at_once():
    _note("now")
    assert _log == ["now"]
