"""This project's inference, by one of its back ends."""

import importlib.metadata

import asking


def make(specification: dict):
    import official

    official.choose_kernels(specification["dtype"])
    from official.config import bert_config_from_dict
    from official.inference import backends, rows, source

    given = specification["calibration"]
    calibration = [rows.Rows(*batch) for batch in asking.read_batches(given)] if given else []
    settings = backends.Settings(
        specification["variant"], specification["dtype"], specification["threads"], calibration
    )
    backends.begin(settings)  # before anything is computed, weights included
    if specification["model"]:
        found = source.find(specification["model"], specification["vocab_file"])
    else:
        config = bert_config_from_dict(specification["config"], "config")
        found = source.random_source(config, "answer", seed=specification["seed"])
    network = backends.build(found, "answer", settings)

    def answer(batch, width):
        outputs = network(rows.Rows(*batch))
        return outputs["start_logits"], outputs["end_logits"]

    return answer, {settings.backend: importlib.metadata.version(settings.backend)}


if __name__ == "__main__":
    asking.serve(make)
