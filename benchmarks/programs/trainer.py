"""Fine-tuning with Hugging Face's Trainer on a CPU, as the examples run_qa.py and run_glue.py do it.

Reads a specification from standard input, one JSON object, and writes its results to standard output.

The specification: task (squad or glue), dtype (fp32 or bf16), padding (grouped: batches of about one length,
as long as their longest; longest: batches in any order, as long as their longest; max_length: all rows are
padded to max_seq_length), model (folder of a checkpoint), train_file
(SQuAD's JSON; of GLUE one JSON object a line: sentence1, sentence2 of pairs, label), outputs (GLUE: classes;
1: a score), output_dir, threads, seed, and the recipe: train_batch_size, train_steps, warmup_steps,
learning_rate, weight_decay_rate, beta_1, beta_2, epsilon, clip_norm, max_seq_length, doc_stride, log_steps.

Results: data_sequences and data_tokens of the training set, training_secs of all updates, loss (mean of
the last logged steps), checkpoint (folder), versions.
"""

import json
import os
import sys

import training_step


def _padding_of_rows(specification: dict) -> str | bool:
    return "max_length" if specification["padding"] == "max_length" else False


def squad_rows(specification: dict, tokenizer) -> list[dict]:
    """Returns the windows of SQuAD's questions with the tokens where the answers begin and end, the first
    token of all where a window does not hold the answer. Source: prepare_train_features of run_qa.py."""
    with open(specification["train_file"], encoding="utf-8") as file:
        articles = json.load(file)["data"]
    asked = [
        (question["question"].lstrip(), paragraph["context"], question["answers"])
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    rows = []
    for number, window, parts in windows_of(specification, tokenizer, [texts[:2] for texts in asked]):
        begin, end = answer_tokens(asked[number][2], window.pop("offset_mapping"), parts)
        rows.append({**window, "start_positions": begin, "end_positions": end})
    return rows


def windows_of(specification: dict, tokenizer, asked: list[tuple[str, str]]):
    """Yields (number of the question, inputs with `offset_mapping`, part of each token) of every window.

    A window begins doc_stride tokens behind the one before it, as in Google's programs and in this project.
    run_qa.py gives its doc_stride to the tokenizer, where it is how many tokens two windows share: of long
    texts that is another number of windows.
    """
    length, step = specification["max_seq_length"], specification["doc_stride"]
    names = ("input_ids", "token_type_ids", "attention_mask", "offset_mapping")
    for number, (question, context) in enumerate(asked):
        room = length - len(tokenizer(question, "")["input_ids"])
        encoded = tokenizer(
            question,
            context,
            truncation="only_second",
            max_length=length,
            stride=max(0, room - step),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            padding=_padding_of_rows(specification),
        )
        for window, values in enumerate(zip(*(encoded[name] for name in names))):
            yield number, dict(zip(names, values)), encoded.sequence_ids(window)


def answer_tokens(answers: list[dict], offsets: list, parts: list) -> tuple[int, int]:
    """Returns the first and the last token of an answer in a window; (0, 0) if it is not in the window.

    Args:
      answers: as in SQuAD's files; the first one is used.
      offsets: (first character, end) of each token in its text.
      parts: of each token 0 (question), 1 (context) or None.
    """
    if not answers:
        return 0, 0
    begin_char = answers[0]["answer_start"]
    end_char = begin_char + len(answers[0]["text"])
    first, last = parts.index(1), len(parts) - 1 - parts[::-1].index(1)
    if not (offsets[first][0] <= begin_char and offsets[last][1] >= end_char):
        return 0, 0
    begin, end = first, last
    while begin <= last and offsets[begin][0] <= begin_char:
        begin += 1
    while offsets[end][1] >= end_char:
        end -= 1
    return begin - 1, end + 1


def glue_rows(specification: dict, tokenizer) -> list[dict]:
    """Returns the rows of a task of GLUE. Source: preprocess_function of run_glue.py."""
    with open(specification["train_file"], encoding="utf-8") as file:
        examples = [json.loads(line) for line in file]
    texts = [
        [example[name] for example in examples] for name in ("sentence1", "sentence2") if name in examples[0]
    ]
    encoded = tokenizer(
        *texts,
        padding=_padding_of_rows(specification),
        max_length=specification["max_seq_length"],
        truncation=True,
    )
    columns = {name: encoded[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
    columns["label"] = [example["label"] for example in examples]
    return [dict(zip(columns, values)) for values in zip(*columns.values())]


def recipe_of(specification: dict) -> dict:
    """Returns the Trainer's arguments of a recipe, with reporting turned off."""
    return {
        "use_cpu": True,
        "seed": specification["seed"],
        "per_device_train_batch_size": specification["train_batch_size"],
        "learning_rate": specification["learning_rate"],
        "weight_decay": specification["weight_decay_rate"],
        "adam_beta1": specification["beta_1"],
        "adam_beta2": specification["beta_2"],
        "adam_epsilon": specification["epsilon"],
        "max_grad_norm": specification["clip_norm"],
        "report_to": "none",
        "disable_tqdm": True,
    }


def arguments_of(specification: dict):
    """Returns the arguments of the Trainer. One checkpoint is written, at the end."""
    import transformers

    return transformers.TrainingArguments(
        output_dir=specification["output_dir"],
        bf16=specification["dtype"] == "bf16",
        group_by_length=specification["padding"] == "grouped",
        max_steps=specification["train_steps"],
        warmup_steps=specification["warmup_steps"],
        logging_steps=specification["log_steps"],
        save_steps=specification["train_steps"],
        **recipe_of(specification),
    )


def train(specification: dict) -> dict:
    """Trains as specified; returns the results, see the module's docstring."""
    import torch
    import transformers

    torch.set_num_threads(specification["threads"])
    transformers.set_seed(specification["seed"])  # of the new head
    tokenizer = transformers.AutoTokenizer.from_pretrained(specification["model"])
    if specification["task"] == "squad":
        model = transformers.AutoModelForQuestionAnswering.from_pretrained(specification["model"])
        rows = squad_rows(specification, tokenizer)
    else:
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            specification["model"], num_labels=specification["outputs"]
        )
        rows = glue_rows(specification, tokenizer)
    if _padding_of_rows(specification):
        collator = transformers.default_data_collator
    else:
        collator = transformers.DataCollatorWithPadding(tokenizer)
    trainer = transformers.Trainer(
        model=model,
        args=arguments_of(specification),
        train_dataset=rows,
        processing_class=tokenizer,
        data_collator=collator,
    )
    done = trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {
        "data_sequences": len(rows),
        "data_tokens": sum(sum(row["attention_mask"]) for row in rows),
        "training_secs": done.metrics["train_runtime"],
        "loss": losses[-1],
        "checkpoint": os.path.join(specification["output_dir"], f"checkpoint-{specification['train_steps']}"),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


if __name__ == "__main__":
    answers = training_step.take_output()
    training_step.say(answers, **train(json.loads(sys.stdin.readline())))
