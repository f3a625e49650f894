"""Passes on lines from stdin to stderr as they come, but for those of a pattern, up to a mark or the end.

`quiet` starts this file with Python alone: it imports nothing of the project.
"""

import os
import re
import sys


def main(pattern: bytes, mark: bytes) -> None:
    noise, text, is_over = re.compile(pattern), b"", False
    while not is_over:
        data = os.read(0, 65536)
        *lines, text = (text + data).split(b"\n")
        is_over = not data or text.endswith(mark)
        lines = [line + b"\n" for line in lines] + ([text.replace(mark, b"")] if is_over else [])
        data = b"".join(line for line in lines if not noise.match(line))
        try:
            while data:
                data = data[os.write(2, data) :]
        except OSError:  # a full disk, or nobody who reads
            pass


if __name__ == "__main__":
    main(*map(os.fsencode, sys.argv[1:]))
