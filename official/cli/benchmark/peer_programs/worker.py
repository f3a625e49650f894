"""The side of a benchmarked system: builds its training step from a specification, then runs steps.

One JSON object a line, over standard input and output. First the specification comes in, and {"start_secs",
"losses"} goes out once the first step is done; then {"steps": N} comes in and {"losses"} goes out, until the
input ends. Nothing here imports this project: a worker runs in an environment of its own.

The specification: model (keys of a bert_config.json), dtype (fp32 or bf16), length, batch, predictions
(masked tokens of a sequence), threads, learning_rate, weight_decay, epsilon, clip_norm, seed, and variant,
which is the system's own.
"""

import json
import os
import sys
import time
from collections.abc import Callable


def serve(make_step: Callable[[dict], Callable[[], float]]) -> None:
    """Serves steps; `make_step` takes the specification and returns what makes one update and returns its
    loss when it is done."""
    answers = take_output()
    specification = json.loads(sys.stdin.readline())
    started = time.perf_counter()
    step = make_step(specification)
    first = float(step())
    say(answers, start_secs=time.perf_counter() - started, losses=[first])
    for line in sys.stdin:
        say(answers, losses=[float(step()) for _ in range(json.loads(line)["steps"])])


def take_output():
    """Returns the standard output for answers alone; what libraries print goes to the standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def say(answers, **values) -> None:
    """Writes an answer: a line of JSON."""
    answers.write(json.dumps(values) + "\n")
    answers.flush()


def examples(specification: dict) -> dict:
    """Returns one batch of NumPy arrays, the same for every system: full-length random sequences of two
    segments.

    input_ids, input_mask, segment_ids: int32 [batch, length]; positions, labels: int32 [batch, predictions];
      next_sentence: int32 [batch].
    """
    import numpy as np

    batch, length, predictions = (specification[name] for name in ("batch", "length", "predictions"))
    generator = np.random.default_rng(specification["seed"])
    ids = generator.integers(0, specification["model"]["vocab_size"], (batch, length), dtype=np.int32)
    positions = np.sort(
        np.stack([generator.permutation(length)[:predictions] for _ in range(batch)]), axis=1
    ).astype(np.int32)
    return {
        "input_ids": ids,
        "input_mask": np.ones_like(ids),
        "segment_ids": (np.arange(length) >= length // 2).astype(np.int32) * np.ones_like(ids),
        "positions": positions,
        "labels": np.take_along_axis(ids, positions, axis=1),
        "next_sentence": generator.integers(0, 2, batch, dtype=np.int32),
    }
