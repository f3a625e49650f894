"""Vectors of texts trained with sentence-transformers on a CPU, and scored by its evaluators.

Reads a specification from standard input, one JSON object, and writes its results to standard output.

The specification: model (folder of an encoder, in Hugging Face's form or sentence-transformers'), is_random
(whether it is of random weights of `sizes`, keys of a config.json), train_file and eval_file (JSON lines:
texts of a row, and score of pairs with scores), output_dir, threads, seed, and the recipe: train_batch_size,
num_train_epochs, learning_rate, weight_decay_rate, beta_1, beta_2, epsilon, clip_norm, max_seq_length,
temperature. The rate rises for a tenth of the steps, and falls from there on.

Results: scores ({name: value}), steps, steps_per_sec (of all steps behind the first tenth), versions.
"""

import json
import math
import os
import sys
import time

import trainer
import training_step

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads slow down other processes


def read_rows(path: str) -> list[dict]:
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def make_model(specification: dict):
    """Returns the encoder with mean pooling."""
    import sentence_transformers
    import transformers

    folder = specification["model"]
    if specification["is_random"]:
        made = os.path.join(specification["output_dir"], "random")
        transformers.BertModel(transformers.BertConfig(**specification["sizes"])).save_pretrained(made)
        transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(made)
        folder = made
    model = sentence_transformers.SentenceTransformer(folder, device="cpu")
    model.max_seq_length = specification["max_seq_length"]
    return model


def evaluator_of(rows: list[dict]):
    """Returns the evaluator for pairs with scores, or for retrieving the passages of queries."""
    from sentence_transformers.sentence_transformer import evaluation

    first, second = ([row["texts"][place] for row in rows] for place in (0, 1))
    if "score" in rows[0]:
        return evaluation.EmbeddingSimilarityEvaluator(first, second, [row["score"] for row in rows])
    queries, passages = ({text: text for text in texts} for texts in (first, second))
    right: dict[str, set] = {}
    for query, passage in zip(first, second):
        right.setdefault(query, set()).add(passage)
    options = {"accuracy_at_k": [1], "precision_recall_at_k": [1, 10], "map_at_k": [10]}
    return evaluation.InformationRetrievalEvaluator(queries, passages, right, **options)


def named(found: dict) -> dict:
    """Returns the scores of an evaluator under the names of this project."""
    wanted = {"spearman": "spearman_cosine", "pearson": "pearson_cosine"}
    wanted |= {"ndcg_at_10": "cosine_ndcg@10", "mrr_at_10": "cosine_mrr@10"}
    wanted |= {f"recall_at_{count}": f"cosine_recall@{count}" for count in (1, 10)}
    return {ours: float(found[theirs]) for ours, theirs in wanted.items() if theirs in found}


def train(specification: dict) -> dict:
    """Trains as specified; returns the results, see the module's docstring."""
    import datasets
    import sentence_transformers
    import torch
    import transformers
    from sentence_transformers.base.sampler import BatchSamplers
    from sentence_transformers.sentence_transformer import losses

    torch.set_num_threads(specification["threads"])
    transformers.set_seed(specification["seed"])
    model = make_model(specification)
    rows, batch = read_rows(specification["train_file"]), specification["train_batch_size"]
    columns = {f"text{place}": [row["texts"][place] for row in rows] for place in (0, 1)}
    is_scored, scale = "score" in rows[0], 1 / specification["temperature"]
    if is_scored:
        columns["score"] = [row["score"] for row in rows]
    kind = losses.CoSENTLoss if is_scored else losses.MultipleNegativesRankingLoss
    steps = math.ceil(len(rows) / batch) * specification["num_train_epochs"]
    arguments = sentence_transformers.SentenceTransformerTrainingArguments(
        output_dir=specification["output_dir"],
        num_train_epochs=specification["num_train_epochs"],
        warmup_steps=round(steps / 10),
        batch_sampler=BatchSamplers.BATCH_SAMPLER if is_scored else BatchSamplers.NO_DUPLICATES,
        save_strategy="no",
        **trainer.recipe_of(specification),
    )
    ends: list[float] = []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *_, **__):
            ends.append(time.perf_counter())

    sentence_transformers.SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=datasets.Dataset.from_dict(columns),
        loss=kind(model, scale=scale),
        callbacks=[Clock()],
    ).train()
    first = len(ends) // 10
    versions = {each.__name__: each.__version__ for each in (torch, transformers, sentence_transformers)}
    return {
        "train_rows": len(rows),
        "scores": named(evaluator_of(read_rows(specification["eval_file"]))(model)),
        "steps": len(ends),
        "steps_per_sec": (len(ends) - 1 - first) / (ends[-1] - ends[first]),
        "versions": versions,
    }


if __name__ == "__main__":
    answers = training_step.take_output()
    training_step.say(answers, **train(json.loads(sys.stdin.readline())))
