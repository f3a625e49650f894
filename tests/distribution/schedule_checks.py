"""What is true of every order in which the devices of a pipeline work."""

from official.distribution.pipeline_plan import PipelinePlan, Work, orders_of


def plan_of(devices, schedule, micro_batches):
    """Returns a plan of one block a stage."""
    stages = tuple((f"layer_{stage}",) for stage in range(len(devices)))
    return PipelinePlan(stages, tuple(devices), schedule, micro_batches)


def check_orders(devices, schedule, micro_batches, trains=True):
    """Plays the orders by hand: every work once, on its device, nobody waits for ever. Returns them."""
    count = len(devices)
    orders = orders_of(count, devices, schedule, micro_batches, trains)
    directions = (False, True) if trains else (False,)
    wanted = {
        Work(stage, number, backward)
        for stage in range(count)
        for number in range(micro_batches)
        for backward in directions
    }
    assert sorted(work for order in orders for work in order) == sorted(wanted)
    assert all(devices[work.stage] == device for device, order in enumerate(orders) for work in order)
    done: set[Work] = set()
    left = [list(order) for order in orders]
    while any(left):
        ready = [order for order in left if order and needed(order[0], count) <= done]
        assert ready, f"all wait: {[order[:1] for order in left]}"
        for order in ready:
            done.add(order.pop(0))
    return orders


def needed(work, count):
    """Returns the works that come before a work."""
    stage, number, backward = work
    if not backward:
        return {Work(stage - 1, number, False)} if stage else set()
    later = {Work(stage + 1, number, True)} if stage + 1 < count else set()
    return {Work(stage, number, False)} | later
