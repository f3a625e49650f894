"""Where TensorFlow places the operations of a training step: next to nothing on the host."""

import collections
import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.gpu import kernels

pytestmark = pytest.mark.gpu

# What may be on the host: the data pipeline's end, the step's loop and branch, what carries tensors from one
# device to the other, and what has no value.
ON_HOST = set(
    """_Arg _Retval _Send _Recv _HostSend _HostRecv NoOp Const Identity IdentityN
    IteratorGetNext IteratorGetNextAsOptional IteratorV2 AnonymousIteratorV2 AnonymousIteratorV3
    OptionalFromValue OptionalGetValue OptionalHasValue OptionalNone
    MultiDeviceIteratorGetNextFromShard RemoteCall
    Enter Exit Merge Switch NextIteration LoopCond ControlTrigger
    While StatelessWhile If StatelessIf""".split()
)


def places(settings: dict) -> dict[tuple[str, str, str], int]:
    """Returns {(device, operation, types): how many} of a step, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.placement_program", json.dumps(settings)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return {tuple((place + "  ").split(" ", 2)): count for place, count in found.items()}


@pytest.mark.parametrize(
    "settings",
    [{}, {"kernels": "plain"}, {"dtype": "fp16"}, {"dtype": "fp16", "enable_xla": True}],
    ids=["fused", "plain", "fp16", "xla"],
)
def test_a_step_computes_nothing_on_the_host(device, settings, capsys):
    found = places({**settings, **device.settings})
    on_host = collections.Counter()
    for (where, operation, types), count in found.items():
        if where.startswith("CPU"):
            on_host[operation, types.strip()] += count
    with capsys.disabled():
        names = collections.Counter()
        for (operation, _), count in on_host.items():
            names[operation] += count
        print(f"\non the host: {', '.join(f'{count} {name}' for name, count in sorted(names.items()))}")
    compute = {place: count for place, count in on_host.items() if place[0] not in ON_HOST}
    assert sum(found.values()) > 300
    is_here = device.name.strip("/").upper()
    compiled = settings.get("enable_xla")
    assert compiled or any(where == is_here and "MatMul" in operation for where, operation, _ in found)
    if device.is_gpu:
        assert not compute
    else:  # all is here, some of it rewritten for oneDNN: is there something that no GPU could take?
        names = {operation for operation, _ in compute if not operation.startswith("_Mkl")}
        assert names and not {operation for operation in names if not kernels.of_gpus(operation)}
        assert ("Unpack", "uint32") not in compute
