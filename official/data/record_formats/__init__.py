"""The formats of a record of pre-training data, a module each; `official.data.records` is their front."""
