"""The one reader of YAML."""

from __future__ import annotations

from typing import Any

from official.io.errors import ConfigError
from official.io.files import open_binary
from official.io.json_files import kind_of


def read_yaml(path: str, flag: str) -> dict[str, Any]:
    """Reads a YAML file that holds an object.

    Args:
      path: of the file.
      flag: name of the flag that gave the path, for messages.

    Raises:
      ConfigError: where the file cannot be read, is no such YAML, or has a key twice.
    """
    import yaml  # late: few commands read it

    source = f"--{flag}={path}"
    try:
        with open_binary(path) as file:
            content = file.read()
        repeated = _repeated_key(yaml.compose(content, yaml.SafeLoader))
        values = yaml.safe_load(content)
    except OSError as error:
        raise ConfigError(f"{source}: {error.strerror or error}.") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{source} is not YAML: {' '.join(str(error).split())[:120]}.") from None
    if values is None:
        raise ConfigError(f"{source} is empty, expected names with keys.")
    if not isinstance(values, dict):
        raise ConfigError(f"{source} holds {kind_of(values)}, expected names with keys.")
    if repeated:
        raise ConfigError(f"{source}: the key {repeated!r} is there twice.")
    return values


def _repeated_key(root: Any) -> str | None:
    """Returns a key that one of the objects under a node of YAML has twice; a reader would take the last one
    and say nothing."""
    nodes, seen = [root], set()
    while nodes:
        node = nodes.pop()
        if id(node) in seen or not isinstance(getattr(node, "value", None), list):
            continue
        seen.add(id(node))
        pairs = [pair for pair in node.value if isinstance(pair, tuple)]
        keys = [str(key.value) for key, _ in pairs]
        for key in keys:
            if keys.count(key) > 1:
                return key
        nodes += [value for _, value in pairs] or node.value
    return None
