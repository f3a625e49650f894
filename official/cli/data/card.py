"""The data card that jobs write beside their manifest, and `bert data inspect --report_page` anywhere."""

from __future__ import annotations

import dataclasses
import os

from official.cli import outputs
from official.cli.data.vocabularies import find_vocabulary
from official.io import files, jobs, json_files
from official.reporting import data_card


def write_beside(folder: str, paths: list[str]) -> None:
    """Writes FOLDER/speed.json and FOLDER/report.html about a job that is done, and says so; nothing where
    the job was done before and its page is there, newer than its manifest.

    Args:
      folder: of the job.
      paths: its files of records; none for text.
    """
    rounds, path = jobs.take_rounds(), data_card.path_in(folder)
    if files.is_remote(folder):
        print(f"data card: bert data inspect {folder} --report_page=card.html makes one.")
        return
    manifest = os.path.join(folder, jobs.MANIFEST)
    if not rounds and os.path.exists(path) and os.path.getmtime(path) >= os.path.getmtime(manifest):
        return
    if rounds:
        speed = {"rounds": [dataclasses.asdict(found) for found in rounds]}
        outputs.write_json(os.path.join(folder, jobs.FILE_NAME), speed)
    write(path, folder, paths)
    print(f"data card: {path}")


def write(path: str, folder: str, paths: list[str], summary=None, vocab_file: str | None = None) -> None:
    """Writes the page about a folder, or about files in it.

    Args:
      path: of the page.
      folder: where the manifest is, if there is one.
      paths: files of records.
      summary: of all of them, where they have been counted.
      vocab_file: of the records; None: that of the manifest.
    """
    from official.data.pretraining import card  # late: it loads NumPy

    vocabulary = find_vocabulary(vocab_file, os.path.join(folder, "any"))
    manifest = json_files.read_json_or_empty(os.path.join(folder, jobs.MANIFEST))
    if (
        vocabulary
        and not vocab_file
        and manifest.get("vocabulary_sha256", vocabulary.sha256) != vocabulary.sha256
    ):
        vocabulary = None  # the file was changed since
    page = data_card.render(card.gather(folder, paths, vocabulary, summary))
    outputs.write_file(path, page.encode("utf-8", "replace"))  # names of files may be no UTF-8
