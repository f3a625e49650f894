"""Converts a BERT-large file of random numbers google -> graphcore -> google and measures time and peak
memory of each conversion.

  python benchmarks/conversion.py --output=results/convert_bert_large.json

Each conversion runs the user's command line in a separate process. Its peak memory is reported minus that of
a process that only imports the same modules.
"""

import os
import subprocess
import sys
import tempfile
import time

import harness

_IMPORTS = (
    "from official.cli import checkpoints; from official.checkpoint import convert; "
    "import official.inference.verification"
)


class Main(harness.ModelFlag, harness.NumbersFlags):
    """Flags of the command.

    Attributes:
      bert_config_file: Model.
    """

    bert_config_file: str = "configs/models/bert_large.json"


def write_random(config_file: str, prefix: str) -> int:
    """Writes a Google checkpoint of random numbers, tensor by tensor. Returns its size in bytes."""
    import numpy as np

    from official.checkpoint import canonical
    from official.checkpoint.containers import bundle
    from official.checkpoint.tensors import Tensor
    from official.config import bert_config_from_dict

    model = bert_config_from_dict(harness.read_model(config_file), config_file)
    sizes = canonical.Sizes(
        words=model.vocab_size,
        hidden=model.hidden_size,
        inner=model.intermediate_size,
        positions=model.max_position_embeddings,
        types=model.type_vocab_size,
    )
    generator = np.random.default_rng(1)

    def random(name: str, shape: tuple[int, ...]) -> Tensor:
        return Tensor(
            shape, np.dtype(np.float32), lambda: generator.standard_normal(shape, np.float32), (name,)
        )

    names = {
        name.replace("{layer}", str(layer)): None
        for name in (*canonical.ENCODER, *canonical.PRETRAINING_HEADS)
        for layer in range(model.num_hidden_layers)
    }
    tensors = {name: random(name, canonical.shape_of(name, sizes)) for name in names}
    bundle.write(tensors, prefix)
    return sum(tensor.nbytes for tensor in tensors.values())


def run_measured(command: list[str]) -> tuple[float, int]:
    """Runs a command. Returns its seconds and its peak memory in bytes."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)} failed: {errors.decode()[-500:]}")
    return time.monotonic() - started, usage.ru_maxrss * 1024


def measure(config_file: str, folder: str) -> dict:
    size = write_random(config_file, os.path.join(folder, "a", "model.ckpt"))
    _, baseline = run_measured([sys.executable, "-c", _IMPORTS])
    tool = harness.in_new_process("convert")
    kept = ["--precision=32", "--vocab_size=30522", "--use_cls_layer"]
    conversions = {}
    for action, source, target, flags in (
        ("google2graphcore", "a", "b", kept),
        ("graphcore2google", "b", "c", []),
        ("google2graphcore --precision=16 --vocab_size=30400", "a", "d", []),
    ):
        secs, peak = run_measured(
            [*tool, action.split()[0], f"{folder}/{source}", f"--output_dir={folder}/{target}", *flags]
        )
        conversions[action] = {
            "secs": round(secs, 2),
            "peak_bytes_beyond_imports": peak - baseline,
            "share_of_checkpoint": round((peak - baseline) / size, 3),
        }
    return {
        "checkpoint_bytes": size,
        "imports_bytes": baseline,
        "conversions": conversions,
        "round_trip_is_bit_equal": same(folder),
    }


def same(folder: str) -> bool:
    """Compares the tensors of the first and the last checkpoint."""
    from official.checkpoint.containers import bundle

    prefixes = (bundle.locate(os.path.join(folder, name)) for name in ("a", "c"))
    first, last = (bundle.read(str(prefix)) for prefix in prefixes)
    return first.keys() == last.keys() and all(
        (first[name].read() == last[name].read()).all() for name in first
    )


def main() -> None:
    flags = Main.parse()
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(flags.bert_config_file, folder)
    for action, row in measured["conversions"].items():
        print(
            f"{action}: {row['secs']:.1f} s, {row['peak_bytes_beyond_imports'] / 1e6:,.0f} MB beyond the"
            f" imports ({row['share_of_checkpoint']:.0%} of {measured['checkpoint_bytes'] / 1e6:,.0f} MB)"
        )
    print(f"round trip bit-equal: {measured['round_trip_is_bit_equal']}")
    harness.write_json(flags, measured)


if __name__ == "__main__":
    harness.main(main)
