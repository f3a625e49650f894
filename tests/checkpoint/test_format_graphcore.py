"""Graphcore's names: every form there and back bit by bit, and the published layout name by name."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from official.checkpoint import canonical
from official.checkpoint import tensors as tensors_lib
from official.checkpoint.containers import bundle
from official.checkpoint.formats import Options, google, graphcore
from official.io.errors import ConfigError

V, H, I = 48, 8, 16  # noqa: E741
SIZES = canonical.Sizes(V, H, I, positions=12, types=2, classes=3)


def shapes_of(names) -> dict[str, tuple[int, ...]]:
    """Returns {name: shape} of two layers."""
    names = dict.fromkeys(name.replace("{layer}", str(layer)) for name in names for layer in range(2))
    return {name: canonical.shape_of(name, SIZES) for name in names}


REST = shapes_of((*canonical.EMBEDDINGS, *canonical.POOLER, *canonical.PRETRAINING_HEADS))
GOOGLE = shapes_of((*canonical.ENCODER, *canonical.PRETRAINING_HEADS))
ALL_HEADS = GOOGLE | shapes_of((*canonical.SQUAD_HEAD, *canonical.CLASSIFIER_HEAD))


def random_tensors(shapes, seed=0):
    """Returns {name: tensor} of random float32 numbers."""
    generator = np.random.default_rng(seed)
    return of_arrays(
        {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    )


def of_arrays(arrays):
    return {name: tensors_lib.of_array(np.asarray(array), name) for name, array in arrays.items()}


def with_slots(shapes, kind="lamb"):
    return {
        **shapes,
        **{f"{name}/{kind}_{moment}": shape for name, shape in shapes.items() for moment in "mv"},
    }


def assert_same(first, second):
    """Same names, shapes, types and bits, as said and as read."""
    assert set(first) == set(second)
    for name, tensor in first.items():
        one, other = tensor.read(), second[name].read()
        assert tensor.shape == second[name].shape == one.shape == other.shape, name
        assert tensor.dtype == second[name].dtype == one.dtype == other.dtype, name
        assert one.tobytes() == other.tobytes(), name


def to_graphcore(tensors, **options):
    mapped = graphcore.from_canonical(tensors, Options.of(**options))
    assert not mapped.unmatched
    return mapped


def to_canonical(tensors):
    mapped = graphcore.to_canonical(tensors, Options())
    assert not mapped.unmatched
    return mapped


CASES = list(itertools.product((1, 2, 4, 12), (False, True), (False, True), (None, "lamb", "adam")))


@pytest.mark.parametrize("splits, fused, baseline, kind", CASES)
def test_there_and_back_is_exact(splits, fused, baseline, kind):
    shapes = with_slots(ALL_HEADS, kind) if kind else ALL_HEADS
    tensors = random_tensors(shapes) | of_arrays({"global_step": np.int64(7)})
    written = to_graphcore(tensors, num_embeddings_splits=splits, fused_qkv=fused, baseline=baseline)
    back = to_canonical(written.tensors)
    assert_same(back.tensors, tensors)
    assert not written.dropped and not back.added


def test_there_and_back_through_files(tmp_path):
    tensors = random_tensors(with_slots(ALL_HEADS)) | of_arrays({"global_step": np.int64(7)})
    bundle.write(
        to_graphcore(tensors, num_embeddings_splits=12, fused_qkv=True).tensors, str(tmp_path / "model")
    )
    assert_same(to_canonical(bundle.read(str(tmp_path / "model"))).tensors, tensors)


PUBLISHED_LAYER = {
    "attention/self/query/kernel": (H, H),
    "attention/self/key/kernel": (H, H),
    "attention/self/value/kernel": (H, H),
    "attention/self/qkv_bias": (3 * H,),
    "attention/projection/dense/kernel": (H, H),
    "attention/projection/dense/bias": (H,),
    "attention/projection/LayerNorm/gamma": (H,),
    "attention/projection/LayerNorm/beta": (H,),
    "intermediate/dense/kernel": (H, I),
    "intermediate/dense/bias": (I,),
    "output/dense/kernel": (I, H),
    "output/dense/bias": (H,),
    "output/LayerNorm/gamma": (H,),
    "output/LayerNorm/beta": (H,),
}
PUBLISHED = {
    **REST,
    **{
        f"bert/encoder/layer_{layer}/{name}": shape
        for layer in range(2)
        for name, shape in PUBLISHED_LAYER.items()
    },
}


def test_the_published_layout():
    tensors = google.to_canonical(random_tensors(GOOGLE), Options()).tensors
    written = to_graphcore(tensors)
    assert {name: tensor.shape for name, tensor in written.tensors.items()} == PUBLISHED
    assert not written.dropped and not written.added


def test_the_published_layout_without_transform():
    """The published converter's own default: no transform, embeddings in two."""
    written = to_graphcore(random_tensors(GOOGLE), use_cls_layer=False, num_embeddings_splits=2)
    expected = {
        name: shape
        for name, shape in PUBLISHED.items()
        if "transform" not in name and "word_embeddings" not in name
    }
    expected |= {
        "bert/embeddings/s0/word_embeddings": (V // 2, H),
        "bert/embeddings/s1/word_embeddings": (V // 2, H),
    }
    assert {name: tensor.shape for name, tensor in written.tensors.items()} == expected
    assert written.dropped == dict.fromkeys(
        (
            "cls/predictions/transform/dense/kernel",
            "cls/predictions/transform/dense/bias",
            "cls/predictions/transform/LayerNorm/gamma",
            "cls/predictions/transform/LayerNorm/beta",
        ),
        "use_cls_layer is off",
    )


def test_query_key_value_in_this_order():
    parts = {
        f"bert/encoder/layer_1/attention/self/{part}/{name}": np.full(shape, value, np.float32)
        for value, part in enumerate(("query", "key", "value"))
        for name, shape in (("kernel", (H, H)), ("bias", (H,)))
    }
    written = to_graphcore(of_arrays(parts), fused_qkv=True).tensors
    assert set(written) == {
        "bert/encoder/layer_1/attention/self/kernel/qkv_weight",
        "bert/encoder/layer_1/attention/self/qkv_bias",
    }
    kernel, bias = (written[name].read() for name in sorted(written))
    assert kernel.shape == (H, 3 * H) and (kernel == np.repeat([0, 1, 2], H)[None]).all()
    assert (bias == np.repeat([0, 1, 2], H)).all()


def test_slots_are_cut_and_joined_with_their_weights():
    written = to_graphcore(
        random_tensors(with_slots(ALL_HEADS)), fused_qkv=True, num_embeddings_splits=4
    ).tensors
    assert written["bert/encoder/layer_0/attention/self/kernel/qkv_weight/lamb_m"].shape == (H, 3 * H)
    assert written["bert/encoder/layer_1/attention/self/qkv_bias/lamb_v"].shape == (3 * H,)
    assert written["bert/embeddings/s3/word_embeddings/lamb_m"].shape == (V // 4, H)
    assert "bert/embeddings/word_embeddings/lamb_m" not in written


def test_blocks_of_embeddings_are_in_the_order_of_numbers():
    table = np.arange(24 * H, dtype=np.float32).reshape(24, H)
    written = to_graphcore(
        of_arrays({"bert/embeddings/word_embeddings": table}), num_embeddings_splits=12
    ).tensors
    assert set(written) == {f"bert/embeddings/s{index}/word_embeddings" for index in range(12)}
    assert (written["bert/embeddings/s10/word_embeddings"].read() == table[20:22]).all()
    by_name = dict(sorted(written.items()))  # s0, s1, s10, s11, s2, ...
    assert (to_canonical(by_name).tensors["bert/embeddings/word_embeddings"].read() == table).all()


def test_splits_must_divide_the_vocabulary():
    for splits, message in (
        (5, "--num_embeddings_splits=5 does not divide .* 48 words. .*--vocab_size: 45 or 50"),
        (100, "--vocab_size: 100"),
        (0, "--num_embeddings_splits=0 must be at least 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            to_graphcore(random_tensors(GOOGLE), num_embeddings_splits=splits)


def test_damaged_forms_are_said():
    blocks = "bert/embeddings/s{}/word_embeddings".format
    layer = "bert/encoder/layer_0/attention/self"
    for shapes, message in (
        ({blocks(index): (4, H) for index in (0, 2, 4)}, "missing: s1, s3"),
        ({blocks(0): (4, H), blocks(1): (4, H + 1)}, "different widths"),
        ({blocks(0): (4, H), blocks(1): ()}, "not rows: s1"),
        ({blocks(0): (4, H), blocks(1): (4,)}, "not rows: s1"),
        ({f"{layer}/qkv_bias": (3 * H + 1,)}, "multiple of 3"),
        ({f"{layer}/qkv_bias": ()}, r"has the shape \[\]: its last dimension must be a multiple of 3"),
        (
            {f"{layer}/kernel/qkv_weight": ()},
            r"has the shape \[\]: its last dimension must be a multiple of 3",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            to_canonical(random_tensors(shapes))


@pytest.mark.parametrize(
    "whole, part",
    [
        (
            "bert/encoder/layer_0/attention/self/kernel/qkv_weight",
            "bert/encoder/layer_0/attention/self/key/kernel",
        ),
        ("bert/embeddings/word_embeddings", "bert/embeddings/s0/word_embeddings"),
    ],
)
def test_the_same_weight_in_two_forms_is_unmatched(whole, part):
    mapped = graphcore.to_canonical(random_tensors({whole: (3, 3), part: (3, 1)}), Options())
    assert len(mapped.unmatched) == 1 and set(mapped.unmatched) <= {whole, part}


def test_of_two_forms_of_biases_those_count_that_the_model_reads():
    shapes = {
        f"bert/encoder/layer_0/attention/self/{name}": size
        for name, size in {
            "qkv_bias": (3 * H,),
            "query/bias": (H,),
            "key/bias": (H,),
            "value/bias": (H,),
        }.items()
    }
    tensors = random_tensors(shapes)
    mapped = to_canonical(tensors)
    fused = "bert/encoder/layer_0/attention/self/qkv_bias"
    assert list(mapped.dropped) == [fused]
    assert_same(mapped.tensors, {name: tensor for name, tensor in tensors.items() if name != fused})


QKV_BIASES = {
    f"bert/encoder/layer_{layer}/attention/self/{part}/bias"
    for layer in (0, 1)
    for part in ("query", "key", "value")
}
PROJECTION_BIASES = {
    "bert/encoder/layer_0/attention/output/dense/bias",
    "bert/encoder/layer_1/attention/output/dense/bias",
}
TRANSFORM = {
    f"cls/predictions/transform/{name}"
    for name in ("dense/kernel", "dense/bias", "LayerNorm/gamma", "LayerNorm/beta")
}


@pytest.mark.parametrize(
    "option, names",
    [("use_qkv_bias", QKV_BIASES), ("use_attention_bias", PROJECTION_BIASES), ("use_cls_layer", TRANSFORM)],
)
@pytest.mark.parametrize("fused", [False, True])
def test_options_drop_what_they_say(option, names, fused):
    tensors = random_tensors(with_slots(ALL_HEADS))
    written = to_graphcore(tensors, fused_qkv=fused, **{option: False})
    assert written.dropped == {
        name + slot: f"{option} is off" for name in names for slot in ("", "/lamb_m", "/lamb_v")
    }
    back = to_canonical(written.tensors).tensors
    kept = {name: tensor for name, tensor in tensors.items() if name not in written.dropped}
    assert_same({name: back[name] for name in kept}, kept)


def test_absent_biases_are_zeros_and_an_absent_transform_is_absent():
    """The shipped BERT models have no biases in the attention and no transform."""
    written = to_graphcore(
        random_tensors(GOOGLE),
        use_qkv_bias=False,
        use_attention_bias=False,
        use_cls_layer=False,
        fused_qkv=True,
    )
    back = to_canonical(written.tensors)
    assert set(back.added) == QKV_BIASES | PROJECTION_BIASES
    assert set(back.tensors) == set(GOOGLE) - TRANSFORM
    for name in back.added:
        assert (
            back.tensors[name].shape == (H,)
            and back.tensors[name].dtype == np.float32
            and not back.tensors[name].read().any()
        )


def test_zeros_have_the_type_of_their_kernel():
    kernel = np.ones((H, H), np.float16)
    back = to_canonical(of_arrays({"bert/encoder/layer_0/attention/projection/dense/kernel": kernel})).tensors
    assert back["bert/encoder/layer_0/attention/output/dense/bias"].read().dtype == np.float16


CLASSIFIER = {
    "glue_loss/output_weights": (3, H),
    "glue_loss/output_bias": (3,),
    "glue_loss/pooler/dense/kernel": (H, H),
    "glue_loss/pooler/dense/bias": (H,),
}


def test_the_classifier_is_written_with_its_pooler():
    tensors = random_tensors(ALL_HEADS)
    written = to_graphcore(tensors)
    assert set(CLASSIFIER) <= set(written.tensors) and "output_weights" not in written.tensors
    for name in ("pooler/dense/kernel", "pooler/dense/bias"):
        assert (written.tensors[f"glue_loss/{name}"].read() == tensors[f"bert/{name}"].read()).all()
        assert (written.tensors[f"bert/{name}"].read() == tensors[f"bert/{name}"].read()).all()
    assert set(written.added) == {"glue_loss/pooler/dense/kernel", "glue_loss/pooler/dense/bias"}


@pytest.mark.parametrize("both", [False, True])
def test_the_classifiers_pooler_is_read(both):
    unused = {"bert/pooler/dense/kernel": (H, H), "bert/pooler/dense/bias": (H,)} if both else {}
    tensors = random_tensors(CLASSIFIER | unused)
    mapped = to_canonical(tensors)
    assert set(mapped.tensors) == {
        "output_weights",
        "output_bias",
        "bert/pooler/dense/kernel",
        "bert/pooler/dense/bias",
    }
    assert mapped.tensors["bert/pooler/dense/kernel"].sources == ("glue_loss/pooler/dense/kernel",)
    assert mapped.dropped == dict.fromkeys(unused, "the classifier uses glue_loss/pooler")


def test_state_that_has_no_canonical_name_is_dropped_with_the_reason():
    names = (
        "bert/pooler/dense/kernel/lamb_step_counter",
        "bert/encoder/layer_0/attention/self/kernel/qkv_weight/adam_step_counter",
        "bert/embeddings/s0/word_embeddings/Adam_1",
        "cls/predictions/mlm_acc",
        "cls/seq_relationship/nsp_acc",
    )
    mapped = to_canonical(random_tensors(dict.fromkeys(names, (1,))))
    assert set(mapped.dropped) == set(names) and all(mapped.dropped.values()) and not mapped.tensors


def test_unknown_names_are_unmatched_on_both_sides():
    names = dict.fromkeys(("bert/encoder/layer_0/attention/self/query/kernle", "spam", "samples/x"), (2,))
    for convert in (graphcore.to_canonical, graphcore.from_canonical):
        assert sorted(convert(random_tensors(names), Options()).unmatched) == sorted(names)


def test_step_counters_come_with_slots():
    weight = "bert/encoder/layer_0/attention/self/kernel/qkv_weight"
    shapes = with_slots(
        {f"bert/encoder/layer_0/attention/self/{part}/kernel": (H, H) for part in ("query", "key", "value")}
    )
    tensors = random_tensors(shapes) | of_arrays({"global_step": np.int64(7), "samples": np.int64(56)})
    written = to_graphcore(tensors, fused_qkv=True)
    assert set(written.tensors) == {
        weight,
        f"{weight}/lamb_m",
        f"{weight}/lamb_v",
        f"{weight}/lamb_step_counter",
        "global_step",
    }
    counter = written.tensors[f"{weight}/lamb_step_counter"]
    assert (
        counter.read().dtype == counter.dtype == np.int32
        and counter.read().tolist() == [8]
        and counter.shape == (1,)
    )
    assert written.tensors["global_step"].read().dtype == np.int64
    assert list(written.dropped) == ["samples"]


def test_what_stays_float32():
    kept = (
        "cls/squad/output_weights",
        "cls/squad/output_bias",
        "bert/pooler/dense/bias/lamb_m",
        "bert/pooler/dense/bias/adam_v",
    )
    cast = ("bert/embeddings/word_embeddings", "cls/predictions/output_bias", "glue_loss/output_weights")
    assert all(map(graphcore.keeps_float32, kept)) and not any(map(graphcore.keeps_float32, cast))


@pytest.mark.parametrize("fused", [False, True])
def test_groupbert_has_the_same_names(fused):
    shapes = dict.fromkeys(
        (name.format(layer=layer) for name in canonical.GROUPBERT for layer in range(2)), (12, 12)
    )
    tensors = random_tensors(with_slots(shapes))
    assert len(canonical.GROUPBERT_LAYER) == len(set(canonical.GROUPBERT_LAYER)) == 37
    written = to_graphcore(tensors, fused_qkv=fused, num_embeddings_splits=3)
    assert_same(to_canonical(written.tensors).tensors, tensors)
    assert "bert/encoder/layer_0/attention/self/query/bias" in written.tensors
    if not fused:
        assert_same(to_graphcore(tensors).tensors, tensors)


def test_groupbert_in_a_format_without_it_is_unmatched():
    name = "bert/encoder/layer_0/convolution/dwconv/weight"
    assert google.from_canonical(random_tensors({name: (2, 2)}), Options()).unmatched == [name]


def published(words, step) -> dict:
    """A file of the published converter: words cut, the output bias as long as it was, the step cast with the
    weights."""
    tensors = random_tensors(with_slots(GOOGLE))
    written = to_graphcore(tensors).tensors | of_arrays({"global_step": step})
    table = "bert/embeddings/word_embeddings"
    return written | {
        name: tensors_lib.with_rows(written[name], words)
        for name in (table, f"{table}/lamb_m", f"{table}/lamb_v")
    }


def test_the_published_converters_output_bias_is_cut_to_the_words():
    source = published(40, np.int64(7))
    mapped = to_canonical(source)
    assert (
        not canonical.encoder_problems({name: one.shape for name, one in mapped.tensors.items()})
        and not mapped.added
    )
    for slot in ("", "/lamb_m", "/lamb_v"):
        name = f"cls/predictions/output_bias{slot}"
        assert mapped.tensors[name].shape == (40,) and mapped.tensors[name].sources == (name,)
        assert (mapped.tensors[name].read() == source[name].read()[:40]).all()
        assert "the published converter cuts the word embeddings alone" in mapped.dropped[f"{name}[40:]"]


def test_an_output_bias_that_is_too_short_is_no_published_file():
    mapped = to_canonical(random_tensors(PUBLISHED | {"bert/embeddings/word_embeddings": (V + 8, H)}))
    assert mapped.tensors["cls/predictions/output_bias"].shape == (V,) and not mapped.dropped
    assert canonical.encoder_problems({name: one.shape for name, one in mapped.tensors.items()})


@pytest.mark.parametrize("dtype, exact", [(np.float16, 2048), (np.float32, 2**24), (ml_dtypes.bfloat16, 256)])
def test_a_float_step_is_an_integer_again(dtype, exact):
    mapped = to_canonical(published(V, np.asarray(1800, dtype)))
    step = mapped.tensors["global_step"]
    assert (
        step.dtype == step.read().dtype == np.int64
        and step.read() == np.asarray(1800, dtype).astype(np.int64)
        and step.shape == ()
    )
    assert mapped.added == {
        "global_step": f"was {np.dtype(dtype).name}, which rounds above {exact}; made an integer again"
    }


@pytest.mark.parametrize("value", [np.inf, np.nan, -np.inf])
def test_a_step_that_float16_lost_is_dropped(value):
    mapped = to_canonical(published(V, np.float16(value)))
    assert (
        "global_step" not in mapped.tensors and mapped.dropped["global_step"] == "float16 could not hold it"
    )
    assert not mapped.added
