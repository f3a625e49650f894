"""How many calls of a dataset run side by side: a number, not what TensorFlow's autotuning finds out."""

import tensorflow as tf

CALLS = 2  # of what works on a whole batch or window, and inside it with more threads


def fixed(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset without autotuning.

    What autotuning notes down about every element takes longer than what it finds out can save. And its
    thread may miss that the dataset's
    iterator is taken down, which then waits for it: evaluations stood still for minutes (TensorFlow 2.15.1,
      Model::OptimizeLoop).
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
