"""GroupBERT's research names: the published map name by name, and there and back bit by bit."""

import re

import numpy as np
import pytest

from official.checkpoint import canonical
from official.checkpoint.formats import Options, graphcore, research
from official.io.errors import ConfigError
from tests.checkpoint.test_format_graphcore import (
    ALL_HEADS,
    GOOGLE,
    SIZES,
    H,
    I,
    V,
    assert_same,
    of_arrays,
    random_tensors,
    with_slots,
)

GROUPS = 4
# Of the research code: names within all/bert/encoder/layer_N and shapes.
RESEARCH_LAYER = {
    "conv/prenorm/GroupNorm/gamma": (H,),
    "conv/prenorm/GroupNorm/beta": (H,),
    "conv/pre/weight": (H, 2 * H),
    "conv/pre/bias": (2 * H,),
    "conv/dwconv/weight": (7, 4, H),
    "conv/dwconv/GroupNorm/gamma": (H,),
    "conv/dwconv/GroupNorm/beta": (H,),
    "conv/post/weight": (H, H),
    "conv/post/bias": (H,),
    "boom1/prenorm/GroupNorm/gamma": (H,),
    "boom1/prenorm/GroupNorm/beta": (H,),
    "boom1/up/weight": (H, I),
    "boom1/up/bias": (I,),
    "boom1/down/weight": (I // GROUPS, H),
    "boom1/down/bias": (H,),
    "boom1/mixer/weight": (H, H),
    "boom1/mixer/bias": (H,),
    "attention/prenorm/GroupNorm/gamma": (H,),
    "attention/prenorm/GroupNorm/beta": (H,),
    "attention/qkv/weight": (H, 3 * H),
    "attention/qkv/query/bias": (H,),
    "attention/qkv/value/bias": (H,),
    "attention/output/weight": (H, H),
    "attention/output/bias": (H,),
    "boom2/prenorm/GroupNorm/gamma": (H,),
    "boom2/prenorm/GroupNorm/beta": (H,),
    "boom2/up/weight": (H, I),
    "boom2/up/bias": (I,),
    "boom2/down/weight": (I // GROUPS, H),
    "boom2/down/bias": (H,),
    "boom2/mixer/weight": (H, H),
    "boom2/mixer/bias": (H,),
}
RESEARCH = {
    "all/bert/embeddings/s0/word_embeddings": (V // 2, H),
    "all/bert/embeddings/s1/word_embeddings": (V // 2, H),
    "all/bert/embeddings/token_type_embeddings": (2, H),
    "all/bert/embeddings/position_embeddings": (12, H),
    "all/bert/embeddings/GroupNorm/gamma": (H,),
    "all/bert/embeddings/GroupNorm/beta": (H,),
    "all/bert/encoder/post_layers/GroupNorm/gamma": (H,),
    "all/bert/encoder/post_layers/GroupNorm/beta": (H,),
    "all/bert/pooler/dense/kernel": (H, H),
    "all/bert/pooler/dense/bias": (H,),
    "all/cls/predictions/transform/dense/kernel": (H, H),
    "all/cls/predictions/transform/dense/bias": (H,),
    "all/cls/predictions/transform/GroupNorm/gamma": (H,),
    "all/cls/predictions/transform/GroupNorm/beta": (H,),
    "all/cls/predictions/output_bias": (V,),
    "all/cls/seq_relationship/output_weights": (2, H),
    "all/cls/seq_relationship/output_bias": (2,),
    **{
        f"all/bert/encoder/layer_{layer}/{name}": shape
        for layer in range(2)
        for name, shape in RESEARCH_LAYER.items()
    },
}


def apps_shape(name: str) -> tuple[int, ...]:
    """Returns the shape of one of GroupBERT's tensors under Graphcore's name."""
    if "/dwconv/weight" in name:
        return (7, 4, H)
    if re.search("feed_forward_./output/dense/kernel", name):
        return (I // GROUPS, H)
    return canonical.shape_of(name, SIZES)


APPS = {
    name.replace("{layer}", str(layer)): apps_shape(name)
    for name in (*canonical.GROUPBERT, *canonical.PRETRAINING_HEADS)
    for layer in range(2)
}
KEY_BIASES = {"bert/encoder/layer_0/attention/self/key/bias", "bert/encoder/layer_1/attention/self/key/bias"}


def convert(source, target, tensors, **options):
    """Returns the tensors of a conversion, and what both halves of it dropped and added."""
    read = source.to_canonical(tensors, Options.of(**options))
    written = target.from_canonical(read.tensors, Options.of(**options))
    assert not read.unmatched and not written.unmatched
    return written.tensors, read.dropped | written.dropped, read.added | written.added


def shapes(tensors):
    return {name: tensor.shape for name, tensor in tensors.items()}


def test_research_to_apps_is_the_published_map():
    apps, dropped, added = convert(research, graphcore, random_tensors(RESEARCH))
    assert shapes(apps) == APPS
    assert set(added) == KEY_BIASES and not dropped
    assert not any(apps[name].read().any() for name in KEY_BIASES)


def test_apps_to_research_is_the_published_map():
    written, dropped, added = convert(graphcore, research, random_tensors(APPS), num_embeddings_splits=2)
    assert shapes(written) == RESEARCH
    assert set(dropped) == KEY_BIASES and not added


@pytest.mark.parametrize("splits", [1, 2, 12])
def test_research_to_apps_to_research_is_exact(splits):
    tensors = random_tensors(RESEARCH)
    apps, _, _ = convert(research, graphcore, tensors, num_embeddings_splits=splits)
    back, _, _ = convert(graphcore, research, apps, num_embeddings_splits=2)
    assert_same(back, tensors)


def test_halves_and_thirds_are_in_order():
    layer = "all/bert/encoder/layer_1"
    apps, _, _ = convert(
        research,
        graphcore,
        of_arrays(
            {
                f"{layer}/conv/pre/weight": np.repeat([[0, 1]], H, axis=1),
                f"{layer}/conv/pre/bias": np.repeat([0, 1], H),
                f"{layer}/attention/qkv/weight": np.repeat([[0, 1, 2]], H, axis=1),
            }
        ),
    )
    layer = "bert/encoder/layer_1"
    for value, part in enumerate(("values", "gates")):
        assert (apps[f"{layer}/convolution/pre/glu/{part}/dense/kernel"].read() == value).all()
        assert (apps[f"{layer}/convolution/pre/glu/{part}/dense/bias"].read() == value).all()
    for value, part in enumerate(("query", "key", "value")):
        assert (apps[f"{layer}/attention/self/{part}/kernel"].read() == value).all()


def test_names_without_the_scope_are_read_too():
    tensors = random_tensors(RESEARCH)
    bare = {name.removeprefix("all/"): tensor for name, tensor in tensors.items()}
    assert_same(convert(research, graphcore, bare)[0], convert(research, graphcore, tensors)[0])
    with pytest.raises(ConfigError, match="with and without all/.*bert/pooler/dense/bias"):
        research.to_canonical(tensors | {"bert/pooler/dense/bias": bare["bert/pooler/dense/bias"]}, Options())


def test_what_finds_no_place_is_named_as_in_the_file():
    names = dict.fromkeys(
        (
            "all/bert/encoder/layer_0/conv/spam",
            "all/cls/predictions/mlm_acc",
            "eggs",
            "all/global_step",
            "global_step",
            "all/bert/encoder/layer_0/attention/qkv/weight/LAMB",
        ),
        (3,),
    )
    mapped = research.to_canonical(random_tensors(names), Options())
    assert sorted(mapped.unmatched) == ["all/bert/encoder/layer_0/conv/spam", "eggs"]
    assert set(mapped.dropped) == set(names) - set(mapped.unmatched) and all(mapped.dropped.values())


def test_optimizer_slots_and_counters_are_dropped_on_writing():
    tensors = random_tensors(with_slots(APPS)) | of_arrays(
        {"global_step": np.int64(7), "samples": np.int64(56)}
    )
    written = research.from_canonical(tensors, Options.of(num_embeddings_splits=2))
    assert not written.unmatched and shapes(written.tensors) == RESEARCH
    assert set(written.dropped) == set(tensors) - set(APPS) | KEY_BIASES


BASELINE_LAYER = {
    "attention/qkv/weight": (H, 3 * H),
    "attention/qkv/query/bias": (H,),
    "attention/qkv/key/bias": (H,),
    "attention/qkv/value/bias": (H,),
    "attention/output/weight": (H, H),
    "attention/output/bias": (H,),
    "attention/postnorm/GroupNorm/gamma": (H,),
    "attention/postnorm/GroupNorm/beta": (H,),
    "boom/up/weight": (H, I),
    "boom/up/bias": (I,),
    "boom/down/weight": (I, H),
    "boom/down/bias": (H,),
    "boom/postnorm/GroupNorm/gamma": (H,),
    "boom/postnorm/GroupNorm/beta": (H,),
}


def test_baseline_names():
    written = research.from_canonical(random_tensors(GOOGLE), Options.of(baseline=True))
    layers = {name: shape for name, shape in shapes(written.tensors).items() if "/layer_" in name}
    assert layers == {
        f"all/bert/encoder/layer_{layer}/{name}": shape
        for layer in range(2)
        for name, shape in BASELINE_LAYER.items()
    }


def test_baseline_of_the_published_reader():
    """Files without key biases are read, and become Graphcore's names with the biases apart."""
    tensors = research.from_canonical(random_tensors(GOOGLE), Options.of(baseline=True)).tensors
    published = {name: tensor for name, tensor in tensors.items() if not name.endswith("key/bias")}
    apps, _, added = convert(research, graphcore, published, baseline=True)
    assert set(added) == KEY_BIASES
    assert {name for name in apps if "layer_0/attention" in name} == {
        f"bert/encoder/layer_0/attention/{name}"
        for name in (
            "self/query/kernel",
            "self/query/bias",
            "self/key/kernel",
            "self/key/bias",
            "self/value/kernel",
            "self/value/bias",
            "projection/dense/kernel",
            "projection/dense/bias",
            "projection/LayerNorm/gamma",
            "projection/LayerNorm/beta",
        )
    }


def test_baseline_there_and_back_is_exact():
    tensors = random_tensors(ALL_HEADS)
    written = research.from_canonical(tensors, Options.of(baseline=True, num_embeddings_splits=12))
    back = research.to_canonical(written.tensors, Options.of(baseline=True))
    assert_same(back.tensors, tensors)
    assert not written.dropped and not back.added


@pytest.mark.parametrize(
    "names, baseline, advice", [(GOOGLE, False, "Add --baseline"), (APPS, True, "Leave out --baseline")]
)
def test_baseline_must_be_what_the_model_is(names, baseline, advice):
    with pytest.raises(ConfigError, match=advice):
        research.from_canonical(random_tensors(names), Options.of(baseline=baseline))


def test_heads_of_fine_tuned_models():
    heads = {
        "glue_loss/output_weights": (3, H),
        "glue_loss/output_bias": (3,),
        "glue_loss/pooler/dense/kernel": (H, H),
        "glue_loss/pooler/dense/bias": (H,),
        "cls/squad/output_weights": (2, H),
        "cls/squad/output_bias": (2,),
    }
    tensors = random_tensors({f"all/{name}": shape for name, shape in heads.items()})
    apps, _, _ = convert(research, graphcore, tensors)
    assert set(apps) == set(heads) | {"bert/pooler/dense/kernel", "bert/pooler/dense/bias"}
    back, _, added = convert(graphcore, research, apps)
    assert_same({name: back[name] for name in tensors}, tensors)
    assert set(added) == {"all/glue_loss/pooler/dense/kernel", "all/glue_loss/pooler/dense/bias"}


def test_options_drop_what_they_say():
    written = research.from_canonical(
        random_tensors(APPS), Options.of(use_cls_layer=False, use_attention_bias=False)
    )
    reasons = {name: reason for name, reason in written.dropped.items() if name not in KEY_BIASES}
    assert reasons == {
        **{
            f"cls/predictions/transform/{name}": "use_cls_layer is off"
            for name in ("dense/kernel", "dense/bias", "LayerNorm/gamma", "LayerNorm/beta")
        },
        **{
            f"bert/encoder/layer_{layer}/attention/projection/dense/bias": "use_attention_bias is off"
            for layer in (0, 1)
        },
    }


def test_what_stays_float32():
    assert research.keeps_float32("all/cls/predictions/output_bias")
    assert not research.keeps_float32("all/bert/pooler/dense/bias")


def test_reading_tells_the_baseline_by_its_names():
    tensors = random_tensors(GOOGLE)
    written = research.from_canonical(tensors, Options.of(baseline=True)).tensors
    mapped = research.to_canonical(written, Options())
    assert_same(mapped.tensors, tensors)
    assert not mapped.unmatched
    with pytest.raises(ConfigError, match="Leave out --baseline"):
        research.to_canonical(random_tensors(RESEARCH), Options.of(baseline=True))


def test_reading_never_asks_for_the_option():
    mixed = dict.fromkeys(
        ("all/bert/encoder/layer_0/boom/up/bias", "all/bert/encoder/layer_0/conv/post/bias"), (H,)
    )
    assert research.to_canonical(random_tensors(mixed), Options()).unmatched == [
        "all/bert/encoder/layer_0/boom/up/bias"
    ]
    spam = {"all/bert/encoder/layer_0/spam": (H,)}
    assert research.to_canonical(random_tensors(spam), Options()).unmatched == list(spam)
