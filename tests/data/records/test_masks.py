"""Masks drawn in training: the same as drawn row by row, their shares, whole words and spans; the same for a
row and an epoch however it is read."""

import numpy as np
import pytest
import tensorflow as tf

from official.data.pipeline import TrainingOrder
from official.data.pretraining.examples import Examples
from official.data.records import batches as record_batches
from official.data.records import encoding, on_the_fly, schema, streams
from official.data.records.formats import compact
from official.data.records.formats import packed as packed_rows
from official.data.records.masks import Masks
from official.data.records.on_the_fly import Packer
from official.data.word_pieces.vocabulary import SPECIAL_TOKENS, Vocabulary
from tests.fixtures import slow, write_records
from tests.records import encode, members_of

LENGTH, SHARE = 32, 0.3
SIZE = 300
WORDS = Vocabulary((*SPECIAL_TOKENS, *(f"##{n}" if n % 3 == 0 else f"{n}" for n in range(SIZE - 5))), "")
PAD, _, CLS, SEP, MASK = WORDS.special_ids
BARE = schema.pretraining_schema(LENGTH, 0, SIZE)


def make_rows(count: int, seed: int = 0) -> Examples:
    """Returns rows of text without masks: full ones with a [SEP] between documents, and some short ones."""
    rng = np.random.default_rng(seed)
    lengths = np.where(rng.random(count) < 0.2, rng.integers(3, LENGTH, count), LENGTH)
    column = np.arange(LENGTH)
    ids = np.where(rng.random((count, LENGTH)) < 0.05, SEP, rng.integers(5, SIZE, (count, LENGTH)))
    ids[:, 0], ids[np.arange(count), lengths - 1] = CLS, SEP
    ids = np.where(column < lengths[:, None], ids, PAD).astype(np.uint16)
    empty = np.zeros((count, 0), np.int32)
    nothing = np.zeros(count, np.int64)
    return Examples(ids, lengths, lengths, empty, empty, nothing, nothing > 0)


def make_masks(**changes) -> Masks:
    return Masks(**{**dict(share=SHARE, vocabulary=WORDS, seed=7, words=SIZE), **changes})


# ------------------------------------------------------------------------------------------------------------
# Row by row


_64_BITS = 2**64 - 1


def mixed(value: int) -> int:
    """The end of SplitMix64."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _64_BITS
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _64_BITS
    return value ^ value >> 31


def drawn(seed: int, number: int) -> int:
    return mixed((seed + 0x9E3779B97F4A7C15 * (number + 1)) & _64_BITS)


def masked_row(ids: list[int], masks: Masks, epoch: int) -> tuple[list[int], list[int], list[int]]:
    """Returns (tokens with masks, positions, labels) of a row without padding."""
    total = sum((word + 1) * drawn(masks.seed, place) for place, word in enumerate(ids))
    seed = mixed((total + drawn(masks.seed, epoch)) & _64_BITS)
    spans: list[list[list[int]]] = []  # of words of places
    for place, word in enumerate(ids):
        if word in (PAD, CLS, SEP, MASK):
            continue
        follows = ids[place - 1] not in (PAD, CLS, SEP, MASK)
        if masks.whole_words and WORDS.words[word].startswith("##") and follows:
            spans[-1][-1].append(place)
        elif masks.span_length > 1 and follows and drawn(seed, place) >= int(2**64 / masks.span_length):
            spans[-1].append([place])
        else:
            spans.append([[place]])
    order = [(drawn(seed, LENGTH + number) >> 17, number) for number in range(1, len(spans) + 1)]
    taken, text = [], sum(len(word) for span in spans for word in span)
    wanted = min(max(round(text * masks.share), 1), text)
    for word in [word for _, number in sorted(order, reverse=True) for word in spans[number - 1]]:
        if len(taken) + len(word) > wanted:
            break
        taken += word
    shown, positions = list(ids), sorted(taken)
    for slot, place in enumerate(positions):
        value = drawn(seed, 2 * LENGTH + 1 + slot)
        fate, word = value >> 32, (value & 2**32 - 1) * masks.words >> 32
        if fate < int(0.8 * 2**32):
            shown[place] = MASK
        elif fate < int(0.9 * 2**32):
            shown[place] = word
    return shown, positions, [ids[place] for place in positions]


WHOLE = dict(whole_words=True)
FORMS = ({}, WHOLE, dict(span_length=3.0), dict(WHOLE, span_length=2.5), dict(WHOLE, share=0.01, seed=8))
FORMS += (dict(WHOLE, seed=2**31 - 1, share=1.0),)


@pytest.mark.parametrize("kind", ["plain", "compact"])
def test_masks_are_those_that_are_drawn_row_by_row(kind):
    rows = make_rows(150)
    records, reader = tf.constant(encoding.encode(rows, kind)), record_batches.READERS[kind]
    for number, form in enumerate(FORMS):
        masks, epoch = make_masks(**form), 5 * number
        words = masks.draw(reader.unpack(records, BARE), reader, BARE, tf.constant(epoch, tf.int64))
        drawn_schema = masks.schema(BARE)
        found = {
            name: value.numpy() for name, value in compact.READER.parse_rows(words, drawn_schema).items()
        }
        for row, length in enumerate(rows.lengths):
            shown, positions, labels = masked_row(rows.input_ids[row, :length].tolist(), masks, epoch)
            count = int(found["masked_lm_weights"][row].sum())
            assert found["input_ids"][row, :length].tolist() == shown
            assert found["masked_lm_positions"][row, :count].tolist() == positions
            assert found["masked_lm_ids"][row, :count].tolist() == labels
            assert found["masked_lm_weights"][row, :count].all()
        assert not found["segment_ids"].any() and not found["next_sentence_labels"].any()


def draw(rows: Examples, **changes) -> tuple[compact.Columns, np.ndarray]:
    """Returns rows with masks of the first epoch, and which slots are used, bool [N, P]."""
    reader, masks = record_batches.READERS["compact"], make_masks(**changes)
    records = tf.constant(encoding.encode_compact(rows))
    words = masks.draw(reader.unpack(records, BARE), reader, BARE, 0)
    slots = masks.schema(BARE)["masked_lm_ids"].length
    found = compact.Columns(*(part.numpy() for part in compact.columns(words, LENGTH, slots)))
    return found, np.arange(slots) < found.predictions[:, None]


def test_shares_and_fates():
    """Each token is as likely as any other; 80 % are masked, 10 % replaced by any word, 10 % stay."""
    rows = make_rows(4000, seed=3)
    is_text = ~np.isin(rows.input_ids, [PAD, CLS, SEP])
    for form in ({}, dict(span_length=3.0), dict(whole_words=True)):
        found, used = draw(rows, **form)
        wanted = np.maximum(np.rint(is_text.sum(axis=1) * SHARE), 1)
        assert (found.predictions <= wanted).all() and found.predictions.sum() > 0.93 * wanted.sum()
        row, slot = np.nonzero(used)
        places, labels = found.positions[row, slot], found.labels[row, slot]
        assert is_text[row, places].all() and np.array_equal(labels, rows.input_ids[row, places])
        full = rows.lengths == LENGTH
        by_place = np.bincount(places[full[row]], minlength=LENGTH)[1:-1] / is_text[full].sum(axis=0)[1:-1]
        # A span that is cut short loses its end, so that ends of rows are predicted a little less often.
        assert np.abs(by_place - by_place.mean()).max() < (0.05 if form else 0.025)
        shown = found.ids[row, places]
        assert abs((shown == MASK).mean() - 0.8) < 0.01 and abs((shown == labels).mean() - 0.1) < 0.01
        others = shown[(shown != MASK) & (shown != labels)]
        assert len(np.unique(others)) == SIZE - 1  # all but [MASK]


def test_spans_have_their_length():
    neighbours = []
    for span_length in (1.0, 3.0):
        found, used = draw(make_rows(2000, seed=4), span_length=span_length)
        neighbours.append((np.diff(found.positions, axis=1)[used[:, 1:]] == 1).mean())
    assert neighbours[0] < 0.35 and neighbours[1] > 0.6


# ------------------------------------------------------------------------------------------------------------
# However a row is read


@pytest.fixture(params=["compact", slow("packed")])
def files(request, tmp_path, monkeypatch) -> list[str]:
    """Returns four files of rows without masks; windows have fewer rows than a file."""
    monkeypatch.setattr(streams, "_SHUFFLED_ROWS", 16)
    for name in ("_SEQUENCES", "_MIN_BUFFER"):  # an epoch is packed at once
        monkeypatch.setattr(on_the_fly, name, 48)
    rows = [make_rows(12, seed) for seed in range(4)]
    if request.param == "packed":  # of two rows' room
        pairs = np.stack([np.arange(12), np.full(12, -1)], axis=1)
        made = [packed_rows.encode_rows(each, pairs) for each in rows]
    else:
        made = [encode(each, request.param) for each in rows]
    return [write_records(tmp_path / f"part-{number}", each) for number, each in enumerate(made)]


def read(files, batches, batch_size=4, num_streams=1, packer=None, masks=None, **order) -> list[tuple]:
    """Returns (tokens before masking, tokens, positions) of the rows in the order of reading."""
    order = TrainingOrder(**{"seed": 1, **order})
    masks = masks or make_masks()
    dataset = record_batches.training_dataset(files, BARE, batch_size, order, num_streams, "", packer, masks)
    found = []
    for batch in dataset.take(batches).as_numpy_iterator():
        if packer:
            parts = [(each.ids, each.positions, each.labels) for each in members_of(batch)]
        else:
            counts = batch["masked_lm_weights"].sum(axis=1).astype(int)
            rows = zip(batch["input_ids"], batch["masked_lm_positions"], batch["masked_lm_ids"], counts)
            parts = [(ids, places[:count], labels[:count]) for ids, places, labels, count in rows]
        for ids, places, labels in parts:
            original = np.trim_zeros(np.array(ids, np.int32), "b")
            shown = original.tolist()
            original[np.array(places, int)] = labels
            found.append((original.tobytes(), tuple(shown), tuple(map(int, places))))
    return found


def test_masks_of_a_row_depend_on_nothing_but_the_epoch(files):
    """Streams, batches, hosts, packing and a reading that goes on."""
    epochs = read(files, 24)  # two of them
    first, second = (
        {row: (shown, places) for row, shown, places in part} for part in (epochs[:48], epochs[48:])
    )
    assert len(first) == len(second) == 48 and first.keys() == second.keys()
    assert sum(first[row] == second[row] for row in first) < 5
    packer = Packer(make_masks().schema(BARE), 3)
    # Half of the second epoch in other batches, by one of two hosts, in its own stream and another order.
    found = read(files, 2, num_streams=2, num_hosts=2, host=1, batch_size=6, seed=2, sequences_done=72)
    assert len({row for row, _, _ in found}) == 12
    assert all((shown, places) == second[row] for row, shown, places in found)
    packed = read(files, 16, packer=packer)[:48]  # of the first buffer, which is the first epoch
    assert {row: (shown, places) for row, shown, places in packed} == first


def test_evaluation_is_the_same_every_time(files):
    masks = make_masks(share=0.15, seed=0)
    found = []
    for batch_size in (8, 24):
        batches = record_batches.evaluation_dataset(files, BARE, batch_size, 48, None, masks)
        rows = [batch["input_ids"] for batch in batches.as_numpy_iterator()]
        found.append(np.concatenate(rows))
    assert np.array_equal(*found)
    assert abs((found[0] == MASK).sum() / (found[0] > MASK).sum() - 0.12) < 0.03
