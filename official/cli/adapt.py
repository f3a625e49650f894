"""`bert adapt`: continued pre-training of a model on the user's own text.

Its stages are ordinary jobs and runs, executed in order, each in a folder below MODEL_DIR/adapt; the
continued pre-training is the run in MODEL_DIR itself. Finished stages are skipped.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, get_origin, get_type_hints

from absl import logging

from official.cli import command_line, outputs, text, train
from official.cli import flags as train_flags
from official.cli.ask import CheckpointFlags
from official.config import FIELDS, Config
from official.config.setting import LENGTH, Field
from official.data.text import text_files
from official.io import files, jobs, json_files, model_folder, vocabulary_files
from official.io.errors import ConfigError, counted, shortened

_FOLDER = "adapt"  # of the stages, in the folder of the run
# Settings of the runs that this command sets itself.
_SET_HERE = (
    "task objective do_train do_eval do_predict init_checkpoint eval_files num_eval_samples overwrite"
    " max_predictions_per_seq predict_file predict_epochs plan compile_only"
).split()
_RATE, _WIDTH = 1e-4, 768  # the learning rate, and the hidden size of the model that it is for
_MOST_SENTENCES = 1_000_000  # in which words are counted


class Adapt(command_line.TextFlags, CheckpointFlags):
    """Continues the pre-training of a model on your own text, optionally adds words to its vocabulary, and
    measures the effect: the loss of masked words and, with a labelled file, the scores of a fine-tuning.

      bert adapt --checkpoint=FOLDER --input_files=my_text --model_dir=runs/mine
      bert adapt --checkpoint=FOLDER --input_files=my_text --model_dir=runs/mine --add_words=500 \\
        --train_file=tickets.csv --label_column=topic --num_runs=3

    Other flags of bert train configure the runs of the command. Those of --task=classify, such as
    --train_file, --label_column and --num_runs, configure a fine-tuning before and after, which needs
    --train_file; all others, such as --learning_rate, --num_train_epochs and --dtype, the continued
    pre-training.

    Attributes:
      model_dir: Folder of the adapted model: a run, which all commands accept, with result.json and
        report.html. The same command resumes it.
      add_words: Maximum number of frequent words of the text to add to a WordPiece vocabulary, those that
        save the most pieces. For texts whose terms split into many pieces; their meaning has to be learned,
        which takes more text than adapting without them.
      general_files: Text of another kind, to measure what the model forgets. Unset: the corpus of bert data
        corpus.
      eval_share: Share of the documents, and of the rows of --train_file, to hold out.
      max_seq_length: Number of tokens per row of the pre-training; documents are concatenated to fill it.
      seed: Seed of masks, data order and dropout, and of the first fine-tuning.
      overwrite: Adapt afresh if --model_dir holds what another command has begun, or this one has done: the
        old folder is renamed to MODEL_DIR.1, or to the next free number.
    """

    ALIASES = command_line.NAMES
    LISTS = ("general_files",)
    RANGES = {"add_words": (0, 2**20), "max_seq_length": (8, 2**15), "seed": (0, 2**31 - 1)}
    model_dir: str
    add_words: int = 0
    general_files: str | None = None
    eval_share: float = 0.1
    max_seq_length: int = 128
    seed: int = 12345
    overwrite: bool = False

    @classmethod
    def names(cls) -> set[str]:
        """Returns the names of this command's own flags."""
        hints = get_type_hints(cls).items()
        return {name for name, hint in hints if get_origin(hint) is not ClassVar}

    @classmethod
    def parser(cls) -> command_line.Parser:
        parser = super().parser()
        own, of_labels = cls.names(), _of_fine_tuning()
        fine_tuning = parser.add_argument_group("flags of the fine-tuning before and after")
        pretraining = parser.add_argument_group("flags of the continued pre-training")
        for name, field in FIELDS.items():
            if name not in own and name not in _SET_HERE:
                kind: dict = {"type": field.type}
                if field.type is bool:
                    kind = {"action": argparse.BooleanOptionalAction}
                group = fine_tuning if field in of_labels else pretraining
                group.add_argument(f"--{name}", help=field.help.replace("%", "%%"), **kind)
        return parser


def _of_fine_tuning() -> list[Field]:
    """Returns the settings that a fine-tuning on labels has, and pre-training has not."""
    return [
        field
        for name, field in FIELDS.items()
        if "classify" in field.tasks and "pretrain" not in field.tasks and name not in _SET_HERE
    ]


@dataclasses.dataclass(frozen=True)
class _Request:
    """The flags of the command, and those of its runs.

    Attributes:
      own: flags of this command.
      pretraining, fine_tuning: flags of `bert train` that were given for the continued pre-training, and for
        the fine-tuning; none of these: nothing is fine-tuned.
    """

    own: Adapt
    pretraining: list[str]
    fine_tuning: list[str]

    def folder(self, *names: str) -> str:
        """Returns the folder of a stage."""
        return os.path.join(self.own.model_dir, _FOLDER, *names)


def read_request() -> _Request:
    """Reads the command line. Raises ConfigError."""
    parser = Adapt.parser()
    flags = parser.parse()
    given: tuple[list[str], list[str]] = [], []
    of_labels = [field.name for field in _of_fine_tuning()]
    for name in sorted(parser.given & FIELDS.keys() - Adapt.names()):
        given[name in of_labels].extend(_words(**{name: vars(flags)[name]}))
    if given[True] and not vars(flags)["train_file"]:
        raise ConfigError(f"{given[True][0]} is for the rows of --train_file. Give it, or drop the flag.")
    if not 0 < flags.eval_share < 1:
        raise ConfigError(f"--eval_share={flags.eval_share} is out of range. Allowed: above 0, below 1.")
    return _Request(flags, *given)


def run_adapt() -> int:
    request = read_request()
    flags = request.own
    from official.checkpoint import sidecar_files  # late: a second

    location = sidecar_files.open_best(files.expanded(flags.checkpoint), "--checkpoint").location
    paths = text_files.find_texts(flags.input_files)
    weights = _words(
        init_checkpoint=flags.checkpoint, vocab_file=flags.vocab_file, do_lower_case=flags.do_lower_case
    )
    # Errors in the settings of all runs are reported before the text is read.
    evaluation = train_flags.parse([*_evaluation(request, "own", "before", 1), *weights])
    rate = f"--learning_rate={_RATE * _WIDTH / evaluation.model.hidden_size:.1g}"
    train_flags.parse([*_training(request, 1), *weights, rate, *request.pretraining])
    labelled = None
    if request.fine_tuning:
        labelled = train_flags.parse([*_fine_tuning(request, "before"), *weights])
    vocabulary = _vocabulary(request, evaluation)
    command_line.configure_logging()
    _check_same(request, paths, location, labelled)

    words = _once(request, "words", lambda: _choose_words(request, evaluation, vocabulary))
    start = weights
    if words["added"]:
        _once(request, "start", lambda: _write_start(request, words, vocabulary))
        start = [f"--init_checkpoint={request.folder('start')}"]
    config = train_flags.parse([*_evaluation(request, "own", "after", 1), *start])
    sets = _once(request, "sets", lambda: _make_sets(request, paths, vocabulary, config))
    before = {name: _loss(request, name, "before", sets, weights) for name in sets}
    _make_records(request, config, vocabulary)
    code = _run(request, [*_training(request, sets["own"]["rows"]), *start, rate, *request.pretraining])
    adapted = [f"--init_checkpoint={flags.model_dir}"]
    after = {name: _loss(request, name, "after", sets, adapted) for name in sets}
    scores = {}
    if labelled is not None:
        # One recipe for both, including settings that are derived from the files next to the weights.
        same = [f"--max_seq_length={labelled.max_seq_length}", f"--learning_rate={labelled.learning_rate}"]
        for side, own in (("before", weights), ("after", adapted)):
            _run(request, [*_fine_tuning(request, side), *same, *own])
            scores[side] = _result(request.folder(f"scores_{side}")).scores
    _report(request, words, sets, {"before": before, "after": after}, scores)
    return code


# -----------------------------------------------------------------------------------------------------------
# Runs


def _words(**settings: Any) -> list[str]:
    """Returns settings as flags of bert train, without those that are None."""
    texts = {
        name: str(value).lower() if isinstance(value, bool) else value for name, value in settings.items()
    }
    return [f"--{name}={text}" for name, text in texts.items() if text is not None]


def _pretraining(request: _Request, **settings: Any) -> list[str]:
    shape, usual = _shape(request), {"task": "pretrain", "objective": "mlm", "do_eval": True}
    sizes = {"max_seq_length": shape.length, "max_predictions_per_seq": shape.predictions}
    return _words(**usual, seed=request.own.seed, **sizes, **settings)


def _evaluation(request: _Request, name: str, side: str, rows: int) -> list[str]:
    """Returns the flags of a run that evaluates on a set, `own` or `general`, without the weights."""
    folder, data = request.folder(f"loss_{name}_{side}"), request.folder(name, side)
    return _pretraining(request, do_train=False, eval_files=data, num_eval_samples=rows, model_dir=folder)


def _training(request: _Request, rows: int) -> list[str]:
    """Returns the flags of the continued pre-training, without those of the weights."""
    data = {"input_files": request.folder("records"), "eval_files": request.folder("own", "after")}
    steps = {"num_eval_samples": rows, "num_steps_per_epoch": 0, "warmup_proportion": 0.1}
    return _pretraining(request, **data, **steps, model_dir=request.own.model_dir)


def _fine_tuning(request: _Request, side: str) -> list[str]:
    own, folder = request.own, request.folder(f"scores_{side}")
    has_file = any(word.startswith("--eval_file=") for word in request.fine_tuning)
    return [
        *_words(task="classify", seed=own.seed, model_dir=folder),
        *([] if has_file else _words(eval_share=own.eval_share)),
        *request.fine_tuning,
    ]


def _run(request: _Request, words: list[str]) -> int:
    """Runs the flags of a run: 0, or 1 for one that has missed its threshold. Ends this process where a run
    is interrupted or fails, with its exit code."""
    config = train_flags.parse(words)
    logging.info("---- %s", config.model_dir)
    code = train.run(config, sys.argv[1:])
    if code > 1:
        sys.exit(code)
    return code


def _result(folder: str) -> Any:
    from official.reporting import result

    return result.from_dict(result.load_result(folder))


# -----------------------------------------------------------------------------------------------------------
# Stages


def _once(request: _Request, name: str, make: Callable[[], dict]) -> dict:
    """Returns the JSON result of a stage; runs the stage if it has not finished."""
    path = request.folder(f"{name}.json")
    done = jobs.read_done(path)
    if done is None:
        os.makedirs(request.folder(), exist_ok=True)
        jobs.write_done(path, make())
        done = jobs.read_what_is_done(path)
    return done


def _check_same(request: _Request, paths: list[str], location: str, labelled: Config | None) -> None:
    """Raises ConfigError if the folder was begun with other flags, text, labelled rows or weights (those at
    `location`). The runs check their own flags, except those of their lengths. With --overwrite such a folder
    is renamed, and also a finished one."""
    flags = request.own
    job: dict = {name: vars(flags)[name] for name in sorted(Adapt.names() - {"model_dir", "overwrite"})}
    job["checkpoint"] = {"path": flags.checkpoint, "files": files.digest(_files_at(location))["sha256"]}
    job["input_files"] = text_files.identify(paths)
    if flags.general_files:
        others = text_files.find_texts(flags.general_files, "general_files")
        job["general_files"] = text_files.identify(others)
    rows = {name: labelled[name] for name in ("train_file", "eval_file")} if labelled else {}
    for name, given in rows.items():
        job[name] = files.digest(files.find_files(given, name)) if given else None
    for word in (*request.pretraining, *request.fine_tuning):
        name, _, value = word.removeprefix("--").partition("=")
        if FIELDS[name].training == LENGTH:  # a longer run would go on behind what was measured of its end
            job[name] = value
    earlier = jobs.read_done(request.folder("job.json"))
    is_other = earlier is not None and bool(jobs.differences(earlier, job))
    done = json_files.read_json_or_empty(os.path.join(flags.model_dir, "result.json"))
    if flags.overwrite and (is_other or "adaptation" in done or earlier is None and done):
        from official.training import run_lock  # late: TensorFlow

        read = [*(("input_files", path) for path in paths), ("checkpoint", location)]
        run_lock.rename(flags.model_dir, read)
    earlier = _once(request, "job", lambda: job)
    if different := jobs.differences(earlier, job):
        raise ConfigError(
            f"--model_dir={request.own.model_dir} was begun with another {different}. Give another folder, or"
            " --overwrite."
        )


def _files_at(location: str) -> list[str]:
    """Returns the files of the weights at a folder, file or prefix, without .md pages."""
    folder, name = model_folder.folder_of(location), os.path.basename(location)
    names = sorted(files.store_of(folder).names_in(folder))
    if location != folder:
        names = [each for each in names if each == name or each.startswith(f"{name}.")]
    paths = (os.path.join(folder, each) for each in names if not each.endswith(".md"))
    return list(filter(files.is_file, paths))


def _shape(request: _Request) -> Any:
    from official.data.pretraining.masked_words import MASKED_SHARE, Shape

    length = request.own.max_seq_length
    return Shape(length, math.ceil(MASKED_SHARE * length))


def _vocabulary(request: _Request, config: Config) -> Any:
    """Returns the vocabulary of the weights. Raises ConfigError if it is missing, or if words cannot be added
    to it."""
    from official.data.word_pieces.vocabulary import load_for_text

    flags = request.own
    if config.vocab_file is None:
        raise ConfigError(
            f"--checkpoint={flags.checkpoint} has no vocabulary in its folder. Give --vocab_file=PATH."
        )
    vocabulary = load_for_text(config.vocab_file, flags.do_lower_case, flags.checkpoint)
    if flags.add_words and vocabulary.tokenizer is not None:
        raise ConfigError(
            f"--add_words={flags.add_words} needs a WordPiece vocabulary, and {config.vocab_file} is not one."
            " Drop --add_words."
        )
    return vocabulary


def _choose_words(request: _Request, config: Config, vocabulary: Any) -> dict:
    """Chooses the words to add, and writes the extended vocabulary."""
    flags = request.own
    if not flags.add_words:
        return {"added": [], "pieces_of": {}}
    from official.data.text import samples
    from official.data.text.documents import ReadCounts
    from official.data.word_pieces import vocabulary_building
    from official.data.word_pieces.vocabulary import load_for_text

    def is_trained_on(document: list[str]) -> bool:
        return samples.split_of(" ".join(document), flags.eval_share) == "train"

    sentences = text.read_sentences(
        flags.input_files, _MOST_SENTENCES, ReadCounts(), flags.text_field, is_trained_on
    )
    counts = vocabulary_building.count_words(sentences, vocabulary.do_lower_case)
    added = vocabulary_building.choose_words(counts, vocabulary, flags.add_words)
    grown, pieces_of = vocabulary_building.with_words(vocabulary.words, added)
    os.makedirs(request.folder("vocabulary"), exist_ok=True)
    outputs.write_file(request.folder("vocabulary", vocabulary_files.VOCABULARY), "\n".join(grown) + "\n")
    positions = config.model.positions
    settings = vocabulary_files.tokenizer_config(vocabulary, vocabulary.do_lower_case, positions)
    outputs.write_file(request.folder("vocabulary", model_folder.TOKENIZER_CONFIG), settings)
    after = load_for_text(request.folder("vocabulary"))
    fragmentation = {
        "before": vocabulary_building.fragmentation(counts, vocabulary),
        "after": vocabulary_building.fragmentation(counts, after),
    }
    logging.info(
        "%s of the text added to the vocabulary: %.3f word pieces a word, %.3f before. %s",
        counted(len(added), "word"),
        fragmentation["after"],
        fragmentation["before"],
        shortened([one.word for one in added], 400),
    )
    return {
        "added": [[one.word, one.frequency, len(one.pieces)] for one in added],
        "pieces_of": {str(number): pieces for number, pieces in pieces_of.items()},
        "pieces_per_word": fragmentation,
        "size": len(grown),
    }


def _write_start(request: _Request, words: dict, vocabulary: Any) -> dict:
    """Writes the weights with the rows of the added words, each the mean of those of its pieces."""
    from official.checkpoint import convert
    from official.checkpoint.formats import Options

    options = Options(
        vocab_size=words["size"],
        averages={int(number): tuple(pieces) for number, pieces in words["pieces_of"].items()},
        vocab_file=request.folder("vocabulary"),
        do_lower_case=vocabulary.do_lower_case,
    )
    convert.convert(request.own.checkpoint, "huggingface", request.folder("start"), options, overwrite=True)
    return {}


def _make_sets(request: _Request, paths: list[str], before: Any, config: Config) -> dict:
    """Writes the evaluation sets, each for both vocabularies; returns the counts of their masked words.
    Documents that are trained on are in neither: of them the other text may have some."""
    from official.data.pretraining import masked_words
    from official.data.text import documentation_corpus, samples
    from official.data.text.documents import ReadCounts, read_documents
    from official.data.word_pieces.vocabulary import load_for_text

    flags, counts = request.own, ReadCounts()
    after = load_for_text(str(config.vocab_file), flags.do_lower_case, config.init_checkpoint)
    others = text_files.find_texts(flags.general_files, "general_files") if flags.general_files else []
    corpus: list[list[str]] = []
    if not others:
        logging.info("No --general_files: measuring forgetting on the corpus of bert data corpus")
        parts = documentation_corpus.build_corpus(text.Corpus.sources.split(","), 0.1)[:2]
        corpus = list(itertools.chain(*parts))

    def read_general() -> Iterable[list[str]]:
        return read_documents(others, counts, text_field=flags.text_field) if others else corpus

    def key(document: Iterable[str]) -> int:  # ignores white space, as `split_of` does
        return samples.digest_of("".join("".join(document).split()))

    general_keys = set(map(key, read_general()))
    trained: set[int] = set()  # those in the training text

    def held_out() -> Iterator[list[str]]:
        for document in read_documents(paths, counts, text_field=flags.text_field):
            if samples.split_of(" ".join(document), flags.eval_share) == "eval":
                yield document
            elif (found := key(document)) in general_keys:
                trained.add(found)

    general = (document for document in read_general() if key(document) not in trained)
    made = {}
    for name, flag, documents in (("own", "eval_share", held_out()), ("general", "general_files", general)):
        told = f"--{flag}={getattr(flags, flag)}"
        sets, masked = masked_words.make_sets(documents, [before, after], _shape(request), flags.seed, told)
        for side, examples in zip(("before", "after"), sets):
            masked_words.write_set(examples, request.folder(name, side))
        made[name] = dataclasses.asdict(masked) | {"pieces": dict(zip(("before", "after"), masked.pieces))}
    if trained:
        told = "Left out of the evaluation on other text: %s that --input_files have, too"
        logging.warning(told, counted(len(trained), "document"))
    return made


def _loss(request: _Request, name: str, side: str, sets: dict, weights: list[str]) -> dict:
    """Returns the masked-word loss of weights on a set: nats a word, a character and a word piece, and the
    names of weights that started fresh."""
    counts = sets[name]

    def evaluate() -> dict:
        words = [*_evaluation(request, name, side, counts["rows"]), *weights]
        _run(request, words)
        result = _result(request.folder(f"loss_{name}_{side}"))
        total = result.eval_loss * counts["pieces"][side]
        return {
            "per_word": total / counts["words"],
            "per_character": total / counts["characters"],
            "per_piece": result.eval_loss,
            "fresh_variables": result.fresh_variables,
        }

    return _once(request, f"loss_{name}_{side}", evaluate)


def _make_records(request: _Request, config: Config, vocabulary: Any) -> None:
    from official.data.pretraining import creation, examples, plan

    flags = request.own
    rules = examples.ExampleRules(max_seq_length=flags.max_seq_length, objective="mlm")
    job = plan.Job(
        flags.input_files,
        request.folder("records"),
        str(config.vocab_file),
        rules,
        text_field=flags.text_field,
        random_seed=flags.seed,
        do_lower_case=None if vocabulary.tokenizer else vocabulary.do_lower_case,
        eval_share=flags.eval_share,
        side="train",
    )
    text.show_manifest(creation.create_pretraining_data(job))


# -----------------------------------------------------------------------------------------------------------
# Report


_TITLES = {"own": "your text", "general": "other text"}
_UNITS = {"per_word": "a word", "per_character": "a character", "per_piece": "a word piece"}


def _report(request: _Request, words: dict, sets: dict, losses: dict, scores: dict) -> None:
    """Adds the losses and scores before and after to result.json and report.html, and prints them."""
    from official.reporting import report
    from official.reporting import result as result_lib

    flags = request.own
    fresh = losses["before"]["own"]["fresh_variables"]
    title = "Loss of masked words, nats"
    if fresh:
        title += " (before: the checkpoint has no masked-LM head, a fresh one was used)"
    rows = [["text", "a mean over", "before", "after"]]
    for name, text_title in _TITLES.items():
        for unit, unit_title in _UNITS.items():
            rows.append([text_title, unit_title, *(losses[side][name][unit] for side in ("before", "after"))])
    tables = {title: rows}
    if scores:
        names = [name for name in scores["before"] if name != "best_step"]
        tables["Fine-tuning on the labelled rows"] = [
            ["score", "before", "after"],
            *([name, *(scores[side][name] for side in ("before", "after"))] for name in names),
        ]
    if words["added"]:
        tables["Added words"] = [["word", "in the text", "word pieces before"], *words["added"]]
    result = _result(flags.model_dir)
    result = dataclasses.replace(result, tables=tables)
    adaptation = {
        "checkpoint": flags.checkpoint,
        "added_words": [word for word, *_ in words["added"]],
        "pieces_per_word": words.get("pieces_per_word"),
        "masked_words": sets,
        "masked_word_loss": losses,
        "fresh_before": fresh,
        "scores": scores,
    }
    result_lib.note(flags.model_dir, tables=tables, adaptation=adaptation)
    report.write_report(flags.model_dir, "BERT adapted", result.config, result)
    for name, (head, *rows) in list(tables.items())[: 2 if scores else 1]:
        columns = [(title, title, ".4f" if title in ("before", "after") else "") for title in head]
        print(f"{name}\n{outputs.table(columns, [dict(zip(head, row)) for row in rows])}")
