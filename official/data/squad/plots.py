"""The official pictures of version 2: precision over recall, and the spread of no-answer probabilities."""

import io
from collections.abc import Mapping

from official.data.squad.evaluation import AcceptedAnswers, Curve

_TITLES = {
    "pr_exact": "Precision and recall, exact match",
    "pr_f1": "Precision and recall, F1",
    "pr_oracle": "Precision and recall, is there an answer",
}
_COLOUR = "#0072B2"


def plot_curves(curves: Mapping[str, Curve]) -> dict[str, bytes]:
    """Returns {file name: PNG} of the curves of `evaluation.precision_recall`."""
    return {f"{name}.png": _plot_curve(curve, _TITLES[name]) for name, curve in curves.items()}


def plot_histograms(gold: AcceptedAnswers, na_probs: Mapping[str, float]) -> dict[str, bytes]:
    """Returns {file name: PNG} of the probabilities, 0 to 1, of questions with and without an answer; one
    without questions is left out."""
    kinds = {
        "hasAns": [identity for identity in gold if gold[identity]],
        "noAns": [identity for identity in gold if not gold[identity]],
    }
    values = {
        name: [na_probs[identity] for identity in identities if identity in na_probs]
        for name, identities in kinds.items()
    }
    return {
        f"na_prob_hist_{name}.png": _plot_histogram(found, name) for name, found in values.items() if found
    }


def _plot_curve(curve: Curve, title: str) -> bytes:
    figure, axes = _new_figure(title, "recall", "precision")
    axes.step(curve.recalls, curve.precisions, color=_COLOUR, where="post")
    axes.fill_between(curve.recalls, curve.precisions, step="post", alpha=0.2, color=_COLOUR)
    axes.set(xlim=(0, 1.05), ylim=(0, 1.05))
    return _render(figure)


def _plot_histogram(values: list[float], name: str) -> bytes:
    figure, axes = _new_figure(
        f"No-answer probability, {name}", "probability of no answer", "share of the questions"
    )
    axes.hist(values, weights=[1 / len(values)] * len(values), bins=20, range=(0, 1), color=_COLOUR)
    return _render(figure)


def _new_figure(title: str, x_label: str, y_label: str):
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # late: it takes long to load
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(title=title, xlabel=x_label, ylabel=y_label)
    return figure, axes


def _render(figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    return buffer.getvalue()
