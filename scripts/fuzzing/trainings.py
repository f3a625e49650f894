"""The runs of train.py that are damaged."""

from fuzzing import json_schemas
from fuzzing.definitions import (
    BERT,
    CHECKPOINTS,
    GLUE,
    ON_THE_FLY,
    PACKED,
    PACKED_FILES,
    PACKED_NUMBERS,
    PRETRAINING,
    SQUAD,
    TRAIN_NUMBERS,
    WORDS_OF_MODEL,
    Command,
    Target,
    of_bytes,
    of_checkpoint,
)

_MODEL = ("bert.json", "vocab.txt")
_METRICS = Target("runs/pretrain/metrics.jsonl", "json_lines")
TRAININGS = [
    Command(
        "pretrain",
        "train.py",
        (*PRETRAINING, "--model_dir=new"),
        (*_MODEL, "records"),
        (
            BERT,
            WORDS_OF_MODEL,
            Target("records/part-0000*", "records"),
            *of_bytes("bert.json", "records/part-0000*"),
        ),
        TRAIN_NUMBERS,
        codes=(0, 3),
    ),
    Command(
        "pretrain resumed",
        "train.py",
        (*PRETRAINING, "--model_dir=runs/pretrain", "--num_steps_per_epoch=12"),
        (*_MODEL, "records", "runs/pretrain"),
        (
            _METRICS,
            *of_bytes(
                "runs/pretrain/ckpt-*",
                "runs/pretrain/config.json",
                "runs/pretrain/result.json",
                "runs/pretrain/metrics.jsonl",
                "runs/pretrain/mllog.txt",
                "runs/pretrain/checkpoint",
            ),
        ),
        codes=(0, 3),
    ),
    Command(
        "pretrain initialised",
        "train.py",
        (*PRETRAINING, "--model_dir=new", "--init_checkpoint=runs/pretrain/ckpt-8"),
        (*_MODEL, "records", "runs/pretrain"),
        (of_checkpoint("keras"), *of_bytes("runs/pretrain/ckpt-*")),
        codes=(0, 3),
    ),
    Command(
        "pretrain packed on the fly",
        "train.py",
        (*ON_THE_FLY, "--model_dir=new"),
        (*_MODEL, "records"),
        (Target("records/part-0000*", "records"), *of_bytes("records/part-0000*")),
        PACKED_NUMBERS,
        codes=(0, 3),
    ),
    Command(
        "pretrain packed resumed",
        "train.py",
        (*ON_THE_FLY, "--model_dir=runs/packed", "--num_steps_per_epoch=12"),
        (*_MODEL, "records", "runs/packed"),
        of_bytes("runs/packed/ckpt-*", "runs/packed/ckpt-*.json"),
        codes=(0, 3),
    ),
    Command(
        "pretrain packed files",
        "train.py",
        (*PACKED_FILES, *PACKED, "--model_dir=new"),
        (*_MODEL, "packed"),
        (
            Target("packed/part-0000*", "packed_rows"),
            Target("packed/part-0000*", "packed_rows"),
            *of_bytes("packed/part-0000*"),
        ),
        PACKED_NUMBERS,
        codes=(0, 3),
    ),
    Command(
        "plan",
        "train.py",
        ("--config=runs/pretrain/config.json", "--model_dir=new", "--plan"),
        (*_MODEL, "records", "runs/pretrain"),
        (
            Target("runs/pretrain/config.json", "json", json_schemas.CONFIG),
            *of_bytes("runs/pretrain/config.json"),
        ),
        TRAIN_NUMBERS,
    ),
    Command(
        "flagfile",
        "train.py",
        ("--flagfile=run.flags", "--plan"),
        (*_MODEL, "run.flags"),
        of_bytes("run.flags"),
        TRAIN_NUMBERS,
    ),
    Command(
        "squad",
        "train.py",
        (*SQUAD, "--model_dir=new", "--cache_dir=cache"),
        (*_MODEL, "squad", "cache"),
        (
            Target("squad/train.json", "json", json_schemas.SQUAD),
            Target("squad/dev.json", "json", json_schemas.TO_ANSWER),
            BERT,
            WORDS_OF_MODEL,
            *of_bytes("cache/*/*", "squad/train.json"),
        ),
        TRAIN_NUMBERS,
        codes=(0, 3),
    ),
    Command(
        "squad predicted",
        "train.py",
        (*SQUAD, "--model_dir=runs/squad", "--do_train=false", "--do_predict"),
        (*_MODEL, "squad", "runs/squad"),
        (
            Target("squad/dev.json", "json", json_schemas.TO_ANSWER),
            *of_bytes("runs/squad/ckpt-*", "runs/squad/result.json"),
        ),
        codes=(0,),
    ),
    Command(
        "glue",
        "train.py",
        (*GLUE, "--model_dir=new"),
        (*_MODEL, "glue"),
        (
            Target("glue/RTE/train.tsv", "table", {"label": 3}),
            Target("glue/RTE/dev.tsv", "table", {"label": 3}),
            WORDS_OF_MODEL,
            *of_bytes("glue/RTE/*"),
        ),
        TRAIN_NUMBERS,
        codes=(0, 3),
    ),
    Command(
        "glue predicted",
        "train.py",
        (*GLUE, "--model_dir=runs/rte", "--do_train=false", "--do_predict"),
        (*_MODEL, "glue", "runs/rte"),
        (Target("glue/RTE/test.tsv", "table"), *of_bytes("runs/rte/ckpt-*", "runs/rte/metrics.jsonl")),
        codes=(0,),
    ),
] + [
    Command(
        f"{name} initialised",
        "train.py",
        (*PRETRAINING, "--model_dir=new", f"--init_checkpoint={CHECKPOINTS[name]}"),
        (*_MODEL, "records", f"formats/{name}"),
        (of_checkpoint(name),),
        codes=(0, 3),
    )
    for name in ("google", "garden", "huggingface")
]
