"""Prints the shell completion of `bert`: commands, flags, and the names of --config.

  source <(bert completion bash)
  source <(bert completion zsh)

Print it again after an update. There is none for fish.
"""

import argparse
from typing import Any, Literal

from official import config as config_lib
from official.cli import command_line, configs, table


class Main(command_line.Flags):
    """Flags of the command.

    Attributes:
      shell: Shell to print completions for.
    """

    POSITIONAL = ("shell",)
    shell: Literal["bash", "zsh"]


def all_parser() -> argparse.ArgumentParser:
    """Returns one parser of all commands, a subcommand each."""
    top = argparse.ArgumentParser("bert")
    groups: dict[str | None, Any] = {None: top.add_subparsers()}
    for name, text in table.GROUPS.items():
        groups[name] = groups[None].add_parser(name, help=text).add_subparsers()
    for command in table.COMMANDS.values():
        parser = command.parser() or _training_parser()
        word = command.name.rpartition(" ")[2]
        groups[command.group].add_parser(word, parents=[parser], add_help=False, help=command.help)
    return top


def _training_parser() -> argparse.ArgumentParser:
    """Returns a parser of the settings of training."""
    parser, names = argparse.ArgumentParser(), (*configs.names(), *configs.theirs())
    parser.add_argument("--config", choices=names, help="Settings underneath.")
    parser.add_argument("--flagfile", help="File of flags.")
    for field in config_lib.FIELDS.values():
        values = ("true", "false") if field.type is bool else field.choices
        parser.add_argument(f"--{field.name}", choices=values or None, help=field.help.replace("%", "%%"))
    return parser


def main() -> None:
    shell = Main.parse().shell
    import shtab

    print(shtab.complete(all_parser(), shell))
    if shell == "bash":
        print(_EQUALS_SIGN, end="")


# bash takes --name=value for three words; shtab knows two.
_EQUALS_SIGN = r"""
_bert() {
  local word words=() cursor=$COMP_CWORD index
  for index in "${!COMP_WORDS[@]}"; do
    word="${COMP_WORDS[index]}"
    if [[ "$word" != "=" ]]; then words+=("$word")
    elif (( index == COMP_CWORD )); then words+=("")
    elif (( index < COMP_CWORD )); then (( cursor-- )); fi
  done
  COMP_WORDS=("${words[@]}") COMP_CWORD=$cursor
  _shtab_bert
}
complete -o bashdefault -F _bert bert
"""
