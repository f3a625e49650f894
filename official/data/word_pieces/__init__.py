"""Words and word pieces: vocabularies and tokenization."""
