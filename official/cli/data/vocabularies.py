"""Finds the vocabulary that records were made with, from their manifest."""

from __future__ import annotations

import os


def find_vocabulary(path: str | None, first_file: str):
    """Returns the vocabulary of a file, or of records; None where it is unknown.

    Args:
      path: path of the vocabulary; None: the one beside the records, else the one named in their
        manifest.json, where that file exists.
      first_file: path of the first file of records.
    """
    from official.data.word_pieces import vocabulary
    from official.io import files, json_files, record_paths

    manifest, do_lower_case = os.path.join(os.path.dirname(first_file), "manifest.json"), None
    beside = record_paths.find_vocabulary([first_file])
    if path is None and files.is_file(manifest):
        given = json_files.expect(json_files.read_json(manifest), "flags", dict, manifest, default={})
        path = json_files.expect(given, "vocab_file", (str, type(None)), f"{manifest}: flags", default=None)
        path = beside or (path if path and files.is_file(path) else None)
        do_lower_case = given.get("do_lower_case")
    path = path or beside
    if not path:
        return None
    if isinstance(do_lower_case, bool):
        return vocabulary.load_for_text(path, do_lower_case)
    return vocabulary.load_vocabulary(path)
