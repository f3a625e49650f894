"""Parts of formats: canonical names, tables of names, lazy tensors, cuts and joins."""
