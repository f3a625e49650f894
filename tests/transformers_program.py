"""Loads a folder with transformers' AutoModel* and AutoTokenizer, and prints what they make of it.

python tests/transformers_program.py FOLDER CLASS < texts

Run by test_transformers.py. `texts` is a JSON array; the last line of stdout is a JSON object.
"""

import json
import sys

import torch
import transformers


def main(folder: str, class_name: str) -> None:
    texts = json.load(sys.stdin)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model, loading = getattr(transformers, class_name).from_pretrained(folder, output_loading_info=True)
    model.eval()
    batch = tokenizer(texts[:2], padding=True, truncation=True, max_length=24, return_tensors="pt")
    with torch.no_grad():
        outputs = model(**batch)
    names = (
        "logits start_logits end_logits prediction_logits seq_relationship_logits last_hidden_state".split()
    )
    problems = ("missing_keys", "unexpected_keys", "mismatched_keys")
    given = ("input_ids", "token_type_ids", "attention_mask")
    found = {
        "version": transformers.__version__,
        "class": type(model).__name__,
        "loading": {key: sorted(map(str, loading[key])) for key in problems},
        "labels": model.config.id2label,
        "problem_type": model.config.problem_type,
        "lower_case": tokenizer.do_lower_case,
        "longest": tokenizer.model_max_length,
        "ids": [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts],
        "batch": {name: batch[name].tolist() for name in given},
        "outputs": {name: outputs[name].tolist() for name in names if name in outputs},
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
