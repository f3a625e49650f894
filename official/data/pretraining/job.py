"""What `create_pretraining_data` is to make, and how its examples are dealt out to files."""

import dataclasses
import functools

from official.config import ConfigError
from official.data.pretraining.pairs import ExampleRules
from official.data.word_pieces.vocabulary import Vocabulary, load_vocabulary
from official.io import engines


@dataclasses.dataclass(frozen=True)
class Job:
    """What is to be made; the fields are the flags of the same names."""

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

    def flags(self) -> dict:
        """Returns the flags on which the records depend."""
        flags = dataclasses.asdict(self)
        for name in ("output_dir", "overwrite", *engines.FIELDS):
            del flags[name]
        return flags | flags.pop("rules")


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the pools are dealt out to the shards: one of `shards_per_pool` and `pools_per_shard` is 1."""

    num_pools: int
    num_shards: int

    @property
    def shards_per_pool(self) -> int:
        return max(1, self.num_shards // self.num_pools)

    def parts(self, shard: int) -> list[tuple[int, int]]:
        """Returns (pool, part) of which the shard is made; a part is every `shards_per_pool`-th example of a
        pool."""
        if self.num_pools <= self.num_shards:
            return [divmod(shard, self.shards_per_pool)]
        pools_per_shard = self.num_pools // self.num_shards
        return [(pool, 0) for pool in range(shard * pools_per_shard, (shard + 1) * pools_per_shard)]

    def file(self, shard: int) -> str:
        return f"part-{shard:05d}-of-{self.num_shards:05d}.tfrecord"


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
