"""The commands that read runs and their answers, that answer, and that measure."""

from fuzzing import json_schemas
from fuzzing.definitions import (
    BERT,
    MODEL_BESIDE,
    Command,
    Target,
    of_bytes,
    of_checkpoint,
    of_tokenizer,
)

_RUN, _OTHER = "runs/pretrain", "runs/again"
_FILES = (
    Target(f"{_RUN}/metrics.jsonl", "json_lines"),
    Target(f"{_RUN}/config.json", "json", json_schemas.CONFIG_SAVED),
    Target(f"{_RUN}/result.json", "json", json_schemas.RESULT),
    *of_bytes(f"{_RUN}/metrics.jsonl", f"{_RUN}/config.json", f"{_RUN}/result.json", f"{_RUN}/mllog.txt"),
)
_PREDICTIONS = Target("predictions.json", "json", {"checked": [("?",)], "required": []})
RESULTS = [
    Command(
        "compare_runs",
        "scripts/compare_runs.py",
        (_RUN, _OTHER, "--output=curves.png", "--json=numbers.json"),
        (_RUN, _OTHER),
        _FILES,
        ("target",),
    ),
    Command(
        "compare_runs --mlperf",
        "scripts/compare_runs.py",
        (_RUN, _OTHER, "--mlperf"),
        (_RUN, _OTHER),
        of_bytes(f"{_RUN}/mllog.txt", f"{_OTHER}/mllog.txt"),
        (),
    ),
    Command(
        "record_result",
        "scripts/record_result.py",
        (f"--model_dir={_RUN}", "--output=kept"),
        (_RUN,),
        (
            _FILES[0],
            _FILES[2],
            *of_bytes(f"{_RUN}/metrics.jsonl", f"{_RUN}/result.json", f"{_RUN}/command.txt"),
        ),
    ),
    Command(
        "evaluate_squad_v1",
        "scripts/evaluate_squad_v1.py",
        ("squad/dev.json", "predictions.json"),
        ("squad", "predictions.json"),
        (
            Target("squad/dev.json", "json", json_schemas.GOLD),
            _PREDICTIONS,
            *of_bytes("squad/dev.json", "predictions.json"),
        ),
    ),
    Command(
        "evaluate_squad_v2",
        "scripts/evaluate_squad_v2.py",
        ("squad/dev.json", "predictions.json", "--na_prob_file=na.json", "--out_image_dir=pictures"),
        ("squad", "predictions.json", "na.json"),
        (
            Target("squad/dev.json", "json", json_schemas.GOLD),
            _PREDICTIONS,
            Target("na.json", "json", {"checked": [("?",)], "required": [("?",)]}),
            *of_bytes("na.json"),
        ),
        ("na_prob_thresh",),
    ),
    Command(
        "make_glue_submission",
        "scripts/make_glue_submission.py",
        ("--predictions", "submission", "--data_dir=glue", "--allow_missing", "--output=all.zip"),
        ("submission", "glue"),
        (
            Target("submission/RTE.tsv", "table", {"label": 1, "strict": True}),
            *of_bytes("submission/RTE.tsv"),
        ),
    ),
]


def answers() -> list[Command]:
    """Returns the commands that answer what is typed with a fine-tuned model."""
    return [
        Command(
            "ask",
            "scripts/ask.py",
            ("--checkpoint=runs/squad", "--context=context.txt"),
            ("runs/squad", "context.txt"),
            (*_fine_tuned("runs/squad"), Target("context.txt", "small_text")),
            ("answers",),
            typed="Who was first?\nWhere?\n",
        ),
        Command(
            "classify",
            "scripts/classify.py",
            ("--checkpoint=runs/rte",),
            ("runs/rte",),
            _fine_tuned("runs/rte"),
            typed="One is here.\tTwo is there.\n",
        ),
        Command(
            "render_job",
            "scripts/render_job.py",
            ("--kind=jobset", "--image=host/bert:1", "--workers=2", "--volume=runs:/runs", "program", "run"),
            numbers=("workers", "gpus", "port", "max_restarts", "grace_secs"),
        ),
        Command(
            "export",
            "scripts/export.py",
            ("--checkpoint=nothing", "--export_dir=out"),
            (),
            (),
            ("dtype", "format"),
            runs=False,
        ),
    ]


def _fine_tuned(run: str) -> tuple[Target, ...]:
    settings = {
        "checked": [("vocab_file",), ("model",), ("max_seq_length",)],
        "ranges": json_schemas.CONFIG["ranges"],
    }
    files = [f"{run}/{name}" for name in ("config.json", "result.json", "ckpt-*", "*.json", "vocab.txt")]
    return (
        Target(f"{run}/config.json", "json", settings),
        Target(f"{run}/ckpt-*.index", "bytes"),
        Target("stdin", "typed"),
        Target(f"{run}/vocab.txt", "vocabulary", {"of_model": True}),
        of_tokenizer(run),
        *of_bytes(*files),
    )


def fill_masks() -> list[Command]:
    """Returns fill_mask.py with a run and with a folder of Hugging Face's."""
    commands = []
    for name, folder, format_name in (
        ("fill_mask", "runs/pretrain", "keras"),
        ("fill_mask huggingface", "formats/huggingface", "huggingface"),
    ):
        targets = (
            Target("stdin", "typed"),
            Target(f"{folder}/vocab.txt", "vocabulary"),
            of_tokenizer(folder),
            of_checkpoint(format_name),
            *of_bytes(f"{folder}/*.json", f"{folder}/vocab.txt"),
            *((MODEL_BESIDE,) if format_name == "huggingface" else ()),
        )
        arguments = (f"--checkpoint={folder}",)
        commands.append(
            Command(
                name,
                "scripts/fill_mask.py",
                arguments,
                (folder,),
                targets,
                ("top_k",),
                typed="the sea was [MASK].\n",
            )
        )
    return commands


_MODEL, _OF_MODEL = ("bert.json",), ("--bert_config_file=bert.json",)
LAUNCHER = [
    Command(
        "launch",
        "scripts/launch.py",
        ("--topology", "--hosts=a:4000,b:4000"),
        (),
        (),
        ("instances_per_host", "max_restarts", "num_replicas", "num_ilds", "host_timeout_secs"),
        runs=False,
    ),
]
SERVERS = [
    Command(
        "serve",
        "scripts/serve.py",
        ("--export_dir=nothing", "--port=0"),
        (),
        (),
        ("port", "threads", "max_batch_size", "max_queue", "batch_delay_ms", "grace_secs", "methods"),
        runs=False,
    ),
]
BENCHMARKS = [
    Command(
        "benchmark_step",
        "scripts/benchmark_step.py",
        _OF_MODEL,
        _MODEL,
        (BERT,),
        ("rounds", "steps", "shapes", "dtypes", "num_gpus"),
        runs=False,
    ),
    Command(
        "benchmark_inference",
        "scripts/benchmark_inference.py",
        _OF_MODEL,
        _MODEL,
        (BERT,),
        ("rounds", "instances", "num_threads", "num_iter", "micro_batch_size", "max_seq_length", "dtypes"),
        runs=False,
    ),
    Command(
        "benchmark",
        "scripts/benchmark.py",
        ("--spec=vocab.txt",),
        ("vocab.txt",),
        (),
        ("timeout",),
        runs=False,
    ),
]
