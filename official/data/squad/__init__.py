"""SQuAD: files -> features -> answers -> the official measures."""
