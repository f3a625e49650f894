"""Measures attention over packed rows, row by row and sequence by sequence: forward and backward pass of one
block's attention and of the encoder.

  bert benchmark attention --histogram=wikipedia_512.json --dtypes=fp32,bf16 \\
    --output=results/attention_wikipedia

Rows are drawn from the plan of a histogram of lengths. All cases take turns in one process, with dropout 0.1;
the number is the median of the ratios of a round, in seconds and in seconds of the processor, which other
programs on the machine disturb less.
"""

import argparse
import statistics
import sys
import time
from typing import Any

import official  # first: sets what TensorFlow reads when it is imported
from official.cli import command_line, outputs
from official.cli.benchmark import inputs

CASES = {"by row": False, "by sequence": True}


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    inputs.add_model_flag(parser)
    parser.add_argument("--histogram", required=True, help="Histogram of lengths, as of bert pack.")
    parser.add_argument("--max_sequences_per_pack", type=int, default=12, help="Depth of the plan (LPFHP).")
    parser.add_argument("--rows", type=int, default=4, help="Rows of a batch.")
    parser.add_argument("--dtypes", default="fp32,bf16", help="Comma-separated: fp32, bf16.")
    inputs.add_timing_flags(parser, rounds=12)
    outputs.add_flags(parser)
    return parser


def parse_flags() -> argparse.Namespace:
    flags = make_parser().parse()
    outputs.check_results(flags)
    command_line.check_counts(flags, "rounds", "rows", "max_sequences_per_pack")
    flags.dtypes = command_line.read_list(flags.dtypes, "dtypes", ("fp32", "bf16"))
    return flags


def draw_batches(flags: argparse.Namespace, count: int = 6) -> list:
    """Returns `sequence_ids` of some batches, int32 [B, L], of rows drawn from the plan."""
    import numpy as np

    from official.data.packing import algorithms

    histogram = algorithms.read_histogram(flags.histogram)
    plan = algorithms.plan_by_algorithm(histogram, "lpfhp", flags.max_sequences_per_pack).plan
    packs, weights = list(plan.packs), np.array(list(plan.packs.values())) / plan.rows
    generator = np.random.default_rng(12345)

    def row(number: int):
        lengths = generator.permutation(packs[number])
        ids = np.repeat(np.arange(1, len(lengths) + 1), lengths)
        return np.pad(ids, (0, plan.row_length - len(ids)))

    drawn = generator.choice(len(packs), [count, flags.rows], p=weights)
    return [np.stack([row(number) for number in numbers]).astype(np.int32) for numbers in drawn]


def make_works(model: dict, dtype: str, by_sequence: bool) -> dict[str, Any]:
    """Returns {what is timed: function of (`sequence_ids`, seed)}, forward and backward."""
    import tensorflow as tf

    from official.config import bert_config_from_dict
    from official.modeling import attention, operations, stages
    from official.modeling.encoder import BertEncoder

    policy = {"fp32": "float32", "bf16": "mixed_bfloat16"}[dtype]
    tf.keras.mixed_precision.set_global_policy(policy)
    config, ops = bert_config_from_dict(model, "bert_config_file"), operations.choose("fused")
    encoder = BertEncoder(config, "fused", shared=True, by_sequence=by_sequence)
    block = encoder.blocks[0]

    @tf.function(autograph=False, reduce_retracing=True)
    def run_attention(ids_BL, seed):
        seen = attention.seen({"sequence_ids": ids_BL}, config.num_attention_heads, by_sequence)
        x_BLE = tf.cast(
            tf.random.stateless_normal([*ids_BL.shape, 3 * config.hidden_size], seed), block.compute_dtype
        )
        with tf.GradientTape() as tape:
            tape.watch(x_BLE)
            heads_BLD = attention.attend(x_BLE, seen, config.num_attention_heads, 0.1, seed, ops)
        return tf.reduce_sum(tf.cast(tape.gradient(heads_BLD, x_BLE), tf.float32))

    @tf.function(autograph=False, reduce_retracing=True)
    def run_encoder(ids_BL, seed):
        features = dict.fromkeys(("input_ids", "sequence_ids", "position_ids", "input_mask"), ids_BL)
        with tf.GradientTape() as tape:
            sequence_BLD = stages.run(encoder, {**features, "segment_ids": 0 * ids_BL}, seed)["sequence"]
        variables = [variable for each in encoder.blocks for variable in each.trainable_variables]
        return tf.add_n([tf.reduce_sum(gradient) for gradient in tape.gradient(sequence_BLD, variables)])

    return {"attention": run_attention, "encoder": run_encoder}


def measure(flags: argparse.Namespace, batches: list) -> list[dict]:
    """Returns a row for each dtype and part: median seconds of both cases, and of the rounds' ratios."""
    import tensorflow as tf

    model, rows = inputs.read_model(flags.bert_config_file), []
    for dtype in flags.dtypes:
        works = {name: make_works(model, dtype, by_sequence) for name, by_sequence in CASES.items()}
        for part in ("attention", "encoder"):
            clocks: dict[str, list] = {name: [] for name in CASES}
            for number in range(-len(batches), flags.rounds):  # each batch once before, to compile its shapes
                for name in CASES:
                    ids_BL, seed = tf.constant(batches[number % len(batches)]), tf.constant([number, 2])
                    began = time.perf_counter(), time.process_time()
                    works[name][part](ids_BL, seed).numpy()
                    clocks[name].append((time.perf_counter() - began[0], time.process_time() - began[1]))
            timed = {name: values[len(batches) :] for name, values in clocks.items()}
            rows.append({"name": f"{dtype}, {part}", **ratios(timed)})
            print(describe(rows[-1]), file=sys.stderr)
    return rows


def ratios(clocks: dict[str, list[tuple[float, float]]]) -> dict:
    """Returns the medians of (seconds, processor's seconds) a round of both cases, and of their ratios."""
    by_row, by_sequence = (list(zip(*clocks[name])) for name in CASES)
    found: dict[str, Any] = {}
    for kind, ours, theirs in zip(("secs", "cpu_secs"), by_sequence, by_row):
        found[f"{kind}_by_row"], found[f"{kind}_by_sequence"] = map(statistics.median, (theirs, ours))
        found[f"{kind}_ratios"] = [one / other for one, other in zip(ours, theirs)]
        found[f"{kind}_ratio"] = statistics.median(found[f"{kind}_ratios"])
    return found


def describe(row: dict) -> str:
    return (
        f"{row['name']:<18}{row['secs_by_row']:>9.3f} s by row{row['secs_by_sequence']:>9.3f} s by sequence"
        f"{row['secs_ratio']:>7.2f}{row['cpu_secs_ratio']:>7.2f} of the processor"
    )


def draw(rows: list[dict], title: str) -> bytes:
    """Returns the picture (PNG): a bar a part."""
    from official.reporting import measurement

    bars = [
        measurement.Bar(
            row["name"],
            row["cpu_secs_ratio"],
            measurement.Timing(tuple(row["cpu_secs_ratios"])).spread,
            f"{row['cpu_secs_ratio']:.2f}",
            row["name"].split(",")[0],
        )
        for row in rows
    ]
    return measurement.draw_bars(bars, title, "processor's seconds by sequence over by row", 1.0, "by row")


def main() -> None:
    flags = parse_flags()
    official.choose_kernels("bf16" if "bf16" in flags.dtypes else "fp32")
    batches = draw_batches(flags)
    pairs = [(ids[:, :, None] == ids[:, None]) & (ids > 0)[:, None] for ids in batches]
    share = float(sum(each.mean() for each in pairs) / len(pairs))
    rows = measure(flags, batches)
    shape = f"{batches[0].shape[0]} rows of {batches[0].shape[1]} tokens"
    print("\n".join([f"{shape}, {share:.0%} of the pairs see each other", *map(describe, rows)]))
    record = {
        "rows": flags.rows,
        "max_seq_length": batches[0].shape[1],
        "share_of_pairs": share,
        "cases": rows,
    }
    title = f"Attention of packed rows, {outputs.stem(flags.histogram)}, {share:.0%} of the pairs"
    outputs.write_results(flags.output, record, lambda: draw(rows, title))
