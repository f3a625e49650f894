"""A campaign of fuzzing: so many cases of each command, drawn by hypothesis and run in several processes."""

import argparse
import collections
import dataclasses
import multiprocessing
import pathlib
import re
import shutil
import signal
import string
from concurrent.futures import ProcessPoolExecutor

import hypothesis
from hypothesis import configuration
from hypothesis import strategies as st
from tqdm import tqdm

from official.config import FIELDS
from official.io import signals
from tests.fuzz import damage, processes, workspace
from tests.fuzz.commands import COMMANDS, KINDS, Command
from tests.fuzz.damage import Draw, pick

# Values that are tried for any flag: small where they are valid, as a million steps are valid, too.
_VALUES = (
    *"0 1 2 3 5 7 8 16 32 -1 -7 0.5 1e-3 1e400 nan inf -inf true false None [] abc 0x10 1_0 * a,b".split(),
    *"dynamic lamb adamw fp32 bf16 mirrored one_device none micro_batch nowhere/* ünïcödé".split(),
    *("", "x" * 300, "line\nbreak", "\x1b[2J", "a\udce9b", "9" * 20, "9" * 5000),
)
_LOST = ("--flagfile=nowhere", "--config=nowhere.json")
# Flags left alone: they would try another machine for a long time.
_SPARED = set("tpu worker_hosts distribution_strategy wandb num_virtual_devices tpu_zone gcp_project".split())
_SETTINGS = hypothesis.settings(
    database=None,
    deadline=None,
    phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
    report_multiple_bugs=False,
    suppress_health_check=list(hypothesis.HealthCheck),
    print_blob=True,
    verbosity=hypothesis.Verbosity.quiet,
)
_BLOB = re.compile(r"@reproduce_failure\('[\d.]+', b'(.+?)'\)")


@dataclasses.dataclass(frozen=True)
class Case:
    """One case: the command's arguments, the kind of damage and its description, and what is expected."""

    arguments: tuple[str, ...]
    kind: str
    what: str
    expected: str


def draw_case(draw: Draw, command: Command, folder: pathlib.Path) -> Case:
    """Damages one thing: a file of the folder, a number, or the command line."""
    ways = ["flags", *["number"] * bool(command.wrong_numbers)]
    way = pick(draw, *ways, *["file"] * (3 if len(command.targets) > 1 else len(command.targets)))
    if way == "file":
        pattern, kind = pick(draw, *command.targets)
        what, expected = damage.damage_file(draw, folder, pattern, kind)
        return Case(command.arguments, KINDS[kind]["do"], what, expected)
    if way == "number":
        wrong = pick(draw, *command.wrong_numbers)
        return Case((*command.arguments, wrong), "wrong number", wrong, damage.REFUSED)
    if command.refused_only:
        return Case(_refused_arguments(draw, command), "flags", "", damage.REFUSED)
    arguments = list(command.arguments)
    for _ in range(pick(draw, 1, 1, 2, 3)):
        if arguments:
            _damage_argument(draw, arguments, is_training=command.script == "train.py")
    return Case(tuple(arguments), "flags", "", damage.ANY)


def _refused_arguments(draw: Draw, command: Command) -> tuple[str, ...]:
    unknown = "--" + draw(st.text(string.ascii_lowercase, min_size=8, max_size=8))
    added = pick(draw, unknown, f"{unknown}=1", "--output", "surplus")
    return ("surplus",) if added == "surplus" else (*command.arguments, added)


def _damage_argument(draw: Draw, arguments: list[str], is_training: bool) -> None:
    """Changes, removes or adds one argument."""
    flags = [
        number
        for number, argument in enumerate(arguments)
        if argument.startswith("--") and argument != "--predictions"
    ]
    number = pick(draw, *(flags or range(len(arguments))))
    name = arguments[number].partition("=")[0]
    kind = pick(draw, *["removed"] * 3, *["value"] * 9, *["text"] * 2, *["setting"] * 3, *["more"] * 3)
    if kind == "removed":
        del arguments[number]
    elif kind == "value":
        arguments[number] = f"{name}={pick(draw, *_VALUES)}"
    elif kind == "text":
        text, place = arguments[number], damage.below(draw, len(arguments[number]) + 1)
        rest = text[place + damage.below(draw, 2) :]
        arguments[number] = text[:place] + pick(draw, *string.printable) + rest
    elif kind == "setting" and is_training:
        setting = pick(draw, *(name for name in FIELDS if name not in _SPARED))
        arguments.append(f"--{setting}={pick(draw, *(FIELDS[setting].choices or _VALUES))}")
    else:
        arguments.append(pick(draw, "surplus", name, f"--no{name[2:]}", "--", "-", "--help", *_LOST))


# -----------------------------------------------------------------------------------------------------------
# One command


def explore(name: str, cases: int, seed: int, replay: str, base: pathlib.Path, keep: str | None) -> dict:
    """Runs cases of a command until one does not end in order, which hypothesis then makes simple.

    Args:
      name: of the command.
      cases: how many.
      seed: of the cases.
      replay: the one case to run instead, as a failure names it; or "".
      base: the workspace.
      keep: folder for the files of a case that fails.

    Returns:
      {command, secs, outcomes: [[kind of damage, fault or exit code], ...], failure: dict or None}.
    """
    command, outcomes, failures, secs = COMMANDS[name], [], [], []

    @hypothesis.seed(f"{seed} {name}")
    @hypothesis.settings(_SETTINGS, max_examples=cases)
    @hypothesis.given(st.data())
    def ends_in_order(data):
        # Hypothesis begins with the simplest case of all, whatever the seed: a few cases would be that one.
        hypothesis.assume(data.draw(st.integers(0, 2**32)))
        with processes.new_folder() as folder:
            result = _run_case(data.draw, command, folder, base)
            secs.append(result["secs"])
            if not failures:
                outcomes.append([result["kind"], result["wrong"] or f"exit {result['code']}"])
            if result["wrong"]:
                failures.append(result)
                if keep:
                    shutil.rmtree(f"{keep}/{name}", ignore_errors=True)
                    shutil.copytree(folder, f"{keep}/{name}")
                raise AssertionError(result["wrong"])

    if replay:
        ends_in_order = hypothesis.reproduce_failure(hypothesis.__version__, replay.encode())(ends_in_order)
    try:
        ends_in_order()
    except (AssertionError, hypothesis.errors.Flaky) as error:
        found = _BLOB.search("\n".join(getattr(error, "__notes__", [])))
        failures[-1]["replay"] = replay or (found.group(1) if found else "")
    except hypothesis.errors.DidNotReproduce:
        pass  # the case of --replay is in order now
    failure = {"command": name, **failures[-1]} if failures else None
    return {"command": name, "secs": sum(secs), "outcomes": outcomes, "failure": failure}


def _run_case(draw: Draw, command: Command, folder: pathlib.Path, base: pathlib.Path) -> dict:
    for part in command.needs:
        workspace.copy(base, part, folder)
    if command.typed:
        (folder / "stdin").write_text(command.typed, encoding="utf-8")
    case = draw_case(draw, command, folder)
    ended = processes.run(command.script, case.arguments, folder)
    return {
        "kind": case.kind,
        "what": case.what,
        "expected": case.expected,
        "code": ended.code,
        "secs": ended.secs,
        "wrong": processes.judge(command.script, ended, command.codes, case.expected),
        "arguments": [argument[:200].encode("utf-8", "replace").decode() for argument in case.arguments],
        "output": (ended.errors.strip() or ended.output.strip())[-1500:],
    }


# -----------------------------------------------------------------------------------------------------------
# All commands


def run(flags: argparse.Namespace) -> dict:
    """Runs the campaign that the flags of scripts/fuzz.py ask for.

    Returns:
      {cases, seed, secs, by_kind, by_command: {name: {fault or exit code: count}}, failures}.
    """
    names = flags.commands
    if not all(COMMANDS[name].plain for name in names):
        processes.load_libraries()
    shares = {name: len(range(place, flags.cases, len(names))) for place, name in enumerate(names)}
    wanted = {part for name in names for part in COMMANDS[name].needs}
    context = multiprocessing.get_context("fork")
    with (
        processes.new_folder() as folder,
        ProcessPoolExecutor(flags.workers, context, initializer=_leave_signals) as pool,
    ):
        configuration.set_hypothesis_home_dir(folder / "hypothesis")
        base = folder / "base"
        try:
            workspace.make(base, wanted, pool.map)
            given = (flags.seed, flags.replay, base, flags.keep)
            jobs = [pool.submit(explore, name, share, *given) for name, share in shares.items() if share]
            with signals.watching():  # from here on: a fork would take the handlers with it
                results = [job.result() for job in tqdm(jobs, disable=None)]
        except BaseException:
            for process in multiprocessing.active_children():  # else leaving the pool waits for their work
                process.terminate()
            raise
    by_kind, by_command = collections.defaultdict(collections.Counter), {}
    for result in results:
        outcomes = result["outcomes"]
        by_command[result["command"]] = collections.Counter(outcome for _, outcome in outcomes)
        for kind, outcome in outcomes:
            by_kind[kind][outcome] += 1
    return {
        "cases": sum(len(result["outcomes"]) for result in results),
        "seed": flags.seed,
        "secs": round(sum(result["secs"] for result in results)),
        "by_kind": _sorted(by_kind),
        "by_command": _sorted(by_command),
        "failures": [result["failure"] for result in results if result["failure"]],
    }


def _sorted(counts: dict[str, collections.Counter]) -> dict[str, dict[str, int]]:
    return {name: dict(sorted(counts[name].items())) for name in sorted(counts)}


def _leave_signals() -> None:
    """Sets up a process of the pool: the one that began the campaign answers Ctrl-C and ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
