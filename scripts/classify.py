#!/usr/bin/env python3
"""Labels typed sentences, or pairs of them, with a model that train.py has fine-tuned on a task of GLUE.

  python scripts/classify.py --checkpoint=runs/sst2
  echo "A fine film." | python scripts/classify.py --checkpoint=runs/sst2

A sentence a line, or two with a tab between them for the tasks with pairs; the end of input ends it.
"""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

import command_line
import fine_tuned


def parse_flags():
    parser = command_line.Parser(__doc__.splitlines()[0])
    fine_tuned.add_flags(parser)
    return parser.parse()


def make_labeller(config, model, vocabulary):
    """Returns list of texts of one row -> one line: the label with its probability, or the score."""
    import tensorflow as tf

    from official.data.glue import features, tasks, tsv_files
    from official.data.rows import token_rows
    from official.data.word_pieces.tokenization import Tokenizer

    task, tokenizer = tasks.find_task(config.glue_task), Tokenizer(vocabulary)

    def label(texts: list[str]) -> str:
        made = features.make_features(
            tsv_files.GlueRows("", tuple([text] for text in texts), None, []),
            tokenizer,
            vocabulary,
            config.max_seq_length,
        )
        rows = token_rows.TokenRows(made.ids, made.lengths, made.first_lengths, {})
        logits_C = model(next(iter(token_rows.evaluation_dataset(rows, 1, config.max_seq_length, True))))[0]
        if task.is_regression:
            return f"{float(logits_C[0]):.2f}"
        probabilities_C = tf.nn.softmax(logits_C).numpy()
        best = int(probabilities_C.argmax())
        return f"{task.labels[best]}  {probabilities_C[best]:.2f}"

    return label, len(task.text_columns)


def main() -> None:
    flags = parse_flags()

    label, texts_of_a_row = make_labeller(*fine_tuned.load(flags, "glue"))
    for line in fine_tuned.lines("sentence> " if texts_of_a_row == 1 else "sentence<TAB>sentence> "):
        texts = line.split("\t")
        if len(texts) != texts_of_a_row:
            print(
                f"{len(texts)} text{'s' * (len(texts) > 1)} between tabs, expected {texts_of_a_row}.",
                file=sys.stderr,
            )
        else:
            print(label(texts), flush=True)


if __name__ == "__main__":
    command_line.run(main)
