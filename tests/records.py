"""Records as tests make and read them."""

import numpy as np
import tensorflow as tf

from official.data.records.schema import Feature


def serialize_example(values: dict[str, np.ndarray], schema: dict[str, Feature]) -> bytes:
    """Returns one record. Raises ValueError where a value is missing or of another length."""
    example = tf.train.Example()
    for name, feature in schema.items():
        array = np.asarray(values[name]).reshape(-1)
        if array.size != feature.length:
            raise ValueError(f"{name} has {array.size} values, the schema says {feature.length}")
        target = example.features.feature[name]
        if feature.dtype.is_integer:
            target.int64_list.value.extend(array.tolist())
        else:
            target.float_list.value.extend(array.tolist())
    return example.SerializeToString(deterministic=True)
