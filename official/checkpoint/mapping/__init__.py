"""What formats are made of: canonical names, tables of names, tensors that are read when they are written, cuts and joins."""
