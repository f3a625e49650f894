"""Files to tf.data: schema, tokenization, example building, reading, synthetic data."""
