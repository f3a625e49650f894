"""What the IPU back end makes of the configuration: options, environment, replicas, latencies."""

import pytest

from official.graphcore import devices, export, pipeline, rules
from tests.graphcore import ipu_fake
from tests.refusals import assert_refused

pytestmark = pytest.mark.nightly


@pytest.fixture(name="configured")
def fixture_configured(make_config):
    """Returns a function that builds the configuration of a run on IPUs."""
    defaults = dict(distribution_strategy="ipu", pipeline_stages="2", device_mapping="0,0")
    return lambda **settings: make_config(**{**defaults, **settings})


def options_of(config):
    with ipu_fake.installed(ipus=16):
        return devices.configure(config, devices.load_api(), devices.Instances(2, 2, 0, 1, 4))


def test_options_follow_from_the_settings(configured, monkeypatch):
    settings = dict(replicas=2, fp_exceptions=True, stochastic_rounding=False, partials_type="half")
    settings |= dict(recompute="block", min_remote_tensor_size=50000, no_outlining=True)
    found = options_of(configured(**settings, scheduler="clustering"))
    assert found.auto_select_ipus == 8 and found.allow_recompute
    floats = found.floating_point_behaviour
    assert floats.inv and floats.div0 and floats.oflo and floats.esr.name == "OFF"
    assert found.matmuls.poplar_options == {"partialsType": "half"}
    assert found.optimizations.minimum_remote_tensor_size == 50000
    assert not found.optimizations.enable_graph_outlining
    assert found.scheduling.algorithm.name == "CLUSTERING"
    assert found.device_connection.type.name == "ALWAYS" and found.device_connection.version == ""
    found = options_of(configured())  # those of the published programs
    assert found.floating_point_behaviour.esr.name == "ON" and not found.floating_point_behaviour.oflo
    assert not found.allow_recompute and found.optimizations.enable_graph_outlining
    assert found.optimizations.minimum_remote_tensor_size == 128
    monkeypatch.setenv(devices.FLAGS, "--executable_cache_path=somewhere")  # PRE_COMPILE wants one
    for offchip in (True, False):
        device = options_of(configured(compile_only=True, optimizer_state_offchip=offchip)).device_connection
        found = (device.type.name, device.version, device.enable_remote_buffers)
        assert found == ("PRE_COMPILE", "ipu2", offchip)


def test_memory_is_said_for_all_for_ipus_or_for_stages(configured):
    for text, shares in (
        (None, [None] * 4),
        ("0.23", ["0.23"] * 4),
        ("0.1,0.2,0.3", ["0.1", "0.2", "0.3", "0.1"]),
        ("0.1, 0.2, 0.3, 0.4", ["0.1", "0.2", "0.3", "0.4"]),
    ):
        config = configured(available_memory_proportion=text, partials_type="half")
        assert rules.memory_proportions(config, (0, 1, 2, 0)) == shares
    with ipu_fake.installed(ipus=2):
        options = pipeline.stage_options(config, devices.load_api(), (0, 1, 2, 0))
    assert [each.matmul_options["availableMemoryProportion"] for each in options] == shares
    assert options[0].matmul_options["partialsType"] == "half"


def test_the_environment_gets_what_is_asked_for_and_keeps_what_a_person_has_set(configured):
    found = {}
    devices.prepare_environment(configured(executable_cache_path="a folder"), found)
    assert found == {devices.FLAGS: "'--executable_cache_path=a folder'"}
    own = {devices.FLAGS: "--executable_cache_path=mine --show_progress_bar=true"}
    found = dict(own)
    devices.prepare_environment(configured(), found)
    assert found == own
    devices.prepare_environment(configured(executable_cache_path="other", synthetic_input=True), found)
    assert found[devices.FLAGS].startswith(own[devices.FLAGS])
    assert "other" not in found[devices.FLAGS] and "--use_synthetic_data" in found[devices.FLAGS]


@pytest.fixture(name="poprun")
def fixture_poprun(monkeypatch):
    """This process is the second of two that poprun has started, with two of four replicas."""
    told = "NUM_TOTAL_REPLICAS=4 NUM_IPUS_PER_REPLICA=2 NUM_LOCAL_REPLICAS=2 REPLICA_INDEX_OFFSET=2"
    for name, value in (word.split("=") for word in f"{told} LOCAL_INSTANCE_INDEX=1".split()):
        monkeypatch.setenv(f"POPDIST_{name}", value)


def test_a_process_has_all_replicas_and_one_of_poprun_its_part_of_them_and_of_the_ipus(configured, poprun):
    config = configured(replicas=4)
    found = devices.find_instances(config, 5, None)
    assert (found.local_replicas, found.first_replica, found.is_chief) == (4, 0, True)
    assert found.ipus_per_replica == 8
    with ipu_fake.installed(ipus=8):
        popdist = devices.load_popdist()
        found = devices.find_instances(config, 2, popdist)
        assert (found.replicas, found.local_replicas, found.first_replica, found.count) == (4, 2, 2, 2)
        assert (found.index, found.is_chief, found.ipus_per_replica) == (1, False, 2)
        chosen = devices.configure(config, devices.load_api(), found)
        assert chosen.select_ipus and not chosen.auto_select_ipus
        assert type(devices.make_strategy(devices.load_api(), found)).__name__ == "PopDistStrategy"
        cases = [
            (dict(replicas=2), 2, "poprun has 4 replicas (--num-replicas), the configuration has 2"),
            (dict(replicas=4), 3, "poprun has 2 IPUs per replica"),
            (dict(replicas=4, replicated_tensor_sharding=True), 2, "Use --num-instances 1"),
        ]
        find = lambda settings, ipus: devices.find_instances(configured(**settings), ipus, popdist)  # noqa: E731
        assert_refused(find, cases)


def test_latencies_are_those_of_the_calls():
    found = export.summary([0.01] * 98 + [0.02, 0.04], 0.5, batch_size=4)
    assert found["latency"] == pytest.approx(0.0104)
    assert 0.02 <= found["latency_99"] <= found["latency_99_9"] <= 0.04
    assert (found["throughput"], found["batch size"]) == (pytest.approx(800), 4)
    asked = []
    batches = [(number,) for number in range(3)]
    secs, total = export.time_calls(lambda number: asked.append(number) or number, batches, 7, threads=2)
    assert len(secs) == 7 and 0 < max(secs) <= total
    assert sorted(asked) == sorted([0, 0, 1, 2, 0, 1, 2, 0])  # one call comes before
