"""Assignment of documents to pools, and of their copies to files.

A document has a random 64-bit key. Documents whose keys lie in one of P equal ranges are a *pool*: a sample
of all of them, of a few million tokens, from which the second segments of random pairs come. In the order of
the keys the documents are cut into as many *slices* as there are files: a slice is some pools, or a part of
one.

A file holds, one after the other, a pass over one slice for each copy of a document: in pass c file f holds
copy c of slice f + c. So

  - the copies of a document lie in different files, as long as there are files enough;
  - whoever reads files side by side is in the same pass in all of them, and between two copies lies about a
    pass over these files. As the passes go through a slice in the same order, quarter by quarter, it is more
    than half of one.
"""

import collections
import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np

from official.data.pretraining.job import Job
from official.io.errors import ConfigError, counted

POOL_TOKENS = 1 << 22  # about 18 MB of English text, some thousand articles
_FEWEST_POOL_DOCUMENTS = 32  # on average
_FEWEST_SHARDS_UNASKED, _MOST_SHARDS_UNASKED = 8, 8192
_PIECES = 4  # of a slice; the examples of one are shuffled
_MOST_PASSES_AT_ONCE = 16  # of a slice are planned together
_KEYS = 1 << 64
_MIXED = np.uint64(0x9E3779B97F4A7C15)  # a product with it has high bits that depend on all bits of a key


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Passes of a file, one after the other, whose documents lie in one pool."""

    pool: int
    passes: tuple[int, ...]  # numbers of the copies
    parts: tuple[int, ...]  # of the pool, one for each pass


@dataclasses.dataclass(frozen=True)
class Layout:
    """Assignment of documents to pools and shards; the number of pools divides that of shards, or is a
    multiple of it."""

    num_pools: int
    num_shards: int
    copies: tuple[float, ...]  # of the documents of each source, on average

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
        """Returns the number of pieces of the part of a pool; examples are shuffled in a piece."""
        return -(-_PIECES // self.pools_per_slice)

    def stretches(self, shard: int) -> list[Stretch]:
        """Returns the stretches that a file is made of, in order."""
        portions = []
        for number in range(self.passes):
            slice_ = (shard + number) % self.num_shards
            first = slice_ * self.pools_per_slice
            if self.parts_per_pool > 1:
                portions.append((*divmod(slice_, self.parts_per_pool), number))
            else:
                portions += [(pool, 0, number) for pool in range(first, first + self.pools_per_slice)]
        found = []
        for pool, group in itertools.groupby(portions, key=lambda portion: portion[0]):
            own = list(group)
            for first in range(0, len(own), _MOST_PASSES_AT_ONCE):
                _, parts, passes = zip(*own[first : first + _MOST_PASSES_AT_ONCE])
                found.append(Stretch(pool, passes, parts))
        return found

    def is_in_pass(self, number: int, sources_D: np.ndarray, keys_D: np.ndarray) -> np.ndarray:
        """Returns bool [D]: whether a copy of each document is in a pass.

        Every pass has the same share of the documents of a source; which ones follows from their keys.
        """
        if len(self.copies) == 1:
            return np.ones(len(keys_D), bool)
        rate_D = np.array(self.copies)[sources_D] / self.passes
        begin_D = (keys_D * _MIXED >> np.uint64(11)) * 2.0**-53  # even, from 0 to 1
        return np.floor((number + 1) * rate_D + begin_D) > np.floor(number * rate_D + begin_D)

    def keys(self, pool: int) -> tuple[int, int]:
        """Returns the first key of a pool and the one behind its last."""
        return pool * _KEYS // self.num_pools, (pool + 1) * _KEYS // self.num_pools

    def file(self, shard: int) -> str:
        return f"part-{shard:05d}-of-{self.num_shards:05d}.tfrecord"

    @property
    def files(self) -> list[str]:
        return [self.file(shard) for shard in range(self.num_shards)]


def plan_layout(job: Job, text: collections.Counter, copies: Sequence[float]) -> Layout:
    """Chooses the number of pools: one that divides the number of shards or is a multiple of it, as small as
    memory allows.

    Args:
      text: counts of it, `kept_documents`, `tokens` and `skipped_lines`.
      copies: of the documents of each source, on average.

    Raises:
      ConfigError: where there is too little text, or more files are asked for than it fills.
    """
    num_documents = text["kept_documents"]
    if num_documents < 2:
        lines = counted(text["skipped_lines"], "line")
        skipped = f" ({lines} without a text skipped)" if text["skipped_lines"] else ""
        side = f" on --side={job.side} of --eval_share={job.eval_share}" if job.side else ""
        raise ConfigError(
            f"--input_files hold {counted(num_documents, 'document')} with text{side}{skipped}, expected at"
            " least 2: a random next segment comes from another document. Documents are separated by"
            " blank lines."
        )
    fewest = -(-text["tokens"] // POOL_TOKENS)
    most_shards = int(num_documents * min(copies))
    num_shards = job.num_shards or min(max(_FEWEST_SHARDS_UNASKED, fewest), most_shards, _MOST_SHARDS_UNASKED)
    if num_shards > most_shards:
        raise ConfigError(
            f"--num_shards={num_shards} is more than the {most_shards} examples that {num_documents}"
            f" documents make at least. Allowed: 1 to {most_shards}."
        )
    most = max(1, num_documents // _FEWEST_POOL_DOCUMENTS)
    divisors = [count for count in range(1, min(num_shards, most) + 1) if num_shards % count == 0]
    multiple = min(-(-fewest // num_shards), most // num_shards) * num_shards  # 0: none is allowed
    num_pools = next((count for count in divisors if count >= fewest), max(divisors[-1], multiple))
    return Layout(num_pools, num_shards, tuple(copies))


def parts_of(tokens_D: np.ndarray, parts: int) -> np.ndarray:
    """Cuts documents that lie in a row into parts of about as many tokens each; where there are documents
    enough, every part has one at least.

    Args:
      tokens_D: int, of each document, 1 or more.

    Returns:
      int64 [D]: the part of each document, ascending.
    """
    count = len(tokens_D)
    if count < parts:
        return np.arange(count) * parts // count if count else np.arange(0)
    ends_D = np.cumsum(tokens_D)
    middles_D = 2 * ends_D - tokens_D  # twice, so that they are whole numbers
    first = np.searchsorted(middles_D, 2 * ends_D[-1] * np.arange(1, parts) / parts)  # of parts 1, 2, ..
    number = np.arange(1, parts)
    first = np.maximum.accumulate(np.maximum(first, number) - number) + number
    first = np.minimum(first, count - parts + number)
    return np.searchsorted(first, np.arange(count), side="right")


def pieces_of(tokens_D: np.ndarray, part_D: np.ndarray, pieces: int) -> np.ndarray:
    """Cuts every part into pieces of about as many tokens each. Returns int64 [D]: the piece in its part."""
    found = np.zeros(len(tokens_D), np.int64)
    bounds = np.flatnonzero(np.diff(part_D, prepend=-1, append=-1))
    for first, end in zip(bounds, bounds[1:]):
        tokens = tokens_D[first:end]
        begins = np.cumsum(tokens) - tokens
        found[first:end] = begins * pieces // max(int(tokens.sum()), 1)
    return found
