"""Checkpoint formats: one file a format with a literal table of names, one file a kind of container.

A format module has
  TITLE                                        its name for people
  TABLE                                        {canonical name: its name | Transposed(its name) | None}, see `table`
  to_canonical(tensors, options) -> Mapped     its tensors under canonical names (`canonical`)
  from_canonical(tensors, options) -> Mapped   and back

A container module has
  locate(path) -> location | None              where the checkpoint is that a file, prefix or folder means; looks at names of files only
  read(location) -> Tensors                    lazily; raises reading.DamagedError for damaged files, also when a tensor is read
  write(tensors, location, options, progress)  into a folder of its own, which the caller publishes; progress(bytes) after each piece
  LAST                                         ending of the file without which the others count for nothing
  target(output_dir, source) -> location       where a conversion of `source` goes
  files(location) -> [paths]                   the files of a checkpoint that are there
"""
