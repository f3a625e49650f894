"""What a command is: how it is started in the workspace, and how its files are damaged."""

import dataclasses

from fuzzing import damage, damage_binary, json_schemas

# What "flags" gives to any flag, beside paths that are not there: types and ranges that none has.
_NO_NUMBERS = ("abc", "nan", "inf", "1e400", "1_0x", "--", "٣x")


@dataclasses.dataclass(frozen=True)
class Target:
    """A file of the workspace and how it is damaged: `kind` is one of DAMAGES, `details` its arguments."""

    path: str
    kind: str
    details: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
      name: of the command among the cases.
      script: its file, from the root of the project on.
      arguments: a command line that is right; paths are those of the workspace.
      parts: files and folders of the workspace that it needs.
      targets: what is damaged.
      numbers: flags whose values are numbers.
      typed: what is typed.
      codes: exit codes of its own, beside 2 for bad input.
      runs: False where the right command line takes long: it is started with what must be refused only.
    """

    name: str
    script: str
    arguments: tuple[str, ...]
    parts: tuple[str, ...] = ()
    targets: tuple[Target, ...] = ()
    numbers: tuple[str, ...] = ()
    typed: str | None = None
    codes: tuple[int, ...] = (0,)
    runs: bool = True

    @property
    def wrong_numbers(self) -> tuple[str, ...]:
        return tuple(f"--{name}={value}" for name in self.numbers for value in _NO_NUMBERS)


_SIZES_OF_DATA = ("--max_seq_length=16", "--max_predictions_per_seq=3")
_TRAINING = (
    "--bert_config_file=bert.json",
    "--vocab_file=vocab.txt",
    "--train_batch_size=4",
    "--eval_batch_size=4",
    "--num_gpus=0",
    "--num_train_epochs=1",
)
PRETRAINING = (
    *_TRAINING,
    *_SIZES_OF_DATA,
    "--input_files=records/*.tfrecord",
    "--steps_per_loop=4",
    "--warmup_steps=1",
    "--optimizer_type=lamb",
    "--do_eval",
    "--num_eval_samples=8",
    "--num_steps_per_epoch=8",
)
PACKED = ("--max_sequences_per_pack=3", "--average_sequences_per_pack=1.5")
ON_THE_FLY = (*PRETRAINING, "--pack_on_the_fly", *PACKED)
PACKED_FILES = tuple(flag.replace("=records/", "=packed/") for flag in PRETRAINING)
PACKING = (
    "--input_files=records/*.tfrecord",
    "--max_sequences_per_pack=3",
    "--num_shards=2",
    "--num_workers=1",
)
SQUAD = (
    *_TRAINING,
    "--task=squad",
    "--train_file=squad/train.json",
    "--predict_file=squad/dev.json",
    "--max_seq_length=32",
    "--doc_stride=8",
    "--max_query_length=8",
    "--do_eval",
)
GLUE = (*_TRAINING, "--task=glue", "--glue_task=rte", "--data_dir=glue", "--max_seq_length=32", "--do_eval")
CREATION = (
    "--input_files=text/plain.txt,text/wiki.json",
    "--vocab_file=vocab.txt",
    "--dupe_factor=1",
    "--num_shards=2",
    *_SIZES_OF_DATA,
)
ACTIONS = {
    "google": "keras2google",
    "graphcore": "keras2graphcore",
    "popart": "keras2popart",
    "garden": "keras2garden",
    "huggingface": "keras2huggingface",
}
CHECKPOINTS = {
    "google": "formats/google/ckpt-8",
    "graphcore": "formats/graphcore/ckpt-8",
    "popart": "formats/popart/ckpt-8.onnx",
    "garden": "formats/garden/ckpt-8",
    "huggingface": "formats/huggingface",
    "keras": "runs/pretrain/ckpt-8",
}

BERT = Target("bert.json", "json", json_schemas.MODEL)
WORDS = Target("vocab.txt", "vocabulary")
WORDS_OF_MODEL = Target("vocab.txt", "vocabulary", {"of_model": True})
PACKED_NUMBERS = ("max_sequences_per_pack", "average_sequences_per_pack")
TRAIN_NUMBERS = (
    "train_batch_size",
    "learning_rate",
    "warmup_steps",
    "max_seq_length",
    "seed",
    "poly_power",
    "num_train_epochs",
)


def of_bytes(*paths: str) -> tuple[Target, ...]:
    return tuple(Target(path, "bytes") for path in paths)


def of_checkpoint(format_name: str, **details) -> Target:
    return Target(CHECKPOINTS[format_name], "checkpoint", {"format_name": format_name, **details})


def of_tokenizer(folder: str, **details) -> Target:
    return Target(
        f"{folder}/tokenizer_config.json",
        "json",
        {
            "checked": [("do_lower_case",)],
            "ranges": {("tokenize_chinese_chars",): (False,)},
            "any_number": True,
            **details,
        },
    )


MODEL_BESIDE = Target(
    "formats/huggingface/config.json",
    "json",
    {
        "checked": [("hidden_size",), ("num_attention_heads",)],
        "ranges": {("num_attention_heads",): (0, -2), ("hidden_size",): (17, -1)},
        "any_number": True,
    },
)

DAMAGES = {
    "bytes": damage.damage_bytes,
    "json": damage.damage_json,
    "json_lines": damage.damage_json_lines,
    "text": damage.damage_text,
    "small_text": damage.damage_small_text,
    "typed": damage.damage_typed_text,
    "vocabulary": damage.damage_vocabulary,
    "table": damage.damage_table,
    "records": damage_binary.damage_records,
    "packed_rows": damage_binary.damage_packed_rows,
    "checkpoint": damage_binary.damage_checkpoint,
}
