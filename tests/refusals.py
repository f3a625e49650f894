"""What is refused, and how: one line for each bad input."""

import re
from collections.abc import Callable, Iterable

from official.io.errors import ConfigError
from tests.fixtures import ROOT


def assert_refused(call: Callable, cases: Iterable[tuple], kind: type[Exception] = ConfigError) -> None:
    """Asserts that each call ends in an error of one line, which names all that go otherwise.

    Args:
      call: is called with the arguments of each case.
      cases: arguments, and last what the message holds: words, or a regular expression.
      kind: of the error.
    """
    failures = []
    for *arguments, message in cases:
        try:
            told = f"not refused: {call(*arguments)}"
        except kind as error:
            told = str(error)
        if "\n" in told or not (message in told or re.search(message, told)):
            failures.append(f"{message!r} is expected of {arguments}: {told}")
    assert not failures, "\n".join(failures)


def refused(file: str) -> list[list[str]]:
    """Returns [input, what the message holds] of the lines of a file of tests/, which has ` => ` between the
    two, and comments."""
    lines = (ROOT / "tests" / file).read_text(encoding="utf-8").splitlines()
    return [line.split(" => ") for line in lines if not line.startswith("#")]
