"""A training step beside its bounds: what its operations take of the clock, by groups, and what they
would take at the speed of bare matrix products and of the memory."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

from official.config import BertConfig
from official.planning.executed import Asked, Executed
from official.planning.kernels import Product, Work
from official.reporting.profiles import clock, groups
from official.reporting.profiles.groups import Seen, Sizes
from official.reporting.profiles.places import Places
from official.reporting.profiles.trace import ITERATOR, Trace


class Bare(NamedTuple):
    """A matrix product by itself: kernel, type and shape, as in `kernels.Work`."""

    kernel: str
    dtype: str
    product: Product


def _zeros() -> dict:
    return collections.defaultdict(float)


@dataclasses.dataclass
class Group:
    """What the operations of a group take in a step.

    Attributes:
      secs: of the clock.
      count: how many there are.
      bytes: that those read and write, each once, which are no matrix products.
      products: {matrix product: how many}.
      unknown_secs: of `secs`, those of operations of which nothing says what they were asked for.
      types: {type of operation, or compiled function: `secs` of these}.
    """

    secs: float = 0.0
    count: float = 0.0
    bytes: float = 0.0
    products: dict[Bare, float] = dataclasses.field(default_factory=_zeros)
    unknown_secs: float = 0.0
    types: dict[str, float] = dataclasses.field(default_factory=_zeros)

    def add(self, kind: str, secs: float, steps: int, asked: Asked) -> None:
        """Adds an operation of type `kind`; its time and its work are a part of `steps` steps."""
        work = asked.work
        self.secs += secs / steps
        self.count += 1 / steps
        self.unknown_secs += 0 if asked.is_known else secs / steps
        self.types[work.kernel if work.kernel.startswith("compiled ") else kind] += secs / steps
        if work.product is None:
            self.bytes += work.bytes / steps
        else:
            self.products[Bare(work.kernel, work.dtype, work.product)] += 1 / steps

    @property
    def flops(self) -> float:
        """Returns the FLOPs of its matrix products."""
        return sum(bare.product.flops * count for bare, count in self.products.items())

    def bound_secs(self, products: Mapping[Bare, float], bytes_per_sec: float) -> float:
        """Returns the seconds at the speed of bare products and of the memory.

        Args:
          products: {matrix product: seconds of it alone}.
          bytes_per_sec: of the memory.
        """
        secs = sum(products[bare] * count for bare, count in self.products.items())
        return secs + self.bytes / bytes_per_sec


def sizes_of(bert: BertConfig) -> Sizes:
    """Returns the sizes of a model by which its blocks are told apart."""
    return Sizes(bert.hidden_size, bert.intermediate_size, bert.vocab_size)


def add_up(trace: Trace, places: Places, executed: Executed, sizes: Sizes, steps: int) -> dict[str, Group]:
    """Returns {group: what its operations take in a step}, in the order of `groups.GROUPS`; `trace` is of
    `steps` steps on CPUs."""
    operations = [each for each in trace.operations if each.kind != ITERATOR and places.counts(each)]
    found: dict[str, Group] = collections.defaultdict(Group)
    for operation, picoseconds in zip(operations, clock.divide(operations)):
        asked = executed.asked(operation.run, operation.node, operation.kind)
        work = asked.work
        seen = Seen(
            places.of_operation(operation),
            operation.kind,
            work.kernel,
            work.dtype,
            asked.shape,
            work.product.transposed if work.product else "",
        )
        found[groups.group_of(seen, sizes)].add(operation.kind, picoseconds / 1e12, steps, asked)
    return {name: found[name] for name in groups.GROUPS if name in found}


def time_products(
    found: Mapping[str, Group], time: Callable[[Work], float], known: dict[Bare, float]
) -> None:
    """Times all matrix products of some groups.

    Args:
      found: the groups.
      time: (what a product was asked for) -> seconds of it alone.
      known: {matrix product: seconds}; those that are not in it are added.
    """
    for group in found.values():
        for bare in group.products:
            if bare not in known:
                known[bare] = time(Work(bare.kernel, bare.dtype, 0, bare.product))
