"""Other people's spellings of our flags: one table, and one normaliser, applied before anything is parsed.

A spelling is never a setting: configurations, flagfiles that we ship and saved runs hold our names only.
Options that are no setting by another name, such as --micro-batch-size, are those of
`official.graphcore.configurations`.
"""

from __future__ import annotations

from collections.abc import Collection

# Another name -> ours. Names are compared with underscores: hyphens are the spelling of Graphcore's commands.
NAMES: dict[str, str] = {
    "base_learning_rate": "learning_rate",
    "checkpoint_dir": "model_dir",
    "checkpoint_input_dir": "init_checkpoint",
    "checkpoint_output_dir": "model_dir",
    "do_evaluation": "do_eval",
    "enable_wandb": "wandb",
    "generated_dataset": "generated_data",
    "loss_scaling": "loss_scale",
    "loss_scaling_by_step": "loss_scale",
    "mask_tokens": "max_predictions_per_seq",
    "onnx_checkpoint": "init_checkpoint",
    "output_dir": "model_dir",
    "pretrained_checkpoint": "init_checkpoint",
    "pretrained_ckpt_path": "init_checkpoint",
    "random_seed": "seed",
    "save_ckpt_path": "model_dir",
    "save_path": "model_dir",
    "seq_length": "max_seq_length",
    "sequence_length": "max_seq_length",
    "squad_do_training": "do_train",
    "steps_per_log": "steps_per_loop",
    "steps_per_logs": "steps_per_loop",
    "synthetic_data": "synthetic_input",
    "tf_checkpoint": "init_checkpoint",
    "wandb_project_name": "wandb_project",
}
LISTS = ("input_files", "eval_files", "train_file", "predict_file")  # flags with commas between values
_TRUTHS = ("true", "false")
Options = list[tuple[str, str | list[str] | None]]


def normalized(arguments: list[str]) -> list[str]:
    """Returns arguments in our spelling: --wandb-name=x is --wandb_name=x. What follows -- stays as it is."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return [*map(_normalized, arguments[:end]), *arguments[end:]]


def _normalized(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument[2:].partition("=")
    name = name.replace("-", "_")
    return f"--{NAMES.get(name, name)}{equals}{value}"


def joined(arguments: list[str], truths: Collection[str], lists: Collection[str]) -> list[str]:
    """Returns normalised arguments with values that other parsers take as words of their own put where they
    belong: `--wandb True` is --wandb=true, and `--input_files a b`, which a shell makes of a glob, is
    --input_files=a,b.

    Args:
      arguments: as `normalized` returns them.
      truths: names of the flags that are true or false.
      lists: names of those that take a comma-separated list.

    What follows -- stays as it is.
    """
    result: list[str] = []
    position, end = 0, arguments.index("--") if "--" in arguments else len(arguments)
    while position < end:
        name, equals, _ = arguments[position].removeprefix("--").partition("=")
        words = [] if equals or not _is_flag(arguments[position]) else _values(arguments, position + 1)
        position += 1
        if name in truths and words and words[0].lower() in _TRUTHS:
            result.append(f"--{name}={words[0].lower()}")
            position += 1
        elif name in lists and words:
            result.append(f"--{name}={','.join(words)}")
            position += len(words)
        else:
            result.append(arguments[position - 1])
            if words and name not in truths:  # of a flag with one value: not a flag, whatever it looks like
                result.append(words[0])
                position += 1
    return result + arguments[end:]


def split(arguments: list[str], theirs: Collection[str]) -> tuple[list[str], Options]:
    """Takes other people's options out of normalised arguments.

    Args:
      arguments: as `joined` returns them.
      theirs: names of the options that are no flags of ours.

    Returns:
      The arguments that are left, and (name, value) of each option: its value, None without one, or a list
      of several.
    """
    left: list[str] = []
    found: Options = []
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        position += 1
        if argument == "--":
            return left + arguments[position - 1 :], found
        name, equals, value = argument.removeprefix("--").partition("=")
        if not _is_flag(argument) or name not in theirs:
            left.append(argument)
        elif equals:
            found.append((name, value))
        else:
            words = _values(arguments, position)
            position += len(words)
            found.append((name, words if len(words) > 1 else words[0] if words else None))
    return left, found


def _is_flag(argument: str) -> bool:
    return argument.startswith("--") and argument != "--"


def _values(arguments: list[str], position: int) -> list[str]:
    """Returns the words from a position to the next flag."""
    words = []
    for word in arguments[position:]:
        if word.startswith("--") or word == "-h":
            break
        words.append(word)
    return words
