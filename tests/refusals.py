"""Refusals: bad input ends in one line that says what is wrong."""

from collections.abc import Callable, Iterable

from official.io.errors import ConfigError


def assert_refused(call: Callable, cases: Iterable[tuple]) -> None:
    """Checks of each case, (argument, ..., message), that `call(argument, ...)` raises a ConfigError of one
    line which holds the message."""
    wrong = []
    for *arguments, message in cases:
        try:
            call(*arguments)
            wrong.append((arguments, "is not refused"))
        except ConfigError as error:
            if message not in str(error) or "\n" in str(error):
                wrong.append((arguments, str(error)))
    assert not wrong
