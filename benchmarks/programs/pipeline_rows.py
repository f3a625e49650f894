"""Labels for the rows of a file by Hugging Face's pipeline on a CPU.

Reads a specification from standard input, one JSON object: model (folder), input_file and output_file (CSV
with a column `text`; label and probability are added), batch_size, max_seq_length, threads. Writes to
standard output: predict_secs (from reading the file to having written the other one), versions.
"""

import csv
import json
import sys
import time

import training_step


def predict(specification: dict) -> dict:
    import torch
    import transformers

    torch.set_num_threads(specification["threads"])
    model = transformers.AutoModelForSequenceClassification.from_pretrained(specification["model"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(specification["model"])
    pipeline = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
    began = time.perf_counter()
    with open(specification["input_file"], encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = pipeline(
        [row["text"] for row in rows],
        batch_size=specification["batch_size"],
        truncation=True,
        max_length=specification["max_seq_length"],
    )
    with open(specification["output_file"], "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*rows[0], "label", "probability"])
        writer.writerows([*row.values(), one["label"], one["score"]] for row, one in zip(rows, found))
    return {
        "predict_secs": time.perf_counter() - began,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


if __name__ == "__main__":
    answers = training_step.take_output()
    training_step.say(answers, **predict(json.loads(sys.stdin.readline())))
