"""Tensors to tensors: the layers of BERT, its heads and losses.

Shape suffixes: B batch, L length, M attended length, P predictions, D hidden, H heads, K head size, F feed-forward,
V vocabulary, C classes. Variables carry Google's TF1 names, so that a checkpoint's names need no map.
"""

import tensorflow as tf

if getattr(tf.keras, "__version__", "2").startswith("3."):  # in TensorFlow, Keras 2 names no version
    raise ImportError(
        f"tf.keras is Keras {tf.keras.__version__}; the model is written for Keras 2 (the package tf_keras)."
        " Import official before tf.keras is used for the first time, and do not set TF_USE_LEGACY_KERAS to"
        " anything but 1."
    )
