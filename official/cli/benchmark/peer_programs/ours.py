"""This project's own step, as train.py runs it, the loop in the graph.

The batch and the constant learning rate are those of the others.
"""

import json

import worker


def make_step(specification: dict):
    import official

    official.choose_kernels(specification["dtype"])
    from official.tasks import TASKS
    from official.training import step_benchmark

    settings = {
        "optimizer_type": "adamw",
        "num_gpus": 0,
        "kernels": "auto" if specification["variant"] == "fused" else "plain",
        "lr_schedule": "custom",  # constant, from the first step on
        "lr_schedule_by_step": json.dumps({"0": specification["learning_rate"]}),
        "warmup_steps": None,
        "weight_decay_rate": specification["weight_decay"],
        "epsilon": specification["epsilon"],
        "clip_norm": specification["clip_norm"],
        "max_predictions_per_seq": specification["predictions"],
    }
    config = step_benchmark.step_config(
        specification["model"],
        specification["length"],
        specification["batch"],
        specification["dtype"],
        settings,
    )
    return step_benchmark.make_step(config, TASKS["pretrain"], 1, records(specification))


def records(specification: dict) -> dict:
    """Returns the examples of all systems, {feature of a record: array [batch, ..]}."""
    import numpy as np

    made = worker.examples(specification)
    return {
        "input_ids": made["input_ids"],
        "input_mask": made["input_mask"],
        "segment_ids": made["segment_ids"],
        "masked_lm_positions": made["positions"],
        "masked_lm_ids": made["labels"],
        "masked_lm_weights": np.ones(made["labels"].shape, np.float32),
        "next_sentence_labels": made["next_sentence"][:, None],
        "example_weights": np.ones(specification["batch"], np.float32),
    }


if __name__ == "__main__":
    worker.serve(make_step)
