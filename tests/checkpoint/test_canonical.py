"""What a checkpoint must have: the whole encoder, whole heads, the right shapes; every phrase in one list."""

import numpy as np
import pytest

from official.checkpoint import canonical, registry
from official.checkpoint import tensors as tensors_lib
from official.checkpoint.containers import bundle
from official.checkpoint.formats import Options, google
from official.config import BertConfig, ConfigError
from official.modeling.models import BertPretrainer
from tests.conftest import TINY

SIZES = canonical.Sizes(words=48, hidden=8, inner=16, positions=12, types=2, classes=3)
HEADS = (*canonical.PRETRAINING_HEADS, *canonical.SQUAD_HEAD, *canonical.CLASSIFIER_HEAD)


def whole(heads=HEADS, drop=(), shapes=None, encoder=canonical.ENCODER) -> tensors_lib.Tensors:
    """Returns an encoder of two layers and heads, but for names dropped, with other shapes where `shapes` has
    them."""
    names = dict.fromkeys(
        name.replace("{layer}", str(layer)) for name in (*encoder, *heads) for layer in range(2)
    )
    found = {
        name: groupbert_shape(name) if encoder is canonical.GROUPBERT else canonical.shape_of(name, SIZES)
        for name in names
    }
    return {
        name: tensors_lib.zeros(shape, np.float32)
        for name, shape in (found | (shapes or {})).items()
        if name not in drop
    }


def groupbert_shape(name: str) -> tuple[int, ...]:
    if name.startswith("bert/encoder/"):
        return (8,) * canonical.rank_of(name)
    return canonical.shape_of(name, SIZES)


def test_shapes_are_those_of_the_model():
    config = BertConfig(**TINY)
    sizes = canonical.Sizes(
        words=config.vocab_size,
        hidden=config.hidden_size,
        inner=config.intermediate_size,
        positions=config.max_position_embeddings,
        types=config.type_vocab_size,
    )
    variables = {
        variable.name.split(":")[0]: tuple(variable.shape)
        for variable in BertPretrainer(config).trainable_variables
    }
    assert variables == {name: canonical.shape_of(name, sizes) for name in variables}
    assert all(canonical.rank_of(name) == len(shape) for name, shape in variables.items())


def test_shapes_of_fine_tuned_heads():
    assert [
        canonical.shape_of(name, SIZES) for name in (*canonical.SQUAD_HEAD, *canonical.CLASSIFIER_HEAD)
    ] == [(2, 8), (2,), (3, 8), (3,)]
    assert canonical.shape_of("bert/encoder/layer_{layer}/output/dense/kernel", SIZES) == (16, 8)


def problems_of(*arguments, **changed) -> dict[str, list[str]]:
    return canonical.encoder_problems({name: one.shape for name, one in whole(*arguments, **changed).items()})


def test_what_is_whole():
    transform = (*canonical.TRANSFORM, canonical.OUTPUT_BIAS)
    for encoder in (canonical.ENCODER, canonical.GROUPBERT):
        for heads in (
            (),
            HEADS,
            canonical.PRETRAINING_HEADS,
            canonical.SQUAD_HEAD,
            transform[-1:],
            transform,
        ):
            assert not problems_of(heads, encoder=encoder), heads
            assert not problems_of(heads, drop=canonical.POOLER, encoder=encoder), heads


def test_every_part_must_be_there_in_its_shape():
    wrong = []
    layers = [name.replace("{layer}", "1") for name in canonical.GROUPBERT]
    for encoder, names in (
        (canonical.ENCODER, [name for name in HEADS if name != canonical.OUTPUT_BIAS]),
        (canonical.GROUPBERT, [name for name in layers if not name.startswith(canonical.EMBEDDINGS)]),
    ):
        for name in names:
            if problems_of(drop=[name], encoder=encoder) != {"missing": [name]}:
                wrong.append(f"{name} may be missing")
    for name in HEADS:
        shape = canonical.shape_of(name, SIZES)
        other = (*shape[:-1], shape[-1] + 1)
        found = problems_of(shapes={name: other}).get("of another shape", [])
        if f"{name} {list(other)} for {list(shape)}" not in found:
            wrong.append(f"{name} may have another shape")
    for name in (one.replace("{layer}", "0") for one in (*canonical.ENCODER, *HEADS)):
        rank = canonical.rank_of(name)
        for shape in ((), (5,), (2, 2), (1, 2, 3)):
            found = problems_of(shapes={name: shape})
            phrase = [f"{name} {list(shape)} must have {rank}"]
            is_said = found.get("of another number of dimensions") == phrase
            if not (found.get("of another shape") if len(shape) == rank else is_said):
                wrong.append(f"{name} may be {shape}")
    assert not wrong


def test_a_transform_needs_the_output_bias_with_a_value_for_each_word():
    assert problems_of(canonical.TRANSFORM) == {"missing": ["cls/predictions/output_bias"]}
    problems = problems_of(shapes={canonical.OUTPUT_BIAS: (60,)})
    assert problems == {"of another shape": ["cls/predictions/output_bias [60] for [48]"]}


def test_all_problems_are_in_one_list():
    layer = "bert/encoder/layer_1/output/dense/bias"
    inner, relation = "bert/encoder/layer_0/intermediate/dense/bias", "cls/seq_relationship/output_bias"
    problems = problems_of(
        drop=["bert/embeddings/LayerNorm/beta", layer, "cls/squad/output_bias"],
        shapes={inner: (), relation: (3,)},
    )
    assert problems == {
        "Missing": ["bert/embeddings/LayerNorm/beta"],
        "of another number of dimensions": ["bert/encoder/layer_0/intermediate/dense/bias [] must have 1"],
        "missing": ["bert/encoder/layer_1/output/dense/bias", "cls/squad/output_bias"],
        "of another shape": problems["of another shape"],
    }
    assert "cls/seq_relationship/output_bias [3] for [2]" in problems["of another shape"]


def test_without_layers_or_words_heads_are_still_looked_at():
    gone = ["bert/embeddings/word_embeddings", "output_bias"]
    problems = problems_of(encoder=canonical.EMBEDDINGS, drop=gone)
    assert problems == {
        "Missing": ["bert/embeddings/word_embeddings"],
        "No layer": [],
        "missing": ["output_bias"],
    }


def test_a_file_says_what_is_wrong_with_it(tmp_path):
    bundle.write(whole(shapes={"bert/embeddings/word_embeddings": (48,)}), str(tmp_path / "model.ckpt"))
    with pytest.raises(
        ConfigError,
        match=r"model.ckpt \(Google TF1\) is not a whole encoder. .*word_embeddings \[48\] must have 2",
    ):
        registry.open_checkpoint(str(tmp_path), "PATH").to_canonical()


def test_google_reads_the_names_of_the_others_for_lambs_slots():
    weight = "bert/pooler/dense/kernel"
    tensors = {
        f"{weight}/{slot}": tensors_lib.of_array(np.full(2, number), f"{weight}/{slot}")
        for number, slot in enumerate(("lamb_m", "lamb_v"))
    }
    mapped = google.to_canonical(tensors, Options())
    assert mapped.tensors == tensors and not mapped.unmatched and not mapped.dropped
    assert set(google.from_canonical(mapped.tensors, Options()).tensors) == {
        f"{weight}/LAMB",
        f"{weight}/LAMB_1",
    }
    both = tensors | {f"{weight}/LAMB": tensors[f"{weight}/lamb_m"]}
    assert google.to_canonical(both, Options()).unmatched == [f"{weight}/LAMB"]
