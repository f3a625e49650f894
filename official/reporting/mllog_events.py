"""The lines of an MLPerf log: reading them, and which of them a process that goes on keeps."""

from official.io import json_files
from official.io.errors import ConfigError
from official.io.writing import read_lines

_MARK = b":::MLLOG "
_COUNTS = ("samples_count", "first_epoch_num", "epoch_num", "epoch_count", "step_num")  # in the metadata
_EVALUATION = ("eval_start", "eval_stop", "eval_accuracy")


def read_events(path: str) -> list[dict]:
    """Reads a log: its events as dicts {time_ms, event_type, key, value, metadata}. A file that is missing
    holds none."""
    return [event for event in map(parse, read_lines(path)) if event]


def parse(line: bytes) -> dict | None:
    """Returns the event of a line, or None where the line is not a whole one."""
    _, mark, text = line.partition(_MARK)
    if not mark or not line.endswith(b"\n"):
        return None
    try:
        event = json_files.parse_json(text, "")
        for name, kind in (("key", str), ("time_ms", int), ("metadata", dict)):
            json_files.expect(event, name, kind, "")
        for name in _COUNTS:
            json_files.expect(event["metadata"], name, int, "", default=0)
    except ConfigError:
        return None
    return event if "value" in event else None


def kept_lines(lines: list[bytes], samples: int, evaluated: bool) -> list[bytes]:
    """Returns the lines of a run that tell what happened up to `samples` sequences, less its end; none of a
    run that was killed before it started.

    Args:
      lines: of the file.
      samples: sequences that the run goes on from.
      evaluated: whether the evaluation at exactly that point is known and is not made again.
    """
    kept, started = [], False
    for line in lines:
        event = parse(line)
        if event is None or event["key"] == "run_stop":
            continue
        at = event["metadata"].get("samples_count", 0)
        repeated = at == samples and event["key"] in _EVALUATION and not evaluated
        begun_again = at >= samples and event["key"] == "block_start"
        if at <= samples and not repeated and not begun_again:
            kept.append(line)
            started = started or event["key"] == "run_start"
    return kept if started else []


def end_after(kept: list[bytes], lines: list[bytes]) -> bytes | None:
    """Returns the run_stop that is all that a file holds beyond the kept lines, or None."""
    if not kept or lines[:-1] != kept:
        return None
    event = parse(lines[-1])
    return lines[-1] if event and event["key"] == "run_stop" else None


def open_block(events: list[dict]) -> dict | None:
    """Returns the metadata of the last block_start; None where it has no epochs or a block_stop follows."""
    blocks = [event for event in events if event["key"].startswith("block_")]
    is_open = blocks and blocks[-1]["key"] == "block_start" and "first_epoch_num" in blocks[-1]["metadata"]
    return blocks[-1]["metadata"] if is_open else None
