"""Finds the vocabulary that records were made with, from their manifest."""

from __future__ import annotations

import os


def find_vocabulary(path: str | None, first_file: str):
    """Returns the vocabulary of a file, or of records; None where nothing says which it is.

    Args:
      path: of the vocabulary; None: the one that lies beside the records, else the one that manifest.json
        there names, where that is there.
      first_file: of the records.
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
