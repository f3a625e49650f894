"""Graphcore's names of the parts of a model -> our stages of a model, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from official.config.stage_notation import written
from official.io.errors import ConfigError

# Name of theirs -> our stages of the model that it places; those that the model has not are left out.
# `enc_out` picks tokens out, which our masked_lm does itself.
_PLACES = {
    "emb": ("embeddings",),
    "pos": (),
    "enc_out": (),
    "pool": ("pooler",),
    "mlm": ("masked_lm",),
    "nsp": ("pooler", "next_sentence"),
    "heads": ("pooler", "masked_lm", "next_sentence"),
    "loc": ("span",),
    "qa_head": ("span",),
    "glu": ("pooler", "classifier"),
    "glu_reg": ("pooler", "classifier"),
    "glue_head": ("pooler", "classifier"),
}
_ONCE = ("emb", "pos", "mlm", "nsp", "heads", "loc", "qa_head")
# Our stage of a model -> the name of theirs that people should write.
_THEIRS = {
    "embeddings": "emb",
    "pooler": "pool",
    "masked_lm": "mlm",
    "next_sentence": "nsp",
    "span": "loc",
    "classifier": "glu",
}


def layers_of(model_stages: Iterable[str]) -> list[str]:
    """Returns the names of the encoder's blocks."""
    return [name for name in model_stages if name.startswith("layer_")]


def placed(stages: Sequence[Sequence[str]], model_stages: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Returns our stages of the model in each stage of the pipeline.

    A pooler that nobody names is with the head that needs it, the LayerNorm of prenorm blocks with the last
    of them.

    Args:
      stages: Graphcore's names in each stage of the pipeline.
      model_stages: names of the model's stages, in order.

    Raises:
      ConfigError: for a stage of the model that is nowhere, twice, out of order, or that the model has not,
        and for a stage of the pipeline that holds nothing.
    """
    _check_layers(stages, model_stages)
    _check_names(stages, model_stages)
    where = _where(stages, model_stages)
    missing = [name for name in model_stages if name not in where]
    if missing:
        names = ", ".join(_THEIRS.get(name, name) for name in missing)
        raise ConfigError(f"pipeline_stages={_shown(stages)} places no {names}. Add it to a stage.")
    for before, after in zip(model_stages, model_stages[1:]):
        if where[after] < where[before]:
            raise ConfigError(
                f"pipeline_stages={_shown(stages)}: {_THEIRS.get(after, after)} is before"
                f" {_THEIRS.get(before, before)}. Keep the model's order."
            )
    found = [[name for name in model_stages if where[name] == number] for number in range(len(stages))]
    for number, parts in enumerate(found):
        if not parts:
            raise ConfigError(
                f"pipeline_stages={_shown(stages)}: stage {number} computes nothing here. Join it with"
                " another."
            )
    return tuple(map(tuple, found))


def _check_layers(stages: Sequence[Sequence[str]], model_stages: Sequence[str]) -> None:
    said, layers = sum(list(stage).count("hid") for stage in stages), len(layers_of(model_stages))
    if said != layers:
        raise ConfigError(
            f"pipeline_stages={_shown(stages)} has {said} x hid, the model has num_hidden_layers={layers}."
            f" Place {layers}."
        )


def _check_names(stages: Sequence[Sequence[str]], model_stages: Sequence[str]) -> None:
    said = [(name, number) for number, stage in enumerate(stages) for name in stage if name != "hid"]
    for name in _ONCE:
        places = [number for other, number in said if other == name]
        if len(places) > 1:
            raise ConfigError(f"pipeline_stages={_shown(stages)} has {len(places)} x {name}. Place it once.")
    for name, _ in said:
        heads = [place for place in _PLACES[name] if place != "pooler"]
        lacking = [place for place in heads if place not in model_stages]
        if lacking:
            known = ", ".join(_THEIRS[place] for place in model_stages if place in _THEIRS)
            raise ConfigError(
                f"pipeline_stages={_shown(stages)}: the model has no {name}. Its parts: {known}, hid."
            )
    numbers = dict(said)
    if numbers.get("pos", numbers.get("emb")) != numbers.get("emb"):
        raise ConfigError(
            f"pipeline_stages={_shown(stages)}: pos is in another stage than emb, here they are one part."
            " Write emb+pos."
        )


def _where(stages: Sequence[Sequence[str]], model_stages: Sequence[str]) -> dict[str, int]:
    """Returns the stage of the pipeline of each of the model's stages."""
    where: dict[str, int] = {}
    layers = iter(layers_of(model_stages))
    said_pool = any("pool" in stage for stage in stages)
    for number, stage in enumerate(stages):
        for name in stage:
            names = (next(layers),) if name == "hid" else _PLACES[name]
            for place in names:
                if place in model_stages and not (place == "pooler" and said_pool and name != "pool"):
                    where.setdefault(place, number)
    if "final_norm" in model_stages:
        where["final_norm"] = where[layers_of(model_stages)[-1]]
    if not said_pool and "pooler" in where:  # comes before all heads
        where["pooler"] = min(where[name] for name in where if name in _HEADS)
    return where


_HEADS = ("masked_lm", "next_sentence", "classifier")


def in_their_words(stages: Iterable[Sequence[str]]) -> str:
    """Returns our stages of the model in each stage of the pipeline, in Graphcore's notation."""
    return written(
        ["hid" if name.startswith("layer_") else _THEIRS[name] for name in stage if name != "final_norm"]
        for stage in stages
    )


def _shown(stages: Sequence[Sequence[str]]) -> str:
    text = written(stages)
    return text if len(text) <= 90 else f"{text[:60]} .. {text[-25:]}"
