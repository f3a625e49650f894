"""Folders of files that are made once and kept: exports/KEY in the user's cache.

A folder is complete when it has a manifest.json, which says of what it was made and the sha256 of each file.
What does not fit its manifest is made anew. Nothing but time is lost where a folder, or all, are removed.
"""

import hashlib
import json
import os
from collections.abc import Callable
from typing import Any

from official.io import json_files, writing
from official.io.errors import ConfigError

_MANIFEST = "manifest.json"
_BLOCK = 1 << 22  # bytes


def root() -> str:
    """Returns the folder of all."""
    return os.path.join(writing.folder(), "exports")


def folder_of(made_of: dict[str, Any], make: Callable[[str], None]) -> str:
    """Returns a folder with files, which are made where they are not there.

    Two processes may do this at once: both make them, and the first one's count.

    Args:
      made_of: all that the files depend on, as JSON.
      make: writes the files into an empty folder.

    Raises:
      ConfigError: where the folder cannot be written; and what `make` raises.
    """
    key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:24]
    folder = os.path.join(root(), key)
    if is_whole(folder):
        return folder
    with writing.naming_output(folder), writing.unpublished(folder) as work:
        make(work)
        files = {name: _digest(os.path.join(work, name)) for name in sorted(os.listdir(work))}
        manifest = {"made_of": made_of, "sha256": files}
        writing.replace_file(os.path.join(work, _MANIFEST), json.dumps(manifest, indent=1, sort_keys=True))
        if not is_whole(folder):
            writing.publish_all(work, folder, _MANIFEST)
    return folder


def is_whole(folder: str) -> bool:
    """Tells whether all files of a folder are there as they were written."""
    path = os.path.join(folder, _MANIFEST)
    try:
        files = json_files.read_json(path).get("sha256") if os.path.exists(path) else None
        return isinstance(files, dict) and all(
            _digest(os.path.join(folder, name)) == digest for name, digest in files.items()
        )
    except (ConfigError, OSError):
        return False


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
