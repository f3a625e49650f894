"""`bert data inspect`, `data eval-set` and `bert pack`: pre-training records and their data card."""

from __future__ import annotations

import bisect
import glob
import itertools
import math
import os
import statistics
from typing import Any, Literal

from official.cli import command_line, outputs
from official.io import engines, files, jobs, json_files, record_paths
from official.io.errors import ConfigError, counted
from official.io.files import is_remote
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
      spread: Treat every folder, and every file that is named or matched by a glob, as a data set of its own,
        such as one per seed: show mean and spread of their shares.
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
    spread: bool = False
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
    if flags.spread and (flags.picture or flags.report_page):
        raise ConfigError("--spread excludes --picture and --report_page, which are about one data set.")
    command_line.configure_logging()
    # After the flags are checked: TensorFlow takes seconds to load.
    from official.data.pretraining import inspection
    from official.data.pretraining.summary import largest_gap

    patterns = {"records": flags.files} | ({"compare_to": [flags.compare_to]} if flags.compare_to else {})
    groups = {name: _data_sets(given, name, flags.spread) for name, given in patterns.items()}
    first = next(iter(groups["records"].values()))
    vocabulary = find_vocabulary(flags.vocab_file, first[0])
    with engines.opened(flags) as engine:

        def summarized(paths: list[str]):
            summary = inspection.summarize(paths, vocabulary, engine, folder)
            return summary.shares() if flags.spread else summary

        summaries = {
            name: {each: summarized(paths) for each, paths in group.items()} for name, group in groups.items()
        }
    if flags.spread:
        report = spread_report(summaries)
        print(spread_table(report))
    else:
        report = {name: group[""].numbers(is_all=True) for name, group in summaries.items()}
        for name, numbers in report.items():
            print(describe_records(summaries[name][""], numbers["shares"], vocabulary), end="\n\n")
        lengths = [group[""].lengths for group in summaries.values()]
        if flags.compare_to:
            gap = report["largest_gap_of_lengths"] = largest_gap(*lengths)
            print(f"largest gap between the distributions of lengths: {gap:.4f}\n")
        if vocabulary and flags.examples:
            for example in inspection.first_examples(first[0], flags.examples, vocabulary):
                print(example.text())
        if flags.picture:
            counts = dict(zip(("these records", "compared with"), lengths))
            chart = chart_of_tokens(counts, "Tokens of an example", "share of the examples")
            outputs.write_chart(flags.picture, chart)
        if flags.report_page:
            page, beside = flags.report_page, os.path.dirname(first[0])
            write_card(page, beside, first, summaries["records"][""], flags.vocab_file)
    if flags.report:
        outputs.write_json(flags.report, report)


def _data_sets(patterns: list[str], name: str, each_alone: bool) -> dict[str, list[str]]:
    """Returns {name: files} of the data sets in patterns: a single one without a name; with `each_alone`, one
    for every folder and every file that is named or matched by a glob."""
    flag = name if name == "compare_to" else ""
    if not each_alone:
        return {"": find_files(",".join(patterns), flag)}
    parts = [part.strip() for pattern in patterns for part in pattern.split(",") if part.strip()]
    names = [name for part in parts for name in (not is_remote(part) and sorted(glob.glob(part))) or [part]]
    return {name: find_files(name, flag) for name in names}


def spread_report(groups: dict[str, dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Returns the numbers for --report: mean, standard deviation (0 for one data set), minimum and maximum of
    each share. For two groups also the differences of the means and Welch's t, None without any spread. An
    absolute t above 2 is rarely due to chance.

    Args:
      groups: {group: {data set: {share: value}}} of these records and, with --compare_to, of the others.
    """
    report: dict[str, Any] = {}
    for name, sets in groups.items():
        spread = {}
        for share in next(iter(sets.values())):
            values = [shares[share] for shares in sets.values()]
            deviation = statistics.stdev(values) if len(values) > 1 else 0.0
            spread[share] = {"mean": statistics.fmean(values), "deviation": deviation}
            spread[share] |= {"lowest": min(values), "highest": max(values)}
        report[name] = {"data_sets": sets, "spread": spread}
    if len(groups) == 2:
        report["differences"] = {}
        for share in report["records"]["spread"]:
            ours, theirs = (report[name]["spread"][share] for name in groups)
            difference = ours["mean"] - theirs["mean"]
            counts = map(len, groups.values())
            error = math.sqrt(sum(each["deviation"] ** 2 / n for each, n in zip((ours, theirs), counts)))
            errors = difference / error if error else None
            report["differences"][share] = {"difference": difference, "standard_errors": errors}
    return report


def spread_table(report: dict[str, Any]) -> str:
    """Formats `spread_report` as tables: a line for each share, then the differences of the means."""
    tables = []
    for name, group in report.items():
        values = group.get("spread", group)
        title = "difference of the means, and the same in standard errors"
        if "spread" in group:
            title = f"{name}: {len(group['data_sets'])} data sets, each by itself"
        columns = [("", "share", "")] + [(each, each, "") for each in next(iter(values.values()))]
        rows = []
        for share, numbers in values.items():
            look = ".1f" if share == "median_length" else ".3%"
            looks = {each: ".1f" if each == "standard_errors" else look for each in numbers}
            shown = {each: None if v is None else format(v, looks[each]) for each, v in numbers.items()}
            rows.append({"share": share, **shown})
        tables += [title, outputs.table(columns, rows)]
    return "\n".join(tables)


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


def read_examples(path: str, record_format: str):
    """Yields a record for each example of a file. Raises ConfigError where it is damaged."""
    from official.data.records import files as record_files

    try:
        yield from record_files.read_rows(path, record_format)
    except ConfigError as error:
        raise ConfigError(f"--input_files: {error}") from None


def picked_examples(paths: list[str], record_format: str, counts: list[int], positions: list[int]):
    """Yields the examples at sorted positions, counted over all files. Each file is read only up to its last
    picked example."""
    first = 0
    for path, count in zip(paths, counts):
        begin, end = (bisect.bisect_left(positions, each) for each in (first, first + count))
        examples, previous = read_examples(path, record_format), first - 1
        for position in positions[begin:end]:
            yield next(itertools.islice(examples, position - previous - 1, None))
            previous = position
        first += count


def copied(examples, record_format: str, states: dict[str, str]):
    """Yields records with the examples. Raises ConfigError at the end if a file changed while it was read."""
    from official.data.records.record_formats import READERS

    examples, reader = iter(examples), READERS[record_format]
    while some := list(itertools.islice(examples, reader.rows_per_record)):
        yield from reader.join(some)
    files.check_unchanged(states)


def write_records(path: str, records) -> None:
    """Writes a TFRecord file atomically. Raises ConfigError."""
    from official.data.records.shard_files import writing_records

    with naming_output(path, "output_file"), replacing(path) as part, writing_records(part) as write:
        for record in records:
            write([record])


def _progress(examples, what: str):
    """Yields the examples, with a progress bar if stderr is a terminal and it takes more than two seconds."""
    import tqdm

    return tqdm.tqdm(examples, what, unit=" examples", unit_scale=True, delay=2, disable=None, leave=False)


def run_eval_set() -> None:
    flags = EvalSet.parse()
    check_output_file(flags.output_file, "output_file", flags.overwrite)
    from official.data.records import files as record_files  # late: it loads TensorFlow

    paths = record_files.find_files(flags.input_files, "input_files")
    check_not_read(flags.output_file, "output_file", paths, "input_files")
    folder = os.path.dirname(flags.output_file)
    vocabulary = record_paths.find_vocabulary(paths)
    record_paths.check_vocabulary(folder, vocabulary, flags.overwrite)
    states = files.states(paths)
    record_format = record_files.detect_format(paths)
    counts = []
    for number, path in enumerate(paths, start=1):
        title = f"counting, file {number} of {len(paths)}"
        counts.append(sum(1 for _ in _progress(read_examples(path, record_format), title)))
    examples, picks = sum(counts), flags.num_samples
    if examples < picks:
        problem = f"--input_files={flags.input_files} holds {examples:,} examples"
        raise ConfigError(f"{problem}, fewer than --num_samples={picks:,}.")
    positions = [index * examples // picks for index in range(picks)]
    picked = picked_examples(paths, record_format, counts, positions)
    write_records(flags.output_file, copied(_progress(picked, "copying"), record_format, states))
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
