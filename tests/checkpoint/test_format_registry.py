"""What a checkpoint must have: the whole encoder, whole heads, the right shapes; every phrase in one list."""

import numpy as np
import pytest

from official.checkpoint import registry
from official.checkpoint.containers import bundle
from official.checkpoint.format import Options
from official.checkpoint.formats import google
from official.checkpoint.mapping import canonical
from official.checkpoint.mapping import tensors as tensors_lib
from official.checkpoint.validation import encoder_problems
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


@pytest.mark.parametrize(
    "heads",
    [
        (),
        HEADS,
        canonical.PRETRAINING_HEADS,
        canonical.SQUAD_HEAD,
        (canonical.OUTPUT_BIAS,),
        (*canonical.TRANSFORM, canonical.OUTPUT_BIAS),
    ],
)
@pytest.mark.parametrize("encoder", [canonical.ENCODER, canonical.GROUPBERT])
def test_what_is_whole(heads, encoder):
    assert not encoder_problems(whole(heads, encoder=encoder))
    assert not encoder_problems(whole(heads, drop=canonical.POOLER, encoder=encoder))


@pytest.mark.parametrize("name", [name for name in HEADS if name != canonical.OUTPUT_BIAS])
def test_a_part_of_a_head_is_missing(name):
    assert encoder_problems(whole(drop=[name])) == {"missing": [name]}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_of_another_shape(name):
    shape = canonical.shape_of(name, SIZES)
    other = (*shape[:-1], shape[-1] + 1)
    assert (
        f"{name} {list(other)} for {list(shape)}"
        in encoder_problems(whole(shapes={name: other}))["of another shape"]
    )


def test_a_transform_without_the_output_bias():
    assert encoder_problems(whole(canonical.TRANSFORM)) == {"missing": ["cls/predictions/output_bias"]}


def test_the_output_bias_has_a_value_for_each_word():
    problems = encoder_problems(whole(shapes={canonical.OUTPUT_BIAS: (60,)}))
    assert problems == {"of another shape": ["cls/predictions/output_bias [60] for [48]"]}


@pytest.mark.parametrize(
    "name",
    [
        name.replace("{layer}", "1")
        for name in canonical.GROUPBERT
        if not name.startswith(canonical.EMBEDDINGS)
    ],
)
def test_groupbert_must_be_whole(name):
    assert encoder_problems(whole(drop=[name], encoder=canonical.GROUPBERT)) == {"missing": [name]}


@pytest.mark.parametrize("name", [name.replace("{layer}", "0") for name in (*canonical.ENCODER, *HEADS)])
@pytest.mark.parametrize("shape", [(), (5,), (2, 2), (1, 2, 3)])
def test_another_number_of_dimensions_is_a_phrase(name, shape):
    problems = encoder_problems(whole(shapes={name: shape}))
    rank = canonical.rank_of(name)
    if len(shape) == rank:
        assert problems["of another shape"]
    else:
        assert problems["of another number of dimensions"] == [f"{name} {list(shape)} must have {rank}"]


def test_all_problems_are_in_one_list():
    problems = encoder_problems(
        whole(
            drop=[
                "bert/embeddings/LayerNorm/beta",
                "bert/encoder/layer_1/output/dense/bias",
                "cls/squad/output_bias",
            ],
            shapes={
                "bert/encoder/layer_0/intermediate/dense/bias": (),
                "cls/seq_relationship/output_bias": (3,),
            },
        )
    )
    assert problems == {
        "Missing": ["bert/embeddings/LayerNorm/beta"],
        "of another number of dimensions": ["bert/encoder/layer_0/intermediate/dense/bias [] must have 1"],
        "missing": ["bert/encoder/layer_1/output/dense/bias", "cls/squad/output_bias"],
        "of another shape": problems["of another shape"],
    }
    assert "cls/seq_relationship/output_bias [3] for [2]" in problems["of another shape"]


def test_without_layers_or_words_heads_are_still_looked_at():
    problems = encoder_problems(
        whole(encoder=canonical.EMBEDDINGS, drop=["bert/embeddings/word_embeddings", "output_bias"])
    )
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
