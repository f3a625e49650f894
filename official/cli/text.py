"""`bert data create`, `prepare`, `corpus` and `bert vocab`: records, clean text, vocabularies from text."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any, Literal

from official.cli import command_line, outputs, records
from official.io import engines, files, jobs
from official.io.errors import ConfigError, counted
from official.io.writing import check_output_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from official.data.text.documents import ReadCounts


# -----------------------------------------------------------------------------------------------------------
# bert data create


class Create(command_line.TextFlags, command_line.LowerCaseFlag, command_line.EngineFlags):
    """Makes TFRecords of masked-LM and next-sentence examples from text.

    bert data create --input_files='wiki/wiki_*' --vocab_file=vocab.txt \\
      --output_dir=records

    Attributes:
      output_dir: Folder for part-00000-of-000NN.tfrecord, manifest.json and report.html.
      output_file: In place of --output_dir: exactly these files, comma-separated, and no manifest. As in
        Graphcore's commands, whose names of the other flags are taken, too, case is kept without
        --do_lower_case, --dupe_factor is 6 and --random_seed 1984.
      vocab_file: WordPiece vocabulary: one word piece per line, or tokenizer.json, or a folder with one of
        them.
      drop_duplicates: Keep one of the documents that are the same, token by token.
      mixture: Shares of the tokens, by source: 'books=0.3,wiki=0.7'. --input_files then names the sources:
        'books=FILES,..,wiki=FILES,..'.
      max_seq_length: Tokens of an example.
      max_predictions_per_seq: Masked tokens of an example, at most.
      dupe_factor: Times that the text is cut into examples, each time with other cuts and masks.
      masked_lm_prob: Share of the tokens that are masked.
      short_seq_prob: Share of the documents cut into shorter examples.
      do_whole_word_mask: Mask all pieces of a word or none.
      random_seed: Seed of every random choice.
      sentence_splitting: Split lines into sentences. auto: those of WikiExtractor and WikiText, and of
        plain text whose lines are paragraphs.
      eval_share: Share of the documents that is held out for evaluation, by the documents' own text; with
        --side.
      side: Documents to read: those to train on, or those held out (--eval_share). Unset: all.
      record_format: plain: Google's tf.train.Example. compact: 16-bit ids without padding, less than half
        the size; train.py reads both.
      remask: Write Graphcore's static-mask records: the masked tokens first.
      pad_position_value: With --remask: position of the padding. Unset: --max_seq_length.
      num_shards: Output files. Unset: 8, more where the text is large.
      overwrite: Replace the files of an earlier run in --output_dir, and an unfinished one of other flags.
    """

    # Graphcore's names of the flags
    ALIASES = {
        "input_file": "input_files",
        "sequence_length": "max_seq_length",
        "mask_tokens": "max_predictions_per_seq",
        "duplication_factor": "dupe_factor",
        "mlm_prob": "masked_lm_prob",
        "seed": "random_seed",
    }
    LISTS = ("output_file",)
    output_dir: str | None = None
    output_file: str | None = None
    vocab_file: str
    drop_duplicates: bool = False
    mixture: str | None = None
    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    dupe_factor: int = 10
    masked_lm_prob: float = 0.15
    short_seq_prob: float = 0.1
    do_whole_word_mask: bool = False
    random_seed: int = 12345
    sentence_splitting: Literal["auto", "always", "never"] = "auto"
    eval_share: float | None = None
    side: Literal["train", "eval"] | None = None
    record_format: Literal["plain", "compact"] = "plain"
    remask: bool = False
    pad_position_value: int | None = None
    num_shards: int | None = None
    overwrite: bool = False


def create_flags() -> Create:
    parser = Create.parser()
    flags = parser.parse()
    if bool(flags.output_dir) == bool(flags.output_file):
        raise ConfigError("Give one of --output_dir=DIR and --output_file=FILES. See --help.")
    if flags.output_file:
        if flags.num_shards:
            raise ConfigError(f"num_shards={flags.num_shards} excludes --output_file, which names the files.")
        for path in flags.output_file.split(","):
            check_output_file(path, "output_file", flags.overwrite)
        # the values of Graphcore's commands
        for name, value in {"dupe_factor": 6, "random_seed": 1984, "do_lower_case": False}.items():
            if name not in parser.given:
                setattr(flags, name, value)
    if flags.remask and flags.record_format != "plain":
        raise ConfigError(
            f"--remask and --record_format={flags.record_format} exclude each other. Drop one of the two."
        )
    if flags.pad_position_value is not None and not flags.remask:
        raise ConfigError(f"pad_position_value={flags.pad_position_value} needs --remask.")
    return flags


def run_create() -> None:
    given = create_flags()
    engines.load_ahead(given, "official.data.pretraining.creation")
    flags = vars(given)
    command_line.configure_logging()
    named = flags.pop("output_file")
    paths = named.split(",") if named else []
    if paths:
        flags |= {"num_shards": len(paths), "output_dir": f"{paths[0]}.unfinished"}
    if flags["remask"]:
        flags["record_format"] = "remask"
    from official.data.pretraining import creation, examples, plan  # after the flags are checked

    rules = {name: flags.pop(name) for name in examples.ExampleRules.__dataclass_fields__}
    job = plan.Job(rules=examples.ExampleRules(**rules), **flags)
    manifest = run_once(creation.create_pretraining_data, job)
    show_manifest(manifest)
    made = [os.path.join(job.output_dir, name) for name in manifest["files"]]
    if not paths:
        records.write_card_beside(job.output_dir, made)
        return
    for path, file in zip(paths, made, strict=True):
        shutil.move(file, path)
    shutil.rmtree(job.output_dir)


def run_once(make: Callable[[Any], dict], job: Any) -> dict:
    """Returns the manifest of a job, and says so where all of it was done before."""
    rounds = len(jobs.rounds)
    manifest = make(job)
    if len(jobs.rounds) == rounds:
        print(f"All of this is done already in {job.output_dir}; nothing is written.")
    return manifest


def print_counts(manifest: dict, *names: str) -> None:
    """Prints the counts of a manifest that are not zero, and those of the pages that were left out."""
    from official.data.text import read_counts

    for name in (*names, *read_counts.PAGES_LEFT_OUT):
        if manifest.get(name):
            print(f"{name}: {manifest[name]:,}")


def show_manifest(manifest: dict) -> None:
    """Prints what was counted, the sum of it last."""
    from official.data.text import read_counts

    left_out = ("skipped_lines", "skipped_sentences", "cut_documents", "other_side_documents")
    print_counts(manifest, *left_out, "duplicate_documents")
    undecodable = ""
    if manifest["undecodable_bytes"]:
        print(f"undecodable_bytes: {read_counts.describe_undecodable(manifest['inputs'])}")
        undecodable = f"; {manifest['undecodable_bytes']:,} undecodable bytes left out"
    for name, source in manifest.get("sources", {}).items():
        print(
            f"{name}: {source['documents']:,} documents, {source['tokens']:,} tokens, {source['copies']:.2f}"
            f" copies, {source['reached_share']:.2%} of the text that was cut ({source['wanted_share']:.2%}"
            " wanted)."
        )
    text_files = counted(manifest["input_files"], "text file")
    made = f"{counted(manifest['instances'], 'example')} in {counted(len(manifest['files']), 'file')}"
    read = (
        "{documents:,} documents, {sentences:,} sentences, {tokens:,} tokens, {unknown_share:.2%} of them"
        " [UNK]".format(**manifest)
    )
    print(f"{made} from {text_files}: {read}{undecodable}.")


# -----------------------------------------------------------------------------------------------------------
# bert data prepare


class Prepare(command_line.TextFlags, command_line.EngineFlags):
    """Cleans text, splits it into sentences, and shares the documents out to training and evaluation.

      bert data prepare --input_files=extracted --output_dir=text --eval_share=0.005

    Writes OUTPUT_DIR/train/part-NNNNN.txt and OUTPUT_DIR/eval/part-NNNNN.txt (one sentence per line, a blank
    line between documents), manifest.json and report.html. On which side a document is depends on its text
    alone.

    Attributes:
      output_dir: Folder for train/, eval/, manifest.json and report.html.
      eval_share: Share of the documents that are held out for evaluation.
      min_sentences: Documents of fewer sentences are left out.
      sentence_splitting: As of create_pretraining_data.py.
      overwrite: Replace the files of an earlier run in --output_dir.
    """

    output_dir: str
    eval_share: float = 0.005
    min_sentences: int = 2
    sentence_splitting: Literal["auto", "always", "never"] = "auto"
    overwrite: bool = False


def run_prepare() -> None:
    flags = Prepare.parse()
    engines.load_ahead(flags, "official.data.text.preparation")
    command_line.configure_logging()
    from official.data.text import preparation, read_counts  # after the flags are checked

    job = preparation.Job(**vars(flags))
    manifest = run_once(preparation.prepare, job)
    print_counts(manifest, "short_documents", "empty_sentences", "skipped_lines", "cut_documents")
    if manifest.get("undecodable_bytes"):
        print(
            f"undecodable_bytes: {manifest['undecodable_bytes']:,}"
            f" ({read_counts.describe_undecodable(manifest['inputs'])})"
        )
    for side in preparation.SPLITS:
        print(
            f"{side}: {manifest.get(f'{side}_documents', 0):,} documents,"
            f" {manifest.get(f'{side}_sentences', 0):,} sentences."
        )
    records.write_card_beside(job.output_dir, [])


# -----------------------------------------------------------------------------------------------------------
# bert data corpus


class Corpus(command_line.Flags):
    """Builds a small English corpus from what is installed: the language reference and docstrings.

      bert data corpus --output_dir=data/quickstart/corpus

    Writes train.txt and eval.txt (one sentence per line, a blank line between documents) and corpus.json.

    Attributes:
      output_dir: Folder for train.txt, eval.txt and corpus.json.
      sources: topics (the language reference), stdlib (the standard library) and installed packages,
        separated by commas.
      eval_share: Share of the documents that are held out for evaluation.
      overwrite: Replace the files in --output_dir.
    """

    output_dir: str
    sources: str = "topics,stdlib,numpy,tensorflow,keras"
    eval_share: float = 0.1
    overwrite: bool = False


def run_corpus() -> None:
    from official.data.text import docstring_corpus

    flags = Corpus.parse()
    if not 0 < flags.eval_share < 1:
        raise ConfigError(f"--eval_share={flags.eval_share} is out of range. Allowed: above 0, below 1.")
    for name in ("train.txt", "eval.txt", "corpus.json"):
        check_output_file(os.path.join(flags.output_dir, name), "output_dir", flags.overwrite)
    train, evaluation, counts = docstring_corpus.build_corpus(flags.sources.split(","), flags.eval_share)
    if not train or not evaluation:
        raise ConfigError(
            f"--sources={flags.sources} --eval_share={flags.eval_share}: {len(train)} documents to train on"
            f" and {len(evaluation)} to evaluate on, expected one each at least. Add sources, or change"
            " --eval_share."
        )
    summary: dict[str, Any] = {"sources": flags.sources, "eval_share": flags.eval_share}
    told = []
    for name, documents in (("train", train), ("eval", evaluation)):
        text = "\n\n".join("\n".join(document) for document in documents) + "\n"
        outputs.write_file(os.path.join(flags.output_dir, f"{name}.txt"), text)
        sentences, size = sum(map(len, documents)), len(text.encode())
        summary[name] = {"documents": len(documents), "sentences": sentences, "bytes": size}
        told.append(f"{name}.txt: {len(documents):,} documents, {sentences:,} sentences, {size:,} bytes.")
    summary |= counts
    outputs.write_file(os.path.join(flags.output_dir, "corpus.json"), json.dumps(summary, indent=2) + "\n")
    print("\n".join(told))


# -----------------------------------------------------------------------------------------------------------
# bert vocab


class Vocab(command_line.TextFlags):
    """Builds a WordPiece vocabulary of exactly --vocab_size lines from text.

    bert vocab --input_files=corpus/train.txt --output_file=vocab.txt --vocab_size=8192

    Attributes:
      output_file: Vocabulary to write, one word piece per line: [PAD] [UNK] [CLS] [SEP] [MASK] first.
      vocab_size: Lines of the vocabulary.
      do_lower_case: Whether text loses capitals and accents. false also writes tokenizer_config.json beside
        the vocabulary, which says so.
      max_sentences: Learn from this many sentences at most, evenly spread.
      overwrite: Replace --output_file.
    """

    RANGES = {"vocab_size": (10, math.inf), "max_sentences": (1, math.inf)}
    output_file: str
    vocab_size: int = 30522
    do_lower_case: bool = True
    max_sentences: int = 1000000
    overwrite: bool = False


def read_sentences(patterns: str, most: int, counts: ReadCounts, text_field: str = "text") -> list[str]:
    """Returns the sentences of all files or, where there are more than `most`, every second, fourth, eighth
    .. one."""
    import tqdm

    from official.data.text.documents import read_documents

    step, kept = 1, []
    paths = files.find_files(patterns, "input_files")
    size = sum(files.sizes(paths))
    with tqdm.tqdm(total=size, desc="Reading", unit="B", unit_scale=True, delay=0.5) as bar:
        documents = read_documents(paths, counts, text_field=text_field)
        for number, sentence in enumerate(itertools.chain.from_iterable(documents)):
            if number % step == 0:
                kept.append(sentence)
            if len(kept) > most:
                step, kept = 2 * step, kept[::2]
            bar.update(counts.bytes - bar.n)
    return kept


def run_vocab() -> None:
    from official.data.text import read_counts
    from official.data.text.documents import ReadCounts
    from official.data.word_pieces import vocabulary_building

    flags = Vocab.parse()
    # The configuration says that capitals count. Beside an uncased vocabulary only one that is there is
    # written.
    config = os.path.join(os.path.dirname(flags.output_file), "tokenizer_config.json")
    configs = [] if flags.do_lower_case and not os.path.exists(config) else [config]
    for path in (flags.output_file, *configs):
        check_output_file(path, "output_file", flags.overwrite)
    counts = ReadCounts()
    sentences = read_sentences(flags.input_files, flags.max_sentences, counts, flags.text_field)
    built = vocabulary_building.build_vocabulary(
        sentences, flags.vocab_size, flags.do_lower_case, show_progress=sys.stderr.isatty()
    )
    for path in configs:
        outputs.write_file(path, json.dumps({"do_lower_case": flags.do_lower_case}) + "\n")
    outputs.write_file(flags.output_file, "\n".join(built.words) + "\n")
    if counts.undecodable_bytes:
        print(
            f"undecodable_bytes: {counts.undecodable_bytes:,}"
            f" ({read_counts.describe_undecodable(read_counts.listed(counts.by_file))})"
        )
    print(
        f"{len(built.words):,} word pieces from {len(sentences):,} sentences: {built.learned:,} learned,"
        f" {built.unused:,} [unusedN] entries added; their characters are those of {built.covered:.2%} of the"
        " words."
    )
