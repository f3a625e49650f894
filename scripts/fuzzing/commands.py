"""All commands that are damaged, by their names."""

from fuzzing import readers, tools, trainings

COMMANDS = {
    command.name: command
    for make in (
        trainings.trainings,
        tools.data,
        tools.checkpoints,
        readers.results,
        readers.answers,
        readers.benchmarks,
    )
    for command in make()
}
