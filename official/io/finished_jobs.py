"""Jobs that are done: whether the files of a folder are those that a job would make."""

import os

from official.io import json_files, unfinished
from official.io.errors import ConfigError

MANIFEST = "manifest.json"  # is written last, and says of which job it is


def write_manifest(folder: str, identity: dict, manifest: dict) -> dict:
    """Writes the manifest of a job that is done, and returns it. `identity` is what makes it this job, JSON
    values."""
    manifest = manifest | {"job": unfinished.digest(identity)}
    unfinished.write_json(os.path.join(folder, MANIFEST), manifest)
    return manifest


def read_manifest(folder: str, identity: dict, overwrite: bool) -> dict | None:
    """Returns the manifest where the same job is done; None where there is none, or it is to be replaced.

    Raises:
      ConfigError: where another job's files are there, or some are not there any more.
    """
    path = os.path.join(folder, MANIFEST)
    if overwrite or not os.path.exists(path):
        return None
    try:
        manifest = json_files.read_json(path)
    except ConfigError as error:
        raise ConfigError(
            f"{error} Give another --output_dir, or make the files anew with --overwrite."
        ) from None
    if manifest.get("job") == unfinished.digest(identity) and are_there(
        folder, manifest.get("file_bytes", {})
    ):
        return manifest
    raise ConfigError(
        f"--output_dir={folder} holds the files of an earlier run with other flags or input, or not all of"
        f" them ({MANIFEST}, ..). Give another --output_dir, or replace them with --overwrite."
    )


def are_there(folder: str, sizes: dict[str, int]) -> bool:
    """Tells whether a folder holds files of these names and sizes in bytes."""
    paths = {os.path.join(folder, name): size for name, size in sizes.items()}
    return all(os.path.exists(path) and os.path.getsize(path) == size for path, size in paths.items())
