"""Checks of what a run reads: its task, files, vocabulary and lengths."""

from __future__ import annotations

import os

from official.config.derived import UNKNOWN_WORD, VOCABULARY_ROUNDING
from official.config.table import FIELDS, Config
from official.io import vocabulary_files
from official.io.errors import ConfigError


def check_task(config: Config) -> None:
    """Refuses settings that the task would ignore."""
    for name, field in FIELDS.items():
        if field.tasks and config.task not in field.tasks and config[name] != field.default:
            raise ConfigError(
                f"{name}={config[name]} needs --task={' or --task='.join(field.tasks)}, received"
                f" --task={config.task}."
            )
    if config.num_runs > 1 and not config.do_train:
        raise ConfigError(
            f"num_runs={config.num_runs} repeats a training, do_train=false. Drop --num_runs, or set"
            " --do_train."
        )
    if config.overwrite and not config.do_train:
        raise ConfigError(
            "overwrite renames the run whose weights do_train=false asks for. Drop --overwrite, or set"
            " --do_train."
        )


def check_files(config: Config) -> None:
    """Names a file that is missing, or that the run would not read."""
    is_only_planned = config.plan and not config.plan_config_file
    if not (config.model_dir or config.compile_only or is_only_planned):
        raise ConfigError("model_dir is not set. Give the run a folder: --model_dir=DIR.")
    if config.predict_epochs and not config.do_predict:
        raise ConfigError(f"predict_epochs={config.predict_epochs} needs --do_predict. Add it, or drop it.")
    if not (config.do_train or config.do_eval or config.do_predict):
        raise ConfigError("do_train=false and do_eval=false: nothing to do. Set --do_train or --do_eval.")
    if config.model is None:
        raise ConfigError(
            "bert_config_file is not set. Choose a model: --bert_config_file=configs/models/bert_base.json."
        )
    _check_made_up_data(config)
    if config.generated_data:
        _check_glue_task(config)
    elif config.task == "pretrain":
        _check_pretraining_files(config)
    elif config.use_synthetic_data:
        given = [name for name in ("train_file", "predict_file", "data_dir") if config[name]] or [
            name for name in ("do_eval", "do_predict") if config[name]
        ]
        if given:
            raise ConfigError(
                f"use_synthetic_data excludes {given[0]}: random sequences are only trained on. Drop one of"
                " the two flags."
            )
    else:
        _check_fine_tuning_files(config)


def _check_pretraining_files(config: Config) -> None:
    if config.use_synthetic_data and (config.input_files or config.eval_files):
        raise ConfigError(
            "use_synthetic_data excludes input_files and eval_files. Drop --use_synthetic_data or the files."
        )
    made_up = config.use_synthetic_data or config.generated_data or config.synthetic_input
    if config.plan or config.compile_only:  # read no data
        return
    if not (made_up or config.input_files) and (config.do_train or not config.eval_files):
        raise ConfigError(
            "input_files is not set. Give --input_files=GLOB, --use_synthetic_data for random records, or"
            " --generated_data for random ones that are read as files are."
        )


def _check_fine_tuning_files(config: Config) -> None:
    """Names the file that is missing, except for a plan, which reads none."""
    needed = {
        "squad": [("train_file", config.do_train), ("predict_file", config.do_eval or config.do_predict)],
        "glue": [("data_dir", True)],
    }[config.task]
    for name, is_needed in (*needed, ("vocab_file", True)):
        if is_needed and not config[name] and not config.plan:
            raise ConfigError(f"{name} is not set. --task={config.task} needs it: --{name}=PATH.")
    _check_glue_task(config)


def _check_made_up_data(config: Config) -> None:
    """Refuses two kinds of made-up data at once, and jobs that do not compile what they are."""
    for name in ("synthetic_input", "use_synthetic_data"):
        if config.generated_data and config[name]:
            raise ConfigError(
                f"generated_data excludes {name}: records that are read, or none. Drop one of the two flags."
            )
    if config.compile_only and not config.do_train:
        raise ConfigError("compile_only needs --do_train: it is the training step that is compiled.")


def _check_glue_task(config: Config) -> None:
    if config.task == "glue" and not config.glue_task:
        raise ConfigError(
            f"glue_task is not set. Choose one of {', '.join(FIELDS['glue_task'].choices)}: --glue_task=NAME."
        )


def check_lengths(config: Config) -> None:
    """Refuses sequences that the model, or the sequence itself, has no room for."""
    if config.task == "pretrain" and config.max_predictions_per_seq > config.max_seq_length:
        raise ConfigError(
            f"max_predictions_per_seq={config.max_predictions_per_seq} is larger than "
            f"max_seq_length={config.max_seq_length}. "
            "Lower --max_predictions_per_seq (the published recipes: 20 for 128, 56 for 384, 76 for 512)."
        )
    if config.task in ("pretrain", "squad"):
        check_segment_types(config)
    if config.max_seq_length > config.model.max_position_embeddings:
        raise ConfigError(
            f"max_seq_length={config.max_seq_length} is larger than the model's max_position_embeddings="
            f"{config.model.max_position_embeddings}. Lower --max_seq_length or change --bert_config_file."
        )


def check_segment_types(config: Config) -> None:
    """Refuses pairs of texts for a model that has no second segment type."""
    if config.model.type_vocab_size < 2:
        job = " ".join(filter(None, (config.task, config.glue_task if config.task == "glue" else None)))
        raise ConfigError(
            f"--task={job} has pairs of texts, and the model type_vocab_size={config.model.type_vocab_size}:"
            " it has no second segment type. Change --bert_config_file."
        )


def check_vocabulary(config: Config) -> None:
    """Refuses a vocabulary of another size than the model's."""
    if config.do_lower_case is not None and not config.vocab_file:
        raise ConfigError(
            f"do_lower_case={str(config.do_lower_case).lower()} says how text becomes the words of a"
            " vocabulary, and there is none. Give --vocab_file, or drop --do_lower_case."
        )
    _check_unknown_word(config)
    if not config.vocab_file or config.plan and not os.path.exists(config.vocab_file):  # a plan needs no data
        return
    words = len(vocabulary_files.read(config.vocab_file).words)
    if config.fit_vocabulary and abs(words - config.model.vocab_size) < VOCABULARY_ROUNDING:
        return
    if words != config.model.vocab_size:
        raise ConfigError(
            f"vocab_file={config.vocab_file} has {words} words, the model's vocab_size is"
            f" {config.model.vocab_size}. Change --vocab_file or --bert_config_file."
        )


def _check_unknown_word(config: Config) -> None:
    """Refuses to fit records to a model without knowing its unknown word."""
    if config.fit_vocabulary and not config.vocab_file and config.model.vocab_size <= UNKNOWN_WORD:
        raise ConfigError(
            f"fit_vocabulary takes word {UNKNOWN_WORD} for [UNK], and the model's vocab_size is"
            f" {config.model.vocab_size}. Give --vocab_file."
        )
