"""The job of `create_pretraining_data`."""

import dataclasses
import functools

from official.data.pretraining.examples import ExampleRules
from official.data.word_pieces.vocabulary import Vocabulary, load_vocabulary
from official.io import engines
from official.io.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Job:
    """A job of making pre-training data; the fields are the flags of the same names."""

    input_files: str
    output_dir: str
    vocab_file: str
    rules: ExampleRules
    sentence_splitting: str = "auto"
    text_field: str = "text"
    record_format: str = "plain"  # with `rules.remask`: "remask"
    pad_position_value: int | None = None
    random_seed: int = 12345
    num_workers: int | None = None
    num_shards: int | None = None
    overwrite: bool = False
    engine: str = "local"
    ray_address: str | None = None
    do_lower_case: bool | None = None
    drop_duplicates: bool = False
    mixture: str | None = None
    eval_share: float | None = None  # of the documents are held out by their text; with `side`
    side: str | None = None  # "train" or "eval": which documents are read; None: all

    def flags(self) -> dict:
        """Returns the flags on which the records depend."""
        flags = dataclasses.asdict(self)
        for name in ("output_dir", "overwrite", *engines.FIELDS):
            del flags[name]
        return flags | flags.pop("rules")


@functools.lru_cache(maxsize=1)
def vocabulary_of(vocab_file: str, sha256: str) -> Vocabulary:
    """Loads the vocabulary of a job, once as long as the file does not change.

    Raises:
      ConfigError: where it is not the one that the job began with.
    """
    words = load_vocabulary(vocab_file)
    if words.sha256 != sha256:
        raise ConfigError(f"--vocab_file={vocab_file} was changed while it was read.")
    return words
