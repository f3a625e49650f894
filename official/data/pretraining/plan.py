"""Plan of a job that makes pre-training data: its flags, the sources of its text, and the shard of each
document."""

import collections
import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Sequence

import numpy as np

from official.data.pretraining.examples import ExampleRules
from official.data.text import text_files
from official.data.word_pieces.vocabulary import Vocabulary, load_vocabulary
from official.io import engines
from official.io.errors import ConfigError, counted

# -----------------------------------------------------------------------------------------------------------
# Job


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
    eval_share: float | None = None  # share of held-out documents, by a hash of their text; with `side`
    side: str | None = None  # "train" or "eval": the documents to read; None: all
    vocabulary_sha256: str = ""  # not a flag: hash of the vocabulary at the start of the job

    def flags(self) -> dict:
        """Returns the flags that the records depend on."""
        flags = engines.flags_of(self)
        del flags["vocabulary_sha256"]
        return flags | flags.pop("rules")


@functools.lru_cache(maxsize=1)
def vocabulary_of(job: Job) -> Vocabulary:
    """Loads the vocabulary of a job, cached until the file changes.

    Raises:
      ConfigError: if the file changed since the job began.
    """
    words = load_vocabulary(job.vocab_file)
    if words.sha256 != job.vocabulary_sha256:
        raise ConfigError(f"--vocab_file={job.vocab_file} was changed while it was read.")
    return words


# -----------------------------------------------------------------------------------------------------------
# Sources


_NAMED = re.compile(r"([A-Za-z][\w.-]*)=(.*)")
_MAX_PASSES, _MAX_SOURCES = 1 << 15, 256


@dataclasses.dataclass(frozen=True)
class Source:
    """A part of the text.

    Attributes:
      name: name in --mixture; '' without it.
      share: wanted share of the tokens of the records.
      paths: sorted paths of its files.
    """

    name: str
    share: float
    paths: list[str]


def find_sources(job: Job) -> list[Source]:
    """Returns the sources of a job; without --mixture a single one.

    Raises:
      ConfigError: if --input_files and --mixture contradict each other, or a pattern matches no file.
    """
    if job.mixture is None:
        return [Source("", 1.0, text_files.find_texts(job.input_files))]
    shares, patterns = _parse_mixture(job.mixture), _parse_names(job.input_files)
    if shares.keys() != patterns.keys():
        named = f"names the sources {', '.join(shares)}, --input_files names {', '.join(patterns)}"
        both = "Give each source in both: --input_files='NAME=FILES,..' --mixture='NAME=SHARE,..'."
        raise ConfigError(f"--mixture={job.mixture} {named}. {both}")
    found: list[Source] = []
    owners: dict[str, str] = {}
    for name, share in shares.items():
        found.append(Source(name, share, text_files.find_texts(",".join(patterns[name]))))
        for path in found[-1].paths:
            if owners.setdefault(path, name) != name:
                two = f"{path} belongs to two sources, {owners[path]} and {name}"
                raise ConfigError(f"--input_files: {two}. Give it to one of them.")
    return found


def _parse_mixture(mixture: str) -> dict[str, float]:
    shares: dict[str, float] = {}
    for part in mixture.split(","):
        name, _, number = (text.strip() for text in part.partition("="))
        try:
            share = float(number)
        except ValueError:
            share = math.nan
        if not _NAMED.fullmatch(f"{name}=") or name in shares or not 0 < share <= 1:
            what = f"{part!r} is not NAME=SHARE with a new name and a share above 0, up to 1"
            raise ConfigError(f"--mixture={mixture}: {what}. Example: --mixture='books=0.3,wiki=0.7'.")
        shares[name] = share
    if abs(sum(shares.values()) - 1) > 1e-6 or len(shares) > _MAX_SOURCES:
        added = f"the shares of {len(shares)} sources add up to {sum(shares.values()):g}"
        raise ConfigError(f"--mixture={mixture}: {added}, expected 1, of {_MAX_SOURCES} sources at most.")
    return shares


def _parse_names(input_files: str) -> dict[str, list[str]]:
    patterns: dict[str, list[str]] = {}
    name = None
    for part in filter(None, (text.strip() for text in input_files.split(","))):
        if named := _NAMED.fullmatch(part):
            name, part = named[1], named[2]
        if name is None:
            belongs = f"{part} belongs to no source. With --mixture the files of each source follow its name"
            raise ConfigError(f"--input_files={input_files}: {belongs}: NAME=FILES,FILES,NAME=FILES.")
        patterns.setdefault(name, []).append(part)
    return patterns


def copies_of(sources: Sequence[Source], tokens: Sequence[float], dupe_factor: int) -> list[float]:
    """Returns the average number of copies of a document of each source.

    All records together hold `dupe_factor` times the text, in the wanted shares.

    Args:
      tokens: number of tokens of each source, without dropped duplicates.

    Raises:
      ConfigError: for a source without text, or with so little that it would be copied too often.
    """
    for source, own in zip(sources, tokens):
        if not own and source.name:
            none = "no text, or, with --drop_duplicates, only text of the sources before it"
            raise ConfigError(f"--input_files: the files of {source.name} hold {none}.")
    if len(sources) == 1:
        return [float(dupe_factor)]
    copies = [dupe_factor * source.share * sum(tokens) / own for source, own in zip(sources, tokens)]
    if max(copies) > _MAX_PASSES:
        source, most = max(zip(sources, copies), key=lambda pair: pair[1])
        small = f"{source.name} has so little text that it would be copied {most:,.0f} times"
        lower = f"at most {_MAX_PASSES:,} are allowed. Lower its share or --dupe_factor."
        raise ConfigError(f"--mixture={source.name}={source.share:g}: {small}, {lower}")
    return copies


# -----------------------------------------------------------------------------------------------------------
# Layout
#
# A document has a random 64-bit key. The documents in one of P equal ranges of keys are a *pool*: a random
# sample of a few million tokens, from which the second segments of random pairs are drawn. In the order of
# the keys, the documents are cut into as many *slices* as there are files: a slice is several pools, or a
# part of one.
#
# A file holds several passes, one for each copy of a document: pass c of file f is copy c of slice f + c. So
#
# - the copies of a document are in different files, if there are enough files;
# - a reader of several files is in the same pass in all of them, and two copies are about a pass over these
#   files apart. As all passes go through a slice in the same order, quarter by quarter, the distance is more
#   than half a pass.


POOL_TOKENS = 1 << 22  # about 18 MB of English text, some thousand articles
_MAX_PASSES_AT_ONCE = 16  # passes of a slice that are planned together


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Consecutive passes of a file over documents of one pool."""

    pool: int
    passes: tuple[int, ...]  # numbers of the copies
    parts: tuple[int, ...]  # number of the pool's part for each pass


@dataclasses.dataclass(frozen=True)
class Layout:
    """Assignment of documents to pools and shards; the number of pools is a divisor or a multiple of the
    number of shards."""

    num_pools: int
    num_shards: int
    copies: tuple[float, ...]  # average number of copies of a document, for each source

    @property
    def passes(self) -> int:
        return math.ceil(max(self.copies) - 1e-9)

    @property
    def pools_per_slice(self) -> int:
        return max(1, self.num_pools // self.num_shards)

    @property
    def parts_per_pool(self) -> int:
        return max(1, self.num_shards // self.num_pools)

    @property
    def pieces_per_part(self) -> int:
        """Returns the number of pieces of a pool's part; examples are shuffled within a piece."""
        return -(-4 // self.pools_per_slice)  # four pieces per slice

    def stretches(self, shard: int) -> list[Stretch]:
        """Returns the stretches of a file, in order."""
        portions: list[tuple[int, int, int]] = []  # (pool, part of it, number of the pass)
        for number in range(self.passes):
            slice_ = (shard + number) % self.num_shards
            pool, part = divmod(slice_ * self.pools_per_slice, self.parts_per_pool)
            portions += ((pool + more, part, number) for more in range(self.pools_per_slice))
        found = []
        for pool, group in itertools.groupby(portions, key=lambda portion: portion[0]):
            own = list(group)
            for first in range(0, len(own), _MAX_PASSES_AT_ONCE):
                _, parts, passes = zip(*own[first : first + _MAX_PASSES_AT_ONCE])
                found.append(Stretch(pool, passes, parts))
        return found

    def is_in_pass(self, number: int, sources_D: np.ndarray, keys_D: np.ndarray) -> np.ndarray:
        """Returns bool [D]: whether a pass has a copy of each document.

        Every pass has the same share of the documents of a source, chosen by their keys.
        """
        if len(self.copies) == 1:
            return np.ones(len(keys_D), bool)
        rate_D = np.array(self.copies)[sources_D] / self.passes
        mixed_D = keys_D * np.uint64(0x9E3779B97F4A7C15)  # the high bits depend on all bits of a key
        begin_D = (mixed_D >> np.uint64(11)) * 2.0**-53  # uniform, from 0 to 1
        return np.floor((number + 1) * rate_D + begin_D) > np.floor(number * rate_D + begin_D)

    def keys(self, pool: int) -> tuple[int, int]:
        """Returns the first key of a pool and the end, exclusive."""
        return (pool << 64) // self.num_pools, (pool + 1 << 64) // self.num_pools

    def file(self, shard: int) -> str:
        return f"part-{shard:05d}-of-{self.num_shards:05d}.tfrecord"

    @property
    def files(self) -> list[str]:
        return [self.file(shard) for shard in range(self.num_shards)]


def plan_layout(job: Job, text: collections.Counter, copies: Sequence[float]) -> Layout:
    """Chooses the number of pools, a divisor or a multiple of the number of shards, as small as memory
    allows.

    Args:
      text: counts of the text: `kept_documents`, `tokens` and `skipped_lines`.
      copies: average number of copies of a document, for each source.

    Raises:
      ConfigError: if there is too little text for the number of shards.
    """
    num_documents = text["kept_documents"]
    fewest_documents = 2 if job.rules.has_pairs else 1
    if num_documents < fewest_documents:
        lines = text["skipped_lines"]
        skipped = f" ({counted(lines, 'line')} without a text skipped)" if lines else ""
        side = f" on --side={job.side} of --eval_share={job.eval_share}" if job.side else ""
        held = f"--input_files hold {counted(num_documents, 'document')} with text{side}{skipped}"
        why = ": a random next segment comes from another document" if job.rules.has_pairs else ""
        problem = f"{held}, expected at least {fewest_documents}{why}"
        raise ConfigError(f"{problem}. Documents are separated by blank lines.")
    fewest = -(-text["tokens"] // POOL_TOKENS)
    most_shards = int(num_documents * min(copies))
    num_shards = job.num_shards or min(max(8, fewest), most_shards, 8192)
    if num_shards > most_shards:
        limit = f"the {most_shards} examples that {num_documents} documents make at least"
        raise ConfigError(f"--num_shards={num_shards} is more than {limit}. Allowed: 1 to {most_shards}.")
    most = max(1, num_documents // 32)  # at least 32 documents per pool on average
    divisors = [count for count in range(1, min(num_shards, most) + 1) if num_shards % count == 0]
    multiple = min(-(-fewest // num_shards), most // num_shards) * num_shards  # 0: no multiple is allowed
    num_pools = next((count for count in divisors if count >= fewest), max(divisors[-1], multiple))
    return Layout(num_pools, num_shards, tuple(copies))


def parts_of(tokens_D: np.ndarray, parts: int) -> np.ndarray:
    """Cuts consecutive documents into parts of about the same number of tokens; with enough documents, every
    part has at least one.

    Args:
      tokens_D: int, number of tokens of each document, 1 or more.

    Returns:
      int64 [D]: the part of each document, ascending.
    """
    if (count := len(tokens_D)) < parts:
        return np.arange(count) * parts // max(count, 1)
    ends_D = np.cumsum(tokens_D)
    middles_D = 2 * ends_D - tokens_D  # doubled, to be whole numbers
    number = np.arange(1, parts)
    first = np.searchsorted(middles_D, 2 * ends_D[-1] * number / parts)  # first documents of parts 1, 2, ..
    first = np.maximum.accumulate(np.maximum(first, number) - number) + number
    return np.searchsorted(np.minimum(first, count - parts + number), np.arange(count), side="right")


def pieces_of(tokens_D: np.ndarray, part_D: np.ndarray, pieces: int) -> np.ndarray:
    """Cuts every part into pieces of about the same number of tokens. Returns int64 [D]: the number of each
    document's piece in its part."""
    found = np.zeros(len(tokens_D), np.int64)
    bounds = np.flatnonzero(np.diff(part_D, prepend=-1, append=-1))
    for first, end in zip(bounds, bounds[1:]):
        tokens = tokens_D[first:end]
        begins = np.cumsum(tokens) - tokens
        found[first:end] = begins * pieces // max(int(tokens.sum()), 1)
    return found
