"""Completeness of a checkpoint by canonical names: a whole encoder, whole heads, fitting shapes."""

from __future__ import annotations

import re

from official.checkpoint.mapping import canonical, table
from official.checkpoint.mapping.tensors import Tensors
from official.checkpoint.names import compare_names


def encoder_problems(tensors: Tensors) -> dict[str, list[str]]:
    """Returns the tensors that are missing or of a wrong shape, {problem: names}: of the encoder, and of
    heads that are there in part.

    Of GroupBERT's layers, whose groups and inner sizes the names do not tell, names and numbers of dimensions
    are checked.
    """
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    layers = table.layers_of(tensors)
    expected = _expected_shapes(shapes, layers)
    gone = [name for name in canonical.EMBEDDINGS if name not in shapes]
    bent = [name for name in expected if len(shapes.get(name, expected[name])) != canonical.rank_of(name)]
    problems = {"Missing": gone} if gone else {}
    problems |= {} if layers else {"No layer": []}
    if bent:
        problems["of another number of dimensions"] = [
            f"{name} {list(shapes[name])} must have {canonical.rank_of(name)}" for name in sorted(bent)
        ]
    compared = {name: shape for name, shape in expected.items() if name not in gone and name not in bent}
    return problems | compare_names(compared, {name: shapes[name] for name in compared if name in shapes})


def _expected_shapes(shapes: dict[str, tuple[int, ...]], layers: int) -> dict[str, tuple[int, ...]]:
    """Returns {name: shape} of the tensors that must be there; where a shape cannot be known, it is the one
    that the checkpoint has."""
    groupbert = any("/convolution/" in name for name in shapes)
    has_pooler = any(name in shapes for name in canonical.POOLER)  # Hugging Face's masked-LM models have none
    encoder = [
        name
        for name in (canonical.GROUPBERT if groupbert else canonical.ENCODER)
        if has_pooler or name not in canonical.POOLER
    ]
    names = [
        name.replace("{layer}", str(layer))
        for name in encoder
        for layer in (range(layers) if "{layer}" in name else (0,))
    ]
    names += [
        name
        for some, group in canonical.HEAD_GROUPS
        if any(member in shapes for member in some)
        for name in group
    ]
    for pattern in (canonical.QKV_BIAS, canonical.PROJECTION_BIAS, canonical.MIXER):
        if not any(re.fullmatch(pattern, name) for name in shapes):
            names = [name for name in names if not re.fullmatch(pattern, name)]
    sizes = _sizes(shapes)
    expected = {}
    for name in names:
        if sizes is None or groupbert and name.startswith("bert/encoder/"):
            expected[name] = shapes.get(name, (0,) * canonical.rank_of(name))
        else:
            expected[name] = canonical.shape_of(name, sizes)
    return expected


def _sizes(shapes: dict[str, tuple[int, ...]]) -> canonical.Sizes | None:
    """Returns the sizes that the tensors tell; None where the word embeddings tell none."""
    if len(shapes.get("bert/embeddings/word_embeddings", ())) != 2:
        return None
    words, hidden = shapes["bert/embeddings/word_embeddings"]

    def rows(name: str, default: int) -> int:
        return (*shapes.get(name, ()), default)[0]

    return canonical.Sizes(
        words,
        hidden,
        inner=rows("bert/encoder/layer_0/intermediate/dense/bias", 4 * hidden),
        positions=rows("bert/embeddings/position_embeddings", 0),
        types=rows("bert/embeddings/token_type_embeddings", 0),
        classes=rows("output_weights", rows("output_bias", 2)),
    )
