"""This project's own step, as train.py runs it: synthetic full-length data, the loop in the graph."""

import worker


def make_step(specification: dict):
    import official

    official.choose_kernels(specification["dtype"])
    from official.tasks import TASKS
    from official.training import step_benchmark

    settings = {
        "optimizer_type": "adamw",
        "num_gpus": 0,
        "fused_ops": specification["variant"] == "fused",
        "learning_rate": specification["learning_rate"],
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
    return step_benchmark.make_step(config, TASKS["pretrain"], steps=1)


if __name__ == "__main__":
    worker.serve(make_step)
