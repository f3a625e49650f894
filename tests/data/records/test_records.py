"""The formats of records: bytes protobuf would write, round trips, foreign and corrupt records, sizes."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from official.data.pretraining.examples import Examples
from official.data.records import encoding, record_formats
from official.data.records import schema as schema_lib
from official.data.word_pieces.vocabulary import Vocabulary
from official.io.errors import ConfigError
from tests.records import make_examples, serialize_example

LENGTH, MOST = 24, 4


def static_mask_examples(count: int) -> Examples:
    """Returns examples whose rows have room for the slots of masks that they do not use."""
    examples = make_examples(count, length=LENGTH - MOST)
    pad = np.zeros((count, MOST), np.uint16)
    return dataclasses.replace(examples, input_ids=np.concatenate([examples.input_ids, pad], axis=1))


def features_of(length: int = LENGTH, most: int = MOST, words: int | None = None) -> dict:
    return schema_lib.pretraining_schema(length, most, words)


def parsed(encoded: list[bytes], kind: str, features: dict) -> dict[str, np.ndarray]:
    return {
        name: value.numpy()
        for name, value in record_formats.parse_records(tf.constant(encoded), features, kind).items()
    }


def test_plain_records_are_the_bytes_of_protobuf():
    for words in (100, 30000, 70000):
        examples, features = make_examples(40, words=words), features_of()
        values = examples.features()
        assert encoding.encode(examples, "plain") == [
            serialize_example({name: values[name][row] for name in features}, features) for row in range(40)
        ]


def test_examples_are_read_back():
    features = features_of(words=50)
    for kind, pad in (("plain", 0), ("plain", 3), ("compact", 0), ("compact", 3), ("remask", 0)):
        reader = record_formats.READERS[kind]
        for count in (1, 128, 129, 300):
            examples = static_mask_examples(count) if kind == "remask" else make_examples(count, pad=pad)
            encoded = encoding.encode(examples, kind)
            assert len(encoded) == -(-count // reader.rows_per_record)
            assert {record_formats.detect_format(record) for record in encoded} == {kind}
            assert {reader.sizes_of(record) for record in encoded} == {(LENGTH, MOST)}
            assert not any(record_formats.describe_mismatch(record, features, kind) for record in encoded)
            found = parsed(encoded, kind, features)
            for name, values in examples.features().items():
                assert found[name].dtype == features[name].dtype and np.array_equal(found[name], values), name


def test_the_words_of_a_compact_example():
    columns = [[5], [3], [[1, 0]], [[259, 0]], [1], [True]]
    examples = Examples(np.array([[2, 9, 3, 300, 3, 7]]), *map(np.array, columns))
    block = tf.train.Example.FromString(encoding.encode(examples, "compact")[0]).features.feature
    assert list(block["compact_shape"].int64_list.value) == [6, 2]
    words = [5, 3, 1, 1, 7, 1, 0, 259, 0, 2, 9, 3, 300, 3]
    assert list(block["compact_examples"].bytes_list.value) == [np.array(words, "<u2").tobytes()]
    for length, most in ((512, 76), (128, 20)):
        examples = make_examples(256, length=length, most=most, words=30522, shortest=most + 10)
        sizes = {kind: sum(map(len, encoding.encode(examples, kind))) for kind in ("plain", "compact")}
        assert sizes["compact"] <= 0.5 * sizes["plain"]


def test_blocks_are_split_and_joined():
    split, join = (getattr(record_formats.READERS["compact"], name) for name in ("split", "join"))
    whole = encoding.encode(make_examples(300), "compact")
    single = [example for record in whole for example in split(record)]
    assert len(single) == 300 and len(set(single)) == 300
    assert join(single) == whole and join(whole[:1]) == whole[:1]
    mixed = join([*single[:3], *encoding.encode(make_examples(2, most=3), "compact"), single[3]])
    assert [len(split(record)) for record in mixed] == [3, 2, 1]
    plain = record_formats.READERS["plain"]
    assert plain.split(b"any") == plain.join([b"any"]) == [b"any"]
    for foreign in (b"\xff\xff", b"", encoding.encode(make_examples(1), "plain")[0]):
        with pytest.raises(ValueError, match="it is not a compact record"):
            split(foreign)


def block_of(strings: list[bytes], shape=(LENGTH, MOST)) -> bytes:
    block = tf.train.Example()
    block.features.feature["compact_shape"].int64_list.value.extend(shape)
    block.features.feature["compact_examples"].bytes_list.value.extend(strings)
    return block.SerializeToString()


def example_of(tokens=12, first=6, predicted=2, others=2 * MOST, ids=12) -> bytes:
    return np.array([tokens, first, predicted, 0, 0, *[1] * others, *[9] * ids], "<u2").tobytes()


def test_bad_records_are_described_and_not_read():
    (good,), (plain,) = (encoding.encode(make_examples(1), kind) for kind in ("compact", "plain"))
    (remask,) = encoding.encode(static_mask_examples(1), "remask")
    wrong = encoding.encode(make_examples(1, words=100, shortest=LENGTH), "compact")[0]
    tokens = "example 1: it has {} tokens, {} of them in the first segment, and {} predicted".format
    for record, kind, problem in (
        (block_of([example_of()], (32, MOST)), "compact", "it is of max_seq_length 32, expected 24"),
        (block_of([example_of()], (LENGTH, 5)), "compact", "it is of max_predictions_per_seq 5, expected 4"),
        (block_of([example_of()], (LENGTH,)), "compact", "it is not a compact record"),
        (block_of([example_of(), example_of(ids=11)]), "compact", "example 2: it has 48 bytes, expected 50"),
        (block_of([example_of(tokens=25, ids=25)]), "compact", tokens(25, 6, 2)),
        (block_of([example_of(predicted=5)]), "compact", tokens(12, 6, 5)),
        (block_of([example_of(first=13)]), "compact", tokens(12, 13, 2)),
        (wrong, "compact", "example 1: feature input_ids has values from"),
        (b"\xff\xff\xff", "compact", "it is not a compact record"),
        (plain, "compact", "it is a plain record among compact ones"),
        (good, "plain", "it is a compact record among plain ones"),
        (plain, "remask", "it is a plain record among remask ones"),
    ):
        features = features_of(words=50)
        assert record_formats.describe_mismatch(record, features, kind).startswith(problem)
        # The second where the message quotes the record.
        with pytest.raises((tf.errors.InvalidArgumentError, UnicodeDecodeError)):
            parsed([good if kind == "compact" else record, record], kind, features)
    assert "feature mask" in record_formats.describe_mismatch(remask, features_of(most=3), "remask")
    assert record_formats.describe_mismatch(block_of([]), features, "compact") == "it holds no examples"
    assert [record_formats.detect_format(record) for record in (b"", b"\xff\xff", b"text")] == [None] * 3
    with pytest.raises(ValueError, match="do not fit into 16 bits"):
        encoding.encode(make_examples(3, words=1 << 17), "compact")
    with pytest.raises(ConfigError, match="compact holds up to 65,536 words, the vocabulary has 65,537"):
        encoding.check_vocabulary(Vocabulary(tuple(map(str, range(65537))), ""), "compact")


# ------------------------------------------------------------------------------------------------------------
# Remasked records as they stand, against the same records with their tokens put back


def test_rows_as_they_stand_hold_the_tokens_of_the_text():
    encoded = encoding.encode(static_mask_examples(30), "remask", 384)
    schema = schema_lib.static_schema(LENGTH, MOST, 50)
    static = parsed(encoded, "remask_static", schema)
    plain = parsed(encoded, "remask", features_of(words=50))
    assert set(static) == set(schema)
    for row in range(30):
        is_used = static["input_mask"][row] == 1
        places = static["position_ids"][row][is_used]
        assert sorted(places) == list(range(plain["input_mask"][row].sum()))
        for name in ("input_ids", "segment_ids"):
            np.testing.assert_array_equal(static[name][row][is_used], plain[name][row][places])
        predicted = int(static["masked_lm_weights"][row].sum())
        assert places[:predicted].tolist() == plain["masked_lm_positions"][row][:predicted].tolist()
        assert static["position_ids"][row][MOST] == 0  # [CLS]
        assert (static["position_ids"][row][~is_used] == 0).all()
    for name in ("masked_lm_ids", "masked_lm_weights", "next_sentence_labels"):
        np.testing.assert_array_equal(static[name], plain[name])
    whole = tf.train.Example.FromString(encoded[0])
    positions = whole.features.feature["input_position"].int64_list.value
    for place in (LENGTH, LENGTH + 9, positions[MOST + 1]):  # outside, far outside, that of another
        positions[MOST] = place
        record = whole.SerializeToString()
        for kind, features in (("remask_static", schema), ("remask", features_of(words=50))):
            with pytest.raises(tf.errors.InvalidArgumentError, match="each position of the text once"):
                parsed([record], kind, features)
        assert "input_position is wrong" in record_formats.describe_mismatch(record, features, "remask")
