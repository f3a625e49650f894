"""Names and shapes of tensors: what two sets of them do not have in common."""

from __future__ import annotations


def compare_names(
    expected: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]
) -> dict[str, list[str]]:
    """Returns {kind of difference: names} of two {name: shape}; an empty dict where there is none."""
    missing, unexpected = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    reshaped = [
        f"{name} {list(found[name])} for {list(expected[name])}"
        for name in sorted(set(expected) & set(found))
        if tuple(found[name]) != tuple(expected[name])
    ]
    kinds = {"missing": missing, "unexpected": unexpected, "of another shape": reshaped}
    return {kind: names for kind, names in kinds.items() if names}
