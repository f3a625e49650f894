"""The model as a list of stages, its heads and its losses, all functions of tensors.

In reading order:
  encoder     embeddings, blocks, pooler and heads, as stages
  blocks/     one file per kind of block (`block_type` in the model's JSON)
  attention, varlen  self-attention; the same without padding
  models      the encoder with its heads: pre-training, spans, classes
  objectives  losses and accuracies
  layers, stages  building blocks of all of these; a model as a list of stages
  operations/ memory-bound operations in three versions: plain, fused and native (--kernels)

Keras layers hold variables under Google's TF1 names, so that a checkpoint's names need no map. A layer's
`tensors()` reads its variables, in the compute dtype; functions of tensors compute with them.

Shape suffixes: B batch (rows), L length, M attended length, P predictions, S sequences in a row, D hidden,
H heads, K head size, F feed-forward, V vocabulary, C classes.
"""

import tensorflow as tf

if getattr(tf.keras, "__version__", "2").startswith("3."):  # Keras 2 in TensorFlow has no version
    raise ImportError(
        f"tf.keras is Keras {tf.keras.__version__}; the model is written for Keras 2 (the package tf_keras)."
        " Import official before tf.keras is used for the first time, and do not set TF_USE_LEGACY_KERAS to"
        " anything but 1."
    )
