"""The queue: what is computed together. Bad rows, clients that go and full queues: see test_http."""

import asyncio
import threading
import time

from official.serving.server.batcher import Batcher
from official.serving.server.protocols import Call
from official.serving.server.settings import Limits

LATER = 20.0  # seconds that are never reached


class Doubles:
    """Doubles numbers."""

    def __init__(self):
        self.batches: list[list[int]] = []
        self.gate, self.entered = threading.Event(), threading.Event()

    def compute(self, name, rows):
        self.entered.set()
        assert self.gate.wait(LATER)
        self.batches.append([name, *rows])
        return [2 * row for row in rows]


def call(*rows, name="double", cost=1) -> Call:
    return Call(name, list(rows), [cost] * len(rows))


def computed(calls: list[Call], **limits) -> tuple[list, list, list]:
    """Lets calls wait while the model is at work.

    Returns:
      Their results, the batches behind the first one, and their work.
    """

    async def scenario():
        model = Doubles()
        # Its clients never run out.
        batcher = Batcher(Limits(**{"batch_delay_ms": 0.0, **limits}), lambda *_: None, lambda: 1000)
        first = batcher.submit(model, call(0), time.monotonic() + LATER)
        while not model.entered.is_set():
            await asyncio.sleep(0.001)
        works = [batcher.submit(model, each, time.monotonic() + LATER) for each in calls]
        assert batcher.uses(model) and not batcher.uses(Doubles())
        model.gate.set()
        _, *results = await asyncio.gather(*(work.future for work in (first, *works)))
        assert batcher.close(LATER) and model.batches[0] == ["double", 0]
        batches = [rows if name == "double" else [name, *rows] for name, *rows in model.batches[1:]]
        return results, batches, works

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
