"""Kinds of files that hold tensors, one module each.

A container has

  LAST                                  ending of the file that is written last and completes the others
  IS_FOLDER                             whether a checkpoint is a whole folder, not some files in one
  locate(path)                          location of the checkpoint at a file or folder, or None
  read(location)                        lazy tensors; DamagedError, also when one of them is read
  write(tensors, location, progress)    writes into a separate folder, which the caller publishes
  target(output_dir, source)            location of a conversion of `source`
  files(location)                       existing files of a checkpoint

The last three are missing if no conversion writes such files.
"""

import os
import re
from collections.abc import Callable

Progress = Callable[[int], None]  # called with the number of bytes written since the last call


def stem(source: str) -> str:
    """Returns the name of a source without its folder, and without the ending of single-file kinds."""
    return re.sub(r"\.(onnx|safetensors)$", "", os.path.basename(os.path.abspath(source)))
