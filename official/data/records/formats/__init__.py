"""The formats of pre-training records, one module each; import `records.record_formats`."""
