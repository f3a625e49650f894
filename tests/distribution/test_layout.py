"""Which micro batches who computes: of a run that goes on with another number of workers."""

import pytest

from official.distribution.batch_plan import Layout, is_kept, lay_out, shares
from official.io.errors import ConfigError
from tests.refusals import assert_refused

WORKERS = dict(distribution_strategy="multi_worker_mirrored", worker_hosts="a:1,b:1", task_index=0)
WORKERS |= dict(train_batch_size=48, num_accumulation_steps=3)
DROPOUT = dict(model=dict(hidden_dropout_prob=0.1))
BEGAN = Layout(workers=4, num_replicas=4, num_accumulation_steps=3, train_batch_size=48)


def test_the_global_batch_and_its_micro_batches_stay(make_config):
    """Those of a new run are laid out for those who begin it."""
    config = make_config(**WORKERS, **DROPOUT)
    for workers, replicas in [(4, 4), (1, 1), (2, 2), (3, 3), (1, 2), (6, 6), (12, 12)]:
        plan, layout = lay_out(config, workers, replicas, BEGAN)
        assert layout == BEGAN and plan.layout == (None if workers == 4 else BEGAN)
        assert (plan.num_replicas, plan.num_accumulation_steps) == (replicas, 12 // replicas)
        assert plan.micro_batch_size == 4 and plan.train_batch_size == 48
    assert lay_out(config, 4, 4, BEGAN) == lay_out(config, 4, 4, None)


def test_without_dropout_smaller_micro_batches_are_the_same_to_rounding(make_config):
    plan, layout = lay_out(make_config(**WORKERS), 8, 8, BEGAN)
    assert layout == BEGAN and plan.layout is None
    assert (plan.num_replicas, plan.num_accumulation_steps, plan.micro_batch_size) == (8, 2, 3)


def test_what_does_not_divide_is_an_error_with_the_valid_numbers(make_config):
    """Nor is what a micro batch decides the same with other ones."""
    shared = (
        "laid out for 4 workers with 4 replicas x 3 micro batches, 12 together: 5 replicas cannot share them"
        " evenly. Valid numbers of replicas: 1, 2, 3, 4, 6, 12. Or give another --num_acc"
    )
    large, local = Layout(1, 4096, 1, 4096), dict(loss_normalization="local")
    evaluates = dict(DROPOUT, do_eval=True, num_eval_samples=8)
    cases = [
        (5, BEGAN, DROPOUT, shared),
        (3, large, dict(DROPOUT, train_batch_size=4096, num_accumulation_steps=1), "1, 2, 4, 8, 16, 32"),
        (7, BEGAN, {}, "48 is not divisible by 7 replicas. Valid .*: 2, 3, 4, 6, 8, 12"),
        (8, BEGAN, dict(local, clip_scope="micro_batch"), "8 replicas cannot share"),
        (8, BEGAN, dict(local, clip_scope="none"), "8 replicas cannot share"),
        (8, BEGAN, dict(clip_scope="replicas"), "8 replicas cannot share"),
        (3, BEGAN, evaluates, "eval_batch_size=8 is not divisible by replicas = 3"),
    ]
    assert_refused(
        lambda count, began, settings: lay_out(make_config(**{**WORKERS, **settings}), count, count, began),
        cases,
    )


def test_somebody_may_lay_it_out_anew(make_config):
    for changed in (dict(num_accumulation_steps=6), dict(train_batch_size=96), dict(logical_workers=2)):
        config = make_config(**{**WORKERS, **DROPOUT, **changed})
        _, layout = lay_out(config, 2, 2, BEGAN)
        assert layout == Layout(2, 2, config.num_accumulation_steps, config.train_batch_size)


def test_one_process_may_be_laid_out_for_several(make_config):
    sizes = dict(train_batch_size=48, num_accumulation_steps=3, logical_workers=4)
    config = make_config(**sizes, **DROPOUT)
    plan, layout = lay_out(config, 1, 1, None)
    assert layout == plan.layout == BEGAN and plan.num_accumulation_steps == 12
    with pytest.raises(ConfigError, match="4 workers .* 5 replicas cannot share"):
        lay_out(config, 5, 5, None)
    # Smaller micro batches where nothing is random.
    plan, layout = lay_out(make_config(**sizes), 8, 8, None)
    assert layout == BEGAN and plan.num_replicas * plan.num_accumulation_steps * plan.micro_batch_size == 48


def test_one_process_with_other_devices_goes_on_as_ever(make_config):
    config = make_config(**DROPOUT, num_virtual_devices=2, distribution_strategy="mirrored")
    plan, layout = lay_out(config, 1, 2, Layout(1, 1, 1, 8))
    assert layout == Layout(1, 2, 1, 8) and plan.layout is None and plan.micro_batch_size == 4


def test_what_keeps_a_layout(make_config):
    assert is_kept(make_config(**WORKERS)) and is_kept(make_config())
    assert not is_kept(make_config(do_train=False, do_eval=True, num_eval_samples=8))
    assert not is_kept(make_config(distribution_strategy="tpu"))


def test_every_micro_batch_is_computed_once_and_in_order():
    for hosts in (1, 2, 3, 4, 6, 12):
        seen = [
            share.worker * 3 + number
            for host in range(hosts)
            for share in shares(BEGAN, host, hosts)
            for number in range(share.first, share.last)
        ]
        assert seen == list(range(12))
