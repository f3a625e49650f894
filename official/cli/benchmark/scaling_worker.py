"""A process of `bert benchmark scaling`: builds its part of the works, then runs those it is told to.

One JSON object a line, over standard input and output. First the specification comes in and
{"gradient_bytes"} goes out once everything has run; then {"work": NAME} comes in and {"secs"} goes out, until
the input ends. The specification: core (that it computes on), settings (of `step_benchmark.step_config`),
model, length, rows (of a micro batch of all processes), dtype, accumulations, steps.
"""

import json
import os
import sys
import time
from collections.abc import Callable


def main() -> None:
    """Serves until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    told = json.loads(sys.stdin.readline())
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {told["core"]})
    works, gradient_bytes = _make_works(told)
    for work in works.values():
        work()
    _say(answers, gradient_bytes=gradient_bytes)
    for line in sys.stdin:
        work = works[json.loads(line)["work"]]
        started = time.perf_counter()
        work()
        _say(answers, secs=time.perf_counter() - started)


def _make_works(told: dict) -> tuple[dict[str, Callable[[], object]], int]:
    import official

    official.choose_kernels(told["dtype"])
    from official.tasks import TASKS
    from official.training import step_benchmark

    config = step_benchmark.step_config(
        told["model"], told["length"], told["rows"], told["dtype"], told["settings"]
    )
    return step_benchmark.make_works(config, TASKS["pretrain"], told["accumulations"], told["steps"])


def _say(answers, **values) -> None:
    answers.write(json.dumps(values) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
