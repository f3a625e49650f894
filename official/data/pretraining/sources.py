"""Sources of the text: files of one source, or of several that are mixed in given shares."""

import dataclasses
import math
import re
from collections.abc import Sequence

from official.data.pretraining.job import Job
from official.io import files
from official.io.errors import ConfigError

_NAMED = re.compile(r"([A-Za-z][\w.-]*)=(.*)")
_MOST_PASSES = 1 << 15
_MOST_SOURCES = 256


@dataclasses.dataclass(frozen=True)
class Source:
    """A part of the text.

    Attributes:
      name: '' where there is one source without a name.
      share: of the tokens of the records that it is to have.
      paths: its files, sorted.
    """

    name: str
    share: float
    paths: list[str]


def find_sources(job: Job) -> list[Source]:
    """Returns the sources of a job; without --mixture it is one.

    Raises:
      ConfigError: where --input_files and --mixture do not go together, or a pattern stands for no file.
    """
    if job.mixture is None:
        return [Source("", 1.0, files.find_files(job.input_files, "input_files"))]
    shares, patterns = _parse_mixture(job.mixture), _parse_names(job.input_files)
    if shares.keys() != patterns.keys():
        raise ConfigError(
            f"--mixture={job.mixture} names the sources {', '.join(shares)}, --input_files names"
            f" {', '.join(patterns)}. Give each source in both: --input_files='NAME=FILES,..'"
            " --mixture='NAME=SHARE,..'."
        )
    found = [
        Source(name, share, files.find_files(",".join(patterns[name]), "input_files"))
        for name, share in shares.items()
    ]
    owners: dict[str, str] = {}
    for source in found:
        for path in source.paths:
            if owners.setdefault(path, source.name) != source.name:
                raise ConfigError(
                    f"--input_files: {path} belongs to two sources, {owners[path]} and {source.name}. Give it"
                    " to one of them."
                )
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
            raise ConfigError(
                f"--mixture={mixture}: {part!r} is no NAME=SHARE with a new name and a share above 0, up"
                " to 1. Example: --mixture='books=0.3,wiki=0.7'."
            )
        shares[name] = share
    if abs(sum(shares.values()) - 1) > 1e-6 or len(shares) > _MOST_SOURCES:
        raise ConfigError(
            f"--mixture={mixture}: the shares of {len(shares)} sources add up to {sum(shares.values()):g},"
            f" expected 1, of {_MOST_SOURCES} sources at most."
        )
    return shares


def _parse_names(input_files: str) -> dict[str, list[str]]:
    patterns: dict[str, list[str]] = {}
    name = None
    for part in filter(None, (text.strip() for text in input_files.split(","))):
        if named := _NAMED.fullmatch(part):
            name, part = named[1], named[2]
        if name is None:
            raise ConfigError(
                f"--input_files={input_files}: {part} belongs to no source. With --mixture the files of each"
                " source stand behind its name: NAME=FILES,FILES,NAME=FILES."
            )
        patterns.setdefault(name, []).append(part)
    return patterns


def copies_of(sources: Sequence[Source], tokens: Sequence[float], dupe_factor: int) -> list[float]:
    """Returns the average number of copies of a document of each source.

    All records together hold `dupe_factor` times the text, with the shares that are wanted.

    Args:
      tokens: of each source, without duplicates that are dropped.

    Raises:
      ConfigError: for a source without text, or one that would have to be copied too often.
    """
    for source, own in zip(sources, tokens):
        if not own and source.name:
            raise ConfigError(
                f"--input_files: the files of {source.name} hold no text, or with --drop_duplicates none that"
                " is not in a source before it."
            )
    if len(sources) == 1:
        return [float(dupe_factor)]
    copies = [dupe_factor * source.share * sum(tokens) / own for source, own in zip(sources, tokens)]
    if max(copies) > _MOST_PASSES:
        source, most = max(zip(sources, copies), key=lambda pair: pair[1])
        raise ConfigError(
            f"--mixture={source.name}={source.share:g}: {source.name} is so small a part of the text that it"
            f" would be copied {most:,.0f} times, {_MOST_PASSES:,} are allowed. Lower its share or"
            " --dupe_factor."
        )
    return copies
