"""Fine-tuning on user data with Hugging Face's Trainer on a CPU, and scores of the evaluation set by
scikit-learn and seqeval.

Reads a specification from standard input, one JSON object, and writes its results to standard output.

The specification: kind (one, number, pairs, several, tags or answers), model (folder of a checkpoint),
train_file and eval_file (of answers SQuAD's JSON, else JSON lines: texts and label, or words and tags),
output_dir, threads, seed, and the recipe: train_batch_size, num_train_epochs, learning_rate,
weight_decay_rate, beta_1, beta_2, epsilon, clip_norm, max_seq_length, doc_stride, max_answer_length,
n_best_size. The rate rises for a tenth of the steps.

Results: train_rows, eval_rows, scores ({name: value}; of answers predictions, {question: text}),
training_secs, versions.
"""

import itertools
import json
import math
import os
import sys

import trainer
import training_step

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads slow down other processes
_WARMUP = 0.1
_IGNORED = -100
_POOL = 50  # batches that are sorted by length together


def read_lines(path: str) -> list[dict]:
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


# ------------------------------------------------------------------------------------------------------------
# Labels of texts


class Texts:
    """Rows with labels: one of many, several at once, or a number in deviations of the training set's."""

    def __init__(self, specification: dict, tokenizer):
        import numpy as np

        self.kind, self._length = specification["kind"], specification["max_seq_length"]
        self._tokenizer = tokenizer
        self.splits = {name: read_lines(specification[f"{name}_file"]) for name in ("train", "eval")}
        labels = [row["label"] for row in self.splits["train"]]
        if self.kind == "number":
            values = np.array(labels, np.float64)
            self._mean, self._deviation, self.outputs = values.mean(), values.std(), 1
        else:
            names = itertools.chain(*labels) if self.kind == "several" else labels
            self.names = sorted(set(names))
            self.outputs = len(self.names)

    def make_model(self, folder: str):
        import transformers

        kinds = {"number": "regression", "several": "multi_label_classification"}
        problem = kinds.get(self.kind, "single_label_classification")
        return transformers.AutoModelForSequenceClassification.from_pretrained(
            folder, num_labels=self.outputs, problem_type=problem
        )

    def rows(self, split: str) -> list[dict]:
        texts = zip(*(row["texts"] for row in self.splits[split]))
        encoded = self._tokenizer(*map(list, texts), max_length=self._length, truncation=True)
        return [
            {**{name: encoded[name][number] for name in encoded}, "labels": self._label(row["label"])}
            for number, row in enumerate(self.splits[split])
        ]

    def _label(self, label):
        if self.kind == "number":
            return (float(label) - self._mean) / self._deviation
        if self.kind == "several":
            return [float(name in label) for name in self.names]
        return self.names.index(label)

    def collate(self, rows: list[dict]) -> dict:
        return trainer_of_padding(self._tokenizer)(rows)

    def score(self, logits: list) -> dict:
        import numpy as np
        from scipy import special, stats
        from sklearn import metrics

        logits_NC = np.stack(logits)
        truths = np.array([self._label(row["label"]) for row in self.splits["eval"]])
        if self.kind == "number":
            values = logits_NC[:, 0] * self._deviation + self._mean
            given = [float(row["label"]) for row in self.splits["eval"]]
            return {
                "spearman": float(stats.spearmanr(given, values).statistic),
                "pearson": float(stats.pearsonr(given, values).statistic),
            }
        if self.kind == "several":
            chances = special.expit(logits_NC)
            calls = np.stack([best_calls(*pair) for pair in zip(chances.T, truths.T)], axis=1)
            return {
                "micro_f1": float(metrics.f1_score(truths, calls, average="micro")),
                "macro_f1": float(metrics.f1_score(truths, calls, average="macro")),
                "roc_auc": float(metrics.roc_auc_score(truths, chances, average="macro")),
            }
        calls, chances = logits_NC.argmax(axis=1), special.softmax(logits_NC, axis=1)
        return {
            "accuracy": float(metrics.accuracy_score(truths, calls)),
            "macro_f1": float(metrics.f1_score(truths, calls, average="macro")),
            "roc_auc": float(metrics.roc_auc_score(truths, chances[:, 1])),
        }


def best_calls(chances, truths):
    """Returns whether each row has a label, at the threshold with the best F1 of the set."""
    import numpy as np
    from sklearn import metrics

    precision, recall, thresholds = metrics.precision_recall_curve(truths, chances)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    return (chances >= thresholds[f1[:-1].argmax()]).astype(float)


def trainer_of_padding(tokenizer):
    import transformers

    return transformers.DataCollatorWithPadding(tokenizer)


# ------------------------------------------------------------------------------------------------------------
# Tags of words


class Tags:
    """Sentences with tagged words; the first piece of a word carries its tag."""

    def __init__(self, specification: dict, tokenizer):
        self._tokenizer, self._length = tokenizer, specification["max_seq_length"]
        self.splits = {name: read_lines(specification[f"{name}_file"]) for name in ("train", "eval")}
        self.names = sorted({tag for row in self.splits["train"] for tag in row["tags"]})
        self._words: list[list[int | None]] = []

    def make_model(self, folder: str):
        import transformers

        return transformers.AutoModelForTokenClassification.from_pretrained(
            folder, num_labels=len(self.names)
        )

    def rows(self, split: str) -> list[dict]:
        read = self.splits[split]
        encoded = self._tokenizer(
            [row["words"] for row in read],
            is_split_into_words=True,
            max_length=self._length,
            truncation=True,
        )
        rows, self._words = [], []
        for number, row in enumerate(read):
            words = encoded.word_ids(number)
            firsts = [
                word if word is not None and word != before else None
                for word, before in zip(words, [None, *words])
            ]
            labels = [_IGNORED if word is None else self.names.index(row["tags"][word]) for word in firsts]
            rows.append({**{name: encoded[name][number] for name in encoded}, "labels": labels})
            self._words.append(firsts)
        return rows

    def collate(self, rows: list[dict]) -> dict:
        import transformers

        return transformers.DataCollatorForTokenClassification(self._tokenizer)(rows)

    def score(self, logits: list) -> dict:
        from seqeval import metrics
        from seqeval.scheme import IOB2

        truths, calls = [], []
        for row, firsts, logits_LC in zip(self.splits["eval"], self._words, logits):
            called = ["O"] * len(row["words"])
            for word, place in zip(firsts, logits_LC.argmax(axis=-1)):
                if word is not None:
                    called[word] = self.names[place]
            truths.append(row["tags"])
            calls.append(called)
        return {
            "f1": float(metrics.f1_score(truths, calls)),
            "strict_f1": float(metrics.f1_score(truths, calls, mode="strict", scheme=IOB2)),
            "accuracy": float(metrics.accuracy_score(truths, calls)),
        }


# ------------------------------------------------------------------------------------------------------------
# Answers


class Answers:
    """Questions and their answers. Source: run_qa.py and utils_qa.py of the examples."""

    def __init__(self, specification: dict, tokenizer):
        self._specification, self._tokenizer = specification, tokenizer
        self.splits = {name: self._asked(specification[f"{name}_file"]) for name in ("train", "eval")}
        self._windows: list[tuple[int, dict, list]] = []

    def _asked(self, path: str) -> list[tuple[str, str, str]]:
        with open(path, encoding="utf-8") as file:
            articles = json.load(file)["data"]
        return [
            (question["id"], question["question"].lstrip(), paragraph["context"])
            for article in articles
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]

    def make_model(self, folder: str):
        import transformers

        return transformers.AutoModelForQuestionAnswering.from_pretrained(folder)

    def rows(self, split: str) -> list[dict]:
        if split == "train":
            return trainer.squad_rows({**self._specification, "padding": "grouped"}, self._tokenizer)
        own = {**self._specification, "padding": "grouped"}
        asked = [texts for _, *texts in self.splits["eval"]]
        self._windows = list(trainer.windows_of(own, self._tokenizer, asked))
        return [
            {name: window[name] for name in window if name != "offset_mapping"}
            for _, window, _ in self._windows
        ]

    def collate(self, rows: list[dict]) -> dict:
        return trainer_of_padding(self._tokenizer)(rows)

    def answers(self, logits: list) -> dict[str, str]:
        """Returns the text of the likeliest span of each question, over all of its windows."""
        import numpy as np

        count, longest = (self._specification[name] for name in ("n_best_size", "max_answer_length"))
        best = {identity: (-math.inf, "") for identity, _, _ in self.splits["eval"]}
        for number, logits_L2 in enumerate(logits):
            question, window, parts = self._windows[number]
            (identity, _, context), offsets = self.splits["eval"][question], window["offset_mapping"]
            starts, ends = (np.argsort(-logits_L2[:, side])[:count].tolist() for side in (0, 1))
            for start, end in itertools.product(starts, ends):
                if start <= end < start + longest and parts[start] == parts[end] == 1:
                    score = float(logits_L2[start, 0] + logits_L2[end, 1])
                    if score > best[identity][0]:
                        best[identity] = score, context[offsets[start][0] : offsets[end][1]]
        return {identity: text for identity, (_, text) in best.items()}


# ------------------------------------------------------------------------------------------------------------


def logits_of(model, rows: list[dict], collate, batch: int) -> list:
    """Returns the logits of each row as NumPy, without padding; batches have rows of similar length."""
    import numpy as np
    import torch

    model.eval()
    order = sorted(range(len(rows)), key=lambda number: len(rows[number]["input_ids"]))
    found: list = [None] * len(rows)
    for first in range(0, len(order), batch):
        own = order[first : first + batch]
        inputs = collate([rows[number] for number in own])
        inputs.pop("labels", None)
        with torch.no_grad():
            outputs = model(**inputs)
        values = getattr(outputs, "logits", None)
        if values is None:
            values = torch.stack([outputs.start_logits, outputs.end_logits], dim=-1)
        for number, row in zip(own, values.numpy()):
            found[number] = row[: len(rows[number]["input_ids"])] if row.ndim == 2 else row
    return [np.asarray(row, np.float64) for row in found]


def grouped_sampler(lengths: list[int], batch: int, seed: int):
    """Returns a sampler of batches of similar length in random order, as in this project. The Trainer's own
    grouping puts short rows last, which changes the training."""
    import torch

    class Sampler(torch.utils.data.Sampler):
        def __init__(self):
            self._generator = torch.Generator().manual_seed(seed)

        def __len__(self):
            return len(lengths)

        def __iter__(self):
            order = torch.randperm(len(lengths), generator=self._generator).tolist()
            pools = [order[first : first + _POOL * batch] for first in range(0, len(order), _POOL * batch)]
            order = [row for pool in pools for row in sorted(pool, key=lambda row: -lengths[row])]
            batches = [order[first : first + batch] for first in range(0, len(order), batch)]
            last = [batches.pop()] if len(batches[-1]) < batch else []  # batches are cut by their size
            turns = torch.randperm(len(batches), generator=self._generator).tolist()
            return itertools.chain.from_iterable([*(batches[turn] for turn in turns), *last])

    return Sampler()


def train(specification: dict) -> dict:
    """Trains as specified; returns the results, see the module's docstring."""
    import torch
    import transformers

    torch.set_num_threads(specification["threads"])
    transformers.set_seed(specification["seed"])  # of the new head
    tokenizer = transformers.AutoTokenizer.from_pretrained(specification["model"])
    kinds = {"tags": Tags, "answers": Answers}
    data = kinds.get(specification["kind"], Texts)(specification, tokenizer)
    rows, batch = data.rows("train"), specification["train_batch_size"]
    steps = math.ceil(len(rows) / batch) * specification["num_train_epochs"]
    arguments = transformers.TrainingArguments(
        output_dir=specification["output_dir"],
        num_train_epochs=specification["num_train_epochs"],
        warmup_steps=round(_WARMUP * steps),
        remove_unused_columns=False,
        save_strategy="no",
        **trainer.recipe_of(specification),
    )
    model = data.make_model(specification["model"])
    sampler = grouped_sampler([len(row["input_ids"]) for row in rows], batch, specification["seed"])

    class Trainer(transformers.Trainer):
        def _get_train_sampler(self, *_):
            return sampler

    training = Trainer(model=model, args=arguments, train_dataset=rows, data_collator=data.collate).train()
    logits = logits_of(model, data.rows("eval"), data.collate, batch)
    scored = {"predictions": data.answers(logits)} if isinstance(data, Answers) else {}
    return {
        "train_rows": len(data.splits["train"]),
        "eval_rows": len(data.splits["eval"]),
        **(scored or {"scores": data.score(logits)}),
        "training_secs": training.metrics["train_runtime"],
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


if __name__ == "__main__":
    answers = training_step.take_output()
    training_step.say(answers, **train(json.loads(sys.stdin.readline())))
