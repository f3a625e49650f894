"""Small random models of transformers' classes, what they compute, and folders loaded into them.

One JSON object a line, over standard input and output. Of a question the key `do` says what is asked.

make: class (end of the name of an AutoModel class: "" or For...), config (keys of config.json), seed and
  folder. The folder gets the model, and expected.npz: for each batch of `padded` and `full` its
  BATCH/input_ids, BATCH/attention_mask and BATCH/cotangent, BATCH/hidden, BATCH/logits and, for the loss
  sum(cotangent x logits), BATCH/gradient/NAME of each weight. The answer has versions.
load: class and folder. The answer has missing, unexpected and mismatched names, and the config.
"""

import json
import sys

import training_step

_ROWS, _CHOICES, _CLASSES = 3, 2, 3
_DEVIATION = 0.3  # of all weights: of transformers' own first values, biases are zero


def make(question: dict) -> dict:
    import numpy as np
    import torch
    import transformers

    ending, settings = question["class"], dict(question["config"])
    torch.manual_seed(question["seed"])
    generator = np.random.default_rng(question["seed"])
    if ending in ("ForSequenceClassification", "ForTokenClassification"):
        settings["num_labels"] = _CLASSES
    config = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
    model = getattr(transformers, f"AutoModel{ending}").from_config(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            is_scale = weight.ndim == 1 and name.endswith("weight")
            weight.normal_(float(is_scale), _DEVIATION)
    model.save_pretrained(question["folder"])
    length = config.max_position_embeddings
    if "roberta" in type(model).__name__.lower() or "camembert" in type(model).__name__.lower():
        length -= config.pad_token_id + 1
    rows = _ROWS * (_CHOICES if ending == "ForMultipleChoice" else 1)
    found = {}
    for kind, lengths in (
        ("padded", [max(length - 5 * row, 2) for row in range(rows)]),
        ("full", [length] * rows),
    ):
        mask = (np.arange(length) < np.array(lengths)[:, None]).astype(np.int64)
        ids = generator.integers(10, config.vocab_size, mask.shape)  # no special token among them
        ids = np.where(mask > 0, ids, config.pad_token_id)
        features = {"input_ids": ids, "attention_mask": mask}
        if getattr(config, "type_vocab_size", 0) > 1:
            features["token_type_ids"] = (np.arange(length) >= length // 2).astype(np.int64) * np.ones_like(
                ids
            )
        given = {
            name: torch.tensor(values.reshape(_ROWS, _CHOICES, length) if rows > _ROWS else values)
            for name, values in features.items()
        }
        model.zero_grad()
        output = model(**given, output_hidden_states=True)
        logits = _logits(output)
        cotangent = generator.standard_normal(logits.shape).astype(np.float32)
        if logits.ndim > 1 and logits.shape[:2] == mask.shape and rows == _ROWS:  # of tokens
            cotangent *= mask.reshape(mask.shape + (1,) * (logits.ndim - 2))
        (logits * torch.tensor(cotangent)).sum().backward()
        own = {**features, "cotangent": cotangent, "logits": logits, "hidden": output.hidden_states[-1]}
        original = model.all_tied_weights_keys  # {name of a copy: of the weight}
        own |= {
            f"gradient/{original.get(name, name)}": each.grad
            for name, each in model.named_parameters()
            if each.grad is not None
        }
        found |= {f"{kind}/{name}": np.asarray(_plain(values)) for name, values in own.items()}
    np.savez(f"{question['folder']}/expected.npz", **found)
    return {"versions": {"torch": torch.__version__, "transformers": transformers.__version__}}


def _logits(output):
    """Returns the logits of any class; of spans start and end side by side, of an encoder its vectors."""
    import torch

    if "start_logits" in output:
        return torch.stack([output.start_logits, output.end_logits], dim=-1)
    names = ("logits", "prediction_logits", "last_hidden_state")
    return next(output[name] for name in names if name in output)


def _plain(values):
    return values.detach().numpy() if hasattr(values, "detach") else values


def load(question: dict) -> dict:
    import transformers

    kind = getattr(transformers, f"AutoModel{question['class']}")
    model, report = kind.from_pretrained(question["folder"], output_loading_info=True)
    names = {
        name: sorted(map(str, report[f"{name}_keys"])) for name in ("missing", "unexpected", "mismatched")
    }
    return {**names, "class": type(model).__name__, "config": model.config.to_dict()}


if __name__ == "__main__":
    answers = training_step.take_output()
    for line in sys.stdin:
        asked = json.loads(line)
        training_step.say(answers, **{"make": make, "load": load}[asked["do"]](asked))
