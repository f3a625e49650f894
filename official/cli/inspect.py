"""Shows what is in a checkpoint of any known format: its format, sizes, and a table of its tensors.

bert inspect PATH [--digest] [--json]
"""

import argparse
import hashlib
import json

from official.cli import command_line


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    parser.add_argument("path", metavar="PATH", help="Checkpoint: prefix, file or folder.")
    parser.add_argument(
        "--digest", action="store_true", help="Also read every tensor and show the sha256 of its values."
    )
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    return parser


def parse_flags() -> argparse.Namespace:
    return make_parser().parse()


def inspect(path: str, digest: bool) -> dict:
    """Returns {format, path, tensors, parameters, bytes, table: [{name, shape, dtype, sha256}]} of a
    checkpoint."""
    from official.checkpoint import DamagedError, registry
    from official.io.errors import ConfigError

    checkpoint = registry.open_checkpoint(path, "PATH")
    try:
        rows = [
            {
                "name": name,
                "shape": list(tensor.shape),
                "dtype": tensor.dtype.name,
                **({"sha256": sha256(tensor)} if digest else {}),
            }
            for name, tensor in sorted(checkpoint.tensors.items())
        ]
    except DamagedError as error:
        raise ConfigError(f"{path}: unreadable checkpoint ({error}).") from None
    return {
        "format": checkpoint.format.reported_name,
        "path": checkpoint.location,
        **registry.size_of(checkpoint.tensors),
        "table": rows,
    }


def sha256(tensor) -> str:
    """Returns the digest of a tensor's values, little-endian in C order."""
    return hashlib.sha256(tensor.read().tobytes()).hexdigest()


def describe(found: dict) -> str:
    width = max((len(row["name"]) for row in found["table"]), default=0)
    shapes = max((len(str(row["shape"])) for row in found["table"]), default=0)
    lines = [
        (
            f"{row['name']:<{width}}  {str(row['shape']):<{shapes}}  {row['dtype']:<8}"
            f" {row.get('sha256', '')}"
        ).rstrip()
        for row in found["table"]
    ]
    total = (
        f"{found['format']}: {found['tensors']} tensors, {found['parameters']:,} numbers,"
        f" {found['bytes'] / 1e6:,.1f} MB, {found['path']}"
    )
    return "\n".join([*lines, total])


def main() -> None:
    flags = parse_flags()
    found = inspect(flags.path, flags.digest)
    print(json.dumps(found, indent=1) if flags.json else describe(found))
