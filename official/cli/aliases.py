"""Other people's spellings of our flags: one table, applied before anything is parsed.

A spelling is never a setting: configurations, flagfiles that we ship and saved runs hold our names only.
"""

# Another name -> ours. Names are compared with underscores: hyphens are the spelling of Graphcore's commands.
NAMES: dict[str, str] = {}


def normalized(arguments: list[str]) -> list[str]:
    """Returns arguments in our spelling: --wandb-name=x is --wandb_name=x. What follows -- stays as it is."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return [*map(_normalized, arguments[:end]), *arguments[end:]]


def _normalized(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument[2:].partition("=")
    name = name.replace("-", "_")
    return f"--{NAMES.get(name, name)}{equals}{value}"
