"""Bad input: the error, and the phrases that its messages share."""

import difflib


class ConfigError(ValueError):
    """Bad input or configuration. Its message is one line: what, received, allowed, which flag. Exit code 2."""


class PeerError(RuntimeError):
    """Another process of the run was lost, or did not come. Its message is one line. Exit code 4: start all processes again."""


def suggest(name: str, known) -> str:
    """Returns ' (did you mean X?)' for the known name nearest to `name`, or an empty string."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def nearest_multiples(value: int, divisor: int) -> str:
    """Returns the nearest positive multiples of `divisor` around `value`, as text: '440 or 528'."""
    below = value // divisor * divisor
    return f"{below} or {below + divisor}" if below else f"{divisor}"
