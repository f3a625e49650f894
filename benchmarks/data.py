"""Times the creation and reading of pre-training data, compared with the bare compiled tokenizer, and
measures the memory.

  python benchmarks/data.py --input_files=wikipedia --vocab_file=vocab.txt --output=results/data \\
    --memory

Creation, from text files to records and manifest, runs in one process after everything is loaded, in turns
with the tokenizer. Reading is the shuffled and parsed dataset of train.py, from files in the page cache,
without its start: rows with one sequence, rows packed in the files, and rows packed on the fly, all counted
in sequences.
"""

import os
import shutil
import tempfile

import harness
from official.cli import command_line
from official.io.json_files import read_json

SHAPES = ((128, 20), (512, 76))
DUPE_FACTORS = (1, 10)
FORMATS = ("plain", "compact")
_READ_BATCH = 256
_PACKED_DEPTH = 12  # maximum number of sequences per packed row, as in a run
_VOCAB_SIZE = 30522
_READ_EPOCHS = 16  # enough to make the start of the dataset, a fraction of a second, negligible
_MEMORY_BYTES = (40_000_000, 400_000_000)


class Main(harness.ChartFlags):
    """Flags of the command.

    Attributes:
      input_files: Text: comma-separated files, globs or folders.
      vocab_file: Vocabulary.
      rounds: Number of timings of each case.
      memory: Also measure the peak memory for 40 and 400 MB, made by repeating the text.
    """

    RANGES = {"rounds": command_line.COUNT}
    input_files: str
    vocab_file: str
    rounds: int = 5
    memory: bool = False


def creation_cases(flags, folder: str) -> dict:
    """Returns {name: function that creates the records of one shape, number of duplicates and format}."""
    from official.data.pretraining import creation, examples

    def make(length: int, predictions: int, dupes: int, kind: str):
        rules = examples.ExampleRules(length, predictions, dupes)
        job = creation.Job(
            flags.input_files,
            os.path.join(folder, f"{length}_{dupes}_{kind}"),
            flags.vocab_file,
            rules,
            num_workers=1,
            record_format=kind,
            overwrite=True,
        )
        return lambda: creation.create_pretraining_data(job)

    return {
        f"create {length} x{dupes} {kind}": make(length, predictions, dupes, kind)
        for length, predictions in SHAPES
        for dupes in DUPE_FACTORS
        for kind in FORMATS[: 2 if dupes == max(DUPE_FACTORS) else 1]
    }


def tokenizer_case(flags, sentences: list[str]):
    """Returns a function that runs tensorflow-text's tokenizer on all sentences at once."""
    import tensorflow as tf
    import tensorflow_text as tf_text

    from official.data.word_pieces import vocabulary

    words = list(vocabulary.load_vocabulary(flags.vocab_file).words)
    with tf.device("CPU"):
        tokenizer = tf_text.FastBertTokenizer(
            vocab=words, token_out_type=tf.int32, lower_case_nfd_strip_accents=True
        )
        text = tf.constant(sentences)
    return lambda: tokenizer.tokenize(text)


def reading_cases(folder: str) -> tuple[dict, dict]:
    """Returns ({name: function that reads the records of 512 tokens a few times}, {name: sequences read});
    packs rows of them first."""
    from official.data.records import batches as record_batches
    from official.data.records import files as record_files
    from official.data.records import schema
    from official.data.records.on_the_fly import Packer

    length, predictions = SHAPES[-1]
    features = schema.pretraining_schema(length, predictions, _VOCAB_SIZE)
    packer = Packer(features, _PACKED_DEPTH)
    made = {kind: os.path.join(folder, f"{length}_{max(DUPE_FACTORS)}_{kind}") for kind in FORMATS}
    packed = pack(made[FORMATS[-1]], os.path.join(folder, "packed"))
    sizes = record_files.row_sizes(record_files.find_files(os.path.join(packed, "*.tfrecord"), "input_files"))
    assert sizes is not None
    sources = {
        **{f"read {kind}": (path, features, None) for kind, path in made.items()},
        "read packed": (packed, schema.packed_schema(length, *sizes, _VOCAB_SIZE), None),
        **{f"read {kind}, packing": (path, features, packer) for kind, path in made.items()},
    }
    cases, counts = {}, {}
    for name, (path, of_record, packs) in sources.items():
        paths = record_files.find_files(os.path.join(path, "*.tfrecord"), "input_files")
        is_packed = schema.is_packed(packs.schema if packs else of_record)
        per_row = record_batches.sequences_per_row(paths, of_record, packs) if is_packed else 1.0
        sequences = sum(read_json(os.path.join(made[FORMATS[0]], "manifest.json"))["files"].values())
        batches = round(_READ_EPOCHS * sequences / per_row / _READ_BATCH)
        cases[name] = reading_case(paths, of_record, packs, batches)
        counts[name] = batches * _READ_BATCH * per_row
    return cases, counts


def pack(records: str, folder: str) -> str:
    """Packs a folder of records into `folder`, with at most as many sequences per row as a run packs, and
    returns `folder`."""
    from official.data.packing import creation

    files = os.path.join(records, "*.tfrecord")
    creation.pack_records(
        creation.Job(files, folder, algorithm="lpfhp", max_sequences_per_pack=_PACKED_DEPTH, num_workers=1)
    )
    return folder


def reading_case(paths: list[str], schema: dict, packer, batches: int):
    """Returns a function that reads the next `batches` batches of the training data in files."""
    import tensorflow as tf

    from official.config.derived import num_streams
    from official.data.pipeline import TrainingOrder
    from official.data.records import batches as record_batches

    order, streams = TrainingOrder(seed=1), num_streams(len(paths), _READ_BATCH)
    # One iterator for all rounds: its start, about 0.3 s once per run, is in the warm-up round.
    dataset = record_batches.training_dataset(paths, schema, _READ_BATCH, order, streams, packer=packer)
    iterator = iter(dataset)

    @tf.function
    def read():
        for _ in tf.range(batches):
            next(iterator)

    return read


def peak_memory(flags, folder: str) -> dict:
    """Returns {bytes of text: peak memory in bytes of `bert data create` on it}."""
    from official.io import files

    texts = [open(path, "rb").read() for path in files.find_files(flags.input_files, "input_files")]
    peaks = {}
    for wanted in _MEMORY_BYTES:
        path = os.path.join(folder, "text")
        with open(path, "wb") as file:
            while file.tell() < wanted:
                file.writelines(texts)
        command = [
            *harness.in_new_process("data", "create"),
            f"--input_files={path}",
            f"--output_dir={folder}/memory",
            f"--vocab_file={flags.vocab_file}",
            "--dupe_factor=1",
            "--num_workers=1",
            "--overwrite",
        ]
        # Not ru_maxrss: a new process inherits that of this one, which has TensorFlow and the text.
        peaks[str(os.path.getsize(path))] = harness.watch(command, folder)["peak_memory_bytes"]
        shutil.rmtree(os.path.join(folder, "memory"))
    return peaks


def time_all(flags, folder: str) -> dict:
    """Returns the figures; speeds of creation are MB (10^6 bytes) of text per second."""
    from official.data.text import documents
    from official.io import files

    paths = files.find_files(flags.input_files, "input_files")
    text_bytes = sum(files.sizes(paths))
    counts = documents.ReadCounts()
    sentences = [sentence for document in documents.read_documents(paths, counts) for sentence in document]
    cases = {"tokenizer": tokenizer_case(flags, sentences), **creation_cases(flags, folder)}
    made = harness.in_turns(cases, flags.rounds, 1, "creation")
    read_cases, records = reading_cases(folder)
    read = harness.in_turns(read_cases, flags.rounds, 1, "reading")
    sizes = {
        kind: sum(files.sizes(files.find_files(f"{folder}/512_10_{kind}/*.tfrecord", "x")))
        for kind in FORMATS
    }
    return {
        "text_bytes": text_bytes,
        "documents": counts.documents,
        "sentences": len(sentences),
        "mb_per_sec": {name: _figures(timing, text_bytes / 1e6) for name, timing in made.items()},
        "share_of_tokenizer": made["tokenizer"].median / made["create 128 x1 plain"].median,
        "records_per_sec": {name: _figures(timing, records[name]) for name, timing in read.items()},
        "compact_bytes_of_plain": sizes["compact"] / sizes["plain"],
        "compact_speed_of_plain": (
            read["read plain"].median
            / records["read plain"]
            * records["read compact"]
            / read["read compact"].median
        ),
    }


def _figures(timing, amount: float) -> dict:
    return {"median": timing.rate(amount), "spread": timing.spread, "secs": timing.secs}


def main() -> None:
    flags = Main.parse()
    with tempfile.TemporaryDirectory() as folder:
        figures = time_all(flags, folder)
        if flags.memory:
            figures["peak_memory_bytes"] = peak_memory(flags, folder)
    for name, value in {**figures["mb_per_sec"], **figures["records_per_sec"]}.items():
        unit = "sequences/s" if name.startswith("read") else "MB/s"
        print(f"{name:24}{value['median']:>12,.2f} {unit} +- {value['spread']:.1%}")
    print(
        f"dupe 1, 128 tokens: {figures['share_of_tokenizer']:.2f} of the bare tokenizer; compact:"
        f" {figures['compact_bytes_of_plain']:.2f} of the bytes, {figures['compact_speed_of_plain']:.1f}"
        " times the reading speed of plain"
    )
    for size, peak in figures.get("peak_memory_bytes", {}).items():
        print(f"{int(size) / 1e6:.0f} MB of text: {peak / 1e6:.0f} MB of memory at most")
    bars = [
        (
            name,
            value["median"],
            value["spread"],
            f"{value['median']:.1f} MB/s",
            "tokenizer" if name == "tokenizer" else "records",
        )
        for name, value in figures["mb_per_sec"].items()
    ]
    harness.write(flags, figures, bars, "Text to records, one process", "MB of text per second")


if __name__ == "__main__":
    harness.main(main)
