"""`bert data inspect`, `data eval-set` and `bert pack`: pre-training records and their data card."""

from __future__ import annotations

import itertools
import math
import os
from typing import Any, Literal

from official.cli import command_line, outputs
from official.io import engines, files, jobs, json_files, record_paths
from official.io.errors import ConfigError, counted
from official.io.record_paths import find_files
from official.io.writing import check_not_read, check_output_file, naming_output, replacing
from official.reporting import charts, data_card, palette

# -----------------------------------------------------------------------------------------------------------
# Vocabularies


def find_vocabulary(path: str | None, first_file: str):
    """Returns the vocabulary of a file, or of records; None if it is unknown.

    Args:
      path: path of the vocabulary; None: the one next to the records, else the one named in their
        manifest.json, if that file exists.
      first_file: path of the first file of records.
    """
    from official.data.word_pieces import vocabulary

    manifest, do_lower_case = os.path.join(os.path.dirname(first_file), "manifest.json"), None
    beside = record_paths.find_vocabulary([first_file])
    if path is None and files.is_file(manifest):
        given = json_files.expect(json_files.read_json(manifest), "flags", dict, manifest, default={})
        path = json_files.expect(given, "vocab_file", (str, type(None)), f"{manifest}: flags", default=None)
        path = beside or (path if path and files.is_file(path) else None)
        do_lower_case = given.get("do_lower_case")
    path = path or beside
    if path and isinstance(do_lower_case, bool):
        return vocabulary.load_for_text(path, do_lower_case)
    return vocabulary.load_vocabulary(path) if path else None


# -----------------------------------------------------------------------------------------------------------
# Data cards


def write_card_beside(folder: str, paths: list[str]) -> None:
    """Writes FOLDER/speed.json and FOLDER/report.html of a finished job and prints their paths. Does nothing
    if the job was finished before and its page is newer than its manifest.

    Args:
      folder: of the job.
      paths: its files of records; none for text.
    """
    rounds, path = jobs.take_rounds(), os.path.join(folder, data_card.FILE_NAME)
    if files.is_remote(folder):
        print(f"data card: bert data inspect {folder} --report_page=card.html makes one.")
        return
    manifest = os.path.join(folder, jobs.MANIFEST)
    if not rounds and os.path.exists(path) and os.path.getmtime(path) >= os.path.getmtime(manifest):
        return
    if rounds:
        outputs.write_json(os.path.join(folder, jobs.FILE_NAME), {"rounds": rounds})
    write_card(path, folder, paths)
    print(f"data card: {path}")


def write_card(path: str, folder: str, paths: list[str], summary=None, vocab_file: str | None = None) -> None:
    """Writes the page about a folder, or about files in it.

    Args:
      path: of the page.
      folder: folder of the manifest, if one exists.
      paths: files of records.
      summary: statistics of all files, if already counted.
      vocab_file: of the records; None: that of the manifest.
    """
    from official.data.pretraining import card  # late: it loads NumPy

    vocabulary = find_vocabulary(vocab_file, os.path.join(folder, "any"))
    noted = json_files.read_json_or_empty(os.path.join(folder, jobs.MANIFEST)).get("vocabulary_sha256")
    if vocabulary and not vocab_file and noted not in (None, vocabulary.sha256):
        vocabulary = None  # the file has changed since
    page = data_card.render(card.gather(folder, paths, vocabulary, summary))
    outputs.write_file(path, page.encode("utf-8", "replace"))  # names of files may be no UTF-8


# -----------------------------------------------------------------------------------------------------------
# bert data inspect


class Inspect(command_line.EngineFlags):
    """Checks every record of pre-training data, prints statistics and examples, and draws the lengths.

      bert data inspect 'records/*.tfrecord' --vocab_file=vocab.txt --picture=lengths.png

    Exit code 2 at the first invalid record; the error names its file and number.

    Attributes:
      files: TFRecord files, globs or folders.
      vocab_file: Vocabulary of the records. Unset: the copy next to the first file, or the file that its
        manifest.json names, if one exists.
      examples: Number of examples to show.
      compare_to: Files, globs or folders of other records, to show their shares and lengths for comparison.
      picture: File for a histogram of the lengths (.png, .svg, .pdf).
      report: File for the numbers (JSON).
      report_page: File for the data card: a page about these records (HTML).
      work_dir: With --engine=ray: folder for temporary files that all nodes see.
      overwrite: Replace --picture, --report and --report_page.
    """

    POSITIONAL = ("files",)
    RANGES = {"examples": (0, math.inf)}
    files: list[str]
    vocab_file: str | None = None
    examples: int = 2
    compare_to: str | None = None
    picture: str | None = None
    report: str | None = None
    report_page: str | None = None
    work_dir: str | None = None
    overwrite: bool = False


def describe_records(summary, shares: dict, vocabulary) -> str:
    predicted = "kept {kept:.2%} (the rest needs --vocab_file)"
    if vocabulary:
        predicted = "[MASK] {masked:.2%}, kept {kept:.2%}, random {replaced:.2%}"
    rate = f"{summary.predictions / summary.records:.2f} an example"
    predicted = f"{rate}, {{predictions_of_tokens:.2%}} of the tokens: {predicted}"
    if not summary.max_predictions_per_seq:
        predicted = "no masks: bert train draws them (--mask_share)"
    lines = [
        f"{counted(summary.files, 'file')}, {counted(summary.records, 'example')},"
        f" {summary.bytes / 1e6:,.1f} MB, {summary.record_format}, {summary.max_seq_length} tokens,"
        f" {summary.max_predictions_per_seq} predictions at most",
        "lengths     median {median_length:,.0f}, {full_length:.1%} full, {padding:.1%} padding",
        f"predicted   {predicted}",
    ]
    if summary.record_format == "packed":
        rows, used = f"{summary.rows:,} rows", summary.tokens / (summary.rows * summary.max_seq_length)
        each = summary.records / summary.rows
        lines.append(f"packed      {rows} of {each:.3f} examples, {used:.2%} of their places used")
    estimates = "" if summary.repeats()["exact"] else ": estimates, to within 0.14% two times in three"
    lines.append(
        "repeated    {repeated_records:.2%} of the examples, {repeated_texts:.2%} of the texts (with other"
        f" masks){estimates}"
    )
    pairs = "random next {random_next:.2%}" if summary.pairs else "no pairs: texts, as of --objective=mlm"
    return "\n".join([*lines, pairs]).format(**shares)


def chart_of_tokens(counts: dict[str, Any], title: str, unit: str) -> charts.Chart:
    """Returns a chart of {label: how many have 0, 1, 2 .. tokens}, each as shares."""
    curves = [
        charts.Curve(label, data_card.histogram(dict(enumerate(values))), color)
        for (label, values), color in zip(counts.items(), palette.COLORS)
    ]
    return charts.Chart(title, unit, curves, x_name="tokens, at most")


def run_inspect() -> None:
    flags = Inspect.parse()
    outputs.check_files(flags, "report", "report_page", picture="picture")
    engines.check(flags)
    folder = flags.work_dir
    if folder and flags.engine != "ray":
        raise ConfigError(f"--work_dir={folder} needs --engine=ray.")
    if folder and not os.path.isdir(folder):
        raise ConfigError(f"--work_dir={folder} is not a folder of this machine.")
    command_line.configure_logging()
    # After the flags are checked: TensorFlow takes seconds to load.
    from official.data.pretraining import inspection
    from official.data.pretraining.summary import largest_gap

    paths = {"records": find_files(",".join(flags.files))}
    if flags.compare_to:
        paths["compare_to"] = find_files(flags.compare_to, "compare_to")
    first = paths["records"][0]
    vocabulary = find_vocabulary(flags.vocab_file, first)
    with engines.opened(flags) as engine:
        summaries = {
            name: inspection.summarize(group, vocabulary, engine, folder) for name, group in paths.items()
        }
    report: dict[str, Any] = {name: each.numbers(is_all=True) for name, each in summaries.items()}
    for name, numbers in report.items():
        print(describe_records(summaries[name], numbers["shares"], vocabulary), end="\n\n")
    lengths = [each.lengths for each in summaries.values()]
    if flags.compare_to:
        gap = report["largest_gap_of_lengths"] = largest_gap(*lengths)
        print(f"largest gap between the distributions of lengths: {gap:.4f}\n")
    if vocabulary and flags.examples:
        for example in inspection.first_examples(first, flags.examples, vocabulary):
            print(example.text())
    if flags.picture:
        counts = dict(zip(("these records", "compared with"), lengths))
        chart = chart_of_tokens(counts, "Tokens of an example", "share of the examples")
        outputs.write_chart(flags.picture, chart)
    if flags.report_page:
        page, beside = flags.report_page, os.path.dirname(first)
        write_card(page, beside, paths["records"], summaries["records"], flags.vocab_file)
    if flags.report:
        outputs.write_json(flags.report, report)


# -----------------------------------------------------------------------------------------------------------
# bert data eval-set


class EvalSet(command_line.Flags):
    """Makes the held-out evaluation set of MLPerf v1.0: evenly spaced examples of TFRecord files, copied as
    they are.

      bert data eval-set --input_files='eval/*.tfrecord' --output_file=eval_10k.tfrecord \\
        --num_samples=10000

    Attributes:
      input_files: TFRecords: comma-separated files, folders or globs, read in the order of their names; a
        manifest.json among them is ignored.
      output_file: TFRecord file to write.
      num_samples: Number of examples to pick.
      overwrite: Replace an existing --output_file.
    """

    RANGES = {"num_samples": command_line.COUNT}
    input_files: str
    output_file: str
    num_samples: int = 10000
    overwrite: bool = False


def read_examples(paths: list[str], record_format: str, states: dict[str, str]):
    """Yields a record for each example of the files. Raises ConfigError where one is damaged, or has changed
    since `states`."""
    from official.data.records import files as record_files

    try:
        for path in paths:
            yield from record_files.read_rows(path, record_format)
    except ConfigError as error:
        files.check_unchanged(states)
        raise ConfigError(f"--input_files: {error}") from None


def _progress(examples, what: str):
    """Yields the examples, with a progress bar if stderr is a terminal and it takes more than two seconds."""
    import tqdm

    return tqdm.tqdm(examples, what, unit=" examples", unit_scale=True, delay=2, disable=None, leave=False)


def run_eval_set() -> None:
    flags = EvalSet.parse()
    check_output_file(flags.output_file, "output_file", flags.overwrite)
    # Late: these load TensorFlow.
    from official.data.records import files as record_files
    from official.data.records.record_formats import READERS
    from official.data.records.shard_files import writing_records

    paths = record_files.find_files(flags.input_files, "input_files")
    check_not_read(flags.output_file, "output_file", paths, "input_files")
    folder = os.path.dirname(flags.output_file)
    vocabulary = record_paths.find_vocabulary(paths)
    record_paths.check_vocabulary(folder, vocabulary, flags.overwrite)
    states = files.states(paths)
    record_format = record_files.detect_format(paths)
    examples = sum(1 for _ in _progress(read_examples(paths, record_format, states), "counting"))
    picks = flags.num_samples
    if examples < picks:
        problem = f"--input_files={flags.input_files} holds {examples:,} examples"
        raise ConfigError(f"{problem}, fewer than --num_samples={picks:,}.")
    positions = {index * examples // picks for index in range(picks)}
    again = enumerate(read_examples(paths, record_format, states))
    picked = _progress((example for position, example in again if position in positions), "copying")
    copied, reader = iter(picked), READERS[record_format]
    with (
        naming_output(flags.output_file, "output_file"),
        replacing(flags.output_file) as part,
        writing_records(part) as write,
    ):
        while some := list(itertools.islice(copied, reader.rows_per_record)):
            for record in reader.join(some):
                write([record])
        files.check_unchanged(states)
    record_paths.put_vocabulary(folder, vocabulary)
    print(f"{flags.output_file}: {picks:,} of the {examples:,} examples of {counted(len(paths), 'file')}.")


# -----------------------------------------------------------------------------------------------------------
# bert pack


class Pack(command_line.EngineFlags):
    """Packs several sequences into each row: reads records of any supported format and writes packed records.

      bert pack --input_files='records/*.tfrecord' --output_dir=packed
      bert pack --histogram=lengths.json --algorithm=lpfhp --max_sequences_per_pack=12

    Each sequence is in exactly one row. The same input and flags make the same files; the same command
    resumes an interrupted one.

    Attributes:
      input_files: TFRecords of one format: comma-separated files, folders or globs.
      output_dir: Folder for part-00000-of-000NN.tfrecord, manifest.json and report.html.
      histogram: JSON with max_sequence_length and counts_by_length_from_1, to plan without records.
      algorithm: spfhp: put the next sequence into the row with the most room. lpfhp: into the fullest row
        that it fits. nnlshp, ennlshp: least squares over all ways to fill a row with up to 3 lengths. Unset:
        try all, and use the one with the fewest rows.
      max_sequences_per_pack: Maximum number of sequences per row.
      random_seed: Seed of the order of the rows, and of which sequences share one.
      num_shards: Number of output files. Unset: 8, more for many sequences.
      report: File for the numbers (JSON).
      picture: File for a chart of the lengths before and of the rows after packing (.png, .svg, .pdf).
      overwrite: Replace existing files.
    """

    input_files: str | None = None
    output_dir: str | None = None
    histogram: str | None = None
    algorithm: Literal["spfhp", "lpfhp", "nnlshp", "ennlshp"] | None = None
    max_sequences_per_pack: int = 3
    random_seed: int = 12345
    num_shards: int | None = None
    report: str | None = None
    picture: str | None = None
    overwrite: bool = False


def pack_files(flags: Any) -> dict:
    """Writes the packed records; returns the numbers of the plan with those of the files."""
    from official.data.packing import creation  # after the flags are checked: it loads TensorFlow

    manifest = creation.pack_records(flags.make(creation.Job))
    write_card_beside(flags.output_dir, [os.path.join(flags.output_dir, name) for name in manifest["files"]])
    names = ("packs", "sequences", "split_packs", "efficiency", "speedup", "sequences_per_pack")
    numbers = {**manifest["plan"], **{name: manifest[name] for name in names}}
    numbers["padding_after"] = 1 - manifest["efficiency"]
    return numbers


def run_pack() -> None:
    flags = Pack.parse()
    plans, has_files = flags.histogram, (bool(flags.input_files), bool(flags.output_dir))
    if plans and any(has_files):
        raise ConfigError("--histogram only plans. Drop it, or --input_files and --output_dir.")
    if not plans and not all(has_files):
        raise ConfigError("Give --input_files and --output_dir, or --histogram to plan only.")
    outputs.check_files(flags, "report", picture="picture")
    command_line.configure_logging()
    numbers: dict[str, Any] = {"algorithm": flags.algorithm}
    if flags.histogram:
        from official.data.packing import algorithms

        histogram = algorithms.read_histogram(flags.histogram)
        planned = algorithms.plan_by_algorithm(histogram, flags.algorithm, flags.max_sequences_per_pack)
        numbers |= algorithms.describe(histogram, planned)
    else:
        numbers |= pack_files(flags)
    by = f" by {numbers['algorithm']}" if numbers["algorithm"] else ""
    print(
        "{packs:,} rows of {max_seq_length} tokens hold {sequences:,} sequences, {speedup:.4f} a row,"
        " {sequences_per_pack} at most (bound by the lengths: {bound:.4f}).\n"
        "Efficiency {efficiency:.5f}: padding {padding_before:.2%} before, {padding_after:.2%} after. Planned"
        " in {secs:.3f} s{by}.".format(**numbers, by=by)
    )
    if flags.report:
        outputs.write_json(flags.report, numbers)
    if flags.picture:
        counts = {
            f"a sequence ({numbers['padding_before']:.1%} padding)": numbers["lengths"],
            f"a packed row ({numbers['padding_after']:.1%})": numbers["tokens_of_rows"],
        }
        chart = chart_of_tokens(counts, "Before and after", "share of the sequences, share of the rows")
        outputs.write_chart(flags.picture, chart)
