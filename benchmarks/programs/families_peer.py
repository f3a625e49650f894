"""Small random models of transformers' classes: makes them, computes expected results, and loads folders.

Protocol: one JSON object per line, over standard input and output. The key `do` of a question selects the
action.

make: class (end of the name of an AutoModel class: "" or For...), config (keys of config.json), seed and
  folder. The folder gets the model, and expected.npz: for each batch of `padded` and `full` its
  BATCH/input_ids, BATCH/attention_mask and BATCH/cotangent, BATCH/hidden, BATCH/logits and, for the loss
  sum(cotangent x logits), BATCH/gradient/NAME of each weight. The answer has versions.
load: class and folder. The answer has missing, unexpected and mismatched names, and the config.
expect: class, seed and folder, which has a model and gets its expected.npz. The answer is that of load.
electra: folder, of a discriminator with its generator's folder in it, and batch.npz: masked_ids,
  attention_mask, token_type_ids, labels of masked words, sampled_ids, and is_replaced. The folder gets
  losses.npz: mlm_loss, rtd_loss, and of mlm_loss + 50 rtd_loss gradient/NAME of each weight.
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
    _expect(model, question, generator)
    return {"versions": {"torch": torch.__version__, "transformers": transformers.__version__}}


def _expect(model, question: dict, generator) -> None:
    """Writes expected.npz."""
    import numpy as np
    import torch

    config, ending = model.config, question["class"]
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
        own |= {f"gradient/{name}": each.grad for name, each in _weights(model) if each.grad is not None}
        found |= {f"{kind}/{name}": np.asarray(_plain(values)) for name, values in own.items()}
    np.savez(f"{question['folder']}/expected.npz", **found)


def _weights(model) -> list:
    """Returns (name, weight) of all weights; a tied word embedding has its own name."""
    names = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        if weight not in names or "embeddings" in name:
            names[weight] = name
    return [(name, weight) for weight, name in names.items()]


def _logits(output):
    """Returns the logits of any class; for spans start and end stacked, for an encoder its vectors."""
    import torch

    if "start_logits" in output:
        return torch.stack([output.start_logits, output.end_logits], dim=-1)
    names = ("logits", "prediction_logits", "last_hidden_state")
    return next(output[name] for name in names if name in output)


def _plain(values):
    return values.detach().numpy() if hasattr(values, "detach") else values


def load(question: dict) -> dict:
    return _loaded(question)[1]


def expect(question: dict) -> dict:
    import numpy as np

    model, answer = _loaded(question)
    _expect(model.eval(), question, np.random.default_rng(question["seed"]))
    return answer


def electra(question: dict) -> dict:
    import numpy as np
    import torch

    folder = question["folder"]
    discriminator, _ = _loaded({"class": "ForPreTraining", "folder": folder})
    generator, _ = _loaded({"class": "ForMaskedLM", "folder": f"{folder}/generator"})
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.generator_lm_head.weight = discriminator.electra.embeddings.word_embeddings.weight
    with np.load(f"{folder}/batch.npz") as file:
        batch = {name: torch.tensor(values).long() for name, values in file.items()}
    shared = {name: batch[name] for name in ("attention_mask", "token_type_ids")}
    mlm = generator.eval()(input_ids=batch["masked_ids"], labels=batch["labels"], **shared).loss
    rtd = discriminator.eval()(input_ids=batch["sampled_ids"], labels=batch["is_replaced"], **shared).loss
    (mlm + 50 * rtd).backward()
    named = [*discriminator.named_parameters()]
    named += [(f"generator.{name}", weight) for name, weight in generator.named_parameters()]
    found = {f"gradient/{name}": weight.grad.numpy() for name, weight in named}
    np.savez(f"{folder}/losses.npz", mlm_loss=mlm.item(), rtd_loss=rtd.item(), **found)
    return {}


def _loaded(question: dict) -> tuple:
    """Returns (the model of a folder, the answer of `load`)."""
    import transformers

    kind = getattr(transformers, f"AutoModel{question['class']}")
    model, report = kind.from_pretrained(question["folder"], output_loading_info=True)
    names = {
        name: sorted(map(str, report[f"{name}_keys"])) for name in ("missing", "unexpected", "mismatched")
    }
    return model, {**names, "class": type(model).__name__, "config": model.config.to_dict()}


DO = {"make": make, "load": load, "expect": expect, "electra": electra}

if __name__ == "__main__":
    answers = training_step.take_output()
    for line in sys.stdin:
        asked = json.loads(line)
        training_step.say(answers, **DO[asked["do"]](asked))
