"""The formats of a record of pre-training data, a module each; `official.data.records.containers` is their
front.
"""
