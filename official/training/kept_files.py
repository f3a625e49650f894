"""What lies in a run's folder because its weights mean nothing without it: vocabulary, names of labels."""

import os

from official.io import writing
from official.io.errors import ConfigError
from official.io.json_files import parse_json

_FLAGS = {"vocab.txt": "vocab_file", "tokenizer_config.json": "do_lower_case", "labels.json": "glue_task"}


def missing(model_dir: str, wanted: dict[str, bytes]) -> dict[str, bytes]:
    """Returns those of {name: content} that are not in the folder of a run.

    Raises:
      ConfigError: where one is there and says something else: the weights there would be of another
        vocabulary, or other labels.
    """
    found = {name: b"".join(writing.read_lines(os.path.join(model_dir, name))) for name in wanted}
    for name, content in found.items():
        if content and not _says_the_same(name, content, wanted[name]):
            flag = _FLAGS[name]
            raise ConfigError(
                f"--{flag} is not that of the run in --model_dir={model_dir}, which keeps its own in {name}."
                f" Change --{flag}, or give another --model_dir; where there is no run, remove {name}."
            )
    return {name: wanted[name] for name, content in found.items() if not content}


def write(model_dir: str, contents: dict[str, bytes]) -> None:
    """Writes files, each whole or not at all. Raises OSError."""
    for name, content in contents.items():
        writing.replace_file(os.path.join(model_dir, name), content)


def _says_the_same(name: str, there: bytes, wanted: bytes) -> bool:
    """Compares text byte by byte, and JSON by the keys that both have: another version may write more."""
    if not name.endswith(".json"):
        return there == wanted
    old, new = parse_json(there, name), parse_json(wanted, name)
    return all(old[key] == new[key] for key in old.keys() & new.keys())
