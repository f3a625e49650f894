"""Settings: what is built."""

from __future__ import annotations

import dataclasses

from official.config.setting import IDENTITY, RECIPE, Section, setting


@dataclasses.dataclass(frozen=True)
class Model:
    """The parts of a run that are built.

    Of a run that has begun, the sizes of its model and the vocabulary that its folder keeps are compared, and
    not the files that they come from.
    """

    bert_config_file: str | None = setting(
        None, "JSON file with Google's bert_config.json keys.", evaluation=False, files=True
    )
    vocab_file: str | None = setting(
        None,
        "WordPiece vocabulary of the data: vocab.txt, tokenizer.json, or a folder with one of them; its "
        "size is checked against the model's vocab_size. Kept in --model_dir.",
        evaluation=lambda config: config.task != "pretrain",
        files=True,
    )
    fit_vocabulary: bool = setting(
        False,
        "The vocabulary may have up to 127 words more or fewer than the model's vocab_size, as "
        "Graphcore's models of 30,400 and 30,528 rows have: words beyond it are unknown ones, in records, "
        "too ([UNK] is word 100 there, as in Google's vocabularies, unless --vocab_file says another).",
        training=IDENTITY,
    )
    do_lower_case: bool | None = setting(
        None,
        "Text loses its capitals and accents, as an uncased vocabulary wants it. Unset: as "
        "tokenizer_config.json or tokenizer.json says, beside --vocab_file or --init_checkpoint; else "
        "yes.",
        evaluation=lambda config: config.task != "pretrain",
    )
    dtype: str = setting(
        "fp32",
        "Compute type. Weights, softmax, LayerNorm statistics, losses and optimizer state stay float32.",
        choices=("fp32", "fp16", "bf16"),
        evaluation=False,
        training=RECIPE,
    )


SECTION = Section("Model", Model, evaluation=True)
