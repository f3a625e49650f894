"""The commands that make and show data, and convert and show checkpoints."""

from fuzzing import damage
from fuzzing.definitions import (
    CHECKPOINTS,
    CREATION,
    MODEL_BESIDE,
    WORDS,
    Command,
    Target,
    of_bytes,
    of_checkpoint,
    of_tokenizer,
)

_TEXT = (
    Target("text/plain.txt", "text"),
    Target("text/wiki.json", "text"),
    *of_bytes("text/plain.txt", "text/wiki.json"),
)
_OF_MANIFEST = Target("records/manifest.json", "json", {"checked": [("flags",), ("flags", "vocab_file")]})
DATA = [
    Command(
        "create_pretraining_data",
        "scripts/create_pretraining_data.py",
        (*CREATION, "--output_dir=made"),
        ("text", "vocab.txt"),
        (*_TEXT, WORDS),
        ("masked_lm_prob", "short_seq_prob", "dupe_factor", "num_workers", "max_seq_length", "num_shards"),
    ),
    Command(
        "creation resumed",
        "scripts/create_pretraining_data.py",
        (*CREATION, "--output_dir=unfinished"),
        ("text", "vocab.txt", "unfinished"),
        of_bytes("unfinished/.unfinished/*"),
    ),
    Command(
        "prepare_text",
        "scripts/prepare_text.py",
        ("--input_files=text", "--output_dir=made", "--eval_share=0.3"),
        ("text",),
        _TEXT,
        ("eval_share", "min_sentences", "num_workers"),
    ),
    Command(
        "build_vocab",
        "scripts/build_vocab.py",
        ("--input_files=text", "--output_file=words.txt", "--vocab_size=120"),
        ("text",),
        _TEXT,
        ("vocab_size", "max_sentences"),
    ),
    Command(
        "inspect_data",
        "scripts/inspect_data.py",
        ("records", "--report=report.json", "--picture=lengths.png"),
        ("records", "vocab.txt"),
        (
            Target("records/part-0000*", "records"),
            Target("records/part-0000*", "records"),
            _OF_MANIFEST,
            WORDS,
            *of_bytes("records/*"),
        ),
        ("examples",),
    ),
    Command(
        "inspect_data packed",
        "scripts/inspect_data.py",
        ("packed", "--report=report.json", "--vocab_file=vocab.txt"),
        ("packed", "vocab.txt"),
        (Target("packed/part-0000*", "packed_rows"), *of_bytes("packed/*")),
        ("examples",),
    ),
    Command(
        "make_eval_set",
        "scripts/make_eval_set.py",
        ("--input_files=records/*.tfrecord", "--output_file=eval.tfrecord", "--num_samples=10"),
        ("records",),
        (Target("records/part-0000*", "records", {"reads_values": False}), *of_bytes("records/part-0000*")),
        ("num_samples",),
    ),
    Command(
        "pack_pretraining_data",
        "scripts/pack_pretraining_data.py",
        ("--input_files=records/*.tfrecord", "--output_dir=made", "--max_sequences_per_pack=3"),
        ("records",),
        (Target("records/part-0000*", "records", {"reads_values": False}), *of_bytes("records/part-0000*")),
        ("max_sequences_per_pack", "num_workers", "num_shards"),
    ),
    Command(
        "build_corpus", "scripts/build_corpus.py", ("--output_dir=made",), (), (), ("eval_share",), runs=False
    ),
]


def checkpoints() -> list[Command]:
    commands = []
    for name in CHECKPOINTS:
        part, path = ("runs/pretrain" if name == "keras" else f"formats/{name}"), CHECKPOINTS[name]
        action = "keras2google" if name == "keras" else f"{name}2keras"
        beside = (
            (
                MODEL_BESIDE,
                of_tokenizer("formats/huggingface", seen=damage.NAMED),
                Target("formats/huggingface/vocab.txt", "vocabulary", {"handed_on": True}),
            )
            if name == "huggingface"
            else ()
        )
        commands.append(
            Command(
                f"convert_ckpt {action}",
                "checkpoints_tools/convert_ckpt.py",
                (action, path, "--output_dir=made"),
                (part,),
                (
                    of_checkpoint(name),
                    of_checkpoint(name),
                    *beside,
                    *of_bytes(path + "*/model*" if name == "huggingface" else path + "*"),
                ),
                ("vocab_size", "precision", "num_attention_heads"),
                codes=(0, 1),
            )
        )
        commands.append(
            Command(
                f"inspect_ckpt {name}",
                "checkpoints_tools/inspect_ckpt.py",
                (path, "--digest"),
                (part,),
                of_bytes(path + "*/model*" if name == "huggingface" else path + "*"),
            )
        )
    return commands
