"""The one reader of YAML."""

from typing import Any

from official.io.errors import ConfigError
from official.io.files import open_binary


def read_yaml(path: str, flag: str) -> dict[str, Any]:
    """Reads a YAML file that holds an object.

    Args:
      path: of the file.
      flag: name of the flag that gave the path, for messages.

    Raises:
      ConfigError: where the file cannot be read or is no such YAML.
    """
    import yaml  # late: few commands read it

    source = f"--{flag}={path}"
    try:
        with open_binary(path) as file:
            values = yaml.safe_load(file.read())
    except OSError as error:
        raise ConfigError(f"{source}: {error.strerror or error}.") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{source} is not YAML: {' '.join(str(error).split())[:120]}.") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{source} holds {type(values).__name__}, expected names with keys.")
    return values
