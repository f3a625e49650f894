"""A step beside its bounds: the clock's time of operations, and the groups that they count in."""

import random

import pytest

from official.reporting import bounds_picture
from official.reporting.profiles import clock, groups, times
from official.reporting.profiles.groups import Seen, Sizes
from official.reporting.profiles.places import BACKWARD, FORWARD, OPTIMIZER, OTHER, Place
from official.reporting.profiles.trace import Operation

SIZES = Sizes(hidden=64, feed_forward=256, vocabulary=1000)
AHEAD, BACK = Place("layer_3", FORWARD), Place("layer_3", BACKWARD)
HEAD = Place("predictions", FORWARD)
TOKENS, WIDE, SCORES, HEADS = (32, 64), (32, 256), (4, 4, 8, 8), (4, 4, 8, 16)


def ran(begin, end, thread="a"):
    return Operation("x", "Mul", 1, end - begin, begin=begin, end=end, thread=thread)


@pytest.mark.parametrize(
    "operations, shares",
    [
        ([ran(0, 10), ran(20, 25)], [10, 5]),
        ([ran(0, 10), ran(0, 10, "b")], [5, 5]),
        ([ran(0, 10), ran(4, 20, "b")], [4 + 3, 3 + 10]),
        ([ran(0, 10), ran(2, 6)], [6, 4]),  # within the other
        ([ran(0, 10), ran(0, 10)], [0, 10]),  # all of it within the other, listed later
        ([ran(0, 10), ran(2, 6), ran(4, 10, "b")], [2 + 2, 2 + 1, 1 + 2]),
        ([ran(3, 3), ran(0, 6)], [0, 6]),
        ([], []),
    ],
)
def test_the_clock_is_divided_among_what_runs_at_once(operations, shares):
    assert clock.divide(operations) == shares


def test_shares_add_up_to_the_time_in_which_any_ran():
    random.seed(1)
    for _ in range(50):
        operations = []
        for thread in "abc":
            at = 0
            for _ in range(5):
                begin = at + random.randrange(4)
                at = begin + random.randrange(9)
                operations.append(ran(begin, at, thread))
                if at - begin > 4:
                    operations.append(ran(begin + 1, at - 2, thread))
        random.shuffle(operations)
        busy = {moment for each in operations for moment in range(each.begin, each.end)}
        assert sum(clock.divide(operations)) == pytest.approx(len(busy))


@pytest.mark.parametrize(
    "group, alike",
    [
        (f"{groups.ACTIVATION}, forward", [
            Seen(AHEAD, "StatefulPartitionedCall", "compiled activate", "fp32", WIDE),
            Seen(AHEAD, "Tanh", "tanh", "fp32", WIDE),
            Seen(AHEAD, "BertBiasActivation", "elementwise", "bf16", WIDE),
            Seen(AHEAD, "BertBiasActivation"),
        ]),
        (f"{groups.NORM}, backward", [
            Seen(BACK, "PartitionedCall", "compiled norm gradient", "fp32", TOKENS),
            Seen(BACK, "Mean", "row sums", "fp32", TOKENS),
            Seen(BACK, "BertResidualNormGradient", "elementwise", "fp32", TOKENS),
        ]),
        (f"{groups.SOFTMAX}, forward", [
            Seen(AHEAD, "_MklSoftmax", "softmax", "fp32", SCORES),
            Seen(AHEAD, "StatefulPartitionedCall", "compiled drop", "fp32", SCORES),
            Seen(AHEAD, "Mul", "elementwise", "fp32", SCORES),
            Seen(AHEAD, "BertSoftmax", "elementwise", "fp32", (128, 64)),
        ]),
        (f"{groups.SOFTMAX}, backward", [
            Seen(BACK, "Mul", "elementwise", "fp32", HEADS),
            Seen(BACK, "BertSoftmaxGradient", "elementwise", "bf16", SCORES),
        ]),
        (groups.COLUMNS, [
            Seen(BACK, "PartitionedCall", "compiled sum of rows", "fp32", WIDE),
            Seen(BACK, "BiasAddGrad", "column sums", "fp32", TOKENS),
        ]),
        (groups.DENSE, [Seen(AHEAD, "_MklMatMul", "product", "fp32", WIDE, "none"), Seen(AHEAD, "MatMul")]),
        (groups.OF_INPUTS, [Seen(BACK, "MatMul", "product", "fp32", WIDE, "right"), Seen(BACK, "MatMul")]),
        (groups.OF_WEIGHTS, [Seen(BACK, "_FusedMatMul", "product", "fp32", WIDE, "left")]),
        (groups.OTHER_PRODUCTS, [Seen(HEAD, "MatMul", "product", "fp32", WIDE, "right")]),
        (groups.ATTENTION, [Seen(AHEAD, "_MklBatchMatMulV2", "batched product", "fp32", SCORES, "right")]),
        (groups.RANDOM, [
            Seen(AHEAD, "BitwiseXor"), Seen(AHEAD, "Mul", "elementwise", "uint32", SCORES),
            Seen(Place(OTHER), "StatelessRandomUniformV2"),
        ]),
        (groups.MOVED, [
            Seen(AHEAD, "_MklTranspose", "transpose", "fp32", HEADS), Seen(BACK, "Pack"),
            Seen(AHEAD, "BertSplitHeads", "elementwise", "bf16", HEADS),
            Seen(BACK, "BertJoinHeads", "elementwise", "bf16", HEADS),
        ]),
        (groups.EMBEDDINGS, [
            Seen(Place("embeddings", BACKWARD), "Mul", "elementwise", "fp32", TOKENS),
            Seen(Place(OTHER), "UnsortedSegmentSum", "row sums to", "fp32", (1000, 64)),
        ]),
        (groups.HEADS, [
            Seen(Place("predictions", BACKWARD), "PartitionedCall", "compiled x", "fp32", TOKENS),
            Seen(Place(OTHER), "UnsortedSegmentSum", "row sums to", "fp32", TOKENS),
            Seen(Place(OTHER), "Softmax", "softmax", "fp32", (4, 20, 1000)),
            Seen(Place(OTHER), "BertCrossEntropyGradient", "elementwise", "fp32", (4, 20, 1000)),
        ]),
        (times.CASTS, [Seen(AHEAD, "Cast", "cast", "bf16", WIDE)]),
        (times.NORM, [Seen(Place(OTHER), "BertGlobalNorm"), Seen(Place(OTHER), "L2Loss")]),
        (times.UPDATE, [Seen(Place(OPTIMIZER), "BertUpdate"), Seen(Place(OTHER), "ResourceApplyAdam")]),
        (groups.SUMS, [Seen(BACK, "AddN", "elementwise", "fp32", TOKENS)]),
        (groups.BIAS, [Seen(AHEAD, "BiasAdd", "bias", "fp32", (4, 8, 192))]),
        (groups.REST, [Seen(AHEAD, "ReadVariableOp", "", "fp32", TOKENS), Seen(AHEAD, "PartitionedCall")]),
    ],
)  # fmt: skip
def test_plain_fused_and_native_operations_are_of_one_group(group, alike):
    assert [groups.group_of(seen, SIZES) for seen in alike] == [group] * len(alike)


def test_every_kind_of_operation_has_a_group():
    kinds = [
        "MatMul",
        "BatchMatMulV2",
        "PartitionedCall",
        "IteratorGetNext",
        "NcclAllReduce",
        "L2Loss",
        "Cast",
    ]
    places = [
        AHEAD,
        BACK,
        Place("embeddings", FORWARD),
        Place(OTHER),
        Place(OPTIMIZER),
        Place("pooler", BACKWARD),
    ]
    found = {groups.group_of(Seen(place, kind), SIZES) for place in places for kind in (*kinds, "Sub")}
    assert found <= set(groups.GROUPS) and set(groups.GROUPS.values()) == set(groups.SECTIONS)


def case(name, factor):
    rows = [
        {"name": name, "section": section, "secs": factor * (place + 1) / 100, "bound_secs": place / 200}
        for place, (name, section) in enumerate(groups.GROUPS.items())
    ]
    bound = sum(row["bound_secs"] for row in rows)
    return {"case": name, "step_secs": sum(row["secs"] for row in rows), "bound_secs": bound, "groups": rows}


@pytest.mark.parametrize("number, has_before", [(1, False), (3, True)])
def test_the_picture_holds_all_cases(number, has_before):
    names = ["fp32, 128 x 8", "fp32, 512 x 2", "bf16, 128 x 8", "bf16, 512 x 2"][:number]
    cases = [case(name, 1.0) for name in names]
    before = {names[0]: case(names[0], 1.5)} if has_before else {}
    drawn = bounds_picture.draw(cases, before, "Step", 2, "svg").decode()
    assert all(f"<!-- {text} -->" in drawn for text in (*names, groups.DENSE, groups.IDLE))
    assert ("<!-- step, before -->" in drawn) == has_before
