"""Compares tokenizers of every kind with transformers' AutoTokenizer on the same folders.

  python benchmarks/tokens.py --make_environments --output=results/tokens.json

transformers trains byte-level BPE, Unigram and WordPiece tokenizers on random lines in five scripts, with
special tokens, emoji and all kinds of white space, and saves them in the formats of its classes. For each
folder the ids and offsets of all lines, the special tokens, and the rows of single texts and pairs must be
equal. BERT's fast path has no offsets, and treats special tokens in a text as words. Exit code 1: a tokenizer
differs.
"""

import json
import os
import random
import tempfile

import numpy as np

import harness
from families import HUGGINGFACE
from official.cli import command_line, outputs
from official.data.rows.text_rows import encode
from official.data.word_pieces.tokenizer import LibraryTokenizer, tokenizer_of
from official.data.word_pieces.vocabulary import load_for_text

_SCRIPTS = (
    "abcdefghinorstuvéñüĳ",
    "абвгдежзиклмнопрст",
    "日本語中文漢字仮名",
    "ابتثجحخدذرزس",
    "कखगघचछजझटठािीु",
)
_BETWEEN = (
    " ",
    "  ",
    ", ",
    ". ",
    "\n",
    "\t",
    "\u00a0",
    "-",
    "'s ",
    " \u2014 ",
    "\u200b",
    " 👩\u200d💻 ",
    " 3.14 ",
    " COVID-19 ",
)
_SPECIAL = (" <mask> ", " [MASK] ", " </s> ", " [SEP] ")


class Main(harness.EnvironmentFlags, harness.NumbersFlags):
    """Flags of the command.

    Attributes:
      lines: Number of lines.
      seed: Seed of the lines.
    """

    RANGES = {"lines": command_line.COUNT}
    lines: int = 40_000
    seed: int = 1


def make_lines(count: int, seed: int, between: tuple[str, ...]) -> list[str]:
    """Returns lines of random words, most of them in one script."""
    generator, found = random.Random(seed), ["", " ", "\ufeffa", "x" * 300, "e\u0301 é ﬁ Ⅷ ½ ４２"]
    while len(found) < count:
        script = generator.choice(_SCRIPTS)
        words = []
        for _ in range(generator.randint(1, 12)):
            own = script if generator.random() < 0.9 else generator.choice(_SCRIPTS)
            word = "".join(generator.choices(own, k=generator.randint(1, 9)))
            words.append(word.capitalize() if generator.random() < 0.2 else word)
        found.append("".join(word + generator.choice(between) for word in words))
    return found[:count]


def differences(folder: str, lines: list[str]) -> dict:
    """Returns the differences for a tokenizer folder: lines, offsets, rows and special tokens."""
    with open(os.path.join(folder, "expected.json"), encoding="utf-8") as file:
        expected = json.load(file)
    vocabulary = load_for_text(folder)
    tokenizer, offsets = tokenizer_of(vocabulary), None
    if isinstance(tokenizer, LibraryTokenizer):
        ids, counts, begins, ends = tokenizer.spans(lines)
        theirs = [tuple(each) for line in expected["offsets"] for each in line]
        pairs = list(zip(begins.tolist(), ends.tolist()))
        offsets = sum(a != b for a, b in zip(pairs, theirs)) + abs(len(pairs) - len(theirs))
    else:
        ids, counts = tokenizer.tokenize(lines)
    parts = np.split(ids, np.cumsum(counts)[:-1])
    special = set("".join(_SPECIAL).split())
    compared = [
        number for number, line in enumerate(lines) if offsets is not None or not special & {*line.split()}
    ]
    (single, _), (pair, _) = (
        encode([[text] for text in texts], tokenizer, vocabulary, 64)
        for texts in (["ab cd"], ["ab cd", "ef"])
    )
    rows = single.ids.tolist() == expected["single"] and pair.ids.tolist() == expected["pair"]
    return {
        "compared_lines": len(compared),
        "different_lines": sum(parts[number].tolist() != expected["ids"][number] for number in compared),
        "different_offsets": offsets,
        "same_rows": rows,
        "same_special_tokens": list(vocabulary.special_ids) == expected["special"],
    }


def main() -> int:
    flags = Main.parse()
    harness.prepare([("huggingface", HUGGINGFACE)], flags)
    lines = make_lines(flags.lines, flags.seed, (*_BETWEEN, *_SPECIAL))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "lines.json")
        outputs.write_file(path, json.dumps(lines))
        with harness.program("huggingface", "tokens_peer.py", HUGGINGFACE, flags, folder) as peer:
            peer.ask({"lines": path, "folder": folder, "special": ["pad", "unk", "cls", "sep", "mask"]})
            answer = peer.answer()
        cases = [{"name": name, **differences(os.path.join(folder, name), lines)} for name in answer["names"]]
    columns = ("compared_lines", "different_lines", "different_offsets", "same_rows", "same_special_tokens")
    shown = [{**case, "different_offsets": str(case["different_offsets"])} for case in cases]
    print(outputs.table([("tokenizer", "name", ""), *((each, each, "") for each in columns)], shown))
    record = {"lines": flags.lines, "seed": flags.seed, "requirements": HUGGINGFACE.requirements}
    harness.write_json(flags, {**record, "peer_versions": answer["versions"], "cases": cases})
    is_same = all(
        not case["different_lines"]
        and not case["different_offsets"]
        and case["same_rows"]
        and case["same_special_tokens"]
        for case in cases
    )
    return 0 if is_same else 1


if __name__ == "__main__":
    harness.main(main)
