"""The recipe of configs/quickstart.flags as a Python file: settings follow from others, or from an argument.

    bert train --config=configs/quickstart.py
    bert train --config=configs/quickstart.py:3000 --model_dir=runs/longer   # as many steps
    bert train --config=configs/quickstart.py --config.train_batch_size=256 --model_dir=runs/wider

A field is a flag of `bert train --help`; `config.model = ConfigDict(...)` holds the sizes of a model.
"""

from ml_collections import ConfigDict


def get_config(steps: str = "1500") -> ConfigDict:
    config = ConfigDict()
    config.bert_config_file = "configs/models/bert_quickstart.json"
    config.vocab_file = "data/quickstart/vocab.txt"
    config.input_files = "data/quickstart/train/*.tfrecord"
    config.eval_files = "data/quickstart/eval/*.tfrecord"
    config.model_dir = "runs/quickstart"
    config.max_seq_length = 32
    config.max_predictions_per_seq = 5

    config.train_batch_size = 128
    config.num_gpus = 0
    config.device_warmup = True

    config.optimizer_type = "lamb"
    config.learning_rate = 0.005
    config.num_steps_per_epoch = int(steps)
    config.num_train_epochs = 1
    config.warmup_steps = 100
    config.steps_per_loop = 100

    config.do_eval = True
    config.eval_batch_size = config.get_ref("train_batch_size")
    config.num_eval_samples = 10_000
    config.steps_between_eval = config.get_ref("steps_per_loop")
    config.stop_threshold = 0.25
    return config
