"""Jobs that write a folder of files, may be interrupted, and are done once: which of the files are there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from official.io import files, json_files, unfinished
from official.io.errors import ConfigError

MANIFEST = "manifest.json"  # is written last, and says of which job it is
SAMPLES = "samples.json"  # of what a job has made, for people


def write_manifest(folder: str, identity: dict, manifest: dict) -> dict:
    """Writes the manifest of a job that is done, and returns it. `identity` is what makes it this job, JSON
    values."""
    manifest = {**manifest, "job": unfinished.digest(identity)}
    unfinished.write_json(os.path.join(folder, MANIFEST), manifest)
    return manifest


@contextlib.contextmanager
def unfinished_folder(output_dir: str, job: dict, overwrite: bool) -> Iterator[str]:
    """As `unfinished.folder_of`, and an OSError in the block becomes a ConfigError that names the folder."""
    try:
        with unfinished.folder_of(output_dir, job, overwrite) as folder:
            yield folder
    except OSError as error:
        raise ConfigError(
            f"--output_dir={output_dir} cannot be written to: {error.strerror or error}. The same command"
            " goes on with what is not done."
        ) from None


def may_be_finished(folder: str, overwrite: bool) -> bool:
    """Tells whether a folder has the manifest of some finished job that is not to be replaced."""
    return not overwrite and files.is_file(os.path.join(folder, MANIFEST))


def read_manifest(folder: str, identity: dict, overwrite: bool) -> dict | None:
    """Returns the manifest where the same job is done; None where there is none, or it is to be replaced.
    What a done one has left of its work folder is removed.

    Raises:
      ConfigError: where another job's files are there, or some are not there any more.
    """
    if not may_be_finished(folder, overwrite):
        return None
    try:
        manifest = json_files.read_json(os.path.join(folder, MANIFEST))
    except ConfigError as error:
        raise ConfigError(
            f"{error} Give another --output_dir, or make the files anew with --overwrite."
        ) from None
    if manifest.get("job") == unfinished.digest(identity) and are_there(
        folder, manifest.get("file_bytes", {})
    ):
        unfinished.remove_left(folder)
        return manifest
    if "version" in manifest and manifest["version"] != identity.get("version"):
        raise ConfigError(
            f"--output_dir={folder} holds the files of another version of this program"
            f" (version {manifest['version']} in {MANIFEST}, this one is {identity.get('version')}). Give"
            " another --output_dir, or make them anew with --overwrite."
        )
    raise ConfigError(
        f"--output_dir={folder} holds the files of an earlier run with other flags or input, or not all of"
        f" them ({MANIFEST}, ..). Give another --output_dir, or replace them with --overwrite."
    )


def are_there(folder: str, sizes: dict[str, int]) -> bool:
    """Tells whether a folder holds files of these names and sizes in bytes."""
    try:
        found = files.sizes(os.path.join(folder, name) for name in sizes)
    except ConfigError:  # names the one that is not
        return False
    return found == list(sizes.values())
