"""A model with its masked-LM head and vocabulary, from a checkpoint of any known format, for scripts that try it on typed text."""

import dataclasses
import os

import numpy as np
import tensorflow as tf

from official.checkpoint import companions, registry
from official.checkpoint.errors import DamagedError
from official.checkpoint.mapping import canonical
from official.checkpoint.mapping.tensors import Tensors
from official.checkpoint.options import Options
from official.config import BertConfig, ConfigError, bert_config_from_dict
from official.data.word_pieces.tokenization import Tokenizer
from official.data.word_pieces.vocabulary import Vocabulary, load_for_text
from official.io import json_files
from official.modeling.pretrainer import BertPretrainer

MASK = "[MASK]"
_HEAD = (*canonical.TRANSFORM, canonical.OUTPUT_BIAS)
_ROUNDING = (
    128  # rows by which a table is filled up, or cut, to a round number of words: 30,528 or 30,400 for 30,522
)


@dataclasses.dataclass(frozen=True)
class MaskedLM:
    """A model that predicts masked words.

    Attributes:
      model: with its weights.
      config: its sizes.
      vocabulary: its words; the table of the model may have a few rows more, or fewer.
      tokenizer: of the vocabulary.
    """

    model: BertPretrainer
    config: BertConfig
    vocabulary: Vocabulary
    tokenizer: Tokenizer

    def fill_mask(self, text: str, top_k: int = 5) -> list[list[tuple[str, float]]]:
        """Predicts the words of a text that stand as [MASK].

        Args:
          text: one sequence.
          top_k: words to return for each mask, 1 or more; at most those that there are.

        Returns:
          For each mask, in their order, [(word piece, probability)], likeliest first.

        Raises:
          ConfigError: where the text has no mask, or more word pieces than the model has positions.
        """
        ids = self._ids_of(text)
        positions = np.flatnonzero(ids == self.vocabulary.id_of(MASK))
        if not len(positions):
            raise ConfigError(
                f"no {MASK} in the text. Write {MASK}, with its brackets and in capitals, in place of each"
                " word to predict."
            )
        return [self._likeliest(row, top_k) for row in self._probabilities(ids, positions)]

    def _ids_of(self, text: str) -> np.ndarray:
        """Returns the ids [L] of a text with [CLS] and [SEP]; words that the model has no row for are unknown
        ones."""
        pieces, counts = self.tokenizer.tokenize(text.split(MASK))
        parts = np.split(pieces.astype(np.int32), np.cumsum(counts)[:-1])
        special = {
            name: np.array([self.vocabulary.id_of(name)], np.int32)
            for name in ("[CLS]", "[SEP]", "[UNK]", MASK)
        }
        between = [part for each in parts for part in (special[MASK], each)][1:]
        ids = np.concatenate([special["[CLS]"], *between, special["[SEP]"]])
        if len(ids) > self.config.max_position_embeddings:
            raise ConfigError(
                f"{len(ids):,} word pieces with [CLS] and [SEP], the model takes"
                f" {self.config.max_position_embeddings:,} at most. Shorten the text."
            )
        return np.where(ids < self.config.vocab_size, ids, special["[UNK]"])

    def _probabilities(self, ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Returns float32 [P, W]: of each word at each position."""
        row = tf.constant(ids[None], tf.int32)
        logits_BPV, _ = self.model(
            {
                "input_ids": row,
                "input_mask": tf.ones_like(row),
                "segment_ids": tf.zeros_like(row),
                "masked_lm_positions": tf.constant(positions[None], tf.int32),
            }
        )
        return tf.nn.softmax(logits_BPV[0, :, : self.vocabulary.size]).numpy()

    def _likeliest(self, probabilities_W: np.ndarray, top_k: int) -> list[tuple[str, float]]:
        best = np.argsort(-probabilities_W, kind="stable")[:top_k]
        return [(self.vocabulary.words[word], float(probabilities_W[word])) for word in best]


def load_masked_lm(path: str, vocab_file: str | None = None, do_lower_case: bool | None = None) -> MaskedLM:
    """Loads a model that can fill masks.

    Args:
      path: a run's folder, or a checkpoint of any format of `registry.FORMATS`: file, prefix or folder.
      vocab_file: the vocabulary. Unset: the one beside the checkpoint, or that of the run.
      do_lower_case: whether text loses its capitals and accents. Unset: as the run, or what lies beside the
        vocabulary, says.

    Raises:
      ConfigError: where there is no checkpoint, vocabulary or masked-LM head, or they do not fit together.
    """
    checkpoint = registry.open_checkpoint(path, "--checkpoint")
    options = companions.with_companions(Options(vocab_file=vocab_file), checkpoint)
    try:
        tensors = checkpoint.to_canonical(options).tensors
        _check_head(tensors, path)
        config = _config_of(tensors, options, checkpoint.location)
        vocabulary = _vocabulary_of(options, do_lower_case, checkpoint.location, config)
        model = BertPretrainer(config)
        _assign(model, tensors, path)
    except DamagedError as error:
        raise ConfigError(f"--checkpoint={path}: unreadable checkpoint ({error}).") from None
    return MaskedLM(model, config, vocabulary, Tokenizer(vocabulary))


def _check_head(tensors: Tensors, path: str) -> None:
    missing = [name for name in _HEAD if name not in tensors]
    if any("/convolution/" in name for name in tensors):
        raise ConfigError(
            f"--checkpoint={path} is GroupBERT, whose model is not there yet. Give a checkpoint of BERT."
        )
    if missing:
        raise ConfigError(
            f"--checkpoint={path} has no masked-LM head ({missing[0]} is missing), so it cannot fill masks."
            " Give one that was pre-trained with its head kept."
        )


def _config_of(tensors: Tensors, options: Options, location: str) -> BertConfig:
    """Returns the model: its sizes from the tensors, what no shape tells from what lies beside them."""
    sizes = companions.sizes_of(tensors)
    told = {field.name: getattr(options, field.name, None) for field in dataclasses.fields(BertConfig)}
    usual = {"num_attention_heads": max(sizes["hidden_size"] // 64, 1)}
    return bert_config_from_dict(
        {**usual, **{name: value for name, value in told.items() if value is not None}, **sizes}, location
    )


def _vocabulary_of(
    options: Options, do_lower_case: bool | None, location: str, config: BertConfig
) -> Vocabulary:
    beside = companions.config_beside(location)
    settings = json_files.read_json(beside) if beside else {}  # of a run, among others
    named = json_files.expect(settings, "vocab_file", (str, type(None)), beside, None)
    path = options.vocab_file or named
    if path is None:
        raise ConfigError(f"{location} has no vocabulary beside it. Give --vocab_file=PATH.")
    if path == named and not os.path.exists(path):
        raise ConfigError(f"{beside}: vocab_file={named} is not there any more. Give --vocab_file=PATH.")
    lower_case = (
        json_files.expect(settings, "do_lower_case", (bool, type(None)), beside, None)
        if do_lower_case is None
        else do_lower_case
    )
    vocabulary = load_for_text(path, lower_case, location)
    if abs(vocabulary.size - config.vocab_size) >= _ROUNDING:
        raise ConfigError(
            f"vocab_file={path} has {vocabulary.size} words, the model's vocab_size is {config.vocab_size}."
            " Change --vocab_file."
        )
    return vocabulary


def _assign(model: BertPretrainer, tensors: Tensors, path: str) -> None:
    """Gives the model its weights. What masks do not need, the pooler and the next-sentence head, may be
    missing."""
    variables = {variable.name.split(":")[0]: variable for variable in model.trainable_variables}
    for name in set(variables) & set(tensors):
        values = tensors[name].read().astype(np.float32)
        if not np.isfinite(values).all():
            raise ConfigError(
                f"--checkpoint={path} holds NaN or infinite numbers in {name}. Give a checkpoint from before."
            )
        variables[name].assign(values)
