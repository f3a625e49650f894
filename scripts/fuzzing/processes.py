"""Starting cases in processes of their own, and judging what they left on their terminal."""

import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIMIT_SECS = 240  # a case takes seconds; what takes longer hangs
_MOST_CHARACTERS = 300  # of an error line
# What libraries print, and tracebacks: nothing that tells a user what to do.
_NOISE = re.compile(
    r"Traceback|ERROR:tensorflow|WARNING:tensorflow|All log messages before absl|"
    r"^[EWIF]\d{4} \d\d:|: [EWF] \w+/|\w+Warning: |"
    r"Exception ignored|dumped|<class '",
    re.MULTILINE,
)
_NAMED = re.compile(
    r"damaged|skipped|left out|malformed|undecodable|not in the context|"
    r"empty|nanswered|issing prediction|not finite|non-finite|NaN|added: "
)


class Server:
    """The process that forks cases; `submit` some, and take as many answers."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fuzzing.server"],
            cwd=os.path.join(ROOT, "scripts"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if not self._process.stdout.readline():
            raise RuntimeError("the server of the cases did not start; its message is above")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()

    def submit(
        self, number: int, script: str, arguments: tuple[str, ...], folder: str, output: str | None = None
    ) -> None:
        """Starts a command in a folder; its output goes to the same folder or to another one."""
        request = {
            "number": number,
            "script": os.path.join(ROOT, script),
            "arguments": list(arguments),
            "folder": folder,
            "output": output or folder,
            "limit_secs": LIMIT_SECS,
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def next_answer(self) -> tuple[int, int | None, float]:
        """Waits for the next command that ends. Returns (number, exit code, None where it hung, and
        seconds)."""
        answer = json.loads(self._process.stdout.readline())
        return answer["number"], answer["code"], answer["secs"]


def text_of(path: str) -> str:
    """Returns a file as text."""
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        return file.read()


def judge(
    script: str, code: int | None, codes: tuple[int, ...], expected: str, output: str, errors: str
) -> str | None:
    """Returns what is wrong with how a case ended, or None.

    Args:
      script: the command's file.
      code: its exit code; None where it hung.
      codes: those that the command may end with, beside 2.
      expected: of `damage`: refused, named or any.
      output, errors: what it wrote to stdout, and to stderr, which was a terminal.
    """
    if code is None:
        return "hang"
    noise = _NOISE.search(errors) or _NOISE.search(output)
    if noise:
        return "traceback" if noise.group() == "Traceback" else f"noise: {noise.group()}"
    if code not in (2, *codes):
        return f"exit code {code}"
    if code == 2:
        return _judge_error(os.path.basename(script), errors)
    if not output.strip() and not errors.strip():
        return "nothing said"
    if expected == "refused" and code != 3:
        return "silent acceptance"
    if expected == "named" and code != 3 and not _NAMED.search(output + errors):
        return "silent acceptance"
    return None


def _judge_error(program: str, errors: str) -> str | None:
    """Returns what is wrong with an error: it is one short line, the last one, and nothing is drawn over
    it."""
    lines = [_shown(line) for line in errors.rstrip("\n").split("\n")]
    complaints = [line for line in lines if line.startswith(f"{program}: ")]
    if len(complaints) != 1:
        return f"{len(complaints)} error lines"
    if not errors.endswith("\n") or lines[-1] != complaints[0]:
        return "the error is not the last line"
    if lines[-1] != errors.rstrip("\n").rpartition("\n")[2].rpartition("\r")[2].rstrip():
        return "a bar is left behind the error"
    if len(lines[-1]) >= _MOST_CHARACTERS:
        return f"an error of {len(lines[-1])} characters"
    return None


def _shown(line: str) -> str:
    """Returns a line as a terminal shows it: what follows a carriage return overwrites what was there."""
    shown = ""
    for part in line.split("\r"):
        shown = part + shown[len(part) :]
    return shown.rstrip()
