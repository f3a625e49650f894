"""TensorFlow: the model of modeling, as it is."""

import numpy as np
import tensorflow as tf

from official.inference import networks
from official.inference.backends import Network, Outputs, Settings
from official.inference.rows import Rows
from official.inference.source import Source
from official.modeling import stages

DTYPES = ("fp32",)


def build(source: Source, head: str, settings: Settings) -> Network:
    """Builds a network. Raises ConfigError where a weight is missing or cannot be read."""
    classes = source.tensors["output_weights"].shape[0] if head == "classify" else 0
    model = networks.make(source.bert, head, classes)
    source.fill(model)

    @tf.function(autograph=False, reduce_retracing=True)
    def compute(batch):
        return stages.run(model, batch, None)

    def network(rows: Rows) -> Outputs:
        batch = networks.padded(rows)
        features = {name: tf.constant(values) for name, values in batch.items()}
        return _outputs(compute(features), batch, head, rows)

    return network


def _outputs(carried, batch: dict[str, np.ndarray], head: str, rows: Rows) -> Outputs:
    is_token_BL = batch["input_mask"] > 0
    if head == "classify":
        return {"logits": carried["logits"].numpy()}
    if head == "fill_mask":
        counts_B = np.bincount(networks.sequences_of(rows, rows.masked_M), minlength=len(rows.lengths_N))
        logits_BPV = carried["masked_lm_logits"].numpy()
        return {"logits": logits_BPV[np.arange(logits_BPV.shape[1]) < counts_B[:, None]]}
    names = ("start_logits", "end_logits") if head == "answer" else ("sequence",)
    return {name: carried[name].numpy()[is_token_BL] for name in names}
