"""Random records of a schema, for warm-up and for benchmarks without files."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from official.data import pipeline

# -----------------------------------------------------------------------------------------------------------
# Records


_SAMPLES = 1000  # rows, drawn once and repeated


def synthetic_dataset(schema: dict, vocab_size: int, batch_size: int, seed: int) -> tf.data.Dataset:
    """Returns an endless dataset of full-length random pre-training batches; every slot of the schema holds
    valid values.

    Tokens are independent, with word frequencies as in text: a model that learns only these predicts 9 % of
    the masked tokens right with 30522 words, one that learns nothing predicts none of them.
    """
    generator = np.random.default_rng(seed)
    length, predictions = schema["input_ids"].length, schema["masked_lm_ids"].length
    count = max(_SAMPLES, batch_size)
    positions = _permuted(generator, np.arange(length, dtype=np.int32), count)[:, :predictions]
    is_second_L = (np.arange(length) >= length // 2) & (schema["segment_ids"].end > 1)
    values = {
        "input_ids": _draw_tokens(generator, vocab_size, (count, length)),
        "input_mask": np.ones((count, length)),
        "segment_ids": np.tile(is_second_L, (count, 1)),
        "masked_lm_positions": np.sort(positions, axis=1),
        "masked_lm_ids": _draw_tokens(generator, vocab_size, (count, predictions)),
        "masked_lm_weights": np.ones((count, predictions)),
        "next_sentence_labels": generator.integers(0, 2, (count, 1)),
    }
    if "position_ids" in schema:  # predicted tokens come first
        is_masked = np.zeros((count, length), bool)
        np.put_along_axis(is_masked, values["masked_lm_positions"], True, axis=1)
        others = np.argsort(is_masked, axis=1, kind="stable")[:, : length - predictions]
        values["position_ids"] = np.concatenate([values["masked_lm_positions"], others], axis=1)
        values["segment_ids"] = np.take_along_axis(values["segment_ids"], values["position_ids"], axis=1)
    typed = {name: values[name].astype(feature.dtype.as_numpy_dtype) for name, feature in schema.items()}
    typed["example_weights"] = np.ones(count, np.float32)
    return endless(typed, batch_size)


def packed_rows(schema: dict, vocab_size: int, average: float, seed: int) -> dict[str, np.ndarray]:
    """Returns rows of `average` random sequences each, without padding, {name: [1000, length]} with the
    features of `schema.packed_schema`; every slot for predicted tokens is used."""
    generator = np.random.default_rng(seed)
    length, slots, depth = (schema[name].length for name in ("input_ids", "masked_lm_ids", "cls_positions"))
    shape, column_L = (_SAMPLES, length), np.arange(length)
    counts_B = np.clip(np.floor(average + generator.random(_SAMPLES)), 1, min(depth, length // 2)).astype(int)
    is_there_BP = np.arange(depth) < counts_B[:, None]
    cuts_BP = _permuted(generator, column_L[1:], _SAMPLES)[:, : depth - 1]
    starts_BP = np.full((_SAMPLES, depth), length)
    starts_BP[:, 0], starts_BP[:, 1 : 1 + cuts_BP.shape[1]] = 0, cuts_BP
    starts_BP = np.sort(np.where(is_there_BP, starts_BP, length), axis=1)
    sequences_BL = (column_L >= starts_BP[..., None]).sum(axis=1)
    positions_BL = column_L - np.take_along_axis(starts_BP, sequences_BL - 1, axis=1)
    places_BK = np.sort(generator.integers(0, length, (_SAMPLES, slots)), axis=1)
    values = {
        "input_ids": _draw_tokens(generator, vocab_size, shape),
        "input_mask": np.ones(shape),
        "segment_ids": positions_BL % schema["segment_ids"].end,
        "sequence_ids": sequences_BL,
        "position_ids": positions_BL,
        "masked_lm_positions": places_BK,
        "masked_lm_ids": _draw_tokens(generator, vocab_size, (_SAMPLES, slots)),
        "masked_lm_weights": np.ones((_SAMPLES, slots)),
        "masked_lm_sequences": np.take_along_axis(sequences_BL, places_BK, axis=1),
        "cls_positions": np.where(is_there_BP, starts_BP, 0),
        "next_sentence_labels": generator.integers(0, 2, (_SAMPLES, depth)) * is_there_BP,
        "example_weights": is_there_BP,
    }
    return {name: values[name].astype(feature.dtype.as_numpy_dtype) for name, feature in schema.items()}


def endless(rows: dict[str, np.ndarray], batch_size: int) -> tf.data.Dataset:
    """Returns an endless dataset of batches of the rows."""
    batches = tf.data.Dataset.from_tensor_slices(rows).repeat().batch(batch_size, drop_remainder=True)
    return pipeline.fixed(batches.prefetch(pipeline.CALLS))


def _permuted(generator: np.random.Generator, values_L: np.ndarray, count: int) -> np.ndarray:
    """Returns `count` random permutations of the values, [count, L]."""
    if hasattr(generator, "permuted"):
        return generator.permuted(np.tile(values_L, (count, 1)), axis=1)
    return values_L[np.argsort(generator.random((count, len(values_L))), axis=1)]  # NumPy before 1.20


def _draw_tokens(generator: np.random.Generator, vocab_size: int, shape: tuple[int, ...]) -> np.ndarray:
    """Draws ids of words with frequencies as in text, see `draw_ids`; ids below 5 are special tokens."""
    return draw_ids(generator, np.arange(min(5, vocab_size - 1), vocab_size), shape)


# -----------------------------------------------------------------------------------------------------------
# Words


def draw_ids(generator: np.random.Generator, ids: np.ndarray, shape: int | tuple[int, ...]) -> np.ndarray:
    """Draws ids independently, the n-th one with a frequency proportional to 1 / n (Zipf's law).

    Args:
      generator: source of all draws.
      ids: [N], the ids to draw from.
      shape: shape of the result.

    """
    weights = 1 / np.arange(1, len(ids) + 1)
    return generator.choice(ids, shape, p=weights / weights.sum())
