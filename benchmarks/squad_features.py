"""Times the making of SQuAD's features on one core, reading of the file included, start-up and a warm-up
round apart.

  python benchmarks/squad_features.py --predict_file=data/squad/dev-v1.1.json --vocab_file=vocab.txt \\
    --output=results/squad_features.json
"""

import argparse
import os

import harness

from official.cli import command_line


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    parser.add_argument("--predict_file", required=True, help="SQuAD file, version 1.1.")
    parser.add_argument("--vocab_file", required=True, help="Vocabulary.")
    text = "Whether text loses its capitals and accents. Unset: as tokenizer_config.json says, else yes."
    parser.add_argument("--do_lower_case", action=argparse.BooleanOptionalAction, help=text)
    parser.add_argument("--max_seq_length", type=int, default=384, help="Tokens of a window.")
    parser.add_argument(
        "--doc_stride", type=int, default=128, help="Word pieces between the windows of a long context."
    )
    parser.add_argument(
        "--max_query_length", type=int, default=64, help="Word pieces of a question, at most."
    )
    parser.add_argument("--rounds", type=int, default=5, help="How many times they are made.")
    harness.add_json_flags(parser)
    return parser


def main() -> None:
    flags = make_parser().parse()
    harness.check_json(flags)
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
