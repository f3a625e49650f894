"""The formats of a record of pre-training data, a module each; `official.data.records.record_formats` is their
front.
"""
