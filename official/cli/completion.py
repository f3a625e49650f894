"""Prints the shell completion of `bert`: commands, flags, and the names of --config.

  source <(bert completion bash)
  source <(bert completion zsh)
  bert completion fish > ~/.config/fish/completions/bert.fish

It is made of the table of commands and of their flags; print it again after an update.
"""

import argparse
from collections.abc import Callable

from official import config as config_lib
from official.cli import command_line, configs, table

Flags = dict[str, tuple[str, ...]]  # {--name: its values, where they are a few known ones}


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    parser.add_argument("shell", choices=sorted(SHELLS), help="Whose completions.")
    return parser


def parse_flags() -> argparse.Namespace:
    return make_parser().parse()


def main() -> None:
    print(SHELLS[parse_flags().shell](), end="")


def flags_of(command: table.Command) -> Flags:
    """Returns the flags of a command."""
    module = command.load()
    if hasattr(module, "make_parser"):
        return module.make_parser().options()
    return _settings()


def _settings() -> Flags:
    """Returns the flags of training."""
    found: Flags = {
        "--config": (*configs.names(), *configs.theirs()),
        "--flagfile": (),
        "--help": (),
    }
    for field in config_lib.FIELDS.values():
        values = ("true", "false") if field.type is bool else field.choices
        found[f"--{field.name}"] = tuple(map(str, values))
    return found


def first_words() -> list[str]:
    """Returns the words that may follow `bert`, commands and groups, each once."""
    names = [command.group or command.name for command in table.COMMANDS.values()]
    return list(dict.fromkeys(names))


def bash() -> str:
    """Returns the completion script for bash: a function that looks up the words by command."""
    cases = [f"    {_quoted('')}) words={_quoted(' '.join(first_words()))} ;;"]
    cases += [f"    {group}) words={_quoted(' '.join(table.members(group)))} ;;" for group in table.GROUPS]
    values = []
    for command in table.COMMANDS.values():
        flags = flags_of(command)
        cases.append(
            f"    {_quoted(command.name)}) words={_quoted(' '.join(map(_with_equals, flags.items())))} ;;"
        )
        values += [
            f"    {_quoted(f'{command.name} {name}')}) words={_quoted(' '.join(allowed))} ;;"
            for name, allowed in flags.items()
            if allowed
        ]
    return _BASH.format(groups="|".join(table.GROUPS), cases="\n".join(cases), values="\n".join(values))


def zsh() -> str:
    """Returns the completion script for zsh: bash's, loaded through bashcompinit."""
    return f"autoload -U +X bashcompinit && bashcompinit\n{bash()}"


def fish() -> str:
    """Returns the completion script for fish, one line per command or flag."""
    first = " ".join(first_words())
    lines = ["complete -c bert -f"]
    for name in first_words():
        text = table.GROUPS.get(name) or table.COMMANDS[name].help
        lines.append(_fish_line(f"not __fish_seen_subcommand_from {first}", f"-a {name}", text))
    for command in table.COMMANDS.values():
        group, _, member = command.name.rpartition(" ")
        seen = f"__fish_seen_subcommand_from {command.name.split(' ')[0]}"
        if group:
            others = " ".join(table.members(group))
            condition = f"{seen}; and not __fish_seen_subcommand_from {others}"
            lines.append(_fish_line(condition, f"-a {member}", command.help))
            seen = f"{seen}; and __fish_seen_subcommand_from {member}"
        for name, allowed in flags_of(command).items():
            values = f" -x -a {_quoted(' '.join(allowed))}" if allowed else " -r -F"
            lines.append(_fish_line(seen, f"-l {name.removeprefix('--')}{values}"))
    return "\n".join(lines) + "\n"


SHELLS: dict[str, Callable[[], str]] = {"bash": bash, "zsh": zsh, "fish": fish}


def _with_equals(flag: tuple[str, tuple[str, ...]]) -> str:
    """Returns a flag, with = where it has known values to offer."""
    name, allowed = flag
    return f"{name}=" if allowed else name


def _fish_line(condition: str, what: str, text: str = "") -> str:
    return f"complete -c bert -n {_quoted(condition)} {what}" + (f" -d {_quoted(text)}" if text else "")


def _quoted(text: str) -> str:
    """Returns a text quoted as one word for every shell."""
    return "'" + text.replace("'", "") + "'"


_BASH = r"""_bert() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" command="" flag="" words="" index=1 before
  while (( index < COMP_CWORD )); do
    before="${{COMP_WORDS[index]}}"
    [[ "$before" == -* ]] && break
    if [[ -z "$command" ]]; then
      command="$before"
      case "$command" in {groups}) ;; *) break ;; esac
    else
      command="$command $before"
      break
    fi
    (( index++ ))
  done
  # bash takes --name=value for three words
  if [[ "$word" == "=" ]]; then
    flag="${{COMP_WORDS[COMP_CWORD-1]}}" word=""
  elif [[ "${{COMP_WORDS[COMP_CWORD-1]}}" == "=" ]]; then
    flag="${{COMP_WORDS[COMP_CWORD-2]}}"
  elif [[ "$word" == --*=* ]]; then
    flag="${{word%%=*}}" word="${{word#*=}}"
  fi
  if [[ -n "$flag" ]]; then
    case "$command $flag" in
{values}
    esac
  else
    case "$command" in
{cases}
    esac
  fi
  if [[ -n "$words" ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
  fi
  if [[ -z "${{COMPREPLY[*]}}" ]]; then
    COMPREPLY=($(compgen -f -- "$word"))
  fi
  if [[ "${{COMPREPLY[*]}}" == *= ]] && type compopt >/dev/null 2>&1; then
    compopt -o nospace
  fi
}}
complete -F _bert bert
"""
