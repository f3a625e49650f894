"""Orders of work: free of deadlocks, as wide as the schedule allows, with the bubbles of the papers."""

import itertools

import pytest

from official.distribution.pipeline_plan import PipelinePlan, Work, in_flight, make_timeline, works_by_time

DEVICES = [(0,), (0, 1), (0, 1, 2, 3), (0, 1, 2, 3, 0), (0, 0, 0), (1, 0, 1, 0)]


def plan_of(devices, schedule, micro_batches):
    """Returns a plan of one block a stage."""
    stages = tuple((f"layer_{stage}",) for stage in range(len(devices)))
    return PipelinePlan(stages, tuple(devices), schedule, micro_batches)


def needed(work, count):
    """Returns the works that come before a work."""
    stage, number, backward = work
    if not backward:
        return {Work(stage - 1, number, False)} if stage else set()
    later = {Work(stage + 1, number, True)} if stage + 1 < count else set()
    return {Work(stage, number, False)} | later


@pytest.mark.parametrize("schedule", ("gpipe", "1f1b", "grouped", "interleaved", "sequential"))
def test_orders_hold_every_work_once_and_never_lock(schedule):
    for devices, micro_batches, trains in itertools.product(DEVICES, (1, 2, 7, 12), (True, False)):
        count, done = len(devices), set()
        for together in works_by_time(plan_of(devices, schedule, micro_batches), trains):
            for work in together:
                assert needed(work, count) <= done
                if work.micro_batch:  # a stage takes its micro batches in their order
                    assert work._replace(micro_batch=work.micro_batch - 1) in done
                done.add(work)
        directions = (False, True) if trains else (False,)
        assert done == {
            Work(*each) for each in itertools.product(range(count), range(micro_batches), directions)
        }


def test_bubbles_are_those_of_the_papers():
    for count, micro_batches in itertools.product((1, 2, 4, 6), (1, 4, 9)):
        for schedule in ("gpipe", "1f1b", "grouped"):
            timeline = make_timeline(plan_of(range(count), schedule, micro_batches))
            assert timeline.bubble == pytest.approx((count - 1) / (micro_batches + count - 1)), schedule
            assert timeline.length == pytest.approx(3 * (micro_batches + count - 1)), schedule
        sequential = make_timeline(plan_of(range(count), "sequential", micro_batches))
        assert sequential.bubble == pytest.approx(1 - 1 / count)


def test_an_interleaved_pipeline_waits_where_passes_differ_in_length():
    """By hand: of 22 times the first 4 have forward passes alone, all others a backward pass somewhere:
    4 x 1 + 18 x 2 = 40, of which a device works 24."""
    timeline = make_timeline(plan_of(range(4), "interleaved", 8))
    assert (timeline.length, timeline.bubble) == (40, pytest.approx(1 - 24 / 40))
    # Where both take 1, no device waits between its first and its last pass.
    alike = make_timeline(plan_of(range(4), "interleaved", 8), lambda work: 1.0)
    assert (alike.length, alike.bubble) == (22, pytest.approx(1 - 16 / 22))


IN_FLIGHT = {
    "gpipe": [8, 8, 8, 8],
    "1f1b": [4, 3, 2, 1],
    "interleaved": [4, 3, 2, 1],
    "grouped": [8, 6, 4, 2],
    "sequential": [1, 1, 1, 1],
}


def most_kept(plan, stage):
    """Returns the most micro batches between the forward and the backward pass of a stage, by the order."""
    kept = [0]
    for work in itertools.chain.from_iterable(works_by_time(plan)):
        if work.stage == stage:
            kept.append(kept[-1] + (-1 if work.backward else 1))
    return max(kept)


def test_stages_keep_as_many_micro_batches_as_the_schedule_says():
    places = (range(4), (0, 1, 2, 0), (0, 0, 0, 0), (1, 0, 1, 0))
    for schedule, expected in IN_FLIGHT.items():
        assert in_flight(plan_of(range(4), schedule, 8)) == expected
        for devices, micro_batches in itertools.product(places, (1, 3, 8, 20)):
            plan = plan_of(devices, schedule, micro_batches)
            assert in_flight(plan) == [most_kept(plan, stage) for stage in range(4)]
        inference = make_timeline(plan_of(range(4), schedule, 8), trains=False)
        assert inference.length == (32 if schedule == "sequential" else 11)
    assert in_flight(plan_of((0, 1, 2, 3, 0), "grouped", 40)) == [10, 8, 6, 4, 2]


def test_the_order_is_that_of_the_papers():
    def texts(schedule):
        timeline = make_timeline(plan_of((0, 1), schedule, 3))
        return [
            " ".join(f"{'FB'[work.backward]}{work.micro_batch}" for work, *_ in own) for own in timeline.works
        ]

    assert texts("1f1b") == ["F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"]
    assert texts("gpipe") == ["F0 F1 F2 B0 B1 B2"] * 2


def test_uneven_stages_wait_for_the_busiest():
    """Each stage takes its own time: a step of gpipe is once through all, and the slowest pass of each
    direction for every other micro batch; of 1f1b at most that of the busiest device."""
    secs = ((1.0, 2.0), (2.5, 4.0), (0.5, 3.0), (1.5, 6.0))
    through = sum(map(sum, secs))
    for micro_batches in (1, 2, 5, 8):
        gpipe, other = (
            make_timeline(plan_of(range(4), name, micro_batches), lambda at: secs[at.stage][at.backward])
            for name in ("gpipe", "1f1b")
        )
        assert gpipe.length == pytest.approx(through + (micro_batches - 1) * (2.5 + 6.0))
        assert micro_batches * 7.5 <= other.length <= through + (micro_batches - 1) * 7.5
        assert other.bubble == pytest.approx(1 - micro_batches * through / (4 * other.length))


@pytest.mark.parametrize("count,size", [(8, 8), (33, 11), (64, 32), (37, 1)])
def test_more_micro_batches_than_a_graph_has_pieces_for_go_in_rounds(count, size):
    plan, whole = plan_of(range(4), "1f1b", count), plan_of(range(4), "grouped", count)
    assert (plan.round_size, whole.round_size) == (size, count)
    timeline = make_timeline(plan)
    assert timeline.bubble == pytest.approx(3 / (size + 3))
    assert timeline.length == 3 * (size + 3) * (count // size)
