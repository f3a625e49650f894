"""The README and docs/: commands that are cheap are run, the others are parsed; links and files are there."""

import ast
import contextlib
import functools
import importlib
import importlib.util
import io
import json
import re
import runpy
import shlex
import subprocess
import sys

import pytest

from official.checkpoint import registry
from official.cli import flags, main, table, train
from official.config import FIELDS
from official.data.pretraining import examples
from official.io import signals
from official.reporting import result
from tests import programs
from tests.fixtures import ROOT
from tests.test_architecture import ALLOWED, GROUND
from tf2_bert import bert_benchmark

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MODEL = {"vocab_size": 8192, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Programs of others: only the shell's syntax is looked at.
_OTHERS = """source pip export pre-commit cd curl mv gcloud nvidia-smi docker git kubectl python3.11 poprun
    ray sbatch sudo""".split()
# Up to a hyphen.
_FLAGS_OF_OTHERS = set("accelerator cpus gce_nvme_raid gpus ipus logdir np ntasks vipu".split())
_BY_MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
# docker run OPTION... IMAGE COMMAND, of our image.
_IN_CONTAINER = re.compile(r"docker run .*?\bbert-gpu (.*)")
all_pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(page, language) -> list[str]:
    """Returns the code blocks of a page in a language, "" for what a terminal shows."""
    found = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [text for name, text in found if name == language]


def prose(page) -> str:
    """Returns a page without its code blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def command_lines(block: str) -> list[str]:
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in block.replace("\\\n", " ").splitlines())
    return [line for line in lines if line]


def inline_code(page) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(page))


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A working directory that has what the pages call one's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_bert.json").write_text(json.dumps(MODEL))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(MODEL["vocab_size"] - 5))]
    for folder in ("FOLDER", "SMALL", "runs/mine"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "bert_config.json").write_text(json.dumps(MODEL))
        (tmp_path / folder / "vocab.txt").write_text("\n".join(words))
    return tmp_path


def run_bert(monkeypatch, *arguments: str) -> int | None:
    """Runs `bert`, in this process. Returns its exit code."""
    command, rest = table.find(list(arguments))
    monkeypatch.setattr(sys, "argv", [f"bert {command.name}", *rest])
    return command.load()()


# ------------------------------------------------------------------------------------------------------------
# Commands


def check_bert(monkeypatch, arguments: list[str], environment: dict[str, str] | None = None) -> None:
    if arguments == ["--help"]:
        return
    command, rest = table.find(arguments)
    if command.name == "launch" and "--" in rest:
        end = rest.index("--")
        check_one(monkeypatch, shlex.join(rest[end + 1 :]))
        rest = rest[:end]
    if command.name in ("train", "plan"):
        flags.read([*rest, "--plan"], environment)  # which asks for neither data nor devices
    else:
        monkeypatch.setattr(sys, "argv", [f"bert {command.name}", *rest])
        given = command.parser().parse()
        if command.name == "data create":
            given.make(examples.ExampleRules)  # which checks them
        if command.name == "convert" and given.action != "SOURCE2TARGET":
            registry.get_action(given.action)


@functools.cache
def help_of(program: str) -> str:
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as text:
        patch.syspath_prepend(ROOT / "benchmarks")
        patch.setattr(sys, "argv", [program, "--help"])
        patch.setattr(signals, "watch", lambda: None)
        with pytest.raises(SystemExit):
            runpy.run_path(str(ROOT / program), run_name="__main__")
    return text.getvalue()


def check_program(program: str, arguments: list[str]) -> None:
    """Checks a program of the repository: that it is there and knows the flags."""
    text = (ROOT / program).read_text(encoding="utf-8")
    if program.startswith("benchmarks/"):
        text = help_of(program)
        arguments = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if program == "./scripts/test.sh":
        return  # they are pytest's
    for name in re.findall(r"--[\w-]+", " ".join(arguments)):
        assert name in text, f"{program} has no {name}"


def check_one(monkeypatch, line: str) -> None:
    words = shlex.split(line.split("|")[-1])
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    if not words or line.startswith("MODEL="):
        return
    program, *arguments = words
    if program in ("srun", "mpirun") and "bert" in arguments:
        with monkeypatch.context() as placed:
            for name, value in _BY_MPI.items():
                placed.setenv(name, value)
            check_bert(monkeypatch, arguments[arguments.index("bert") + 1 :], _BY_MPI)
    elif program == "bert":
        check_bert(monkeypatch, arguments)
    elif program.startswith("./scripts/"):
        check_program(program, arguments)
    elif program == "sudo" and arguments[0].startswith("deploy/"):
        check_program(arguments[0], [word for word in arguments if word.startswith("--")])
    elif program == "python" and arguments[0] == "-c":
        compile(arguments[1], line, "exec")
    elif program == "python" and arguments[0] == "-m":
        assert importlib.util.find_spec(arguments[1]), line
    elif program == "python":
        check_program(arguments[0], arguments[1:])
    elif program == "python3":
        *_, name, method = line.rpartition("=")[2].split(".")
        assert "perfzero" in arguments[0] and hasattr(getattr(bert_benchmark, name), method)
    else:
        assert program in _OTHERS, f"what is {line}?"


@all_pages
def test_commands_are_known_with_their_flags(page, elsewhere, monkeypatch):
    found = blocks(page, "bash")
    done = subprocess.run(["bash", "-n"], input="\n".join(found), capture_output=True, text=True, check=False)
    assert not done.stderr
    for line in [line for block in found for line in command_lines(block)]:
        for part in line.split(" && "):
            inside = _IN_CONTAINER.fullmatch(part)
            check_one(monkeypatch, inside[1] if inside else part)


def parser_flags(command) -> set[str]:
    """Returns the flags of a command, without their hyphens."""
    if command.name in ("train", "plan"):
        return FIELDS.keys() | {"config", "flagfile", "help"}
    if command.name == "completion":
        return set()
    return {name.strip("-") for name in command.parser().options()}


@all_pages
def test_commands_in_a_sentence_are_known(page):
    for code in inline_code(page):
        first, *rest = code.split()
        is_ours = first == "bert" and rest and rest[0] not in ("--help", "--version")
        if is_ours and not re.search("[A-Z]{3}", rest[0]):
            if len(rest) == 1 and rest[0] in table.GROUPS:
                continue
            command, rest = table.find(rest)
            names = {word.split("=")[0].strip("-") for word in rest if word.startswith("--")}
            assert names <= parser_flags(command) | {"help"}, code
        elif first == "python" and rest[0].endswith(".py"):
            check_program(rest[0], rest[1:])


def test_flags_in_a_sentence_are_known():
    known = _FLAGS_OF_OTHERS.union(*map(parser_flags, table.COMMANDS.values()))
    scripts = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "scripts").glob("*.sh"))
    sources = [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "scripts").glob("*.py")]
    classes = "".join(path.read_text(encoding="utf-8") for path in sources)
    for page in PAGES:
        named = {name for code in inline_code(page) for name in re.findall(r"(?<!\S)--(\w+)", code)}
        unknown = {name for name in named if name not in known and f"--{name}" not in scripts}
        unknown = {name for name in unknown if not re.search(rf'"(--)?{name}"|^    {name}: ', classes, re.M)}
        assert not unknown, f"{page.name}: {unknown}"


def test_blocks_of_python_are_python():
    trees = [ast.parse(block) for page in PAGES for block in blocks(page, "python")]
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.ImportFrom):
            names = vars(importlib.import_module(node.module))
            assert {alias.name for alias in node.names} <= names.keys()
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).startswith("load("):
            assert hasattr(importlib.import_module("official.inference").Model, node.attr)


def test_the_error_is_a_real_one(monkeypatch, capsys):
    (shown,) = [block for block in blocks(ROOT / "README.md", "") if "is not divisible" in block]
    command, message = shown.splitlines()
    monkeypatch.setattr(sys, "argv", ["bert plan"])
    assert train.main([*shlex.split(command)[3:], "--plan"]) == 2
    assert capsys.readouterr().err == f"{message}\n"


@pytest.mark.slow
def test_the_plan_is_a_real_one(monkeypatch, capsys):
    (shown,) = [block for block in blocks(ROOT / "docs" / "plan.md", "") if "TFLOP/s a replica" in block]
    command, text = shown.split("\n", 1)
    monkeypatch.setattr(sys, "argv", shlex.split(command)[1:])
    with pytest.raises(SystemExit):
        main.main()
    assert capsys.readouterr().out == text


def test_the_way_from_text_to_records_is_walked(elsewhere, monkeypatch, capsys):
    (elsewhere / "text").mkdir()
    texts = (f"Document {n} is about a cat. The cat sat on mat {n}. It left.\n" for n in range(300))
    (elsewhere / "text" / "cats.txt").write_text("\n".join(texts))
    lines = command_lines(blocks(ROOT / "docs" / "data.md", "bash")[0])
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("bert")]
    assert [command[0] for command in commands] == ["data", "vocab", "data", "data", "data", "train"]
    for command in commands[:-1]:
        assert run_bert(monkeypatch, *command) in (0, None)
    assert (elsewhere / "lengths.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((elsewhere / "records" / "eval" / "manifest.json").read_text())["documents"] > 5
    config = flags.parse([*commands[-1][1:], "--plan"])
    assert config.input_files == "records/train" and config.do_eval


# ------------------------------------------------------------------------------------------------------------
# Links, files, sizes


def anchors(page) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_lead_somewhere():
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)]+)\)", prose(page))]
    for page, target in links:
        if "://" not in target:
            path, _, anchor = target.partition("#")
            linked = (page.parent / path).resolve() if path else page
            assert linked.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors(linked), f"{page.name}: {target}"


def test_files_that_are_named_are_there():
    folders = "official|tests|configs|scripts|checkpoints_tools|constraints|results|tf2_bert|deploy"
    named = re.compile(rf"(?<![\w/.])(?:{folders})/[\w./*-]*")
    paths = {path for page in PAGES for code in inline_code(page) for path in named.findall(code)}
    real = {path for path in paths if not re.search("[A-Z]{2}|X", path)}  # not configs/X.flags
    assert [path for path in real if not list(ROOT.glob(path.rstrip("/")))] == []


def test_the_page_of_results_is_made_from_them():
    """Every file of results/ has a title there."""
    assert programs.run("scripts/measured_page.py", "--check").returncode == 0


def test_every_key_of_a_result_is_explained():
    text = (ROOT / "docs" / "logs.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", text.split("## result.json")[1].split("\n## ")[0]))
    keys = result.result_dict(result.TrainResult("finished", "", 0, 0)).keys()
    assert keys - named == set()


def test_every_format_is_listed():
    listed = re.findall(r"^\| `(\w+)`", (ROOT / "docs" / "checkpoints.md").read_text(encoding="utf-8"), re.M)
    aliases = {name for one in registry.FORMATS.values() for name in one.names}
    assert {registry.get_format(name).name for name in listed if name in aliases} == registry.FORMATS.keys()


def test_all_rooms_are_on_the_floor_plan():
    plan = blocks(ROOT / "docs" / "architecture.md", "")[0]
    rooms = {path.name for path in (ROOT / "official").iterdir() if (path / "__init__.py").exists()}
    assert set(re.findall(r"^  (\w+)/", plan, re.MULTILINE)) == rooms


def test_the_walls_are_those_that_are_enforced():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    told = {}
    for rooms, imports in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (.*) \|$", text, re.MULTILINE):
        for room in re.findall(r"`(\w+)`", rooms):
            told[room] = ALLOWED.keys() if imports == "everything" else set(re.findall(r"`(\w+)`", imports))
    rooms = {room: names - GROUND for room, names in ALLOWED.items() if (ROOT / "official" / room).is_dir()}
    assert {room: set(told[room]) - {*GROUND, room} for room in rooms} == {
        room: names - {room} for room, names in rooms.items()
    }


def test_the_readme_is_one_page():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130


def test_packed_recipes_are_listed_with_their_batches():
    text = (ROOT / "docs" / "packing.md").read_text(encoding="utf-8")
    listed: dict[str, tuple[int, int]] = {}
    for names, rows, sequences in re.findall(r"^\| (`packed/.*`) \| ([\d,]+) \| ([\d,]+) \|$", text, re.M):
        for name in re.findall(r"`([^`]+)`", names):
            listed[name] = (int(rows.replace(",", "")), int(sequences.replace(",", "")))
    assert listed.keys() == {f"packed/{path.stem}" for path in (ROOT / "configs/packed").glob("*.flags")}
    for name, batch in listed.items():
        config = flags.parse([f"--flagfile={ROOT}/configs/{name}.flags", "--plan"])
        rows = config.train_batch_size
        assert batch == (rows, round(rows * config.average_sequences_per_pack)), name
