"""What formats are made of: canonical names, tables of names, lazy tensors, cuts and joins."""
