"""The commands that read runs and their answers, that answer, and that measure."""

from fuzzing import json_schemas
from fuzzing.definitions import (
    Command,
    Target,
    of_bytes,
    of_checkpoint,
    of_tokenizer,
    BERT,
    MODEL_BESIDE,
    WORDS,
)


def results() -> list[Command]:
    run, other = "runs/pretrain", "runs/again"
    files = (
        Target(f"{run}/metrics.jsonl", "json_lines"),
        Target(f"{run}/config.json", "json", json_schemas.CONFIG_SAVED),
        Target(f"{run}/result.json", "json", json_schemas.RESULT),
        *of_bytes(f"{run}/metrics.jsonl", f"{run}/config.json", f"{run}/result.json", f"{run}/mllog.txt"),
    )
    answers = Target("predictions.json", "json", {"checked": [("?",)], "required": []})
    return [
        Command(
            "compare_runs",
            "scripts/compare_runs.py",
            (run, other, "--output=curves.png", "--json=numbers.json"),
            (run, other),
            files,
            ("target",),
        ),
        Command(
            "compare_runs --mlperf",
            "scripts/compare_runs.py",
            (run, other, "--mlperf"),
            (run, other),
            of_bytes(f"{run}/mllog.txt", f"{other}/mllog.txt"),
            (),
        ),
        Command(
            "record_result",
            "scripts/record_result.py",
            (f"--model_dir={run}", "--output=kept"),
            (run,),
            (
                files[0],
                files[2],
                *of_bytes(f"{run}/metrics.jsonl", f"{run}/result.json", f"{run}/command.txt"),
            ),
        ),
        Command(
            "evaluate_squad_v1",
            "scripts/evaluate_squad_v1.py",
            ("squad/dev.json", "predictions.json"),
            ("squad", "predictions.json"),
            (
                Target("squad/dev.json", "json", json_schemas.GOLD),
                answers,
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
                answers,
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
    settings = {
        "checked": [("vocab_file",), ("model",), ("max_seq_length",)],
        "ranges": json_schemas.CONFIG["ranges"],
    }
    commands = []
    for name, task, extra, parts in (
        ("ask", "squad", ("--context=context.txt",), ("context.txt",)),
        ("classify", "rte", (), ()),
    ):
        run = f"runs/{task}"
        targets = (
            Target(f"{run}/config.json", "json", settings),
            Target(f"{run}/ckpt-*.index", "bytes"),
            Target("stdin", "typed"),
            Target(f"{run}/vocab.txt", "vocabulary", {"of_model": True}),
            of_tokenizer(run),
            *of_bytes(
                f"{run}/config.json",
                f"{run}/result.json",
                f"{run}/ckpt-*",
                f"{run}/*.json",
                f"{run}/vocab.txt",
            ),
        )
        targets += (Target("context.txt", "small_text"),) if parts else ()
        typed = "Who was first?\nWhere?\n" if parts else "One is here.\tTwo is there.\n"
        commands.append(
            Command(
                name,
                f"scripts/{name}.py",
                (f"--checkpoint={run}", *extra),
                (run, *parts),
                targets,
                ("answers",) if parts else (),
                typed=typed,
            )
        )
    for name, folder, of_format in (
        ("fill_mask", "runs/pretrain", "keras"),
        ("fill_mask huggingface", "formats/huggingface", "huggingface"),
    ):
        targets = (
            Target("stdin", "typed"),
            Target(f"{folder}/vocab.txt", "vocabulary"),
            of_tokenizer(folder),
            of_checkpoint(of_format),
            *of_bytes(f"{folder}/*.json", f"{folder}/vocab.txt"),
            *((MODEL_BESIDE,) if of_format == "huggingface" else ()),
        )
        commands.append(
            Command(
                name,
                "scripts/fill_mask.py",
                (f"--checkpoint={folder}",),
                (folder,),
                targets,
                ("top_k",),
                typed="the sea was [MASK].\n",
            )
        )
    return commands


def benchmarks() -> list[Command]:
    model, of_model = ("bert.json",), ("--bert_config_file=bert.json",)
    return [
        Command(
            "benchmark_step",
            "scripts/benchmark_step.py",
            of_model,
            model,
            (BERT,),
            ("rounds", "steps", "shapes", "dtypes", "num_gpus"),
            runs=False,
        ),
        Command(
            "benchmark_optimizer",
            "scripts/benchmark_optimizer.py",
            of_model,
            model,
            (BERT,),
            ("rounds", "num_gpus"),
            runs=False,
        ),
        Command(
            "benchmark_peers",
            "scripts/benchmark_peers.py",
            (*of_model, "--peers=ours"),
            model,
            (BERT,),
            ("rounds", "steps", "shapes", "dtypes", "peers"),
            runs=False,
        ),
        Command(
            "benchmark_conversion",
            "scripts/benchmark_conversion.py",
            of_model,
            model,
            (BERT,),
            (),
            runs=False,
        ),
        Command(
            "benchmark_data",
            "scripts/benchmark_data.py",
            ("--input_files=text", "--vocab_file=vocab.txt"),
            ("text", "vocab.txt"),
            (WORDS,),
            ("rounds",),
            runs=False,
        ),
        Command(
            "benchmark_features",
            "scripts/benchmark_features.py",
            ("--predict_file=squad/dev.json", "--vocab_file=vocab.txt", "--output=out.json"),
            ("squad", "vocab.txt"),
            (Target("squad/dev.json", "json", json_schemas.TO_ANSWER), WORDS),
            ("rounds", "max_seq_length"),
            runs=False,
        ),
        Command(
            "profile_step",
            "scripts/profile_step.py",
            of_model,
            model,
            (BERT,),
            ("shapes", "steps", "dtype"),
            runs=False,
        ),
        Command(
            "measure_memory",
            "scripts/measure_memory.py",
            ("--model=bert.json",),
            model,
            (),
            ("steps", "cases", "one"),
            runs=False,
        ),
        Command(
            "compare_numerics",
            "scripts/compare_numerics.py",
            ("--model_dir=new",),
            (),
            (),
            ("num_runs", "seed", "variants"),
            runs=False,
        ),
    ]
