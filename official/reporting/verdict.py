"""Verdict on a run: whether and how well it worked, and what to do next."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import shlex
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from official.reporting.formats import format_number, metric_name

if TYPE_CHECKING:
    from official.reporting.result import TrainResult


# -----------------------------------------------------------------------------------------------------------
# Shapes of curves
#
# A curve is a list of (step, value), sorted; None stands for a non-finite value.


_LAST_PART = 0.2  # of the steps
_MIN_POINTS = 4  # minimum for a trend
_TREND = 0.01  # relative change of the loss that counts
_SURE = 3.0  # standard errors
_OVER_FITTED = 0.02  # relative rise of the evaluation loss
_WORSE = 0.01  # fall of the score
_BY_FAR = 5  # factor for a single evaluation

Points = Sequence[tuple[int, float | None]]


@dataclasses.dataclass(frozen=True)
class Trend:
    """The change of the training loss over the last part of a run.

    Attributes:
      change: relative change, negative if the loss fell; 0 if not significant.
      over: that part, as text.
      first, last: the loss at its ends, on the straight line through it.
    """

    change: float
    over: str
    first: float
    last: float

    def describe(self) -> str:
        if self.change == 0:
            return f"The training loss shows no clear change over {self.over}: it is {self.last:.3f}."
        from_to = f"from {self.first:.3f} to {self.last:.3f}, over {self.over}"
        if abs(self.change) < _TREND:
            return f"The training loss has levelled off: it changed by {100 * self.change:+.1f} %, {from_to}."
        kind = "was still falling: by" if self.change < 0 else "was rising: by"
        return f"The training loss {kind} {100 * abs(self.change):.1f} %, {from_to}."

    @property
    def falls(self) -> bool:
        return self.change <= -_TREND


def curve(metrics: list[dict], split: str, name: str, over: str = "step") -> list[tuple[int, float | None]]:
    """Returns a metric of a split over steps, from lines of metrics.jsonl; for a step that a resumed run has
    repeated, the later line.

    Args:
      metrics: the lines.
      split: train or eval.
      name: name of the metric.
      over: step or samples.
    """
    lines = [line for line in metrics if line.get("split") == split and name in line]
    points = {line[over]: line[name] for line in lines if line.get(over) is not None}
    return [(at, float(value) if is_finite(value) else None) for at, value in sorted(points.items())]


def finite_values(points: Points) -> list[float]:
    """Returns the finite values of the points, in order."""
    return [value for _, value in known(points)]


def known(points: Points) -> list[tuple[int, float]]:
    """Returns the points that are finite."""
    return [(at, value) for at, value in points if is_finite(value)]


def is_finite(value: Any) -> TypeGuard[float]:
    """Returns whether a value is a finite number; False for None."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def divergence(losses: Points) -> int | None:
    """Returns the step of divergence, from which on the loss is not finite or stays far above its minimum;
    None if it did not diverge.

    Far means more than half of its total decrease, and more than six times its usual change from line to
    line.
    """
    tail = list(itertools.takewhile(lambda point: point[1] is None, reversed(losses)))
    bad = tail[-1][0] if tail else None
    points = known(losses)
    if len(points) < 5:
        return bad
    # Single spikes do not count.
    values = [value for _, value in points]
    smooth = [statistics.median_low(values[max(0, at - 1) : at + 2]) for at in range(len(values))]
    lowest = min(range(len(smooth)), key=smooth.__getitem__)
    end, fallen = smooth[-1], smooth[0] - smooth[lowest]
    jumps = sorted(abs(after - before) for before, after in itertools.pairwise(values))
    rise, noise = end - smooth[lowest], jumps[len(jumps) // 2]
    if rise <= max(0.5 * fallen, 6 * noise, 0.1 * abs(smooth[lowest])):
        return bad
    half = smooth[lowest] + rise / 2
    return next(step for (step, _), value in zip(points[lowest:], smooth[lowest:]) if value >= half)


def trend(losses: Points) -> Trend | None:
    """Returns the change over the last fifth of the steps, or the last few points, by linear regression; None
    for too few points.

    A change of less than _SURE standard errors counts as 0: noise is not progress.
    """
    points = known(losses)
    if len(points) <= _MIN_POINTS:
        return None
    last = points[-1][0]
    part = [point for point in points if point[0] > (1 - _LAST_PART) * last]
    over = "the last fifth of the steps"
    if len(part) < _MIN_POINTS:
        part = points[-_MIN_POINTS:]
        over = f"the last {last - part[0][0]:,} steps"
    import numpy as np  # late: only needed here

    steps, values = np.transpose(part)
    center = steps.mean()
    (slope, mean), covariance = np.polyfit(steps - center, values, 1, cov=True)
    if slope**2 < _SURE**2 * covariance[0, 0]:
        return Trend(0.0, over, mean, mean)
    start, end = (mean + slope * (step - center) for step in (part[0][0], last))
    return Trend((end - start) / start, over, start, end) if start > 0 else None


def over_fitting(evaluations: Points, losses: Points, rises: bool = False) -> tuple[int, float, float] | None:
    """Returns (step of the best evaluation, its value, the last value) if evaluations got worse while the
    training loss went on falling.

    One slightly worse evaluation may be chance: at least two follow the best one, or one is far worse.

    Args:
      evaluations: losses or scores of evaluations.
      losses: training losses.
      rises: whether higher is better in `evaluations`, as for scores.
    """
    points, train = known(evaluations), known(losses)
    if len(points) < 3 or len(train) < 2:
        return None
    step, best = min(points, key=lambda point: -point[1] if rises else point[1])
    after = [value for at, value in points if at > step]
    allowed = _WORSE if rises else _OVER_FITTED * abs(best)
    worse = [(best - value if rises else value - best) / allowed for value in after[-2:]] if allowed else []
    sure = len(worse) == 2 and min(worse) > 1 or bool(worse) and worse[-1] > _BY_FAR
    until = [value for at, value in train if at <= step][-5:] or [train[0][1]]
    since = [value for at, value in train if at > step][-5:]
    if not (sure and since) or sum(since) / len(since) >= sum(until) / len(until):
        return None
    return step, best, after[-1]


def smoothed(points: Points) -> list[tuple[int, float | None]]:
    """Returns the mean over a fiftieth of the points on either side; non-finite values stay.

    At the start the window narrows on both sides, so that the steep first part is not flattened; at the end
    it narrows on the right.
    """
    sums = [0.0, *itertools.accumulate(value or 0.0 for _, value in points)]
    counts = [0, *itertools.accumulate(value is not None for _, value in points)]
    reach = max(1, len(points) // 50)
    means: list[tuple[int, float | None]] = []
    for at, (step, value) in enumerate(points):
        left = min(at, reach)
        first, behind = at - left, min(at + left + 1, len(points))
        if value is not None:
            value = (sums[behind] - sums[first]) / (counts[behind] - counts[first])
        means.append((step, value))
    return means


def thinned(points: Points, most: int) -> Points:
    """Returns about `most` points: the minimum and the maximum of each segment, so that spikes and gaps
    stay."""
    if len(points) <= most:
        return points
    size = math.ceil(2 * len(points) / most)
    kept: list[tuple[int, float | None]] = []
    for first in range(0, len(points), size):
        stretch = points[first : first + size]
        known = {at: value for at, (_, value) in enumerate(stretch) if is_finite(value)}
        gap = [at for at in range(len(stretch)) if at not in known][:1]
        ends = [min(known, key=known.__getitem__), max(known, key=known.__getitem__)] if known else []
        kept += [stretch[at] for at in sorted({*ends, *gap})]
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def split_at(points: list[tuple[int, float]], last: int) -> tuple[list, list]:
    """Cuts a line at a step, with an interpolated point if needed; the second part is empty after the last
    point."""
    if last >= points[-1][0]:
        return points, []
    done = [point for point in points if point[0] <= last]
    ahead = [point for point in points if point[0] > last]
    if not done:
        return [], points
    (before, low), (after, high) = done[-1], ahead[0]
    cut = (last, low + (high - low) * (last - before) / (after - before))
    return [*done, cut], [cut, *ahead]


# -----------------------------------------------------------------------------------------------------------
# Verdict


# Margins over a constant prediction that count as better, and as clearly better; scores are
# fractions.
_BETTER, _CLEARLY_BETTER = 0.005, 0.02
_GOOD_F1 = 0.3  # below it, most answers are wrong
_TARGET = {"success": ("Target reached", "good"), "aborted": ("Target not reached", "bad")}
_LESS = "Lower --learning_rate, lengthen --warmup_steps or set --clip_norm"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The assessment of a run.

    Attributes:
      headline: a few words.
      sentence: the reason for it, with numbers.
      advice: next step; empty for none.
      tone: good, fair or bad.
    """

    headline: str
    sentence: str
    advice: str
    tone: str


def judge(metrics: list[dict], result: TrainResult, command: str = "") -> Verdict:
    """Assesses a run.

    Args:
      metrics: lines of metrics.jsonl.
      result: the `TrainResult`.
      command: the command line of the run; empty if unknown.
    """
    same = f": {command}" if command else "."
    losses, saved = curve(metrics, "train", "loss"), (result.checkpoint or "").rpartition("/")[2]
    trained, reason = result.config.get("do_train", True), _sentence(result.reason)
    if result.peer_lost:
        where = f"from {saved}" if saved else "from the start"
        advice = f"Start all processes again with the same command, they go on {where}{same}"
        return Verdict(f"A process was lost at step {result.step:,}", reason, advice, "bad")
    if result.status == "failed":
        found = re.search(r"step (\d+)", result.reason)
        where = f"Go on from {saved}" if saved else "Start again"
        advice = f"{_LESS}. {where} with the same command{same}"
        headline = f"Diverged at step {int(found[1]) if found else result.step:,}"
        return Verdict(headline, reason + _lowest(losses), advice, "bad")
    change = trend(losses)
    described = f" {change.describe()}" if change else ""
    if result.status == "interrupted":
        steps, epochs = (result.config.get(f"num_{name}") for name in ("steps_per_epoch", "train_epochs"))
        planned = result.config.get("stop_steps") or (int(steps * epochs) if steps and epochs else None)
        headline = f"Interrupted at step {result.step:,}" + (f" of {planned:,}" if planned else "")
        state = f" The state is in {saved}." if saved else ""
        advice = f"Run the same command again, it goes on where it stopped{same}"
        return Verdict(headline, reason + state + described, advice, "fair")
    lost = divergence(losses) if trained else None
    if lost is not None and result.status != "success":
        sentence = (
            f"The training loss rose to {finite_values(losses)[-1]:.3g}, far above its minimum, and did not"
            f" come back.{_lowest(losses)} {_score_sentence(result)}"
        )
        advice = f"{_LESS}, and start in a new --model_dir: {_slower(result)}"
        return Verdict(f"Diverged at step {lost:,}", sentence, advice, "bad")
    base, score = result.baseline_score, score_of(result)[0]
    if base is not None and score is not None and score < base + _CLEARLY_BETTER:
        always = f"always predicting {constant_name(result)}"
        headline = f"{'No' if score < base + _BETTER else 'Hardly'} better than {always}"
        name = metric_name(result.target_metric)
        sentence = f"{name} is {_number(score)} on the evaluation set; {always} scores {_number(base)}."
        advice = f"Try another --learning_rate first, up and down by a factor of 3: {_slower(result)}"
        if change and change.falls:
            advice = f"It may only need more steps: raise --num_train_epochs: {_longer(result)}"
        advice += " \u2013 Then check the labels and the vocabulary of the data."
        return Verdict(headline, sentence + described, advice if trained else "", "bad")
    if trained:
        judged = _ended(metrics, losses, change, result)
    else:
        headline, tone = _TARGET.get(result.status, (reason.rstrip("."), "good"))
        judged = Verdict(headline, _score_sentence(result), "", tone)
    if result.target_metric != "f1" or score is None or score >= _GOOD_F1 or judged.tone != "good":
        return judged
    # A low score, even if it reached the run's target.
    advice = f"Train for more steps, or with another --learning_rate: {_longer(result)}" if trained else ""
    sentence = f"{judged.sentence} An F1 below {_GOOD_F1} is low."
    return Verdict(judged.headline, sentence, judged.advice or advice, "fair")


def constant_name(result: TrainResult) -> str:
    """Returns the name of the constant prediction whose score is `baseline_score`: “the”."""
    names = dict.fromkeys(("pearson", "spearman"), "the mean score")
    names["mlm_accuracy"] = "the most frequent token"
    name = result.baseline_prediction
    return f"\u201c{name}\u201d" if name else names.get(result.target_metric, "the most frequent label")


def _lowest(losses: Points) -> str:
    points = [(value, step) for step, value in known(losses)]
    return " The lowest training loss was {:.3g} at step {:,}.".format(*min(points)) if points else ""


def _ended(metrics: list[dict], losses: Points, change: Trend | None, result: TrainResult) -> Verdict:
    """Assesses a training that ended normally."""
    worse, rising = _over_fitted(metrics, losses, result)
    headline, tone = _TARGET.get(result.status, ("All steps done", "good"))
    epochs, advice = result.config.get("num_train_epochs"), ""
    if worse:
        if result.status == "finished" and rising is not None:
            headline, tone = f"Over-fitted after step {rising:,}", "fair"
        kept = " \u2013 The weights of the best evaluation were kept." if "best_step" in result.scores else ""
        fewer = "Train for fewer steps or on more data; a lower --learning_rate helps, too"
        advice = f"{fewer}: {_slower(result)}{kept}"
    elif change and change.falls:
        if result.status == "finished":
            headline = "All steps done, training loss still falling"
        longer = f"--num_train_epochs={2 * epochs:g}" if epochs else "more --num_train_epochs"
        new = "in a new --model_dir, so that the learning rate decays over all of them"
        advice = f"More steps would help: train with {longer} {new}: {_longer(result)}"
    elif change and result.status == "aborted":
        other = "try another --learning_rate, a larger model or more data"
        advice = f"More steps of the same will hardly do: {other}: {_slower(result)}"
    described = worse or (change.describe() if change else "")
    sentence = " ".join(filter(None, [_score_sentence(result), described]))
    return Verdict(headline, sentence, advice, tone)


def _over_fitted(metrics: list[dict], losses: Points, result: TrainResult) -> tuple[str, int | None]:
    """Returns a sentence on evaluations that get worse, and the step of the best one. The step is None if
    only the loss got worse while the score still rose; without such evaluations, the sentence is empty."""
    name = result.target_metric
    loss = over_fitting(curve(metrics, "eval", "loss"), losses)
    score = over_fitting(curve(metrics, "eval", name), losses, rises=True)
    worse = loss or score
    if worse is None:
        return "", None
    step, best, last = worse
    from_to = f"from {_number(best)} at step {step:,} to {_number(last)} while the training loss fell on."
    if score and not loss:
        return f"Over-fitted: {metric_name(name)} fell {from_to}", step
    better = [value for at, value in curve(metrics, "eval", name) if at > step and value is not None]
    at_best = dict(curve(metrics, "eval", name)).get(step)
    rose = f"the evaluation loss rose {from_to}"
    if better and at_best is not None and better[-1] > at_best:
        return f"Over-confident: {rose[:-1]}, though {metric_name(name)} still rose.", None
    return f"Over-fitted: {rose}", step


def _slower(result: TrainResult) -> str:
    rate = result.config.get("learning_rate")
    return _again(result, learning_rate=rate / 3 if rate else None)


def _longer(result: TrainResult) -> str:
    return _again(result, num_train_epochs=2 * (result.config.get("num_train_epochs") or 1))


def _again(result: TrainResult, **changed: Any) -> str:
    """Returns the command that trains with the settings of this run, some changed, in a new folder."""
    config = result.config
    folder = config.get("model_dir") or "run"
    if "num_train_epochs" in changed and config.get("stop_steps"):
        changed["stop_steps"] = 2 * config["stop_steps"]
    if config.get("export_dir"):
        changed["export_dir"] = ""
    flags = {"config": f"{folder}/config.json", **changed, "model_dir": f"{folder}_2"}
    known_flags = [(name, value) for name, value in flags.items() if value is not None]
    words = (f"--{name}={f'{value:g}' if isinstance(value, float) else value}" for name, value in known_flags)
    return shlex.join(["bert", "train", *words])


def score_of(result: TrainResult) -> tuple[float | None, int]:
    """Returns the target metric and its step: those of the best evaluation for a task that keeps its best
    weights, otherwise of the last one."""
    score, step = result.scores.get(result.target_metric), result.scores.get("best_step")
    if score is not None and isinstance(step, int):
        return score, step
    return result.eval_accuracy, result.step


def _score_sentence(result: TrainResult) -> str:
    """Returns a sentence with the score and the baseline."""
    score, step = score_of(result)
    if score is None:
        return "" if result.eval_loss is None else f"Evaluation loss {result.eval_loss:.3f} nats."
    sentence = f"{metric_name(result.target_metric)} {_number(score)} at step {step:,}"
    if result.target is not None:
        sentence += f"; the target is {_number(result.target)}"
    if result.baseline_score is not None:
        sentence += f"; always predicting {constant_name(result)} scores {_number(result.baseline_score)}"
    return f"{sentence}."


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else format_number(value)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "." if text else ""


def judge_repeats(result: TrainResult, count: int) -> Verdict:
    """Assesses runs that differ only in their seed.

    Args:
      result: the combined `TrainResult`, with {metric: mean} and {metric_std: standard deviation} as scores.
      count: number of runs.
    """
    name = result.target_metric
    mean, deviation = result.scores.get(name), result.scores.get(f"{name}_std")
    if mean is None or deviation is None:
        return Verdict(f"{count} runs done", "", "", "good")
    both = f"{_number(mean)} \u00b1 {_number(deviation)}"
    sentence = f"{metric_name(name)} {both}, mean and standard deviation over {count} seeds."
    if result.baseline_score is not None:
        always = f"lways predicting {constant_name(result)}"
        sentence += f" A{always} scores {_number(result.baseline_score)}."
        if mean - deviation < result.baseline_score + _CLEARLY_BETTER:
            advice = f"Try another --learning_rate, or more epochs: {_slower(result)}"
            return Verdict(f"Hardly better than a{always}", sentence, advice, "bad")
    advice = "Compare recipes over several seeds: differences smaller than the deviation are noise."
    tone = "fair" if name == "f1" and mean < _GOOD_F1 else "good"
    return Verdict(f"{count} runs done", sentence, advice, tone)
