"""Data that are made up, in the files that real ones come in: what reads them cannot tell."""
