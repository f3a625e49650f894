"""Where what belongs to a user and a machine is kept between runs: what was measured, what was exported."""

import os


def folder() -> str:
    """Returns the folder: $BERT_CACHE_DIR, else bert-tf2 in $XDG_CACHE_HOME, else in ~/.cache."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("BERT_CACHE_DIR") or os.path.join(caches, "bert-tf2")
