"""The queue: what is computed together, what is left out, and that a bad row harms nobody else."""

import asyncio
import contextlib
import threading
import time

import pytest

from official.io.errors import ConfigError
from official.serving.server.batcher import Batcher, Failure
from official.serving.server.calls import Call
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


def quiet(name, sequences, secs):
    pass


@contextlib.contextmanager
def batching(**limits):
    """Runs a batcher whose clients never run out."""
    model = Doubles()
    batcher = Batcher(Limits(**{"batch_delay_ms": 0.0, **limits}), quiet, lambda: 1000)
    try:
        yield batcher, model
    finally:
        model.gate.set()
        assert batcher.close(LATER)


def call(*rows, name="double", cost=1) -> Call:
    return Call(name, list(rows), [cost] * len(rows))


def soon() -> float:
    return time.monotonic() + LATER


async def behind(batcher, model):
    """Lets the model be at work, so that what comes waits. Returns what it works at."""
    first = batcher.submit(model, call(0), soon())
    while not model.entered.is_set():
        await asyncio.sleep(0.001)
    return first


async def results(works) -> list:
    return await asyncio.gather(*(work.future for work in works), return_exceptions=True)


def test_what_waits_is_computed_together_by_signature_and_in_its_order():
    async def scenario():
        with batching(max_batch_size=8) as (batcher, model):
            first = await behind(batcher, model)
            works = [batcher.submit(model, call(n, name="ab"[n % 2]), soon()) for n in range(1, 6)]
            model.gate.set()
            assert await results([first, *works]) == [[0], [2], [4], [6], [8], [10]]
            assert model.batches == [["double", 0], ["b", 1, 3, 5], ["a", 2, 4]]
            assert [work.batch for work in works] == [3, 2, 3, 2, 3]

    asyncio.run(scenario())


def test_long_calls_are_cut_and_leave_room():
    async def scenario():
        with batching(max_batch_size=4) as (batcher, model):
            await behind(batcher, model)
            long, short = (batcher.submit(model, call(*rows), soon()) for rows in (range(6), [9]))
            model.gate.set()
            assert await results([long, short]) == [[0, 2, 4, 6, 8, 10], [18]]
            assert model.batches[1:] == [["double", 0, 1, 2, 3], ["double", 4, 5, 9]]

    asyncio.run(scenario())


def test_batches_have_no_more_tokens_than_allowed_but_one_row():
    async def scenario():
        with batching(max_batch_tokens=10) as (batcher, model):
            await behind(batcher, model)
            works = [
                batcher.submit(model, call(n, cost=cost), soon())
                for n, cost in ((1, 99), (2, 6), (3, 5), (4, 4))
            ]
            model.gate.set()
            await results(works)
            assert model.batches[1:] == [["double", 1], ["double", 2, 4], ["double", 3]]

    asyncio.run(scenario())


def test_a_bad_row_is_told_to_its_own_caller_and_nothing_is_computed_twice():
    async def scenario():
        with batching(max_batch_size=8) as (batcher, model):
            await behind(batcher, model)
            works = [batcher.submit(model, call(*rows), soon()) for rows in ([1, 2], [3, -1], [4], [5])]
            model.gate.set()
            good, bad, *others = await results(works)
            assert good == [2, 4] and others == [[8], [10]]
            assert isinstance(bad, HTTPError) and (bad.status, str(bad)) == (
                400,
                "-1 is no number to double.",
            )
            computed = [row for _, *rows in model.batches[1:] for row in rows]
            assert sorted(computed) == [1, 2, 3, 4, 5]

    asyncio.run(scenario())


def test_a_model_that_breaks_goes_on_and_says_nothing_of_a_request():
    async def scenario():
        with batching() as (batcher, model):
            model.gate.set()
            (broken,) = await results([batcher.submit(model, call(-2), soon())])
            assert (
                isinstance(broken, Failure)
                and "RuntimeError at" in str(broken)
                and "secret" not in str(broken)
            )
            assert await results([batcher.submit(model, call(3), soon())]) == [[6]]

    asyncio.run(scenario())


def test_what_nobody_waits_for_is_not_computed():
    async def scenario():
        with batching() as (batcher, model):
            await behind(batcher, model)
            late = batcher.submit(model, call(1), time.monotonic() - 1)
            gone, there = (batcher.submit(model, call(n), soon()) for n in (2, 3))
            gone.future.cancel()
            model.gate.set()
            assert await results([there]) == [[6]]
            assert model.batches == [["double", 0], ["double", 3]] and not late.future.done()

    asyncio.run(scenario())


def test_a_full_queue_refuses():
    async def scenario():
        with batching(max_queue=2) as (batcher, model):
            await behind(batcher, model)
            works = [batcher.submit(model, call(n), soon()) for n in (1, 2)]
            with pytest.raises(HTTPError, match="too many requests wait") as error:
                batcher.submit(model, call(3), soon())
            assert (error.value.status, error.value.headers) == (429, {"Retry-After": "1"})
            assert batcher.uses(model) and not batcher.uses(Doubles())
            model.gate.set()
            assert await results(works) == [[2], [4]]

    asyncio.run(scenario())


def test_an_idle_model_waits_for_others_until_all_clients_wait():
    """The delay is longer than the test: only the number of clients can end it."""

    async def scenario(clients):
        model = Doubles()
        model.gate.set()
        batcher = Batcher(Limits(batch_delay_ms=10_000), quiet, lambda: clients)
        works = [batcher.submit(model, call(n), soon()) for n in range(clients)]
        assert await asyncio.wait_for(results(works), LATER) == [[2 * n] for n in range(clients)]
        assert batcher.close(LATER)
        return model.batches

    assert asyncio.run(scenario(1)) == [["double", 0]]
    assert asyncio.run(scenario(3)) == [["double", 0, 1, 2]]
