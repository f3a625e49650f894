"""Embeddings of texts, trained on tables of pairs: a query and its passage, or two texts and their
similarity."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from official.config import FIELDS, Config, ConfigError, encoder_options
from official.data.pipeline import TrainingOrder
from official.data.rows import ragged, text_rows, token_rows
from official.data.rows.text_rows import TokenRows
from official.data.tables import files as tables
from official.data.tables import labels as labels_lib
from official.data.tables import texts as texts_lib
from official.data.tables import vectors as vectors_lib
from official.data.word_pieces.tokenizer import tokenizer_of
from official.data.word_pieces.vocabulary import Vocabulary
from official.io import sentence_folder
from official.io.errors import counted
from official.io.sentence_folder import EmbeddingSettings
from official.modeling import objectives
from official.modeling.models import EmbeddingModel
from official.tasks import examples as examples_lib
from official.tasks import known
from official.tasks.fine_tuning import TableTask

Outputs = dict  # {output: [texts, ...]}
_SCORES = ("label", "labels", "score", "scores")  # names of scores in sentence-transformers
_FACTOR = 0x5851F42D4C957F2D  # odd: pairs of different texts get different numbers
SIMILARITY_SCORES = ("spearman", "pearson")


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """The distinct texts of N held-out rows and of a corpus: queries, then passages.

    Attributes:
      texts: tokens of the texts.
      queries: number of queries.
      pairs: int64 [N, 2], the query of each row, and its passage, counted from the first passage.
      places: int64 [passages, 2], row of the table and column, both from 0, with the text of each passage;
        column -1 means the corpus.
    """

    texts: TokenRows
    queries: int
    pairs: np.ndarray
    places: np.ndarray


class EmbedTask(TableTask):
    """Embeds texts so that matching texts have similar vectors; `official.training.task.Task` and
    `ScoredTask` document the members.

    In training, a row of the table is one example with all its texts; in evaluation, each text is a row.
    """

    losses = {"embedding_loss": 1.0}
    output_names = ("vectors",)

    def __init__(self, config: Config):
        super().__init__(config)
        self._is_scored = config.label_column is not None
        usual = "sentence1,sentence2" if self._is_scored else "query,positive"
        self._text_columns = (config.text_columns or usual).split(",")
        self.rows_of_example = count = len(self._text_columns)
        if count < 2 or self._is_scored and count > 2:
            allowed = "two texts" if self._is_scored else "a query, a passage, and passages that are wrong"
            raise ConfigError(
                f"--text_columns={config.text_columns} names {counted(count, 'column')}. Allowed with"
                f" --task=embed: {allowed}."
            )
        # Otherwise only rows of the same part of a step would be compared. Packed rows do not support groups.
        others = {f"loss_normalization={config.loss_normalization}": config.loss_normalization != "global"}
        why = "--task=embed, whose loss compares the vectors of all rows of a step"
        self._refuse(why, pack=config.pack, scale_loss=config.scale_loss, **others)
        metrics = () if self._is_scored else ("embedding_accuracy",)
        is_cosine = self._is_scored and config.score_loss == "cosine"
        if is_cosine and config.do_train and config.temperature != FIELDS["temperature"].default:
            why = "--score_loss=cosine, whose loss is the squared difference"
            raise ConfigError(f"--temperature={config.temperature:g} is not for {why}. Drop it.")
        self.metrics = (*self.losses, *metrics)
        self.compared = ("example_weights", "labels" if self._is_scored else "text_ids")
        self._take_scores(SIMILARITY_SCORES if self._is_scored else vectors_lib.RANKING_SCORES)
        self._sizes = _read_sizes(config.matryoshka_sizes, config.model.hidden_size)
        self._settings = EmbeddingSettings(pooling=config.pooling or "mean")
        self._held_out: EvaluationSet | None = None

    # --------------------------------------------------------------------------------------------------------
    # Data

    def _read_splits(self, vocabulary: Vocabulary) -> None:
        config, tokenizer = self._config, tokenizer_of(vocabulary)
        self._settings = settings = self._read_settings(vocabulary)
        first, others = (settings.prompts.get(name, "") for name in _PROMPTS)

        def encode(columns: Sequence[list[str]], prompts: Sequence[str]) -> tuple[TokenRows, np.ndarray]:
            texts = [prompt + text for prompt, text in zip(itertools.cycle(prompts), columns[0])]
            texts = [sentence_folder.lower_cased(text) for text in texts] if settings.lower_case else texts
            return text_rows.encode([texts], tokenizer, vocabulary, config.max_seq_length)

        prompts = (first, *[others] * (len(self._text_columns) - 1))
        self._encode = lambda columns: encode(columns, prompts)
        if config.do_train:
            self._read_table("train", "train_file")
            if config.do_eval and not config.eval_file:
                self._hold_out()
            self._rows["train"] = self._examples(self._read["train"])
        if config.do_eval:
            if "eval" not in self._read:
                self._read_table("eval", "eval_file")
                self._tell_shared("rows" if self._is_scored else "queries")
            corpus = None
            if config.corpus_file:
                corpus = self._read_corpus(lambda columns: encode(columns, (others,)))
            self._held_out = held_out = evaluation_set(self._read["eval"], corpus)
            self._rows["eval"] = held_out.texts
            numbers = f"{held_out.queries:,} and {len(held_out.texts) - held_out.queries:,}"
            logging.info("Distinct texts of the evaluation set, first and other columns: %s", numbers)
            if not self._is_scored:
                ids_NG = self._read["eval"].text_ids.reshape(-1, self.rows_of_example)
                passages = [ids_NG[:, 1:].reshape(-1), *([] if corpus is None else [corpus.text_ids])]
                if both := int(np.isin(np.unique(ids_NG[:, 0]), np.concatenate(passages)).sum()):
                    warning = "%d queries are passages, too: each finds itself first, which lowers the scores"
                    logging.warning(warning, both)
        self.companions.update(sentence_folder.contents(settings, config.model.hidden_size))

    def _read_settings(self, vocabulary: Vocabulary) -> EmbeddingSettings:
        """Returns the settings of the run or of its initial weights, overridden by flags."""
        config = self._config
        folders = [config.init_checkpoint] if config.do_train else [config.model_dir, config.init_checkpoint]
        read = (
            sentence_folder.read_settings(folder, vocabulary.do_lower_case) for folder in folders if folder
        )
        found = next(filter(None, read), EmbeddingSettings())
        if found.dense:
            raise ConfigError(
                f"--init_checkpoint={config.init_checkpoint}: its Dense modules are not trained. Remove them"
                f" from {sentence_folder.MODULES}, or begin with another encoder."
            )
        prompts = dict(found.prompts)
        for (name, names), given in zip(_PROMPTS.items(), (config.query_prompt, config.passage_prompt)):
            there = [each for each in names if each in prompts]
            text = found.prompt(given, next(iter(there), None))
            prompts |= dict.fromkeys([name, *there] if text or there else [], text)
            if text:
                logging.info("Prompt of a %s: %r", name, text)
        return dataclasses.replace(
            found,
            pooling=config.pooling or found.pooling,
            prompts=prompts,
            max_seq_length=config.max_seq_length,
            similarity="cosine",
        )

    def _read_table(self, split: str, flag: str) -> None:
        config, label = self._config, self._config.label_column
        wanted = [*self._text_columns, *([label] if label else [])]
        table = tables.open_table(known(config[flag]), flag, wanted)
        reader = labels_lib.Reader(labels_lib.NUMBER) if label else None
        # All rows of a query are on one side.
        rows, found = texts_lib.read_texts(
            table, self._text_columns, self._encode, reader, label, True, None if label else 1
        )
        if label:
            self._check_differ(table, label, known(found), known(rows.labels))
        else:
            self._tell_doubtful(table, rows)
        score = f", score from {label!r}" if label else ""
        columns = ", ".join(map(repr, self._text_columns))
        description = f"{counted(len(rows), 'row')}, texts from {columns}{score}"
        self._take(split, table, rows, description, "texts")
        if label and config.score_loss == "cosine":
            beyond = known(rows.labels)[np.abs(known(rows.labels)) > 1]
            if len(beyond):
                raise ConfigError(
                    f"--{flag}={table.given} has the score {beyond[0]:g}, cosines are from -1 to 1. Divide"
                    " the scores, or give --score_loss=cosent, which only reads their order."
                )

    def _tell_doubtful(self, table: tables.Table, rows: texts_lib.TextRows) -> None:
        """Warns of scores that are not read, and of negatives that are right in another row."""
        scores = [name for name in _SCORES if name in table.columns and name not in self._text_columns]
        if scores:
            warning = "%s: its column %r is not read, each row is a match. --label_column=%s reads it"
            logging.warning(warning, table.given, scores[0], scores[0])
        ids_NG = rows.text_ids.reshape(-1, rows.group)
        pairs_NP = ids_NG[:, :1] * _FACTOR + ids_NG[:, 1:]  # of the query and each passage; int64 wraps
        is_right_NP = np.isin(pairs_NP, pairs_NP[:, 0]) & (pairs_NP != pairs_NP[:, :1])
        if wrong := int(is_right_NP.sum()):
            warning = "%s: %d negatives are positives of the same query in other rows, and count as wrong"
            logging.warning(warning, table.given, wrong)

    def _read_corpus(self, encode: Any) -> texts_lib.TextRows:
        column = self._text_columns[1]
        table = tables.open_table(known(self._config.corpus_file), "corpus_file", [column])
        rows = texts_lib.read_texts(table, [column], encode, apart=True)[0]
        self._take("corpus", table, rows, counted(len(rows), "passage"), "texts")
        return rows

    def _examples(self, rows: texts_lib.TextRows) -> TokenRows:
        ids_NG = rows.text_ids.reshape(-1, rows.group)
        columns = {"labels": known(rows.labels)} if self._is_scored else {"text_ids": ids_NG}
        return TokenRows(rows.ids, rows.lengths, rows.first_lengths, columns, group=rows.group)

    def train_dataset(self, global_batch: int, replica_batch: int, order: TrainingOrder) -> tf.data.Dataset:
        """Returns batches of rows of any length, since bucketing by length would change the negatives."""
        if self._config.use_synthetic_data:
            return self.synthetic_dataset(replica_batch)
        shape = token_rows.shape_of(self._config, global_batch, replica_batch)
        shape = dataclasses.replace(shape, pool_batches=1)
        return token_rows.training_dataset(self._rows["train"], shape, order)

    def synthetic_dataset(self, batch_size: int, for_evaluation: bool = False) -> tf.data.Dataset:
        if not for_evaluation:
            return super().synthetic_dataset(batch_size)
        return token_rows.synthetic_dataset({"row": np.arange(1000)}, batch_size, self._config)

    def _random_labels(
        self, generator: np.random.Generator, length: int, count: int
    ) -> dict[str, np.ndarray]:
        if self._is_scored:
            return {"labels": generator.random(count).astype(np.float32)}
        return {"text_ids": np.arange(count * self.rows_of_example).reshape(count, -1)}

    # --------------------------------------------------------------------------------------------------------
    # Model and loss

    def _make_model(self) -> EmbeddingModel:
        return EmbeddingModel(self._config.model, self._settings.pooling, **encoder_options(self._config))

    def terms(self, outputs, batch) -> objectives.Terms:
        config = self._config
        if self._is_scored:
            kind = config.score_loss
            return objectives.similarity_terms(outputs, batch, kind, config.temperature, self._sizes)
        return objectives.ranking_terms(outputs, batch, config.temperature, self._sizes)

    def evaluate(self, model, batch) -> tuple[dict, dict[str, tf.Tensor]]:
        return {}, {"vectors": model(batch)}

    # --------------------------------------------------------------------------------------------------------
    # Scores

    def score(self, outputs: Outputs) -> dict[str, float]:
        return self._score(outputs, self._config.model.hidden_size)

    def _score(self, outputs: Outputs, size: int) -> dict[str, float]:
        """Returns the scores of the vectors truncated to `size`."""
        queries_QD, passages_PD = self._vectors(outputs, size)
        if not self._is_scored:
            return vectors_lib.ranking_scores(queries_QD, passages_PD, known(self._held_out).pairs)
        truths = np.asarray(known(self._read["eval"].labels), np.float64)
        found = labels_lib.scores_of_numbers(self._cosines(outputs, size), truths)
        return {name: found[name] for name in SIMILARITY_SCORES}

    def _vectors(self, outputs: Outputs, size: int | None = None) -> list[np.ndarray]:
        """Returns the normalized vectors of queries and of passages."""
        vectors_TD = vectors_lib.normalized(outputs["vectors"][:, :size])
        return np.split(vectors_TD, [known(self._held_out).queries])

    def _cosines(self, outputs: Outputs, size: int | None = None) -> np.ndarray:
        """Returns float64 [N], the cosine of the two texts of each row."""
        parts = zip(self._vectors(outputs, size), known(self._held_out).pairs.T)
        first_ND, second_ND = (vectors_XD[places] for vectors_XD, places in parts)
        return np.einsum("ND,ND->N", first_ND, second_ND, dtype=np.float64)

    def tables(self, outputs: Outputs) -> dict[str, list[list]]:
        if not self._sizes:
            return {}
        rows = [[size, *self._score(outputs, size).values()] for size in self._sizes]
        return {"Scores by size of the vectors": [["size", *self.score(outputs)], *rows]}

    def examples(self, outputs: Outputs) -> list[dict]:
        return self._farthest(outputs) if self._is_scored else self._not_found(outputs)

    def _farthest(self, outputs: Outputs) -> list[dict]:
        cosines, truths = self._cosines(outputs), known(self._read["eval"].labels)
        chosen, items = examples_lib.farthest(_ranks(cosines), _ranks(truths)), []
        numbers = self._read["eval"].numbers[chosen].tolist()
        texts = texts_lib.rows_again(self._tables["eval"], self._text_columns, numbers)
        for row, number in zip(chosen, numbers):
            facts = [["cosine", f"{cosines[row]:.3f}"], ["score", f"{truths[row]:g}"]]
            items.append(examples_lib.row(texts[number], facts, f"row {number:,} of the table"))
        note = "Rows of the evaluation set whose rank by cosine is farthest from their rank by score."
        return examples_lib.group("Largest errors", note, items)

    def _not_found(self, outputs: Outputs) -> list[dict]:
        """Returns rows whose passage is not the nearest."""
        held_out = known(self._held_out)
        queries_QD, passages_PD = self._vectors(outputs)
        nearest_Q = vectors_lib.neighbours(queries_QD, vectors_lib.in_blocks(passages_PD), 1)[0][:, 0]
        right = {tuple(pair) for pair in held_out.pairs.tolist()}
        wrong = [
            row
            for row, query in enumerate(held_out.pairs[:, 0].tolist())
            if (query, int(nearest_Q[query])) not in right
        ]
        items = []
        for row in examples_lib.evenly(wrong):
            own, (query_place, right_place) = int(self._read["eval"].numbers[row]), held_out.pairs[row]
            query, passage, *_ = texts_lib.rows_again(self._tables["eval"], self._text_columns, [own])[own]
            found_place = nearest_Q[query_place]
            facts = [
                [f"{name}, cosine {queries_QD[query_place] @ passages_PD[place]:.3f}", text]
                for name, place, text in (
                    ("right", right_place, passage),
                    ("nearest", found_place, self._passage(*held_out.places[found_place].tolist())),
                )
            ]
            items.append(examples_lib.row([query], facts, f"row {own:,} of the table"))
        return examples_lib.group("Passages not found", "Spread over the evaluation set.", items)

    def _passage(self, number: int, column: int) -> str:
        """Returns the text of a passage, given its place in `EvaluationSet.places`."""
        name = self._text_columns[max(column, 1)]
        split = "eval" if column >= 0 else "corpus"
        return texts_lib.rows_again(self._tables[split], [name], [number])[number][0]

    def constant_prediction(self) -> tuple[str, float] | None:
        if self._is_scored:
            return "one cosine", 0.0
        held_out = known(self._held_out)
        counts_Q = np.bincount(np.unique(held_out.pairs, axis=0)[:, 0], minlength=held_out.queries)
        passages = len(held_out.texts) - held_out.queries
        return "a random order", vectors_lib.ndcg_by_chance(counts_Q, passages)


# {name of a prompt for writing: names for reading}, as in sentence-transformers' encode_query and
# encode_document.
_PROMPTS = {"query": ("query",), "document": sentence_folder.NAMES_OF_PASSAGES}


def _read_sizes(given: str | None, hidden_size: int) -> tuple[int, ...]:
    """Returns the sizes of --matryoshka_sizes and the full one, in descending order; empty if unset."""
    if not given:
        return ()
    parts = [part.strip() for part in given.split(",")]
    wrong = [part for part in parts if not (part.isdecimal() and 0 < int(part) <= hidden_size)]
    if wrong:
        raise ConfigError(
            f"--matryoshka_sizes={given} has {wrong[0][:20]!r}, expected comma-separated numbers from 1 to"
            f" hidden_size={hidden_size}."
        )
    return tuple(sorted({hidden_size, *map(int, parts)}, reverse=True))


def _ranks(values_N: np.ndarray) -> np.ndarray:
    from scipy import stats  # late: takes a second

    return stats.rankdata(values_N)


def evaluation_set(rows: texts_lib.TextRows, corpus: texts_lib.TextRows | None = None) -> EvaluationSet:
    """Returns the distinct texts of rows and of a corpus, with the pairs of the rows."""
    ids_NG = rows.text_ids.reshape(-1, rows.group)
    _, query_rows, first_N = np.unique(ids_NG[:, 0], return_index=True, return_inverse=True)
    passage_ids, passage_rows, places = np.unique(ids_NG[:, 1:], return_index=True, return_inverse=True)
    second_N = places.reshape(len(rows), -1)[:, 0]
    # Indices of the flattened passages, G - 1 per row, in the flattened texts.
    row_P, column_P = np.divmod(passage_rows, rows.group - 1)
    parts = [_picked(rows, query_rows * rows.group), _picked(rows, row_P * rows.group + column_P + 1)]
    found = [np.stack([rows.numbers[row_P], column_P + 1], axis=1)]
    if corpus is not None:
        ids, more = np.unique(corpus.text_ids, return_index=True)
        more = np.sort(more[~np.isin(ids, passage_ids)])
        parts.append(_picked(corpus, more))
        found.append(np.stack([corpus.numbers[more], np.full(len(more), -1)], axis=1))
    ids_T, lengths_N = (np.concatenate(arrays) for arrays in zip(*parts))
    texts = TokenRows(ids_T, lengths_N, lengths_N, {})
    pairs = np.stack([first_N.reshape(-1), second_N], axis=1).astype(np.int64)
    return EvaluationSet(texts, len(query_rows), pairs, np.concatenate(found))


def _picked(rows: texts_lib.TextRows, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the concatenated tokens and the lengths of some texts."""
    return ragged.take(rows.ids, ragged.offsets(rows.lengths), order), rows.lengths[order]
