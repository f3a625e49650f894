"""Clients of a server over HTTP, each with its own connection, on which it sends one question after the
other.

Protocol: one JSON object per line, over standard input and output. First the input is {"questions":
FILE.json}, a list of [question, context], and the output {"versions"}. Then each line is a task, until the
input ends:
  {"port": P, "path": "/...", "clients": N, "secs": S}: N clients ask for S seconds, client n the questions n,
    n + N, n + 2N, ... in turn; outputs the result of `ask_all`

Imports only Python's standard library, since its CPU time is taken from the measured server.
"""

import http.client
import json
import os
import sys
import threading
import time
from typing import NamedTuple

_TIMEOUT_SECS = 60.0
_LONGEST_ERROR = 200
_PAUSE_SECS = 0.05  # after an error, so that a server that is down does not keep a core busy


class Question(NamedTuple):
    """A request's body, and the context that must contain the answer."""

    body: bytes
    context: str


class Asked(NamedTuple):
    """One request.

    Attributes:
      number: number of the question.
      start, end: times of sending and of the complete answer, in seconds of the monotonic clock, which all
        processes of a machine share.
      text: text of the answer; '' after an error.
      error: error message; '' without one.
    """

    number: int
    start: float
    end: float
    text: str
    error: str


def read_questions(path: str) -> list[Question]:
    """Returns the questions of a file."""
    with open(path, encoding="utf-8") as file:
        pairs = json.load(file)
    return [
        Question(
            json.dumps(
                {"signature_name": "answer", "instances": [{"question": question, "context": context}]}
            ).encode(),
            context,
        )
        for question, context in pairs
    ]


def text_of(body: bytes, context: str) -> str:
    """Returns the text of a response's answer. Raises ValueError for an invalid answer: not exactly one
    prediction, a text that is not at its position in the context, a score that is not a probability."""
    try:
        (found,) = json.loads(body)["predictions"]
        text, start, end, score = (found[name] for name in ("text", "start", "end", "score"))
        is_right = context[start:end] == text and 0 <= score <= 1
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"no prediction: {body[:_LONGEST_ERROR]!r}") from error
    if not is_right:
        raise ValueError(f"no answer to the question: {body[:_LONGEST_ERROR]!r}")
    return text


class Client:
    """A persistent connection, reopened after an error."""

    def __init__(self, port: int, path: str):
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_SECS)
        self._path = path

    def ask(self, question: Question) -> str:
        """Returns the text of the answer. Raises OSError, HTTPException or ValueError."""
        headers = {"Content-Type": "application/json"}
        self._connection.request("POST", self._path, question.body, headers)
        response = self._connection.getresponse()
        body = response.read()
        if response.status != http.client.OK:
            raise ValueError(f"status {response.status}: {body[:_LONGEST_ERROR]!r}")
        return text_of(body, question.context)

    def close(self) -> None:
        self._connection.close()


def ask_until(client: Client, questions: list[Question], numbers: range, until: float) -> list[Asked]:
    """Asks questions one after the other, repeatedly, until a time of the monotonic clock.

    Args:
      client: the client.
      questions: all questions.
      numbers: numbers of the client's questions: the first, and the step.
      until: no request begins later, except the first one.
    """
    asked: list[Asked] = []
    number = numbers.start
    while (start := time.monotonic()) < until or not asked:
        text = error = ""
        try:
            text = client.ask(questions[number % len(questions)])
        except (OSError, http.client.HTTPException, ValueError) as problem:
            error = f"{type(problem).__name__}: {problem}"[:_LONGEST_ERROR]
            client.close()
        asked.append(Asked(number % len(questions), start, time.monotonic(), text, error))
        if error:
            time.sleep(_PAUSE_SECS)
        number += numbers.step
    return asked


def ask_all(port: int, path: str, questions: list[Question], clients: int, secs: float) -> dict:
    """Runs clients concurrently.

    Returns:
      began: start on the monotonic clock; asked: every request as fields of `Asked`, in the order of their
        ends;
      cpu_secs: CPU time of this process.
    """
    cpu, began = time.process_time(), time.monotonic()
    asked: list[list[Asked]] = [[] for _ in range(clients)]

    def run(number: int) -> None:
        client = Client(port, path)
        numbers = range(number, sys.maxsize, clients)
        asked[number] = ask_until(client, questions, numbers, began + secs)
        client.close()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ordered = sorted((one for own in asked for one in own), key=lambda one: one.end)
    return {"began": began, "asked": ordered, "cpu_secs": time.process_time() - cpu}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    questions = read_questions(json.loads(sys.stdin.readline())["questions"])
    _say(answers, {"versions": {"python": sys.version.split()[0]}})
    for line in sys.stdin:
        asked = json.loads(line)
        _say(
            answers,
            ask_all(asked["port"], asked["path"], questions, asked["clients"], asked["secs"]),
        )


def _say(answers, values: dict) -> None:
    answers.write(json.dumps(values) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
