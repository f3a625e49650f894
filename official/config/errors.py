"""Bad input: the error, and the phrases that its messages share."""

import difflib
import json


class ConfigError(ValueError):
    """Bad input or configuration. Its message is one line: what, received, allowed, which flag. Exit code 2."""


def suggest(name: str, known) -> str:
    """Returns ' (did you mean X?)' for the known name nearest to `name`, or an empty string."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def nearest_multiples(value: int, divisor: int) -> str:
    """Returns the nearest positive multiples of `divisor` around `value`, as text: '440 or 528'."""
    below = value // divisor * divisor
    return f"{below} or {below + divisor}" if below else f"{divisor}"


def read_json(path: str, flag: str) -> dict:
    """Reads a JSON object. Raises ConfigError naming the flag that gave the path."""
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
    except OSError as error:
        raise ConfigError(f"--{flag}={path}: {error.strerror or error}.") from None
    except ValueError as error:
        raise ConfigError(f"--{flag}={path}: not a JSON file ({error}).") from None
    if not isinstance(values, dict):
        raise ConfigError(f"--{flag}={path}: expected a JSON object, got a {type(values).__name__}.")
    return values
