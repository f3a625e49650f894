"""What is refused, and how: one line for each bad input."""

import re
from collections.abc import Callable, Iterable

from official.io.errors import ConfigError


def assert_refused(call: Callable, cases: Iterable[tuple], kind: type[Exception] = ConfigError) -> None:
    """Asserts that each call ends in an error of one line, which names all that go otherwise.

    Args:
      call: is called with the arguments of each case.
      cases: arguments, and last a regular expression that is found in the message.
      kind: of the error.
    """
    failures = []
    for *arguments, message in cases:
        try:
            told = f"not refused: {call(*arguments)}"
        except kind as error:
            told = str(error)
        if not re.search(message, told) or "\n" in told:
            failures.append(f"{message!r} is expected of {arguments}: {told}")
    assert not failures, "\n".join(failures)
