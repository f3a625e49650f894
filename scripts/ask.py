#!/usr/bin/env python3
"""Answers typed questions about a text, with a model that train.py has fine-tuned on SQuAD.

  python scripts/ask.py --checkpoint=runs/squad --context=text.txt
  echo "Who was first?" | python scripts/ask.py --checkpoint=runs/squad --context=text.txt --answers=3

A question a line; the end of input ends it. Each answer comes with its probability among the answers of the
n-best list.
"""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

import command_line
import fine_tuned
from command_line import ConfigError

_BATCH = 16  # windows that are read at once


def parse_flags():
    parser = command_line.Parser(__doc__.splitlines()[0])
    fine_tuned.add_flags(parser)
    parser.add_argument("--context", required=True, help="File with the text, UTF-8.")
    parser.add_argument("--answers", type=int, default=1, help="Answers to show for each question.")
    flags = parser.parse()
    if flags.answers < 1:
        raise ConfigError(f"--answers={flags.answers} is out of range. Allowed: 1 or more.")
    return flags


def read_context(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise ConfigError(f"--context={path}: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"--context={path} is not UTF-8 text ({error.reason} at byte {error.start})."
        ) from None
    if not text.strip():
        raise ConfigError(f"--context={path} has no text.")
    return text


def make_answerer(config, model, vocabulary, context: str):
    """Returns question -> [(answer, probability)], best first; '' for no answer."""
    import numpy as np

    from official.data.squad import answers, features, squad_files

    windows = features.WindowRules(config.max_seq_length, config.doc_stride, config.max_query_length)
    rules = answers.AnswerRules(
        config.n_best_size,
        config.max_answer_length,
        config.version_2_with_negative,
        config.null_score_diff_threshold,
    )

    def answer(question: str) -> list[tuple[str, float]]:
        data = squad_files.SquadData(
            "",
            "",
            "",
            False,
            config.version_2_with_negative,
            [""],
            [context],
            [squad_files.Question("0", question, 0, (), (), False)],
            {},
            [],
        )
        rows = features.make_features(data, vocabulary, windows)
        if not len(rows):
            return []
        longest = int(rows.lengths.max())
        logits = [
            model(rows.batch(slice(first, first + _BATCH), longest)) for first in range(0, len(rows), _BATCH)
        ]
        start, end = (np.concatenate([batch[part].numpy() for batch in logits]) for part in (0, 1))
        found = answers.answer_questions(start, end, rows, data, rules)
        nbest = found.nbest["0"]
        best = sorted(
            nbest, key=lambda entry: entry.text != found.predictions["0"]
        )  # stable: the prediction, then the others
        return [(entry.text, entry.probability) for entry in best]

    return answer


def main() -> None:
    flags = parse_flags()
    context = read_context(flags.context)

    answer = make_answerer(*fine_tuned.load(flags, "squad"), context)
    for question in fine_tuned.lines("question> "):
        for text, probability in answer(question)[: flags.answers] or [("", 1.0)]:
            print(f"{' '.join(text.split()) or '(no answer)'}  {probability:.2f}", flush=True)


if __name__ == "__main__":
    command_line.run(main)
