"""Loads a fine-tuned model from the folder of its run, for the scripts that try it on typed text."""

import os

import command_line

from official.config import ConfigError
from official.io import json_files
from official.io.vocabulary_files import VOCABULARY


def add_flags(parser) -> None:
    """Adds the flags by which all such scripts are told what to load."""
    parser.add_argument("--checkpoint", required=True, help="Folder of a train.py run (--model_dir).")
    parser.add_argument("--vocab_file", help="Vocabulary. Unset: that of the run.")
    command_line.add_lower_case_flag(parser)


def load(flags, task_name: str):
    """Returns (configuration, model, vocabulary) of a run: the weights of its best evaluation, or its newest
    ones.

    Raises:
      ConfigError: where the folder is no run of that task, or has no checkpoint.
    """
    from official import config as config_lib
    from official.checkpoint import initialize, manager
    from official.data.word_pieces.vocabulary import load_for_text
    from official.reporting.result import read_result
    from official.tasks import TASKS

    path = os.path.join(flags.checkpoint, "config.json")
    settings = json_files.read_json(path) if os.path.exists(path) else None
    if settings is None or settings.get("task") != task_name:
        found = "no config.json" if settings is None else f"a run of --task={settings.get('task')}"
        raise ConfigError(
            f"--checkpoint={flags.checkpoint} has {found}. Give the --model_dir of a run with"
            f" --task={task_name}."
        )
    lower_case = settings.get("do_lower_case") if flags.do_lower_case is None else flags.do_lower_case
    config = config_lib.build_config(
        [
            (path, settings),
            (
                "command line",
                {
                    "vocab_file": _vocabulary_of(flags, settings),
                    "do_lower_case": lower_case,
                    "fused_ops": False,
                },
            ),
        ]
    )  # a sentence at a time: nothing to compile for
    vocabulary = load_for_text(config.vocab_file, lower_case, flags.checkpoint)
    steps = manager.CheckpointManager(flags.checkpoint, {}, 1).steps()
    if not steps:
        raise ConfigError(
            f"--checkpoint={flags.checkpoint} has no checkpoint yet. Let the run save one first."
        )
    best = read_result(flags.checkpoint).get("best_step")
    model = TASKS[task_name](config).build_model()
    variables = {variable.name.split(":")[0]: variable for variable in model.variables}
    initialize.initialize(
        variables, os.path.join(flags.checkpoint, f"ckpt-{best if best in steps else steps[-1]}")
    )
    return config, model, vocabulary


def _vocabulary_of(flags, settings: dict) -> str:
    """Returns the path of the vocabulary: as given, the run's own copy, or, of runs that kept none, the file
    that it was."""
    own = os.path.join(flags.checkpoint, VOCABULARY)
    path = flags.vocab_file or (
        own
        if os.path.isfile(own)
        else json_files.expect(settings, "vocab_file", (str, type(None)), flags.checkpoint, None)
    )
    if not path:
        raise ConfigError(
            f"--checkpoint={flags.checkpoint} has no {VOCABULARY}, and its config.json names no vocabulary."
            " Give --vocab_file=PATH."
        )
    return path


def lines(prompt: str):
    """Yields the lines of stdin that are not empty, with a prompt where it is a terminal. Raises ConfigError
    for what is no text."""
    import sys

    while True:
        if sys.stdin.isatty():
            print(prompt, end="", flush=True)
        try:
            line = sys.stdin.readline()
            line.encode()  # in some locales Python lets through what is no UTF-8
        except UnicodeError as error:
            raise ConfigError(
                f"the input is not UTF-8 text ({error.reason}). Type it on a terminal of UTF-8, or convert"
                " the file."
            ) from None
        if not line:
            return
        if line.strip():
            yield line.strip()
