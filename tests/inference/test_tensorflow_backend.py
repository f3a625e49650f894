"""The networks of TensorFlow: each way to compute gives what the model of modeling gives."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from official import native
from official.config import BertConfig
from official.inference import backends, fused_bert, rows, source
from official.inference.backends import tensorflow as backend
from official.io.native_library import Processor
from official.modeling import stages
from tests.fixtures import slow
from tests.refusals import assert_refused

SIZES = dict(vocab_size=90, hidden_size=48, num_hidden_layers=2, num_attention_heads=3, intermediate_size=64)
GROUPBERT = dict(groupbert_ffn_output_groups=2, groupbert_conv_group_size=16)
CONFIG = BertConfig(**SIZES, **GROUPBERT, max_position_embeddings=40)
ONE = dataclasses.replace(CONFIG, num_hidden_layers=1)
LENGTHS = [5, 33, 1, 40, 4, 4, 17]
# Outputs are around 1: what float32 and bfloat16 round.
TOLERANCES = {"fp32": 2e-5, "bf16": 6e-2}


def rows_of(lengths: list[int]) -> rows.Rows:
    generator = np.random.default_rng(sum(lengths))
    made = rows.join(
        [generator.integers(0, CONFIG.vocab_size, length) for length in lengths],
        [generator.integers(0, 2, length) for length in lengths],
    )
    masked = generator.choice(sum(lengths), min(4, sum(lengths)), replace=False)
    return made._replace(masked_M=np.sort(masked).astype(np.int32))


def expected(found: source.Source, head: str, asked: rows.Rows) -> backends.Outputs:
    """Returns what the padded batch gives."""
    model = source.make_network(found.bert, head, found.classes)
    found.fill(model)
    batch = rows.padded(asked)
    carried = stages.run(model, {name: tf.constant(values) for name, values in batch.items()}, None)
    if head == "classify":
        return {"logits": carried["logits"].numpy()}
    is_real = batch["masked_lm_weights" if head == "fill_mask" else "input_mask"] > 0
    names = {
        "answer": {"start_logits": "start_logits", "end_logits": "end_logits"},
        "embed": {"sequence": "sequence"},
        "fill_mask": {"logits": "masked_lm_logits"},
        "tag": {"logits": "tag_logits"},
    }[head]
    return {given: carried[name].numpy()[is_real] for given, name in names.items()}


def test_networks_of_a_model_share_its_encoder():
    found = source.random_source(ONE, "answer")
    settings = backends.Settings()
    both = [backends.build(found, head, settings) for head in ("answer", "embed")]
    other = backends.build(found, "embed", backends.Settings(dtype="bf16"))
    shared, held = backend._ENCODERS[id(found), "fp32"], []
    for network in (*both, other):
        held.append(shared in [cell.cell_contents for cell in network.__closure__ or ()])
    assert held == [True, True, False]


@pytest.mark.parametrize(
    "block_type,head",
    [
        ("bert", "classify"),
        *(slow("bert", head) for head in source.HEADS if head != "classify"),
        slow("groupbert", "answer"),
    ],
)
def test_outputs_are_those_of_the_model(head, block_type, monkeypatch):
    layers = 2 if block_type == "bert" else 1  # compiling groupbert takes seconds
    config = dataclasses.replace(CONFIG, block_type=block_type, num_hidden_layers=layers)
    found = source.random_source(config, head, classes=3)
    nets = {dtype: backends.build(found, head, backends.Settings(dtype=dtype)) for dtype in TOLERANCES}
    with monkeypatch.context() as pretended:
        pretended.setattr(native, "on_gpus", lambda: True)
        staged = backends.build(found, head, backends.Settings())
    assert staged.__qualname__ == "_staged.<locals>.network"
    if nets["fp32"].__qualname__ != staged.__qualname__:
        nets["fp32 on a GPU"] = staged
    for lengths in (LENGTHS, [7]):
        asked = rows_of(lengths)
        wanted = expected(found, head, asked)
        for dtype, network in nets.items():
            outputs = network(asked)
            assert outputs.keys() == wanted.keys()
            for name, values in wanted.items():
                assert outputs[name].dtype == np.float32
                np.testing.assert_allclose(outputs[name], values, atol=TOLERANCES[dtype[:4]])


@pytest.mark.parametrize("head", ("fill_mask", "tag"))
def test_a_network_is_traced_once_for_batches_of_all_sizes(head, monkeypatch):
    modern = BertConfig(**SIZES, block_type="modernbert", max_position_embeddings=40, local_attention=8)
    found, traces, run = source.random_source(modern, head, classes=3), [], stages.run
    with monkeypatch.context() as counted:
        counted.setattr(stages, "run", lambda *given: traces.append(given) or run(*given))
        network = backends.build(found, head, backends.Settings())
        given = [rows_of(lengths) for lengths in (LENGTHS, [7], [3, 3])]
        outputs = [network(asked)["logits"] for asked in given]
    assert len(traces) == 1
    for asked, logits in zip(given, outputs):
        wanted = expected(found, head, asked)["logits"]
        np.testing.assert_allclose(logits, wanted, atol=TOLERANCES["fp32"])


@pytest.mark.slow
def test_bf16_on_a_cpu_without_its_instructions_is_the_models_own(monkeypatch):
    narrow = Processor("one with AVX2", 2, ("avx2", "fma"))
    monkeypatch.setattr(fused_bert, "processor", lambda: narrow)  # on such a one oneDNN would end the process
    found, asked = source.random_source(CONFIG, "embed"), rows_of(LENGTHS)
    outputs = backends.build(found, "embed", backends.Settings(dtype="bf16"))(asked)
    assert (id(found), "bf16") not in backend._ENCODERS
    wanted = expected(found, "embed", asked)["sequence"]
    np.testing.assert_allclose(outputs["sequence"], wanted, atol=TOLERANCES["bf16"])
    for instructions, has in ((("avx2", "avx512f"), fused_bert.are_here()), (("asimd",), False)):
        narrow = narrow._replace(instructions=instructions)
        assert fused_bert.are_here("bfloat16") == has


def test_weights_that_products_read_in_bf16_are_kept_in_it_alone(monkeypatch):
    models, asked = [], rows_of(LENGTHS)
    make = source.make_network
    monkeypatch.setattr(backend, "make_network", lambda *sizes: models.append(make(*sizes)) or models[-1])
    modern = BertConfig(**SIZES, block_type="modernbert", max_position_embeddings=40, local_attention=8)
    found = source.random_source(modern, "fill_mask")
    outputs = backends.build(found, "fill_mask", backends.Settings(dtype="bf16"))(asked)
    monkeypatch.setattr(stages, "copies_without_values", lambda *_: {})
    cast = backends.build(found, "fill_mask", backends.Settings(dtype="bf16"))(asked)
    np.testing.assert_array_equal(outputs["logits"], cast["logits"])
    held = {source.name_of(each): bool(each.is_initialized()) for each in models[0].variables}
    blocks = [is_held for name, is_held in held.items() if "/layer_" in name and name.endswith("kernel")]
    assert blocks and not any(blocks)
    assert held["bert/embeddings/word_embeddings"]  # also read in float32


def test_int8_is_near_and_its_ranges_are_those_of_the_calibration():
    found = source.random_source(CONFIG, "embed")
    asked = rows_of(LENGTHS)
    exact, quantised = (
        backends.build(found, "embed", backends.Settings(dtype=dtype, calibration=[asked]))(asked)["sequence"]
        for dtype in ("fp32", "int8")
    )
    assert 1e-4 < np.abs(quantised - exact).mean() < 0.02


@pytest.mark.skipif(not fused_bert.has_integers(), reason="TensorFlow has no products of integers here")
def test_integer_products_of_the_largest_numbers_are_exact():
    x, kernel = np.full((3, 64), 255), np.full((64, 32), fused_bert._largest_weight())

    @tf.function(autograph=False)
    def multiply():
        factors = tf.bitcast(tf.constant(kernel.astype(np.int8)), tf.qint8), tf.bitcast([0] * 32, tf.qint32)
        return fused_bert.integer_product(tf.bitcast(tf.constant(x.astype(np.uint8)), tf.quint8), *factors)

    np.testing.assert_array_equal(multiply(), x @ kernel)


@pytest.mark.parametrize("head", ["answer", "classify", "fill_mask"])  # of tokens, of rows, of some tokens
def test_batches_give_what_each_sequence_gives_alone_in_the_order_given(head):
    network = backends.build(source.random_source(ONE, head, classes=3), head, backends.Settings())
    asked = rows_of(LENGTHS)
    together = rows.run(network, head, asked, rows.batches_of(asked.lengths_N, 80))
    alone = [network(asked.pick([number])) for number in range(len(LENGTHS))]
    for name, values in together.items():
        np.testing.assert_allclose(values, np.concatenate([part[name] for part in alone]), atol=1e-5)


def test_batches_are_bounded_and_have_sequences_of_nearly_one_length(monkeypatch):
    lengths = np.random.default_rng(1).integers(1, 385, 200)
    batches = list(rows.batches_of(lengths, 2048))
    assert sorted(np.concatenate(batches)) == list(range(200))
    padded = [lengths[batch].max() * len(batch) for batch in batches]
    assert max(padded) <= 2048 and sum(padded) < 1.2 * lengths.sum()
    monkeypatch.setattr(native, "on_gpus", lambda: True)
    sizes = {length: len(next(rows.batches_of(np.full(999, length)))) for length in (64, 512, 2048, 8192)}
    assert sizes == {64: 512, 512: 64, 2048: 4, 8192: 1}  # the longer ones by their attention scores


def test_attention_takes_few_groups_and_wastes_little():
    lengths = np.random.default_rng(2).integers(8, 385, 64)
    found = rows.attention_groups(rows.join([np.zeros(length, np.int32) for length in lengths]), heads=3)
    groups = [found[f"tokens_{number}"] for number in range(rows.GROUPS)]
    scores = sum(tokens_NW.size * tokens_NW.shape[1] for tokens_NW in groups)
    assert found["used"] == rows.GROUPS
    assert (lengths**2).sum() < scores < 1.6 * (lengths**2).sum() < 64 * 384**2
    one = rows.attention_groups(rows.join([np.zeros(7, np.int32)] * 5), heads=3)
    assert one["used"] == 1 and one["tokens_0"].shape == (5, 7)


def test_weights_are_read_without_copies():
    room = fused_bert.empty((4, 6))
    room[...] = np.arange(24).reshape(4, 6)
    shared = fused_bert.tensor(room)
    np.testing.assert_array_equal(shared, room)
    room[0, 0] = 7
    assert shared[0, 0] == 7 and fused_bert.side_by_side([room]) is room
    for other in (room.T, np.frombuffer(b"\0" * 64, np.float32), fused_bert.empty((17,))[1:]):
        np.testing.assert_array_equal(fused_bert.tensor(other), other)


def test_what_cannot_be_built_is_one_line():
    found, many = source.random_source(ONE, "embed"), backends.Settings(threads=77)
    plain, int8 = backends.Settings(), backends.Settings(dtype="int8")
    cases = (
        (lambda: backends.begin(many), "threads=77: TensorFlow already runs in this process"),
        (lambda: backends.build(found, "answer", plain), "made-up has no cls/squad/output_weights"),
        (lambda: backends.build(found, "embed", int8), "int8 of tensorflow needs rows to take the ranges"),
    )
    tf.ones(1)
    assert_refused(lambda call: call(), cases)
