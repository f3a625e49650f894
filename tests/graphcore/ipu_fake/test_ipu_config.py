"""IPUConfig on the fake: attributes with their types, conditions, devices."""

import importlib.util

import pytest
import tensorflow as tf

from tests.graphcore import ipu_fake

pytestmark = pytest.mark.nightly


@pytest.fixture
def ipu(monkeypatch):
    monkeypatch.delenv("TF_POPLAR_FLAGS", raising=False)
    with ipu_fake.installed(ipus=8):
        from tensorflow.python import ipu

        yield ipu


def test_the_fake_goes_away_again():
    with ipu_fake.installed():
        from tensorflow.python.ipu.ops import pipelining_ops

        assert pipelining_ops.PipelineSchedule.Sequential == 2
    with pytest.raises(ImportError):
        from tensorflow.python.ipu.ops import cross_replica_ops  # noqa: F401
    with pytest.raises(ImportError):
        import popdist  # noqa: F401


def test_the_fake_is_found_like_a_package(ipu):
    for name in (
        "tensorflow.python.ipu",
        "tensorflow.python.ipu.ops.nn_ops",
        "popdist",
        "popdist.tensorflow",
    ):
        assert importlib.util.find_spec(name).name == name
    assert ipu.pipelining_ops is importlib.import_module("tensorflow.python.ipu.ops.pipelining_ops")


def test_defaults_and_categories(ipu):
    config = ipu.config.IPUConfig()
    assert config.io_tiles.available_memory_proportion == 0.9
    assert config.optimizations.minimum_remote_tensor_size == 128
    assert config.norms.experimental.distributed_batch_norm_replica_group_size == 1
    assert config.floating_point_behaviour.esr == ipu.config.StochasticRoundingBehaviour.OFF
    config.floating_point_behaviour.esr = ipu.config.StochasticRoundingBehaviour.from_bool(True)
    assert config.floating_point_behaviour.esr == ipu.config.StochasticRoundingBehaviour.ON
    assert ipu.config.IPUConfig().matmuls.poplar_options == {}


def test_unknown_attributes_are_refused_with_a_suggestion(ipu):
    config = ipu.config.IPUConfig()
    with pytest.raises(ValueError, match="Did you mean 'allow_recompute'"):
        config.alow_recompute = True
    with pytest.raises(ValueError, match="Did you mean 'device_connection.type'"):
        config.device_connection.typ = ipu.config.DeviceConnectionType.ALWAYS
    with pytest.raises(ValueError, match="not a valid attribute"):
        config.zzz


@pytest.mark.parametrize(
    "name, value",
    [
        ("allow_recompute", 1),
        ("auto_select_ipus", True),
        ("auto_select_ipus", [1, 2.0]),
        ("selection_order", "AUTO"),
        ("io_tiles.available_memory_proportion", 1),
        ("matmuls.poplar_options", "half"),
        ("scheduling.algorithm", 1),
        ("floating_point_behaviour.esr", "ON"),
    ],
)
def test_wrong_types_are_refused(ipu, name, value):
    config = ipu.config.IPUConfig()
    *parents, last = name.split(".")
    category = getattr(config, parents[0]) if parents else config
    with pytest.raises(TypeError, match=name):
        setattr(category, last, value)


def test_categories_cannot_be_assigned_to(ipu):
    with pytest.raises(Exception, match="floating_point_behaviour is a category"):
        ipu.config.IPUConfig().floating_point_behaviour = True


def test_metadata(ipu):
    config = ipu.config.IPUConfig()
    metadata = config.get_attribute_metadata("optimizations.math.dot_strength")
    assert (metadata.name, metadata.type, metadata.default, metadata.deprecated) == (
        "optimizations.math.dot_strength",
        "bool",
        True,
        False,
    )
    assert config.get_attribute_metadata("optimizations.enable_fast_math").deprecated
    with pytest.raises(ValueError, match="optimizations.fast"):
        config.get_attribute_metadata("optimizations.fast")


def test_dictionaries_and_json_round_trip(ipu):
    config, other, third = (ipu.config.IPUConfig() for _ in range(3))
    config.selection_order = ipu.config.SelectionOrder.SNAKE
    config.experimental.multi_replica_distribution.process_count = 2
    config.matmuls.poplar_options = {"partialsType": "half"}
    other.from_dict(config.to_dict())
    third.from_json(config.to_json())
    assert other.to_dict() == config.to_dict() == third.to_dict()
    with pytest.raises(ValueError):
        other.from_dict({"matmul.poplar_options": {}})


def broken(config, ipu, what):
    """Makes a configuration that cannot be."""
    if what == "both":
        config.auto_select_ipus, config.select_ipus = 2, 1
    elif what == "twice":
        config.select_ipus = [1, 1]
    elif what == "connection":
        config.device_connection.type = ipu.config.DeviceConnectionType.NEVER
    elif what == "version":
        config.device_connection.version = "ipu2"
    elif what == "tiles":
        config.io_tiles.place_ops_on_io_tiles = True
    elif what == "norms":
        config.io_tiles.num_io_tiles = 32
        config.norms.experimental.distributed_batch_norm_replica_group_size = 2
    elif what == "process":
        config.experimental.multi_replica_distribution.process_count = 2
        config.experimental.multi_replica_distribution.process_index = 2


@pytest.mark.parametrize(
    "what, message",
    [
        ("both", "Only one of"),
        ("twice", "unique"),
        ("connection", "version must be set"),
        ("version", "must not be set"),
        ("tiles", "Cannot place ops on I/O tiles"),
        ("norms", "not supported with I/O tiles"),
        ("process", "must be in the range"),
    ],
)
def test_conditions_between_attributes(ipu, what, message):
    config = ipu.config.IPUConfig()
    broken(config, ipu, what)
    with pytest.raises(Exception, match=message):
        config.configure_ipu_system()


def test_poplar_options_are_strings(ipu):
    config = ipu.config.IPUConfig()
    config.matmuls.poplar_options = {"availableMemoryProportion": 0.2}
    with pytest.raises(TypeError, match="matmuls.poplar_options"):
        config.configure_ipu_system()


@pytest.mark.parametrize("ipus, error", [(3, "power of two"), (16, "this machine has 8"), ([4, 8], "has 8")])
def test_ipus_that_cannot_be_had(ipu, ipus, error):
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = ipus
    with pytest.raises(tf.errors.OpError, match=error):
        config.configure_ipu_system()


def test_selected_devices(ipu):
    config = ipu.config.IPUConfig()
    config.select_ipus = [8, 3]  # a pair; a single one
    config.configure_ipu_system()
    assert ipu.utils.get_num_of_ipus_in_device("/device:IPU:0") == 2
    assert ipu.utils.get_num_of_ipus_in_device("/device:IPU:1") == 1
    with pytest.raises(RuntimeError, match="IPU:2 is not configured"):
        ipu.ipu_strategy.IPUStrategyV1("/device:IPU:2")
    config.select_ipus = 15
    with pytest.raises(tf.errors.OpError, match="no device with id 15"):
        config.configure_ipu_system()


def test_later_changes_have_no_effect_and_a_second_configuration_replaces_the_first(ipu):
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 2
    config.configure_ipu_system()
    config.auto_select_ipus = 4
    assert ipu.config.get_ipu_config()[0].auto_select_ipus == 2
    config.configure_ipu_system()
    assert ipu.config.get_ipu_config()[0].auto_select_ipus == 4
    with pytest.raises(TypeError):
        ipu.config.configure_ipu_system({"auto_select_ipus": 1})
    ipu.config.reset_ipu_configuration()
    with pytest.raises(RuntimeError, match="not been configured"):
        ipu.config.get_ipu_config()


def test_precompilation_needs_a_cache_and_no_ipus(ipu, monkeypatch, tmp_path):
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 64
    config.device_connection.type = ipu.config.DeviceConnectionType.PRE_COMPILE
    config.device_connection.version = "ipu2"
    with pytest.raises(tf.errors.InvalidArgumentError, match="executable_cache_path"):
        config.configure_ipu_system()
    monkeypatch.setenv("TF_POPLAR_FLAGS", f"--executable_cache_path={tmp_path} --show_progress_bar=false")
    config.configure_ipu_system()
    config.device_connection.version = "ipu3"
    with pytest.raises(ValueError, match="ipu1, ipu2 or ipu21"):
        config.configure_ipu_system()


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--executable_cache=x", "unknown option"),
        ("--use_synthetic_data --synthetic_data_categories=seed", "exclude"),
    ],
)
def test_wrong_launch_options(ipu, monkeypatch, flags, message):
    monkeypatch.setenv("TF_POPLAR_FLAGS", flags)
    with pytest.raises(RuntimeError, match=message):
        ipu.config.IPUConfig().configure_ipu_system()


def test_the_model_of_an_ipu_takes_no_chosen_devices(ipu, monkeypatch):
    monkeypatch.setenv("TF_POPLAR_FLAGS", "--use_ipu_model")
    config = ipu.config.IPUConfig()
    config.select_ipus = 1
    with pytest.raises(Exception, match="auto_select_ipus"):
        config.configure_ipu_system()
