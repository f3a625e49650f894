"""ModernBERT's masked-word training step, and its vectors of all tokens, of texts of given lengths.

The protocol is that of training_step.py; a step of `infer` computes no gradient. The specification: system
(ours or huggingface), variant (huggingface: sdpa or sdpa+compiled, of padded rows; sdpa+compiled+whole, of
rows of one length, with the model's own loss, which computes the logits of all tokens; sdpa+apart, a text
after the other without padding, whose gradients are added up), work (train or infer), model (keys of our
bert_config.json), lengths (tokens of each text), dtype (fp32 or bf16), threads, seed, learning_rate,
weight_decay, epsilon and clip_norm. Weights are random.

A loss is that of all masked words, 15 % of each text; of `infer`, the mean square of the vectors, for which
all have to be computed. An answer's peak_bytes are those of the process.
"""

import json
import resource
import sys
import time

import training_step

_SPECIAL = 10  # ids below are of no word
_MASKED = 0.15


def main() -> None:
    """Serves steps until the input ends."""
    answers = training_step.take_output()
    specification = json.loads(sys.stdin.readline())
    started = time.perf_counter()
    make = {"ours": make_ours, "huggingface": make_huggingface}[specification["system"]]
    run = make(specification)
    first = run(1)
    training_step.say(answers, start_secs=time.perf_counter() - started, losses=first)
    for line in sys.stdin:
        losses = run(json.loads(line)["steps"])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        training_step.say(answers, losses=losses, peak_bytes=peak)


def texts(specification: dict) -> list[tuple]:
    """Returns (ids, positions of the masked tokens, their ids) of each text, the same for every system: int64
    [L], [P], [P]."""
    import numpy as np

    generator, found = np.random.default_rng(specification["seed"]), []
    for length in specification["lengths"]:
        ids = generator.integers(_SPECIAL, specification["model"]["vocab_size"], length)
        places = np.sort(generator.permutation(length)[: max(1, round(_MASKED * length))])
        found.append((ids, places, ids[places].copy()))
        ids[places] = 4
    return found


def padded(specification: dict) -> dict:
    """Returns the texts as rows: input_ids, input_mask [N, L], positions, labels, weights [N, P] (0 for
    padding)."""
    import numpy as np

    found = texts(specification)
    names = ("input_ids", "input_mask"), ("positions", "labels", "weights")
    widths = max(len(ids) for ids, _, _ in found), max(len(places) for _, places, _ in found)
    batch = {
        name: np.zeros((len(found), width), np.int64) for group, width in zip(names, widths) for name in group
    }
    for row, (ids, places, labels) in enumerate(found):
        batch["input_ids"][row, : len(ids)], batch["input_mask"][row, : len(ids)] = ids, 1
        for name, values in (("positions", places), ("labels", labels), ("weights", 1)):
            batch[name][row, : len(places)] = values
    return batch


# ------------------------------------------------------------------------------------------------------------
# Hugging Face transformers on PyTorch


def make_huggingface(specification: dict):
    import torch
    import transformers

    torch.set_num_threads(specification["threads"])
    attention, *more = specification["variant"].split("+")
    half = {"enabled": specification["dtype"] == "bf16", "dtype": torch.bfloat16}
    torch.manual_seed(specification["seed"])
    config = training_step.modernbert_config(specification["model"], attn_implementation=attention)
    model = transformers.ModernBertForMaskedLM(config)
    is_training = specification["work"] == "train"
    model.train(is_training)
    rows = torch.arange(len(specification["lengths"]))[:, None]
    if "apart" in more:
        parts = [
            {"input_ids": ids[None], "input_mask": None, "positions": places[None], "labels": labels[None]}
            for ids, places, labels in texts(specification)
        ]
    else:
        parts = [padded(specification)]
    parts = [
        {name: None if value is None else torch.as_tensor(value) for name, value in part.items()}
        for part in parts
    ]
    total = sum(len(places) for _, places, _ in texts(specification))

    def vectors_of(part):
        return model.model(input_ids=part["input_ids"], attention_mask=part["input_mask"]).last_hidden_state

    def loss_of(part):
        picked = vectors_of(part)[rows[: len(part["positions"])], part["positions"]]
        logits = model.decoder(model.head(picked)).float().flatten(0, 1)
        losses = torch.nn.functional.cross_entropy(logits, part["labels"].flatten(), reduction="none")
        if "weights" in part:
            losses = losses * part["weights"].flatten()
        return losses.sum() / total

    def own_loss_of(part):
        return model(input_ids=part["input_ids"], attention_mask=part["input_mask"], labels=part["all"]).loss

    def squares_of(part):
        squares = vectors_of(part).float().square().mean(dim=-1)
        return (squares if part["input_mask"] is None else squares * part["input_mask"]).sum()

    if "whole" in more:
        for part in parts:
            part["all"] = torch.full_like(part["input_ids"], -100)
            part["all"].scatter_(1, part["positions"], part["labels"])
    compute = (own_loss_of if "whole" in more else loss_of) if is_training else squares_of
    if "compiled" in more:
        compute = torch.compile(compute)
    if not is_training:

        def infer():
            with torch.inference_mode(), torch.autocast("cpu", **half):
                return sum(float(compute(part)) for part in parts) / sum(specification["lengths"])

        return training_step.one_by_one(infer)[0]
    decayed: dict = {True: [], False: []}
    for name, parameter in model.named_parameters():
        decayed[not ("norm" in name or name.endswith("bias"))].append(parameter)
    optimizer = training_step.torch_optimizer({**specification, "optimizer_type": "adamw"}, decayed)

    def step():
        found = 0.0
        for part in parts:
            with torch.autocast("cpu", **half):
                loss = compute(part)
            loss.backward()
            found += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), specification["clip_norm"])
        optimizer.step()
        optimizer.zero_grad()
        return found

    return training_step.one_by_one(step)[0]


# ------------------------------------------------------------------------------------------------------------
# This project: --unpad in training, and the back end that a user's command takes


def make_ours(specification: dict):
    import official
    from official.io import quiet

    quiet.leave_out("pandas")  # as commands do
    official.choose_kernels(specification["dtype"])
    return (train_ours if specification["work"] == "train" else infer_ours)(specification)


def train_ours(specification: dict):
    import numpy as np

    from official.tasks import TASKS
    from official.training import step_benchmark

    made = padded(specification)
    batch, length = made["input_ids"].shape
    settings = {
        "objective": "mlm",
        "optimizer_type": "adamw",
        "unpad": True,
        "lr_schedule": json.dumps({"0": specification["learning_rate"]}),
        "warmup_steps": None,
        "weight_decay_rate": specification["weight_decay"],
        "epsilon": specification["epsilon"],
        "clip_norm": specification["clip_norm"],
        "max_predictions_per_seq": made["positions"].shape[1],
    }
    config = step_benchmark.step_config(
        specification["model"], length, batch, specification["dtype"], settings
    )
    records = {name: made[name].astype(np.int32) for name in ("input_ids", "input_mask")}
    records |= {
        "segment_ids": np.zeros_like(records["input_ids"]),
        "masked_lm_positions": made["positions"].astype(np.int32),
        "masked_lm_ids": made["labels"].astype(np.int32),
        "masked_lm_weights": made["weights"].astype(np.float32),
        "example_weights": np.ones(batch, np.float32),
    }
    run = step_benchmark.make_step(config, TASKS["pretrain"], 1, records)
    return lambda count: [run(count)]


def infer_ours(specification: dict):
    import numpy as np

    from official.config import bert_config_from_dict
    from official.inference import backends, rows, source

    settings = backends.Settings("tensorflow", specification["dtype"], specification["threads"])
    backends.begin(settings)  # before anything is computed, weights included
    bert = bert_config_from_dict(specification["model"], "model")
    found = source.random_source(bert, "embed", seed=specification["seed"])
    network = backends.build(found, "embed", settings)
    asked = rows.join([ids.astype(np.int32) for ids, _, _ in texts(specification)])

    def infer():
        vectors_TD = rows.run(network, "embed", asked)["sequence"]
        return float(np.vdot(vectors_TD, vectors_TD)) / vectors_TD.size  # without a copy of them

    return training_step.one_by_one(infer)[0]


if __name__ == "__main__":
    main()
