"""The formats of a record of pre-training data, a module each; `records.record_formats` is their front."""
