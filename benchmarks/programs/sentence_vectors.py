"""Vectors of the rows of a file by sentence-transformers, on a GPU if PyTorch sees one.

Reads a specification from standard input, one JSON object: model (folder), input_file (CSV with a column
`text`), output_file (.npy), batch_size, max_seq_length, threads. Writes to standard output:
embed_secs (from reading the file to having written the other one), versions.
"""

import csv
import json
import sys
import time

import training_step


def embed(specification: dict) -> dict:
    import numpy as np
    import sentence_transformers
    import torch
    import transformers

    torch.set_num_threads(specification["threads"])
    model = sentence_transformers.SentenceTransformer(specification["model"])
    model.max_seq_length = specification["max_seq_length"]
    began = time.perf_counter()
    with open(specification["input_file"], encoding="utf-8", newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    vectors = model.encode(texts, batch_size=specification["batch_size"], show_progress_bar=False)
    np.save(specification["output_file"], vectors)
    packages = (torch, transformers, sentence_transformers)
    versions = {each.__name__: each.__version__ for each in packages}
    return {"embed_secs": time.perf_counter() - began, "versions": versions}


if __name__ == "__main__":
    answers = training_step.take_output()
    training_step.say(answers, **embed(json.loads(sys.stdin.readline())))
