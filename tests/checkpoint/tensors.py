"""Random tensors of checkpoints, and their comparison; what the tests of all formats share."""

import pathlib
import re

import numpy as np

from official.checkpoint import canonical
from official.checkpoint import tensors as tensors_lib
from tests.modeling import models

HEADS = (*canonical.PRETRAINING_HEADS, *canonical.SQUAD_HEAD, *canonical.CLASSIFIER_HEAD)
V, H = 48, 8
SIZES = canonical.Sizes(V, H, inner=16, positions=12, types=2, classes=3)
GROUPS = 4  # of GroupBERT's feed-forward


def each_layer(names) -> list[str]:
    """Returns names of two layers for those with a `{layer}`."""
    return list(dict.fromkeys(name.replace("{layer}", str(layer)) for name in names for layer in range(2)))


def shapes_of(names, sizes: canonical.Sizes = SIZES) -> dict[str, tuple[int, ...]]:
    """Returns {canonical name: shape} of two layers."""

    def shape_of(name: str) -> tuple[int, ...]:
        if "/dwconv/weight" in name:
            return 7, 4, sizes.hidden
        if re.search("feed_forward_./output/dense/kernel", name):
            return sizes.inner // GROUPS, sizes.hidden
        return canonical.shape_of(name, sizes)

    return {name: shape_of(name) for name in each_layer(names)}


def published(name: str) -> dict[str, tuple[int, ...]]:
    """Returns {name: shape} of two layers, of the layout that a file of published/ has, line by line."""
    letters = {"V": SIZES.words, "P": SIZES.positions, "H": SIZES.hidden, "I": SIZES.inner}

    def number(size: str) -> int:
        factor, letter, divisor = re.fullmatch(r"(\d*)([A-Z]?)/?(\d*)", size).groups()
        return int(factor or 1) * letters.get(letter, 1) // int(divisor or 1)

    lines = (pathlib.Path(__file__).parent / "published" / f"{name}.txt").read_text().splitlines()
    rows = [(names, *sizes.split(", ")) for names, sizes in (line.split(maxsplit=1) for line in lines)]
    return {each: tuple(map(number, sizes)) for names, *sizes in rows for each in each_layer([names])}


def with_slots(shapes, *slots) -> dict[str, tuple[int, ...]]:
    return shapes | {f"{name}/{slot}": shape for name, shape in shapes.items() for slot in slots}


def of_arrays(arrays) -> tensors_lib.Tensors:
    return {name: tensors_lib.of_array(np.asarray(array), name) for name, array in arrays.items()}


def arrays_of(tensors) -> dict[str, np.ndarray]:
    return {name: tensor.read() for name, tensor in tensors.items()}


def random_tensors(shapes, dtype=np.float32, scale=1.0, seed=1) -> tensors_lib.Tensors:
    generator = np.random.default_rng(seed)
    arrays = {name: generator.normal(0, scale, shape).astype(dtype) for name, shape in shapes.items()}
    return of_arrays(arrays)


def zeros(*names, shape=(2,)) -> tensors_lib.Tensors:
    return {name: tensors_lib.zeros(shape, np.float32) for name in names}


def shapes(tensors) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def assert_same(first, second) -> None:
    """Same names, shapes, types and bits of tensors or arrays, as said and as read."""
    assert first.keys() == second.keys()
    for name in first:
        one, other = (each.read() if hasattr(each, "read") else each for each in (first[name], second[name]))
        assert first[name].shape == second[name].shape == one.shape == other.shape, name
        assert first[name].dtype == second[name].dtype == one.dtype == other.dtype, name
        assert one.tobytes() == other.tobytes(), name


def named(model) -> dict:
    """Returns {name: variable} of a model."""
    return models.named(model.variables)
