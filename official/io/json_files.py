"""The one reader of JSON. What is not strict JSON of the wanted type ends in one line that names where it came from."""

import json

from official.io.errors import ConfigError
from official.io.files import is_remote, tensorflow_files

_NAMES = {dict: "object", list: "array", str: "string", int: "integer", float: "number", bool: "truth value", type(None): "null"}


def read_json(path: str, flag: str = "", kind: type | tuple[type, ...] = dict):
    """Reads a JSON file, of this machine or of a store.

    Args:
      path: of the file.
      flag: name of the flag that gave the path, for messages.
      kind: the type, or types, that the whole has to be of: dict, list, ...

    Raises:
      ConfigError: where the file cannot be read, is no JSON in UTF-8, or of another type.
    """
    source = f"--{flag}={path}" if flag else path
    try:
        if is_remote(path):
            with tensorflow_files(path) as gfile, gfile.GFile(path, "rb") as file:
                content = file.read()
        else:
            with open(path, "rb") as file:
                content = file.read()
    except OSError as error:
        raise ConfigError(f"{source}: {error.strerror or error}.") from None
    return parse_json(content, source, kind)


def parse_json(content: bytes | str, source: str, kind: type | tuple[type, ...] = dict):
    """Parses JSON; `source` begins the messages. Raises ConfigError as `read_json` does."""
    try:
        values = json.loads(content.decode("utf-8-sig") if isinstance(content, bytes) else content, parse_constant=_refuse)
    except RecursionError:
        raise ConfigError(f"{source}: not a JSON file (nested too deep).") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: not a JSON file (byte {error.start} is not UTF-8).") from None
    except ValueError as error:
        raise ConfigError(f"{source}: not a JSON file ({str(error).splitlines()[0][:100]}).") from None
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not any(type(values) is one for one in kinds):
        raise ConfigError(f"{source}: expected a JSON {' or '.join(_NAMES[one] for one in kinds)}, got {_described(values)}.")
    return values


def _refuse(constant: str):
    raise ValueError(f"{constant} is no JSON number")


def _described(values) -> str:
    name = _NAMES[type(values)]
    return f"{'an' if name[0] in 'aeio' else 'a'} {name}" if values is not None else name
