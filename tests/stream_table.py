"""Runs commands with every kind of standard streams and of input, each in a fork of this one process.

    python -m tests.stream_table FOLDER [--whole]

Without --whole it is those that do a little work and end with 0; with it every command that reads something,
of an empty file, a pipe that nobody writes to and a device, after TensorFlow has been loaded. Prints what is
wrong, a line each: another exit code than with plain streams, a traceback, a signal, or no end.
"""

import argparse
import json
import os
import pathlib
import signal
import sys
import tempfile
import time
from collections.abc import Iterator

from official.cli import configs, main, table
from tests.fuzz import workspace

LATE_SECS = 30.0  # ten on a machine that does nothing else
HANGS = -99
INPUTS = ("empty", "fifo", "device")
STREAMS = ("open", "stdout full", "stdout closed", "stderr closed", "nobody reads stdout", "both full")
_OUTPUTS = ("output", "output_dir", "output_file", "work_dir", "model_dir", "export_dir")
_OPTIONAL_INPUTS = ("input_files", "bert_config_file", "model", "spec", "predict_file", "checkpoint")
_TRAIN = (
    "--bert_config_file=configs/models/bert_tiny.json --max_seq_length=16 --max_predictions_per_seq=3"
    " --num_steps_per_epoch=2 --train_batch_size=4 --num_train_epochs=1"
)
_OWN = {
    "train": f"{_TRAIN} --input_files={{input}} --model_dir={{new}}",
    "plan": f"{_TRAIN} --input_files={{input}} --model_dir={{new}}",
    "launch": "-- echo launched",
    "render-job": "--kind=jobset --image=a/b:1 --env=A={input} -- program",
    "completion": "bash",
    "data glue": "--data_dir={new} --tasks={input}",
    "data create": "--input_files={input} --output_dir={new} --vocab_file=vocab.txt",
    "convert": "google2keras {input} --output_dir={new}",
    "serve": "--export_dir={input} --port=0",
    "export": "--checkpoint={input} --export_dir={new}",
}
# They read nothing, or start processes that load TensorFlow before they look at it.
_LEFT_OUT = ("data corpus",)
# Commands that do their work and end with 0.
FINISHED = {
    "help": "--help",
    "vocab": "vocab --input_files=text/plain.txt --output_file={new} --vocab_size=60",
    "data prepare": "data prepare --input_files=text/plain.txt --output_dir={new} --num_workers=1",
    "data create": (
        "data create --input_files=text/plain.txt --output_dir={new} --vocab_file=vocab.txt --num_workers=1"
        " --max_seq_length=16 --max_predictions_per_seq=3 --num_shards=1"
    ),
    "pack": "pack --histogram=histogram",
    "launch": "launch --instances_per_host=2 -- echo line",
    "evaluate squad-v1": "evaluate squad-v1 squad/dev.json predictions.json",
}
FINISHED_WITH_TENSORFLOW = {
    "plan": f"plan {_TRAIN} --generated_data",
    "train": f"train {_TRAIN} --use_synthetic_data --model_dir={{new}}",
}


def arguments(command: table.Command) -> list[str] | None:
    """Returns the arguments of a command, {input} for what it reads and {new} for what it writes; None where
    it reads nothing."""
    if command.name in _LEFT_OUT:
        return None
    if command.name in _OWN:
        return _OWN[command.name].split()
    words, rest = [], []
    for action in command.parser()._actions:
        value = "{new}" if action.dest in _OUTPUTS else "{input}"
        if not action.option_strings:
            rest.append(value)
        elif action.required or action.dest in _OPTIONAL_INPUTS:
            words.append(f"{action.option_strings[-1]}={value}")
    return [*words, *rest] if "{input}" in "".join([*words, *rest]) else None


def cases(is_whole: bool) -> Iterator[tuple[str, bool, list[str]]]:
    """Yields (title, whether it ends with 0, words of the command line of `bert`)."""
    for command in table.COMMANDS.values() if is_whole else ():
        for kind in INPUTS:
            words = [word.replace("{input}", kind) for word in arguments(command) or ()]
            if words:
                yield f"{command.name} of {kind}", False, [*command.name.split(), *words]
    for name, words in (FINISHED | (FINISHED_WITH_TENSORFLOW if is_whole else {})).items():
        yield f"{name}, finished", True, words.split()


def prepare(folder: str) -> None:
    """Makes what the commands read, in the working directory from now on."""
    os.chdir(folder)
    os.mkfifo("fifo")
    os.symlink("/dev/zero", "device")
    os.symlink(configs.folder(), "configs")
    histogram = {"max_sequence_length": 4, "counts_by_length_from_1": [4, 3, 2, 1]}
    workspace.write_files(pathlib.Path())
    pathlib.Path("empty").touch()
    pathlib.Path("histogram").write_text(json.dumps(histogram), encoding="utf-8")


def run(words: list[str], streams: str) -> tuple[int, str]:
    """Returns the exit code of a command line in a fork, `HANGS` where it does not end, and its stderr."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as errors:
        process = os.fork()
        if not process:
            os.setsid()
            _redirect(streams, errors.fileno())
            sys.argv = ["bert", *(word.replace("{new}", os.path.join(folder, "new")) for word in words)]
            main.main()
        deadline = time.monotonic() + LATE_SECS
        done, status = 0, 0
        while not done and time.monotonic() < deadline:
            time.sleep(0.005)
            done, status = os.waitpid(process, os.WNOHANG)
        if not done:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
        errors.seek(0)
        code = os.waitstatus_to_exitcode(status) if done else HANGS
        return code, errors.read().decode(errors="replace")


def _redirect(streams: str, errors: int) -> None:
    """Gives this process streams as a new one has them."""
    closed = {"stdout closed": [1], "stderr closed": [2]}.get(streams, [])
    nowhere, full = os.open(os.devnull, os.O_RDWR), os.open("/dev/full", os.O_WRONLY)
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(nowhere, 0)
    os.dup2({"stdout full": full, "both full": full, "nobody reads stdout": writer}.get(streams, nowhere), 1)
    os.dup2(full if streams == "both full" else errors, 2)
    for descriptor in closed:
        os.close(descriptor)
    for descriptor, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        mode = "r" if name == "stdin" else "w"
        stream = None if descriptor in closed else open(descriptor, mode, closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--whole", action="store_true")
    flags = parser.parse_args()
    for command in table.COMMANDS.values():
        command.load()
    if flags.whole:
        import tensorflow  # noqa: F401  # no operation of it runs before the forks
    prepare(flags.folder)
    for title, ends, words in cases(flags.whole):
        expected = 0
        for streams in STREAMS:
            code, text = run(words, streams)
            if streams == "open" and not ends:
                expected = code
            if code != expected or code < 0 or "Traceback" in text:
                print(f"{title}, {streams}: code {code}, expected {expected}; {text[-300:]!r}", flush=True)


if __name__ == "__main__":
    _main()
