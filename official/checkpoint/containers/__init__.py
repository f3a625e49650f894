"""Kinds of files that hold tensors by name, one module a kind, with the functions of `format.Container`."""
