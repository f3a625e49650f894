"""The queue: what is computed together, what is left out, and that a bad row harms nobody else."""

import asyncio
import threading
import time

import pytest

from official.io.errors import ConfigError
from official.serving.server.batcher import Batcher, Failure
from official.serving.server.protocols import Call
from official.serving.server.settings import HTTPError, Limits

LATER = 20.0  # seconds that are never reached


class Doubles:
    """Doubles numbers; it cannot do so with -1, and breaks at -2."""

    def __init__(self):
        self.batches: list[list[int]] = []
        self.gate, self.entered = threading.Event(), threading.Event()

    def compute(self, name, rows):
        self.entered.set()
        assert self.gate.wait(LATER)
        if -1 in rows:
            raise ConfigError("-1 is no number to double.")
        if -2 in rows:
            raise RuntimeError("secret")
        self.batches.append([name, *rows])
        return [2 * row for row in rows]


def call(*rows, name="double", cost=1) -> Call:
    return Call(name, list(rows), [cost] * len(rows))


def computed(calls: list[Call], late: tuple[int, ...] = (), gone: tuple[int, ...] = (), **limits):
    """Lets calls wait while the model is at work, some of which nobody waits for.

    Returns:
      The results of the calls that are awaited, the batches behind the first one, and the calls' work.
    """

    async def scenario():
        model = Doubles()
        # Its clients never run out.
        batcher = Batcher(Limits(**{"batch_delay_ms": 0.0, **limits}), lambda *_: None, lambda: 1000)
        soon = time.monotonic() + LATER
        first = batcher.submit(model, call(0), soon)
        while not model.entered.is_set():
            await asyncio.sleep(0.001)
        works = [batcher.submit(model, each, 0.0 if n in late else soon) for n, each in enumerate(calls)]
        for number in gone:
            works[number].future.cancel()
        assert batcher.uses(model) and not batcher.uses(Doubles())
        if limits.get("max_queue") == len(calls):
            with pytest.raises(HTTPError, match="too many requests wait") as error:
                batcher.submit(model, call(3), soon)
            assert (error.value.status, error.value.headers) == (429, {"Retry-After": "1"})
        model.gate.set()
        awaited = [first, *(work for n, work in enumerate(works) if n not in (*late, *gone))]
        _, *results = await asyncio.gather(*(work.future for work in awaited), return_exceptions=True)
        assert batcher.close(LATER) and not any(works[number].future.done() for number in late)
        assert model.batches[0] == ["double", 0]
        return (
            results,
            [rows if name == "double" else [name, *rows] for name, *rows in model.batches[1:]],
            works,
        )

    return asyncio.run(scenario())


def test_what_waits_is_computed_together():
    results, batches, works = computed([call(n, name="ab"[n % 2]) for n in range(1, 6)], max_batch_size=8)
    assert results == [[2], [4], [6], [8], [10]], "by signature, and in its order"
    assert batches == [["b", 1, 3, 5], ["a", 2, 4]] and [work.batch for work in works] == [3, 2, 3, 2, 3]

    results, batches, _ = computed([call(*range(6)), call(9)], max_batch_size=4)
    assert results == [[0, 2, 4, 6, 8, 10], [18]], "a long call is cut and leaves room"
    assert batches == [[0, 1, 2, 3], [4, 5, 9]]

    costs = ((1, 99), (2, 6), (3, 5), (4, 4))
    _, batches, _ = computed([call(n, cost=cost) for n, cost in costs], max_batch_tokens=10)
    assert batches == [[1], [2, 4], [3]], "no more tokens than allowed, but one row"

    results, batches, _ = computed([call(n) for n in (1, 2, 3)], late=(0,), gone=(1,))
    assert results == [[6]] and batches == [[3]], "what nobody waits for is not computed"
    assert computed([call(1), call(2)], max_queue=2)[0] == [[2], [4]], "a full queue refuses"


def test_a_bad_row_harms_nobody_else():
    calls = [call(*rows) for rows in ([1, 2], [3, -1], [4], [5])]
    (good, bad, *others), batches, _ = computed(calls, max_batch_size=8)
    assert good == [2, 4] and others == [[8], [10]]
    assert isinstance(bad, HTTPError) and (bad.status, str(bad)) == (400, "-1 is no number to double.")
    assert sorted(row for rows in batches for row in rows) == [1, 2, 3, 4, 5], "nothing is computed twice"

    (broken, good), _, _ = computed([call(-2), call(3)], max_batch_size=1)
    assert isinstance(broken, Failure) and "RuntimeError at" in str(broken) and "secret" not in str(broken)
    assert good == [6]


def test_an_idle_model_waits_for_others_until_all_clients_wait():
    """The delay is longer than the test: only the number of clients can end it."""

    async def scenario(clients):
        model = Doubles()
        model.gate.set()
        batcher = Batcher(Limits(batch_delay_ms=10_000), lambda *_: None, lambda: clients)
        soon = time.monotonic() + LATER
        works = [batcher.submit(model, call(n), soon) for n in range(clients)]
        results = await asyncio.wait_for(asyncio.gather(*(work.future for work in works)), LATER)
        assert results == [[2 * n] for n in range(clients)] and batcher.close(LATER)
        return model.batches

    assert asyncio.run(scenario(1)) == [["double", 0]]
    assert asyncio.run(scenario(3)) == [["double", 0, 1, 2]]
