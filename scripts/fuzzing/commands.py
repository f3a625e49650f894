"""The commands that take files or numbers: their command lines in a small workspace, and what of it is damaged how."""

import dataclasses

from fuzzing import damage

_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings")
# What "flags" gives to any flag, beside paths that are not there: types and ranges that none has.
_NO_NUMBERS = ("abc", "nan", "inf", "1e400", "1_0x", "--", "٣x")
_MODEL = {"checked": [(name,) for name in (*_SIZES, "hidden_dropout_prob", "hidden_act")], "required": [("vocab_size",)],
          "ranges": {**{(name,): (0, -1, 10**30) for name in _SIZES}, ("hidden_dropout_prob",): (-0.1, 1.5, 1e30), ("hidden_act",): ("tanh", "")}}
_CONFIG = {"checked": [("model",), ("train_batch_size",), ("learning_rate",), ("vocab_file",), ("seed",), ("model", "hidden_size")],
           "ranges": {("train_batch_size",): (0, -4, 2.5), ("learning_rate",): (-1, 10**25), ("task",): ("translate",), ("dtype",): ("fp8",),
                      ("model", "num_hidden_layers"): (0, -1), ("max_seq_length",): (0, 10**9)}}
_RESULT = {"checked": [("status",), ("config",), ("step",), ("reason",), ("sequences_per_sec",)], "required": [("status",)],
           "ranges": {("status",): ("done", "")}}
_QUESTION = ("data", "*", "paragraphs", "*", "qas", "*")
_SQUAD = {"checked": [("data",), ("data", "*", "paragraphs"), _QUESTION[:5], (*_QUESTION, "id"), (*_QUESTION, "question"), (*_QUESTION, "answers"),
                      ("data", "*", "paragraphs", "*", "context"), (*_QUESTION, "answers", "*", "answer_start"), (*_QUESTION, "answers", "*", "text")],
          "required": [("data",), ("data", "*", "paragraphs"), ("data", "*", "paragraphs", "*", "context"), _QUESTION[:5], (*_QUESTION, "id"),
                       (*_QUESTION, "question"), (*_QUESTION, "answers", "*", "answer_start"), (*_QUESTION, "answers", "*", "text")],
          "ranges": {(*_QUESTION, "id"): ("train-1",), (*_QUESTION, "is_impossible"): (True,)},
          "found": {(*_QUESTION, "answers", "*", "answer_start"): (-1, -500, 10**6), (*_QUESTION, "question"): ("", "  ")}}
_GOLD = {"checked": [("data",), ("data", "*", "paragraphs"), (*_QUESTION, "id"), (*_QUESTION, "answers"), (*_QUESTION, "answers", "*", "text")],
         "required": [("data",), ("data", "*", "paragraphs"), _QUESTION[:5], (*_QUESTION, "id"), (*_QUESTION, "answers")],
         "ranges": {(*_QUESTION, "id"): ("dev-1",)}}
_TO_ANSWER = {"checked": [*_GOLD["checked"][:3], (*_QUESTION, "question")], "required": [*_GOLD["required"][:4]], "ranges": _GOLD["ranges"]}


@dataclasses.dataclass(frozen=True)
class Target:
    """A file of the workspace and how it is damaged: `kind` is one of damage.DAMAGES, `details` its arguments."""

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
_TRAINING = ("--bert_config_file=bert.json", "--vocab_file=vocab.txt", "--train_batch_size=4", "--eval_batch_size=4", "--num_gpus=0", "--num_train_epochs=1")
PRETRAINING = (*_TRAINING, *_SIZES_OF_DATA, "--input_files=records/*.tfrecord", "--steps_per_loop=4", "--warmup_steps=1", "--optimizer_type=lamb", "--do_eval",
               "--num_eval_samples=8", "--num_steps_per_epoch=8")
SQUAD = (*_TRAINING, "--task=squad", "--train_file=squad/train.json", "--predict_file=squad/dev.json", "--max_seq_length=32", "--doc_stride=8",
         "--max_query_length=8", "--do_eval")
GLUE = (*_TRAINING, "--task=glue", "--glue_task=rte", "--data_dir=glue", "--max_seq_length=32", "--do_eval")
CREATION = ("--input_files=text/plain.txt,text/wiki.json", "--vocab_file=vocab.txt", "--dupe_factor=1", "--num_shards=2", *_SIZES_OF_DATA)
ACTIONS = {"google": "keras2google", "graphcore": "keras2graphcore", "popart": "keras2popart", "garden": "keras2garden", "huggingface": "keras2huggingface"}
CHECKPOINTS = {"google": "formats/google/ckpt-8", "graphcore": "formats/graphcore/ckpt-8", "popart": "formats/popart/ckpt-8.onnx",
               "garden": "formats/garden/ckpt-8", "huggingface": "formats/huggingface", "keras": "runs/pretrain/ckpt-8"}

_BERT = Target("bert.json", "json", _MODEL)
_WORDS = Target("vocab.txt", "vocabulary")
_WORDS_OF_MODEL = Target("vocab.txt", "vocabulary", {"of_model": True})
_TRAIN_NUMBERS = ("train_batch_size", "learning_rate", "warmup_steps", "max_seq_length", "seed", "poly_power", "num_train_epochs")


def _bytes(*paths: str) -> tuple[Target, ...]:
    return tuple(Target(path, "bytes") for path in paths)


def _checkpoint(format_name: str, **details) -> Target:
    return Target(CHECKPOINTS[format_name], "checkpoint", {"format_name": format_name, **details})


def _trainings() -> list[Command]:
    model = ("bert.json", "vocab.txt")
    metrics = Target("runs/pretrain/metrics.jsonl", "json_lines")
    return [
        Command("pretrain", "train.py", (*PRETRAINING, "--model_dir=new"), (*model, "records"),
                (_BERT, _WORDS_OF_MODEL, Target("records/part-0000*", "records"), *_bytes("bert.json", "records/part-0000*")), _TRAIN_NUMBERS, codes=(0, 3)),
        Command("pretrain resumed", "train.py", (*PRETRAINING, "--model_dir=runs/pretrain", "--num_steps_per_epoch=12"), (*model, "records", "runs/pretrain"),
                (metrics, *_bytes("runs/pretrain/ckpt-*", "runs/pretrain/config.json", "runs/pretrain/result.json", "runs/pretrain/metrics.jsonl",
                                  "runs/pretrain/mllog.txt", "runs/pretrain/checkpoint")), codes=(0, 3)),
        Command("pretrain initialised", "train.py", (*PRETRAINING, "--model_dir=new", "--init_checkpoint=runs/pretrain/ckpt-8"),
                (*model, "records", "runs/pretrain"), (_checkpoint("keras"), *_bytes("runs/pretrain/ckpt-*")), codes=(0, 3)),
        Command("plan", "train.py", ("--config=runs/pretrain/config.json", "--model_dir=new", "--plan"), (*model, "records", "runs/pretrain"),
                (Target("runs/pretrain/config.json", "json", _CONFIG), *_bytes("runs/pretrain/config.json")), _TRAIN_NUMBERS),
        Command("flagfile", "train.py", ("--flagfile=run.flags", "--plan"), (*model, "run.flags"), _bytes("run.flags"), _TRAIN_NUMBERS),
        Command("squad", "train.py", (*SQUAD, "--model_dir=new", "--cache_dir=cache"), (*model, "squad", "cache"),
                (Target("squad/train.json", "json", _SQUAD), Target("squad/dev.json", "json", _TO_ANSWER), _BERT, _WORDS_OF_MODEL,
                 *_bytes("cache/*/*", "squad/train.json")), _TRAIN_NUMBERS, codes=(0, 3)),
        Command("squad predicted", "train.py", (*SQUAD, "--model_dir=runs/squad", "--do_train=false", "--do_predict"), (*model, "squad", "runs/squad"),
                (Target("squad/dev.json", "json", _TO_ANSWER), *_bytes("runs/squad/ckpt-*", "runs/squad/result.json")), codes=(0,)),
        Command("glue", "train.py", (*GLUE, "--model_dir=new"), (*model, "glue"),
                (Target("glue/RTE/train.tsv", "table", {"label": 3}), Target("glue/RTE/dev.tsv", "table", {"label": 3}), _WORDS_OF_MODEL,
                 *_bytes("glue/RTE/*")), _TRAIN_NUMBERS, codes=(0, 3)),
        Command("glue predicted", "train.py", (*GLUE, "--model_dir=runs/rte", "--do_train=false", "--do_predict"), (*model, "glue", "runs/rte"),
                (Target("glue/RTE/test.tsv", "table"), *_bytes("runs/rte/ckpt-*", "runs/rte/metrics.jsonl")), codes=(0,)),
    ] + [Command(f"{name} initialised", "train.py", (*PRETRAINING, "--model_dir=new", f"--init_checkpoint={CHECKPOINTS[name]}"),
                 (*model, "records", f"formats/{name}"), (_checkpoint(name),), codes=(0, 3)) for name in ("google", "garden", "huggingface")]


def _data() -> list[Command]:
    text = (Target("text/plain.txt", "text"), Target("text/wiki.json", "text"), *_bytes("text/plain.txt", "text/wiki.json"))
    of_manifest = Target("records/manifest.json", "json", {"checked": [("flags",), ("flags", "vocab_file")]})
    return [
        Command("create_pretraining_data", "scripts/create_pretraining_data.py", (*CREATION, "--output_dir=made"), ("text", "vocab.txt"), (*text, _WORDS),
                ("masked_lm_prob", "short_seq_prob", "dupe_factor", "num_workers", "max_seq_length", "num_shards")),
        Command("creation resumed", "scripts/create_pretraining_data.py", (*CREATION, "--output_dir=unfinished"), ("text", "vocab.txt", "unfinished"),
                _bytes("unfinished/.unfinished/*")),
        Command("prepare_text", "scripts/prepare_text.py", ("--input_files=text", "--output_dir=made", "--eval_share=0.3"), ("text",), text,
                ("eval_share", "min_sentences", "num_workers")),
        Command("build_vocab", "scripts/build_vocab.py", ("--input_files=text", "--output_file=words.txt", "--vocab_size=120"), ("text",), text,
                ("vocab_size", "max_sentences")),
        Command("inspect_data", "scripts/inspect_data.py", ("records", "--report=report.json", "--picture=lengths.png"), ("records", "vocab.txt"),
                (Target("records/part-0000*", "records"), Target("records/part-0000*", "records"), of_manifest, _WORDS,
                 *_bytes("records/*")), ("examples",)),
        Command("make_eval_set", "scripts/make_eval_set.py", ("--input_files=records/*.tfrecord", "--output_file=eval.tfrecord", "--num_samples=10"),
                ("records",), (Target("records/part-0000*", "records", {"reads_values": False}), *_bytes("records/part-0000*")), ("num_samples",)),
        Command("build_corpus", "scripts/build_corpus.py", ("--output_dir=made",), (), (), ("eval_share",), runs=False),
    ]


def _checkpoints() -> list[Command]:
    commands = []
    for name in CHECKPOINTS:
        part, path = ("runs/pretrain" if name == "keras" else f"formats/{name}"), CHECKPOINTS[name]
        action = "keras2google" if name == "keras" else f"{name}2keras"
        beside = (_MODEL_BESIDE, _tokenizer_of("formats/huggingface", seen=damage.NAMED),
                  Target("formats/huggingface/vocab.txt", "vocabulary", {"handed_on": True})) if name == "huggingface" else ()
        commands.append(Command(f"convert_ckpt {action}", "checkpoints_tools/convert_ckpt.py", (action, path, "--output_dir=made"), (part,),
                                (_checkpoint(name), _checkpoint(name), *beside, *_bytes(path + "*/model*" if name == "huggingface" else path + "*")),
                                ("vocab_size", "precision", "num_attention_heads"), codes=(0, 1)))
        commands.append(Command(f"inspect_ckpt {name}", "checkpoints_tools/inspect_ckpt.py", (path, "--digest"), (part,),
                                _bytes(path + "*/model*" if name == "huggingface" else path + "*")))
    return commands


_MODEL_BESIDE = Target("formats/huggingface/config.json", "json", {
    "checked": [("hidden_size",), ("num_attention_heads",)], "ranges": {("num_attention_heads",): (0, -2), ("hidden_size",): (17, -1)}})


def _results() -> list[Command]:
    run, other = "runs/pretrain", "runs/again"
    files = (Target(f"{run}/metrics.jsonl", "json_lines"), Target(f"{run}/config.json", "json", _CONFIG_SAVED), Target(f"{run}/result.json", "json", _RESULT),
             *_bytes(f"{run}/metrics.jsonl", f"{run}/config.json", f"{run}/result.json", f"{run}/mllog.txt"))
    answers = Target("predictions.json", "json", {"checked": [("?",)], "required": []})
    return [
        Command("compare_runs", "scripts/compare_runs.py", (run, other, "--output=curves.png", "--json=numbers.json"), (run, other), files, ("target",)),
        Command("compare_runs --mlperf", "scripts/compare_runs.py", (run, other, "--mlperf"), (run, other), _bytes(f"{run}/mllog.txt", f"{other}/mllog.txt"), ()),
        Command("record_result", "scripts/record_result.py", (f"--model_dir={run}", "--output=kept"), (run,),
                (files[0], files[2], *_bytes(f"{run}/metrics.jsonl", f"{run}/result.json", f"{run}/command.txt"))),
        Command("evaluate_squad_v1", "scripts/evaluate_squad_v1.py", ("squad/dev.json", "predictions.json"), ("squad", "predictions.json"),
                (Target("squad/dev.json", "json", _GOLD), answers, *_bytes("squad/dev.json", "predictions.json"))),
        Command("evaluate_squad_v2", "scripts/evaluate_squad_v2.py", ("squad/dev.json", "predictions.json", "--na_prob_file=na.json", "--out_image_dir=pictures"),
                ("squad", "predictions.json", "na.json"),
                (Target("squad/dev.json", "json", _GOLD), answers, Target("na.json", "json", {"checked": [("?",)], "required": [("?",)]}),
                 *_bytes("na.json")), ("na_prob_thresh",)),
        Command("make_glue_submission", "scripts/make_glue_submission.py", ("--predictions", "submission", "--data_dir=glue", "--allow_missing", "--output=all.zip"),
                ("submission", "glue"), (Target("submission/RTE.tsv", "table", {"label": 1, "strict": True}), *_bytes("submission/RTE.tsv"))),
    ]


_CONFIG_SAVED = {"checked": _CONFIG["checked"][:5], "ranges": {place: values for place, values in _CONFIG["ranges"].items() if len(place) == 1}}


def _tokenizer_of(folder: str, **details) -> Target:
    return Target(f"{folder}/tokenizer_config.json", "json", {"checked": [("do_lower_case",)], "ranges": {("tokenize_chinese_chars",): (False,)}, **details})


def _answers() -> list[Command]:
    settings = {"checked": [("vocab_file",), ("model",), ("max_seq_length",)], "ranges": _CONFIG["ranges"]}
    commands = []
    for name, task, extra, parts in (("ask", "squad", ("--context=context.txt",), ("context.txt",)), ("classify", "rte", (), ())):
        run = f"runs/{task}"
        targets = (Target(f"{run}/config.json", "json", settings), Target(f"{run}/ckpt-*.index", "bytes"), Target("stdin", "typed"),
                   Target(f"{run}/vocab.txt", "vocabulary", {"of_model": True}), _tokenizer_of(run),
                   *_bytes(f"{run}/config.json", f"{run}/result.json", f"{run}/ckpt-*", f"{run}/*.json", f"{run}/vocab.txt"))
        targets += (Target("context.txt", "small_text"),) if parts else ()
        typed = "Who was first?\nWhere?\n" if parts else "One is here.\tTwo is there.\n"
        commands.append(Command(name, f"scripts/{name}.py", (f"--checkpoint={run}", *extra), (run, *parts), targets,
                                ("answers",) if parts else (), typed=typed))
    for name, folder, of_format in (("fill_mask", "runs/pretrain", "keras"), ("fill_mask huggingface", "formats/huggingface", "huggingface")):
        targets = (Target("stdin", "typed"), Target(f"{folder}/vocab.txt", "vocabulary", {"of_model": True}), _tokenizer_of(folder), _checkpoint(of_format),
                   *_bytes(f"{folder}/*.json", f"{folder}/vocab.txt"), *((_MODEL_BESIDE,) if of_format == "huggingface" else ()))
        commands.append(Command(name, "scripts/fill_mask.py", (f"--checkpoint={folder}",), (folder,), targets, ("top_k",), typed="the sea was [MASK].\n"))
    return commands


def _benchmarks() -> list[Command]:
    model, of_model = ("bert.json",), ("--bert_config_file=bert.json",)
    return [
        Command("benchmark_step", "scripts/benchmark_step.py", of_model, model, (_BERT,), ("rounds", "steps", "shapes", "dtypes", "num_gpus"), runs=False),
        Command("benchmark_optimizer", "scripts/benchmark_optimizer.py", of_model, model, (_BERT,), ("rounds", "num_gpus"), runs=False),
        Command("benchmark_peers", "scripts/benchmark_peers.py", (*of_model, "--peers=ours"), model, (_BERT,), ("rounds", "steps", "shapes", "dtypes", "peers"), runs=False),
        Command("benchmark_conversion", "scripts/benchmark_conversion.py", of_model, model, (_BERT,), (), runs=False),
        Command("benchmark_data", "scripts/benchmark_data.py", ("--input_files=text", "--vocab_file=vocab.txt"), ("text", "vocab.txt"), (_WORDS,), ("rounds",),
                runs=False),
        Command("benchmark_features", "scripts/benchmark_features.py", ("--predict_file=squad/dev.json", "--vocab_file=vocab.txt", "--output=out.json"),
                ("squad", "vocab.txt"), (Target("squad/dev.json", "json", _TO_ANSWER), _WORDS), ("rounds", "max_seq_length"), runs=False),
        Command("profile_step", "scripts/profile_step.py", of_model, model, (_BERT,), ("shapes", "steps", "dtype"), runs=False),
        Command("measure_memory", "scripts/measure_memory.py", ("--model=bert.json",), model, (), ("steps", "cases", "one"), runs=False),
        Command("compare_numerics", "scripts/compare_numerics.py", ("--model_dir=new",), (), (), ("num_runs", "seed", "variants"), runs=False),
    ]


COMMANDS = {command.name: command for command in (*_trainings(), *_data(), *_checkpoints(), *_results(), *_answers(), *_benchmarks())}
