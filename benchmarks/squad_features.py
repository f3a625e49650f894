"""Times the creation of SQuAD's features on one core, including reading the file, without start-up and a
warm-up round.

  python benchmarks/squad_features.py --predict_file=data/squad/dev-v1.1.json --vocab_file=vocab.txt \\
    --output=results/squad_features.json
"""

import os

import harness
from official.cli import command_line


class Main(command_line.LowerCaseFlag, harness.NumbersFlags):
    """Flags of the command.

    Attributes:
      predict_file: SQuAD file, version 1.1.
      vocab_file: Vocabulary.
      max_seq_length: Number of tokens per window.
      doc_stride: Number of word pieces between the starts of successive windows.
      max_query_length: Maximum number of word pieces of a question.
      rounds: Number of timings.
    """

    predict_file: str
    vocab_file: str
    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64
    rounds: int = 5


def main() -> None:
    flags = Main.parse()
    from official.data.squad import features, squad_files
    from official.data.word_pieces import vocabulary
    from official.reporting import measurement

    words = vocabulary.load_for_text(flags.vocab_file, flags.do_lower_case)
    rules = features.WindowRules(flags.max_seq_length, flags.doc_stride, flags.max_query_length)

    def make():
        data = squad_files.read_squad(
            flags.predict_file, "predict_file", for_training=False, version_2_with_negative=False
        )
        return data, features.load_or_make_features(data, words, rules, cache_dir=None)

    data, made = make()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    timing = measurement.measure_in_turns({"make": make}, flags.rounds)["make"]
    values = {
        "questions": len(data.questions),
        "features": len(made),
        "rules": vars(rules),
        "secs": timing.secs,
        "median_secs": timing.median,
        "spread": timing.spread,
        "cores": 1,
    }
    harness.write_json(flags, values)
    print(
        f"{values['features']:,} features of {values['questions']:,} questions in {timing.median:.2f} s on"
        f" one core (+- {timing.spread:.1%})"
    )


if __name__ == "__main__":
    harness.main(main)
