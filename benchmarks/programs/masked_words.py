"""Pre-training on masked words with Hugging Face's Trainer on a CPU, as the example run_mlm.py does it, for a
given time.

Reads a specification from standard input, one JSON object, and writes its results to standard output.

The specification: train_file (text, a sentence a line, a blank line between documents), vocab_file, model
(keys of a bert_config.json), output_dir, secs (of training), threads, seed, and the recipe: max_seq_length,
train_batch_size, learning_rate, weight_decay_rate, mask_share, warmup_share and decay_share (of the time, at
the begin and at the end), and decay (linear or 1-sqrt, as transformers' get_wsd_schedule names them).

As run_mlm.py, it joins all texts end to end and cuts them into rows of max_seq_length. Where it counts steps
this program counts seconds: the rate rises for warmup_share of them, and falls to zero in the last
decay_share.

Results: steps, secs, curve ([[step, seconds, mean loss of the steps before]]), rows, checkpoint
(folder), versions.
"""

import json
import os
import sys
import time

import training_step


def read_rows(specification: dict, tokenizer) -> list[list[int]]:
    """Returns rows of max_seq_length ids: the concatenated documents, each followed by [SEP]."""
    length = specification["max_seq_length"]
    with open(specification["train_file"], encoding="utf-8") as file:
        documents = [" ".join(part.split("\n")) for part in file.read().split("\n\n")]
    ids: list[int] = []
    for first in range(0, len(documents), 1000):
        encoded = tokenizer(documents[first : first + 1000], return_attention_mask=False)["input_ids"]
        for one in encoded:
            ids += one
    return [ids[begin : begin + length] for begin in range(0, len(ids) - length + 1, length)]


def rate_factor(spent: float, recipe: dict) -> float:
    """Returns the rate relative to its peak after a share `spent` of the time."""
    warmup_share, decay_share = recipe["warmup_share"], recipe["decay_share"]
    rising = spent / warmup_share if warmup_share else 1.0
    decayed = min(1.0, max(0.0, 1 - (1 - spent) / decay_share))
    falling = 1 - (decayed**0.5 if recipe["decay"] == "1-sqrt" else decayed)
    return min(rising, falling)


def train(specification: dict) -> dict:
    """Trains as specified; returns the results, see the module's docstring."""
    import torch
    import transformers

    torch.set_num_threads(specification["threads"])
    transformers.set_seed(specification["seed"])
    tokenizer = transformers.BertTokenizerFast(specification["vocab_file"], do_lower_case=True)
    sizes = specification["model"]
    if sizes.get("family") == "modernbert":
        special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("cls", "sep")}
        model = transformers.ModernBertForMaskedLM(training_step.modernbert_config(sizes, **special))
    else:
        model = transformers.BertForMaskedLM(transformers.BertConfig(**sizes))
    rows = read_rows(specification, tokenizer)
    peak, limit, clock, curve = specification["learning_rate"], specification["secs"], {}, []

    class Budget(transformers.TrainerCallback):
        """Sets the rate of each step from the elapsed time, and ends the training."""

        def on_train_begin(self, args, state, control, **kwargs):
            clock["began"] = time.perf_counter()

        def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
            spent = (time.perf_counter() - clock["began"]) / limit
            for group in optimizer.param_groups:
                group["lr"] = peak * rate_factor(spent, specification)

        def on_step_end(self, args, state, control, **kwargs):
            clock["secs"] = time.perf_counter() - clock["began"]
            if clock["secs"] >= limit:
                control.should_training_stop = control.should_log = True

        def on_log(self, args, state, control, logs=None, **kwargs):
            if "loss" in logs:
                curve.append([state.global_step, clock["secs"], logs["loss"]])

    arguments = transformers.TrainingArguments(
        output_dir=specification["output_dir"],
        use_cpu=True,
        seed=specification["seed"],
        num_train_epochs=1000,  # the time is over before
        per_device_train_batch_size=specification["train_batch_size"],
        learning_rate=peak,
        lr_scheduler_type="constant",
        weight_decay=specification["weight_decay_rate"],
        logging_steps=100,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=[{"input_ids": row} for row in rows],
        data_collator=transformers.DataCollatorForLanguageModeling(
            tokenizer, mlm_probability=specification["mask_share"]
        ),
        callbacks=[Budget()],
    )
    trainer.train()
    checkpoint = os.path.join(specification["output_dir"], "model")
    model.save_pretrained(checkpoint)
    tokenizer.save_pretrained(checkpoint)
    return {
        "steps": trainer.state.global_step,
        "secs": clock["secs"],
        "curve": curve[:: max(1, len(curve) // 50)],
        "rows": len(rows),
        "checkpoint": checkpoint,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


if __name__ == "__main__":
    answers = training_step.take_output()
    training_step.say(answers, **train(json.loads(sys.stdin.readline())))
