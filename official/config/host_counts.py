"""The numbers of hosts of --plan_hosts. No TensorFlow."""

from __future__ import annotations

import re

from official.io.errors import ConfigError

_MOST_HOSTS, _MOST_COUNTS = 10**6, 64


def read(text: str) -> tuple[int, ...]:
    """Returns the numbers of hosts that a text names, rising.

    Args:
      text: numbers and ranges, comma-separated. 1..4096 is 1, 2, 4 and so on, doubled up to 4096, which is
        always one of them.

    Raises:
      ConfigError: for what is no such list, or too long.
    """
    counts: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,9})\s*(?:\.\.\s*(\d{1,9})\s*)?", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 0 < first <= last <= _MOST_HOSTS:
            raise ConfigError(
                f"plan_hosts={text[:100]}: {part.strip()[:40]!r} is no number of hosts and no range, such as"
                f" 1..4096, from 1 to {_MOST_HOSTS:,}. Change --plan_hosts."
            )
        counts |= {first << doubled for doubled in range((last // first).bit_length())} | {last}
    if len(counts) > _MOST_COUNTS:
        raise ConfigError(
            f"plan_hosts={text[:100]} names {len(counts)} numbers of hosts, {_MOST_COUNTS} at most. Shorten"
            " --plan_hosts."
        )
    return tuple(sorted(counts))
