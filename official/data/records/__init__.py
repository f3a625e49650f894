"""TFRecords of pre-training examples: formats, order, batches."""
