"""Kinds of files that hold tensors, one module each.

A container has

  LAST                                  ending of the file without which the others count for nothing
  IS_FOLDER                             a checkpoint is a whole folder, not some files in one
  locate(path)                          location of the checkpoint that a file or folder means, or None
  read(location)                        tensors that are read when they are asked for; DamagedError, also then
  write(tensors, location, progress)    into a folder of its own, which the caller publishes
  target(output_dir, source)            location of a conversion of `source`
  files(location)                       files of a checkpoint that are there

The last three are missing where no conversion writes such files.
"""

import os
import re
from collections.abc import Callable

Progress = Callable[[int], None]  # is called with the bytes written since the last call


def stem(source: str) -> str:
    """Returns the name of a source without its folder, and without the ending of a kind that is one file."""
    return re.sub(r"\.(onnx|safetensors)$", "", os.path.basename(os.path.abspath(source)))
