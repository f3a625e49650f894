"""Checkpoint formats: every module here holds one, FORMAT. A new file here is all that a new format takes.

The shortest is `native`. A format is a `format.Format`: a table of names (`mapping.table`), the two functions
that use it, and the name of a container. Actions, --help, flags, reading and writing follow from it.
"""
