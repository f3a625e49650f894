"""The model without a server: this project's `load(...).answer_all` on batches of one size.

Protocol: one JSON object per line, over standard input and output. First the input is the specification:
questions (a file, as for load.py), model, backend, dtype, threads; the output is {"versions"} once the model
is ready. Then each line is a question, until the input ends:
  {"batch": N, "secs": S}: answers batches of N questions in turn for S seconds, after an untimed one; outputs
  the
    result of `measure`
"""

import json
import os
import sys
import time


def make(specification: dict):
    """Returns the model of a specification."""
    import official

    official.choose_kernels(specification["dtype"])
    from official.inference import load

    names = ("backend", "dtype", "threads")
    model = load(specification["model"], **{name: specification[name] for name in names})
    model.prepare("answer")
    return model


def measure(model, questions: list, size: int, secs: float) -> dict:
    """Times batches of questions.

    Returns:
      batch_secs: seconds of each batch; texts: {number of a question: text of its answer}.
    """
    texts: dict[int, str] = {}
    batch_secs: list[float] = []
    first = 0
    model.answer_all([questions[number % len(questions)] for number in range(size)])
    began = time.monotonic()
    while not batch_secs or time.monotonic() - began < secs:
        numbers = [number % len(questions) for number in range(first, first + size)]
        started = time.monotonic()
        answers = model.answer_all([questions[number] for number in numbers])
        batch_secs.append(time.monotonic() - started)
        texts |= {number: answer.text for number, answer in zip(numbers, answers)}
        first += size
    return {"batch_secs": batch_secs, "texts": texts}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps prints of libraries out of the answers
    specification = json.loads(sys.stdin.readline())
    with open(specification["questions"], encoding="utf-8") as file:
        questions = [tuple(pair) for pair in json.load(file)]
    model = make(specification)
    _say(answers, {"versions": {}})
    for line in sys.stdin:
        asked = json.loads(line)
        _say(answers, measure(model, questions, asked["batch"], asked["secs"]))


def _say(answers, values: dict) -> None:
    answers.write(json.dumps(values) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
