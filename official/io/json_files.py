"""Readers of JSON and YAML. A value of the wrong type is a one-line error that names file and value."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from official.io.errors import ConfigError
from official.io.files import read_bytes

# -----------------------------------------------------------------------------------------------------------
# JSON


_KINDS = {
    dict: "an object",
    list: "a list",
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}
_LARGEST = 2**63  # larger whole numbers are refused
_MAX_NODES = 10**6  # of a YAML file, with aliases written out
_REQUIRED = object()

if TYPE_CHECKING:  # only in annotations: Python 3.8 cannot evaluate it
    Kind = type | tuple[type, ...]


def read_json(path: str, flag: str = "", kind: Kind = dict, once: bool = False, any_number: bool = False):
    """Reads a JSON file, of this machine or of a store.

    Args:
      path: of the file.
      flag: name of the flag that gave the path, for messages.
      kind: expected type, or types, of the top-level value: dict, list, ...
      once: whether a repeated key is an error; else the last one counts.
      any_number: numbers of any size are read, as other programs write them; else finite ones of 64 bits.

    Raises:
      ConfigError: if the file cannot be read, is not UTF-8 JSON, or has another type.
    """
    source = f"--{flag}={path}" if flag else path
    return parse_json(read_bytes(path, source), source, kind, once, any_number)


def read_json_or_empty(path: str) -> dict:
    """Reads an object from a cache file: {} if it is missing or damaged."""
    try:
        return read_json(path)
    except ConfigError:
        return {}


def written(values) -> str:
    """Formats values as readable JSON."""
    return json.dumps(values, indent=2) + "\n"


def parse_json(
    content: bytes | str, source: str, kind: Kind = dict, once: bool = False, any_number: bool = False
):
    """Parses JSON; `source` begins the messages. Raises ConfigError as `read_json` does."""
    try:
        values = json.loads(
            content.decode("utf-8-sig") if isinstance(content, bytes) else content,
            parse_constant=float if any_number else _refuse,
            parse_int=_any_whole_number if any_number else _whole_number,
            parse_float=float if any_number else _number,
            object_pairs_hook=with_each_key_once if once else None,
        )
        if _is_too_deep(values):  # later code recurses into every level
            raise RecursionError
    except RecursionError:
        wrong = " that can be used (nested too deeply)"
    except UnicodeDecodeError as error:
        wrong = f" (byte {error.start} is not UTF-8)"
    except json.JSONDecodeError as error:
        wrong = f", line {error.lineno} column {error.colno}: {error.msg}"
    except ValueError as error:
        wrong = f" ({error})"
    else:
        return check_kind(values, kind, source)
    raise ConfigError(f"{source}: not a JSON file{wrong}.")


def with_each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object of JSON. Raises ValueError for a repeated key."""
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice[:60]!r} occurs twice")
    return values


def check_kind(value, kind: Kind, source: str):
    """Returns a value of one of the kinds (see `is_of_kind`). Raises ConfigError for another one."""
    if not is_of_kind(value, kind):
        raise ConfigError(f"{source}: expected {_named(kind)}, got {kind_of(value)}.")
    return value


def expect(values, key: str, kind: Kind, source: str, default=_REQUIRED):
    """Returns values[key], or `default` if the key is missing.

    Args:
      values: a JSON value, which must be an object.
      key: key of the object.
      kind: expected type, or types; float includes whole numbers.
      source: beginning of the messages: the file, and the place in it.
      default: value of a missing key; by default a missing key is an error.

    Raises:
      ConfigError: if `values` is not an object, the key is missing, or its value has another type.
    """
    if not isinstance(values, dict):
        raise ConfigError(f'{source}: expected an object with "{key}", got {kind_of(values)}.')
    if key not in values:
        if default is _REQUIRED:
            raise ConfigError(f'{source} has no "{key}".')
        return default
    if not is_of_kind(values[key], kind):
        raise ConfigError(f'{source}: "{key}" is {kind_of(values[key])}, expected {_named(kind)}.')
    return values[key]


def is_of_kind(value, kind: Kind) -> bool:
    """Tells whether a value has one of the types: true is not a number, and an int is also a float."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return type(value) in kinds or type(value) is int and float in kinds


def kind_of(value) -> str:
    """Returns the kind of a JSON value, in words."""
    return _KINDS.get(type(value), f"{value!s:.40}")  # others are of YAML, such as dates


def _named(kind: Kind) -> str:
    return " or ".join(_KINDS[one] for one in (kind if isinstance(kind, tuple) else (kind,)))


def _is_too_deep(values, deepest: int = 64) -> bool:
    inner = values.values() if isinstance(values, dict) else values if isinstance(values, list) else ()
    return deepest < 0 or any(
        _is_too_deep(each, deepest - 1) for each in inner if isinstance(each, (dict, list))
    )


def _num_nodes(node: Any, known: dict[Any, int]) -> int:
    """Returns the number of values of a node of YAML, with aliases written out; `known` stores it by node."""
    if node not in known:
        known[node] = 1  # of a node within itself, which is refused later
        parts = node.value if isinstance(getattr(node, "value", None), list) else ()
        inner = itertools.chain.from_iterable(each if isinstance(each, tuple) else [each] for each in parts)
        known[node] = 1 + sum(_num_nodes(each, known) for each in inner)
    return known[node]


def _refuse(constant: str):
    raise ValueError(f"{constant} is no JSON number")


def _whole_number(digits: str) -> int:
    # Python's own error for thousands of digits does not name the JSON value.
    number = int(digits) if len(digits) < 25 else _LARGEST
    if not -_LARGEST < number < _LARGEST:
        raise ValueError(f"{digits[:25]}{'..' * (len(digits) > 25)} is too large a number")
    return number


def _any_whole_number(digits: str) -> int | float:
    return int(digits) if len(digits) < 4000 else float(digits)  # Python's limit of digits


def _number(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:25]} is too large a number")
    return number


# -----------------------------------------------------------------------------------------------------------
# YAML


def read_yaml(path: str, flag: str) -> dict[str, Any]:
    """Reads a YAML file that holds an object.

    Args:
      path: of the file.
      flag: name of the flag that gave the path, for messages.

    Raises:
      ConfigError: where the file cannot be read, is no such YAML, or has a key twice.
    """
    import yaml  # late: few commands read it

    class Loader(yaml.SafeLoader):
        """A loader that refuses repeated keys, of which YAML's own takes the last one."""

        def construct_mapping(self, node, deep=False):
            pairs = node.value if isinstance(node, yaml.MappingNode) else ()
            for key, number in Counter(str(key.value) for key, _ in pairs).items():
                if number > 1:
                    raise ConfigError(f"{source}: the key {key!r} occurs twice.")
            return super().construct_mapping(node, deep)

        def get_single_node(self):
            node = super().get_single_node()
            if _num_nodes(node, {}) > _MAX_NODES:  # a few lines of aliases of aliases are billions
                raise ConfigError(f"{source}: its aliases (*name) stand for over {_MAX_NODES:,} values.")
            return node

    source = f"--{flag}={path}"
    try:
        values = yaml.load(read_bytes(path, source), Loader)
        if _is_too_deep(values):  # such as a list that is in itself
            raise ValueError("nested too deeply")
    except ConfigError:
        raise
    # A date without such a day, !!bool maybe, !!timestamp x: the loader raises what Python does.
    except (yaml.YAMLError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{source} is not YAML: {' '.join(str(error).split())[:120]}.") from None
    if values is None:
        raise ConfigError(f"{source} is empty, expected names with keys.")
    if not isinstance(values, dict):
        raise ConfigError(f"{source} holds {kind_of(values)}, expected names with keys.")
    return values
