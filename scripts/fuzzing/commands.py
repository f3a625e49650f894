"""All commands that are damaged, by their names."""

from fuzzing import readers, tools, trainings

_TABLES = (
    trainings.TRAININGS,
    tools.DATA,
    tools.checkpoints(),
    readers.RESULTS,
    readers.answers(),
    readers.fill_masks(),
    readers.LAUNCHER,
    readers.SERVERS,
    readers.BENCHMARKS,
)
COMMANDS = {command.name: command for table in _TABLES for command in table}
