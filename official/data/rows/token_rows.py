"""Makes batches from rows of different lengths in memory, in an order that is a function of (seed, epoch)."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from official import native
from official.config import pack_depth, synthetic_sequences_per_pack
from official.config.table import Config
from official.data import pipeline
from official.data.packing import layout
from official.data.packing import plan as plan_lib
from official.data.rows.text_rows import TokenRows

# -----------------------------------------------------------------------------------------------------------
# Order of packed rows
#
# The lengths in each row are planned once. Sequences of the same length are exchangeable: each epoch draws
# their slots again, so that all epochs have the same number of rows.
#
# Shapes: N sequences, R rows, P = maximum number of sequences in a row.


def drawn(lengths_N: tf.Tensor, ranks_RP: tf.Tensor, seeds: tf.Tensor | None = None) -> tf.Tensor:
    """Returns int64 [R, P], the numbers of the sequences of each row; -1 for empty slots.

    Args:
      lengths_N: int64, lengths of the sequences.
      ranks_RP: see `plan.ranks`.
      seeds: [2, 2], seeds of an epoch for the sequences of the rows and for their order; None: a fixed order.
    """
    order_N = tf.range(tf.size(lengths_N), dtype=tf.int64)
    if seeds is not None:
        order_N = pipeline.shuffled(order_N, seeds[0])
    by_length_N = tf.gather(order_N, tf.argsort(tf.gather(lengths_N, order_N), stable=True))
    if not len(ranks_RP):
        return tf.constant(ranks_RP)
    rows_RP = tf.where(ranks_RP >= 0, tf.gather(by_length_N, tf.maximum(ranks_RP, 0)), -1)
    return rows_RP if seeds is None else pipeline.shuffled(rows_RP, seeds[1])


# -----------------------------------------------------------------------------------------------------------
# Batches
#
# Here a row of `TokenRows` is a sequence. A row of a batch holds one, or several if packed. Bucketed batches
# hold rows of about the same length, to reduce padding; this only changes the order.
#
# Shapes: B rows of a batch, P = maximum number of sequences in a packed row, L tokens of a row.
#
# Everything uses TensorFlow operations, so that it runs on the devices' host, even a remote one.


_POOL_BATCHES = 50  # enough for similar lengths in a batch, few enough for a random order
_LENGTH_STEP = 8  # lengths of bucketed batches are multiples of this: every length needs its own kernels
_LENGTH_STEP_OF_GPUS = 32  # on GPUs, whose kernels take longer to compile and whose steps are shorter


@dataclasses.dataclass(frozen=True)
class BatchShape:
    """Shape of the batches.

    Attributes:
      batch_size: rows of a batch, all parts together.
      part_size: rows of a part, the share of one replica; divides the batch.
      max_seq_length: tokens of a row; with `bucketed`, their maximum.
      bucketed: whether a batch holds rows of about the same length and is as long as the longest.
      depth: maximum number of sequences in a packed row; None: a row is a sequence.
      length_step: divisor of the lengths with `bucketed`.
      pool_batches: number of training batches that are sorted by length together with `bucketed`. With 1, the
        rows of a batch do not depend on their lengths.
    """

    batch_size: int
    part_size: int
    max_seq_length: int
    bucketed: bool
    depth: int | None = None
    length_step: int = _LENGTH_STEP
    pool_batches: int = _POOL_BATCHES


def shape_of(config: Config, batch_size: int, part_size: int) -> BatchShape:
    """Returns the shape of the batches of fine-tuning."""
    bucketed, depth = config.length_buckets == "always", pack_depth(config) if config.pack else None
    step = _LENGTH_STEP_OF_GPUS if native.uses_gpus(config) else _LENGTH_STEP
    return BatchShape(batch_size, part_size, config.max_seq_length, bucketed, depth, step)


def sequences_per_row(lengths_N: np.ndarray | None, config: Config) -> float | None:
    """Returns the average number of sequences in a training row with --pack; None without --pack.

    Args:
      lengths_N: lengths of the training set; None if it is not read: the number in synthetic data.
      config: configuration of the run.
    """
    if not (config.pack and config.do_train):
        return None
    if lengths_N is None:
        return float(_synthetic_sequences_per_row(config))
    return plan_lib.plan_of(lengths_N, config.max_seq_length, pack_depth(config)).speedup


def training_dataset(rows: TokenRows, shape: BatchShape, order: pipeline.TrainingOrder) -> tf.data.Dataset:
    """Returns an endless dataset of parts of batches.

    Every epoch visits each sequence once. Its last batch is padded with rows of weight 0. A batch is cut into
    parts, one per replica, all of the same length; part p of a batch belongs to host p % num_hosts. The
    content of a batch does not depend on the parts.

    Args:
      rows: the sequences; for packing, none is longer than a row of a batch.
      shape: shape of the batches.
      order: the dataset starts with the batch after `sequences_done`. This number includes padding rows,
        unless rows are packed: then an epoch is exactly the number of sequences.

    Returns:
      Batches {input_ids, input_mask, segment_ids: int32 [part, L], example_weights: float32 [part], rows:
      int32 [part], and the columns}. In packed batches the weights, rows and columns are [part, P], and there
      are also sequence_ids and position_ids: int32 [part, L], and cls_positions: int32 [part, P].
    """
    return _features(rows, _batches(rows, shape, order), shape, order.host, order.num_hosts)


def _batches(rows: TokenRows, shape: BatchShape, order: pipeline.TrainingOrder) -> tf.data.Dataset:
    """Returns the numbers of the rows of each batch, int64 [B], or of the sequences of each packed row,
    [B, P]; -1 for padding."""
    lengths_N = tf.constant(rows.example_lengths, tf.int64 if shape.depth else tf.int32)
    if shape.depth:
        epoch, skipped = divmod(order.sequences_done, len(rows))
        ranks_RP = tf.constant(_ranks(rows, shape))
    else:
        batches_of_epoch = -(-len(rows) // shape.batch_size)  # the last one may have padding
        epoch, skipped = divmod(order.sequences_done // shape.batch_size, batches_of_epoch)

    def epoch_batches(number):
        folded = tf.random.experimental.stateless_fold_in(tf.constant([order.seed, 0], tf.int64), number)
        seeds = pipeline.seeds_of(folded, 2)
        if not shape.depth:
            return tf.data.Dataset.from_tensor_slices(_shuffled_batches(lengths_N, shape, seeds))
        rows_RP = drawn(lengths_N, ranks_RP, seeds)
        done = tf.where(number == epoch, tf.constant(skipped, tf.int64), 0)
        rows_RP = pipeline.without_done(rows_RP, tf.math.count_nonzero(rows_RP >= 0, axis=1), done)
        return tf.data.Dataset.from_tensor_slices(_cut_into_batches(rows_RP, shape.batch_size))

    batches = tf.data.Dataset.range(epoch, tf.int64.max).flat_map(epoch_batches)
    return batches if shape.depth else batches.skip(skipped)


def _shuffled_batches(lengths_N: tf.Tensor, shape: BatchShape, seeds: tf.Tensor) -> tf.Tensor:
    """Returns int64 [batches, batch_size]: the numbers of the rows of an epoch's batches; -1 for padding."""
    numbers = tf.range(tf.size(lengths_N), dtype=tf.int64)
    order = pipeline.shuffled(numbers, seeds[0])
    if shape.bucketed:
        size = shape.pool_batches * shape.batch_size
        rows_PS = tf.reshape(tf.pad(order, [[0, -tf.size(order) % size]], constant_values=-1), [-1, size])
        lengths_PS = tf.where(rows_PS < 0, 0, tf.gather(lengths_N, tf.maximum(rows_PS, 0)))
        rows_PS = tf.gather(rows_PS, tf.argsort(-lengths_PS, stable=True), batch_dims=1)
        order = tf.reshape(rows_PS, [-1])[: tf.size(numbers)]
    batches = _cut_into_batches(order, shape.batch_size)
    return pipeline.shuffled(batches, seeds[1]) if shape.bucketed else batches


def evaluation_dataset(rows: TokenRows, shape: BatchShape) -> tf.data.Dataset:
    """Returns all rows once, in the form of `training_dataset` and a fixed order: the longest first if
    `bucketed`."""
    if shape.depth:
        order = drawn(rows.lengths, _ranks(rows, shape))
    else:
        order = np.argsort(
            -np.asarray(rows.example_lengths) if shape.bucketed else np.zeros(len(rows)), kind="stable"
        )
    batches = tf.data.Dataset.from_tensor_slices(_cut_into_batches(order, shape.batch_size))
    return _features(rows, batches, shape)


def _ranks(rows: TokenRows, shape: BatchShape) -> np.ndarray:
    depth = shape.depth or 1
    return plan_lib.ranks(plan_lib.plan_of(rows.lengths, shape.max_seq_length, depth).lengths_of_rows(depth))


def _cut_into_batches(order: tf.Tensor, batch_size: int) -> tf.Tensor:
    """Reshapes [rows, ...] to [batches, batch_size, ...], padded with -1."""
    missing = -tf.shape(order)[0] % batch_size
    paddings = [[0, missing], *([0, 0] for _ in order.shape[1:])]
    return tf.reshape(tf.pad(order, paddings, constant_values=-1), [-1, batch_size, *order.shape[1:]])


def _features(
    rows: TokenRows, batches: tf.data.Dataset, shape: BatchShape, host: int = 0, num_hosts: int = 1
) -> tf.data.Dataset:
    """Returns this host's parts of batches, given as numbers of rows."""
    with tf.device("CPU"):
        ids_T, starts_N = tf.constant(rows.ids), tf.constant(rows.starts)
        lengths_N, firsts_N = (tf.constant(part, tf.int32) for part in (rows.lengths, rows.first_lengths))
        columns = {name: tf.constant(values) for name, values in rows.columns.items()}
        token_columns = {name: tf.constant(values) for name, values in rows.token_columns.items()}
        example_lengths_N = lengths_N if rows.group == 1 else tf.constant(rows.example_lengths, tf.int32)

    def cut(rows_B):
        length = tf.constant(shape.max_seq_length)
        if shape.bucketed:
            longest = tf.reduce_max(tf.gather(example_lengths_N, tf.boolean_mask(rows_B, rows_B >= 0)))
            step = shape.length_step
            length = tf.minimum(-(-longest // step) * step, shape.max_seq_length)
        parts = tf.reshape(rows_B, [-1, shape.part_size, *rows_B.shape[1:]])[host::num_hosts]
        return tf.data.Dataset.from_tensor_slices((parts, tf.repeat(length, tf.shape(parts)[0])))

    def gather(rows_B, length):
        rows_BP = rows_B if shape.depth else rows_B[:, None]
        if rows.group > 1:
            rows_BP = tf.reshape(
                tf.maximum(rows_BP, 0) * rows.group + tf.range(rows.group, dtype=rows_B.dtype), [-1, 1]
            )
        chosen_BP = tf.maximum(rows_BP, 0)
        lengths_BP = tf.gather(lengths_N, chosen_BP)
        # A padding row, unless it is packed, repeats the first sequence.
        laid = layout.lay_out(tf.where(rows_BP >= 0, lengths_BP, 0) if shape.depth else lengths_BP, length)
        chosen_BL, is_token_BL = laid.spread(chosen_BP), laid.is_token_BL
        places_BL = tf.cast(laid.places_BL, tf.int64)
        ids_BL = tf.gather(ids_T, tf.gather(starts_N, chosen_BL) + places_BL)
        is_second_BL = is_token_BL & (laid.places_BL >= tf.gather(firsts_N, chosen_BL))
        features = {
            **laid.features(),
            "input_ids": tf.cast(ids_BL, tf.int32) * tf.cast(is_token_BL, tf.int32),
            "segment_ids": tf.cast(is_second_BL, tf.int32),
        }
        if not shape.depth:
            features = {name: features[name] for name in ("input_ids", "input_mask", "segment_ids")}
        for name, values_T in token_columns.items():
            own_BL = tf.gather(values_T, tf.gather(starts_N, chosen_BL) + places_BL)
            features[name] = tf.where(is_token_BL, own_BL, tf.constant(-1, own_BL.dtype))
        size = None if shape.bucketed else shape.max_seq_length
        static = [shape.part_size, *([rows.group] if rows.group > 1 else []), size]
        for name in features.keys() - {"cls_positions"}:
            if rows.group > 1:
                features[name] = tf.reshape(features[name], [shape.part_size, rows.group, -1])
            features[name] = tf.ensure_shape(features[name], static)
        return {
            **features,
            **{name: _of_rows(values, rows_B) for name, values in columns.items()},
            "example_weights": tf.cast(rows_B >= 0, tf.float32),
            "rows": tf.cast(rows_B, tf.int32),
        }

    parts = batches.flat_map(cut).map(gather, num_parallel_calls=pipeline.CALLS)
    return pipeline.fixed(parts.prefetch(pipeline.CALLS))


def _of_rows(values: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns the values of rows; 0 for padding rows, since 0 is a valid position in every batch, and the
    value of another row may be beyond its end."""
    is_row = tf.reshape(rows >= 0, tf.concat([tf.shape(rows), tf.ones(values.shape.rank - 1, tf.int32)], 0))
    return tf.where(is_row, tf.gather(values, tf.maximum(rows, 0)), tf.zeros((), values.dtype))


def synthetic_length(config: Config) -> int:
    """Returns the number of tokens in a synthetic sequence: a row, or its share of a packed row."""
    if not config.pack:
        return config.max_seq_length
    sequences = round(synthetic_sequences_per_pack(config))
    return max(1, config.max_seq_length // sequences)


def _synthetic_sequences_per_row(config: Config) -> int:
    if not config.pack:
        return 1
    return min(config.max_seq_length // synthetic_length(config), pack_depth(config))


def synthetic_dataset(
    columns: dict[str, np.ndarray],
    batch_size: int,
    config: Config,
    token_columns: dict[str, np.ndarray] | None = None,
    group: int = 1,
) -> tf.data.Dataset:
    """Returns endless batches of full rows: sequences of `synthetic_length` random words, in two segments.

    Args:
      columns: {name: [N] array} of N sequences; last ones that do not fill a row are left out.
      batch_size: rows of a batch.
      config: configuration of the run.
      token_columns, group: as of `TokenRows`, `token_columns` with a value for each token.
    """
    length, vocab_size = synthetic_length(config), config.model.vocab_size
    token_columns = token_columns or {}
    count = (
        len(next(iter(columns.values()))) if columns else len(next(iter(token_columns.values()))) // length
    )
    count -= count % _synthetic_sequences_per_row(config)
    random = np.random.default_rng(config.seed)
    ids = random.integers(min(5, vocab_size - 1), vocab_size, count * group * length).astype(np.int32)
    lengths = np.full(count * group, length, np.int32)
    columns = {name: values[:count] for name, values in columns.items()}
    tokens = {name: values[: count * length] for name, values in token_columns.items()}
    rows = TokenRows(ids, lengths, lengths // 2, columns, tokens, group)
    shape = shape_of(config, batch_size, batch_size)
    return training_dataset(rows, shape, pipeline.TrainingOrder(config.seed))
