"""Training steps that are traced once and used by all runs of one kind: tracing is most of their cost.

A run that asks for a state gets one that an earlier run has had, with its first values back, and the graphs
that were made for it. Settings that no graph depends on may differ between the two.
"""

import collections
import gc
import json
from collections.abc import Callable

import pytest
import tensorflow as tf

from official import config as config_lib
from official.training import pipelined
from official.training import step as step_lib

# Settings that neither the state nor a graph depends on.
FREE = frozenset(
    """model_dir input_files eval_files train_file predict_file data_dir cache_dir vocab_file init_checkpoint
    do_train do_eval do_predict num_eval_samples eval_batch_size eval_rule steps_between_eval
    steps_before_eval_start checkpoint_every_steps keep_checkpoints steps_per_loop stop_steps stop_threshold
    use_synthetic_data generated_data compile_only device_warmup mllog_file
    submission_org submission_platform submission_division submission_status num_runs n_best_size
    max_answer_length max_query_length doc_stride null_score_diff_threshold bert_config_file do_lower_case
    early_stopping_patience wandb wandb_name num_steps_per_epoch num_train_epochs warmup_proportion
    profile_steps profile_memory""".split()
)
_MOST = 8  # states that are kept


class _Kept:
    """A state, its first values, and the graphs that were made for it."""

    def __init__(self, state):
        self.state = state
        self.values = {name: variable.read_value() for name, variable in state.variables().items()}
        self.graphs = {}

    def reset(self) -> None:
        for name, variable in self.state.variables().items():
            variable.assign(self.values[name])


class Pool:
    """The states of the last few kinds of runs."""

    def __init__(self):
        self._kept = collections.OrderedDict()

    def state(self, make: Callable, config, task, strategy):
        settings = {name: config[name] for name in config_lib.FIELDS if name not in FREE}
        settings["model"] = vars(config.model)
        settings["steps"] = config_lib.schedule_steps(config)
        key = json.dumps(settings, sort_keys=True, default=str)
        if key in self._kept:
            self._kept.move_to_end(key)
            self._kept[key].reset()
        else:
            self._kept[key] = _Kept(make(config, task, strategy))
        if len(self._kept) > _MOST:
            self._kept.popitem(last=False)
        return self._kept[key].state

    def graph(self, name: str, make: Callable, state, *arguments):
        for kept in self._kept.values():
            if kept.state is state:
                if name not in kept.graphs:
                    kept.graphs[name] = make(*arguments)
                return kept.graphs[name]
        return make(*arguments)

    def clear(self) -> None:
        self._kept.clear()
        tf.keras.backend.clear_session()
        gc.collect()


@pytest.fixture(scope="module", name="step_pool")
def fixture_step_pool():
    pool = Pool()
    yield pool
    pool.clear()


@pytest.fixture(autouse=True)
def shared_steps(step_pool, monkeypatch):
    """Lets the runs of a module share their steps."""
    share_steps(step_pool, monkeypatch)


def share_steps(step_pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes states and graphs from a pool, as also a fixture of a whole module may ask."""
    make_state = pipelined.make_state
    monkeypatch.setattr(pipelined, "make_state", lambda *given: step_pool.state(make_state, *given))

    def shared(name: str, place: int) -> Callable:
        make = getattr(step_lib, name)
        # Whether rows are packed, of which the plan tells, is a matter of the files.
        kind = lambda given: f"{name} {given[4]}" if name == "make_train_loop" else name  # noqa: E731
        return lambda *given: step_pool.graph(kind(given), make, given[place], *given)

    for name, place in (("make_train_loop", 2), ("make_eval_step", 1), ("make_finite_check", 0)):
        monkeypatch.setattr(step_lib, name, shared(name, place))
