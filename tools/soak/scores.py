"""H8: scores on degenerate and random cases match the reference programs, or a clear error is raised."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tools.soak.rows import Budget, Row, Trial

VALUE_SHAPES = ("drawn", "one class true", "one class predicted", "all equal", "one example", "all wrong")
ERROR_SHAPES = ("nothing", "not finite")
CASES = 20
_CLOSE = {"rel_tol": 1e-12, "abs_tol": 1e-12}
_CLEAR = {"nothing": r"no (examples|questions|words) were given", "not finite": "finite number|outside the labels"}
_TEXTS = ("", "the", "cat", "a cat", "black cat", "Cat!", "cat cat dog", "U.S. cat", "dog", "é—è the")


@dataclass(frozen=True)
class Case:
    """One case of a family: a metric, the batches to update it with, and the reference scores."""

    metric: Any
    batches: list[tuple[Any, Any]]
    expected: Callable[[], dict[str, float]]


def sides(draw: Any, shape: str, num_values: int) -> tuple[Any, Any]:
    """Return integers below `num_values` as predictions and targets, both (examples,), for the given shape of case."""
    import numpy as np

    size = {"one example": 1, "nothing": 0}.get(shape, int(draw.integers(2, 30)))
    targets, constant = draw.integers(0, num_values, size), int(draw.integers(num_values))
    predictions = np.where(draw.random(size) < draw.random(), targets, draw.integers(0, num_values, size))
    if shape in ("one class true", "all equal"):
        targets = np.full(size, constant)
    if shape in ("one class predicted", "all equal"):
        predictions = np.full(size, constant)
    if shape == "all wrong":
        predictions = (targets + draw.integers(1, num_values, size)) % num_values
    return predictions, targets


def _columns(draw: Any, shape: str, num_labels: int) -> Any:
    """Return 0 and 1 as predictions and targets, both (examples, labels), with the shape of case in every column."""
    import numpy as np

    columns = [sides(draw, shape, 2) for _ in range(num_labels)]
    size = min(len(column[0]) for column in columns)
    return tuple(np.stack([column[side][:size] for column in columns], axis=1) for side in (0, 1))


def _spoilt(draw: Any, shape: str, values: Any) -> Any:
    """Return an array with one non-finite number if the shape asks for it."""
    if shape != "not finite":
        return values
    spoilt = values.astype(float)
    spoilt.flat[int(draw.integers(spoilt.size))] = draw.choice([math.nan, math.inf, -math.inf])
    return spoilt


def _cut(draw: Any, *arrays: Any) -> list[Any]:
    """Return arrays split into batches at the same random places, some of them empty."""
    import numpy as np

    ends = np.sort(draw.integers(0, len(arrays[0]) + 1, 3))
    return list(zip(*(np.split(array, ends) for array in arrays), strict=True))


def two_classes(draw: Any, shape: str, num_classes: int = 2) -> Case:
    """Accuracy, F1 of class 1, macro F1, Matthews correlation; scikit-learn."""
    from maskloom.metrics.labels import SingleLabelMetric

    predictions, targets = sides(draw, shape, num_classes)

    def expected() -> dict[str, float]:
        from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

        of_one = f1_score(targets == 1, predictions == 1, zero_division=0)  # pyright: ignore[reportArgumentType]
        return {
            "accuracy": accuracy_score(targets, predictions),
            "f1_macro": f1_score(targets, predictions, average="macro", zero_division=0),  # pyright: ignore[reportArgumentType]
            "matthews": matthews_corrcoef(targets, predictions),
            **({"f1": float(of_one)} if num_classes == 2 else {}),
        }

    return Case(SingleLabelMetric(num_classes), _cut(draw, _spoilt(draw, shape, predictions), targets), expected)


def several_classes(draw: Any, shape: str) -> Case:
    """The same for three to six classes."""
    return two_classes(draw, shape, int(draw.integers(3, 7)))


def several_labels(draw: Any, shape: str) -> Case:
    """Micro and macro F1 and exact match of label sets; scikit-learn."""
    import numpy as np

    from maskloom.metrics.labels import MultiLabelMetric

    num_labels = int(draw.integers(1, 6))
    predictions, targets = _columns(draw, shape, num_labels)

    def expected() -> dict[str, float]:
        from sklearn.metrics import f1_score

        by_label = [f1_score(t, p, zero_division=0) for t, p in zip(targets.T, predictions.T, strict=True)]  # pyright: ignore[reportArgumentType]
        micro = f1_score(targets.ravel(), predictions.ravel(), zero_division=0)  # pyright: ignore[reportArgumentType]
        exact = (predictions == targets).all(axis=1).mean()
        return {"f1_micro": float(micro), "f1_macro": float(np.mean(by_label)), "exact_match": float(exact)}

    return Case(MultiLabelMetric(num_labels), _cut(draw, _spoilt(draw, shape, predictions), targets), expected)


def regression(draw: Any, shape: str) -> Case:
    """Pearson's and Spearman's correlation, 0 if undefined, and the mean squared error; scipy, scikit-learn."""
    import numpy as np

    from maskloom.metrics.labels import RegressionMetric

    levels = draw.normal(size=5) * 10.0 ** draw.integers(-30, 30)
    predictions, targets = (levels[side].astype(np.float32) for side in sides(draw, shape, 5))

    def expected() -> dict[str, float]:
        from scipy.stats import pearsonr, spearmanr
        from sklearn.metrics import mean_squared_error

        given = predictions.astype(float), targets.astype(float)
        both = {"pearson": pearsonr, "spearman": spearmanr}
        found = {name: float(np.asarray(call(*given)[0])) if len(targets) > 1 else 0.0 for name, call in both.items()}
        found = {name: 0.0 if math.isnan(value) else value for name, value in found.items()}
        mean = (found["pearson"] + found["spearman"]) / 2
        return {**found, "correlation": mean, "mean_squared_error": float(mean_squared_error(*given))}

    return Case(RegressionMetric(), _cut(draw, _spoilt(draw, shape, predictions), targets), expected)


def entities(draw: Any, shape: str) -> Case:
    """F1 of entities by conlleval's rules, also by type, and strict; seqeval."""
    import numpy as np

    from maskloom.metrics.entities import EntityMetric

    prefixes, name = (("I", "io"), ("BI", "iob2"), ("BIES", "bioes"), ("BILU", "bilou"))[int(draw.integers(4))]
    labels = ["O", *(f"{prefix}-{kind}" for kind in ("PER", "a-b") for prefix in prefixes)]
    predictions, targets = sides(draw, shape, len(labels))
    size = len(targets)
    ends = np.unique(draw.integers(1, size, 3)) if size > 1 else []
    sentences = list(zip(np.split(_spoilt(draw, shape, predictions), ends), np.split(targets, ends), strict=True))
    batches = [([one], other) for one, other in sentences if size]

    def expected() -> dict[str, float]:
        from seqeval import metrics, scheme

        guessed, true = ([[labels[number] for number in part[side]] for part in sentences] for side in (0, 1))
        found = {"accuracy": float(metrics.accuracy_score(true, guessed))}
        strict = {"iob2": scheme.IOB2, "bioes": scheme.IOBES, "bilou": scheme.BILOU}.get(name)
        if strict is not None:
            options = {"average": "micro", "zero_division": 0, "mode": "strict", "scheme": strict}
            found |= _three(metrics, true, guessed, "strict_", options)
        if name != "bilou":
            found |= _three(metrics, true, guessed, "", {"average": "micro", "zero_division": 0})
        return found

    return Case(EntityMetric(labels, scheme=name), batches, expected)  # pyright: ignore[reportArgumentType]


def _three(metrics: Any, true: Any, guessed: Any, prefix: str, options: dict[str, Any]) -> dict[str, float]:
    calls = {"f1": metrics.f1_score, "precision": metrics.precision_score, "recall": metrics.recall_score}
    return {f"{prefix}{name}": float(call(true, guessed, **options)) for name, call in calls.items()}


def answers_v1(draw: Any, shape: str) -> Case:
    """Exact match and F1 of SQuAD v1.1, by the rules of its official script."""
    from maskloom.metrics.answers import AnswerMetric
    from tools.soak.squad_rules import scores_v1

    predictions, targets = sides(draw, shape, int(draw.integers(2, len(_TEXTS) + 1)))
    texts = {str(number): _TEXTS[text] for number, text in enumerate(predictions)}
    more = [draw.choice(_TEXTS, draw.integers(0, 3)).tolist() for _ in targets]
    golds = {str(number): [_TEXTS[text], *more[number]] for number, text in enumerate(targets)}
    odds = [math.nan if shape == "not finite" else None for _ in targets]
    batches = [([(texts[name], odd)], [golds[name]]) for name, odd in zip(golds, odds, strict=True)]
    return Case(AnswerMetric(), batches, lambda: scores_v1(golds, texts))


def answers_v2(draw: Any, shape: str) -> Case:
    """The scores of SQuAD v2.0 with null odds and, in half of the cases, a threshold, by the rules of its script.

    If every question has an answer, there is no threshold, and the rules are v1.1's.
    """
    from maskloom.metrics.answers import AnswerMetric
    from tools.soak.squad_rules import scores_v1, scores_v2

    predictions, targets = sides(draw, shape, int(draw.integers(2, len(_TEXTS) + 1)))
    texts = {str(number): _TEXTS[text] for number, text in enumerate(predictions)}
    golds = {str(number): [_TEXTS[text]] if text else [] for number, text in enumerate(targets)}
    values = (
        draw.choice([-2.0, -0.5, 0.0, 1.5], len(targets)) if draw.random() < 0.5 else draw.normal(size=len(targets))
    )
    odds = dict(zip(texts, values.tolist(), strict=True))
    is_v2 = not all(golds.values())
    threshold = float(draw.choice(values)) if is_v2 and draw.random() < 0.5 else None
    given = _spoilt(draw, shape, values)
    batches = [([(texts[n], odd)], [golds[n]]) for n, odd in zip(golds, given.tolist(), strict=True)]

    def expected() -> dict[str, float]:
        if not is_v2:
            return scores_v1(golds, texts)
        found = scores_v2(golds, texts, odds, math.inf if threshold is None else threshold)
        return {"exact_match" if name == "exact" else name: value for name, value in found.items()}

    return Case(AnswerMetric(null_threshold=threshold), batches, expected)


def calibrated_classes(draw: Any, shape: str) -> Case:
    """Calibration error computed manually (Guo et al. 2017), likelihood by scipy, Brier score by scikit-learn."""
    import numpy as np

    from maskloom.metrics.calibration import CalibrationMetric

    num_classes, temperature, num_bins = (
        int(draw.integers(2, 6)),
        float(draw.uniform(0.1, 5)),
        int(draw.integers(1, 20)),
    )
    predictions, targets = sides(draw, shape, num_classes)
    logits = np.eye(num_classes)[predictions] * 10.0 ** draw.integers(-1, 5)
    logits += draw.normal(size=logits.shape) * (shape != "all equal")

    def expected() -> dict[str, float]:
        from scipy.special import log_softmax, softmax
        from sklearn.metrics import brier_score_loss

        shares = softmax(logits / temperature, axis=1)
        hits = (shares.argmax(axis=1) == targets).astype(float)
        loss = -log_softmax(logits / temperature, axis=1)[np.arange(len(targets)), targets].mean()
        brier = brier_score_loss(targets, shares, labels=range(num_classes), scale_by_half=False)  # pyright: ignore[reportArgumentType]
        if num_classes == 2:
            brier = brier_score_loss(targets, shares[:, 1], labels=[0, 1], scale_by_half=False)  # pyright: ignore[reportArgumentType]
        error = _calibration_error(shares.max(axis=1), hits, num_bins)
        return {"calibration_error": error, "brier_score": float(brier), "negative_log_likelihood": float(loss)}

    metric = CalibrationMetric(temperature=temperature, num_bins=num_bins)
    return Case(metric, _cut(draw, _spoilt(draw, shape, logits), targets), expected)


def calibrated_labels(draw: Any, shape: str) -> Case:
    """The same with an independent probability for every label."""
    import numpy as np

    from maskloom.metrics.calibration import CalibrationMetric

    predictions, targets = _columns(draw, shape, int(draw.integers(1, 5)))
    logits = (2.0 * predictions - 1.0) * 10.0 ** draw.integers(-1, 4) + draw.normal(size=targets.shape)

    def expected() -> dict[str, float]:
        from scipy.special import expit, log_expit

        shares = expit(logits)
        columns = list(zip(shares.T, targets.T, strict=True))
        loss = -log_expit(np.where(targets > 0, logits, -logits)).mean()
        error = np.mean([_calibration_error(share, hits, 15) for share, hits in columns])
        brier = np.mean([((share - hits) ** 2).mean() for share, hits in columns])
        return {"calibration_error": float(error), "brier_score": float(brier), "negative_log_likelihood": float(loss)}

    return Case(CalibrationMetric(), _cut(draw, _spoilt(draw, shape, logits), targets), expected)


def _calibration_error(shares: Any, hits: Any, num_bins: int) -> float:
    """Return the mean over bins, weighted by examples, of the gap between probability and frequency."""
    total = 0.0
    for number in range(num_bins):
        inside = (shares <= (number + 1) / num_bins) & ((shares > number / num_bins) | (number == 0))
        total += abs(float(shares[inside].sum()) - float(hits[inside].sum()))
    return total / len(shares)


def choices(draw: Any, shape: str) -> Case:
    """Accuracy of multiple choice."""
    from maskloom.metrics.labels import ChoiceMetric

    predictions, targets = sides(draw, shape, 4)
    batches = _cut(draw, _spoilt(draw, shape, predictions), targets)
    return Case(ChoiceMetric(), batches, lambda: {"accuracy": float((predictions == targets).mean())})


FAMILIES = (
    *(two_classes, several_classes, several_labels, regression, entities, answers_v1, answers_v2),
    *(calibrated_classes, calibrated_labels, choices),
)


def problem_of(family: Callable[[Any, str], Case], shape: str, draw: Any) -> str:
    """Return how our scores of a case differ from the reference, or that an error is missing or unclear, or ''."""
    case = family(draw, shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            for predictions, targets in case.batches:
                case.metric.update(predictions, targets)
            found = case.metric.compute()
            if hasattr(case.metric, "reference"):
                case.metric.degeneracy()
                found["reference"] = case.metric.reference() or 0.0
        except ValueError as error:
            is_clear = shape in _CLEAR and re.search(_CLEAR[shape], str(error))
            return "" if is_clear else f"refused: {error}"
        except Exception as error:  # including warnings
            return repr(error)
    if shape in ERROR_SHAPES:
        return f"no error: {found}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = case.expected()
    odd = {name: (found.get(name), value) for name, value in expected.items() if not _is_close(found.get(name), value)}
    odd |= {name: (value, "a finite number") for name, value in found.items() if not math.isfinite(value)}
    return f"ours, theirs: {odd}" if odd else ""


def _is_close(found: float | None, expected: float) -> bool:
    return found is not None and math.isclose(found, expected, **_CLOSE)


def scores(budget: Budget) -> Iterator[Trial]:
    """Yield a trial for every family, shape and draw, and one with NaN in the head for every kind of task."""
    import numpy as np

    for name in KINDS_OF_INPUT:
        problem = problem_of_broken_model(name)
        yield Trial(f"NaN in the head of a {name} model", not problem, problem)
    for number in range(CASES):
        for shape in (*VALUE_SHAPES, *ERROR_SHAPES):
            for family in FAMILIES:
                draw = np.random.default_rng(budget.draw(family.__name__, shape, number).getrandbits(64))
                problem = problem_of(family, shape, draw)
                yield Trial(f"{family.__name__}, {shape}, {number}", not problem, problem)


KINDS_OF_INPUT = {
    "single": "the cat",
    "pair": ("the cat", "sat"),
    "regression": "the cat",
    "multilabel": "the cat",
    "tagging": "the cat sat",
    "span": ("who sat", "the cat sat"),
    "choice": ("the cat", ["sat", "ran"]),
}


def problem_of_broken_model(name: str) -> str:
    """Let a model with NaN in its head predict, as every evaluation does; return '' if it raises the expected error."""
    import torch

    from maskloom.errors import DataError
    from maskloom.inference import Predictor
    from maskloom.models.assembled import build_model
    from maskloom.models.bert import BertConfig
    from maskloom.tasks.kinds import make_task
    from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
    from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

    vocabulary = Vocabulary([*SPECIAL_TOKENS, "the", "cat", "sat"])
    labels = ("O", "B-PER", "I-PER") if name == "tagging" else ("a", "b", "c")
    task = make_task(name, () if name in ("regression", "span", "choice") else labels)  # pyright: ignore[reportArgumentType]
    config = BertConfig.of_size(
        "tiny",
        vocab_size=len(vocabulary),
        hidden_size=8,
        num_attention_heads=2,
        intermediate_size=8,
        num_hidden_layers=1,
    )
    model = build_model(config, task.heads, task.num_outputs, seed=0)
    with torch.no_grad():
        next(model.heads[task.heads[0]].parameters()).view(-1)[0] = math.nan
    predictor = Predictor(model, WordPieceTokenizer(vocabulary), task=task, max_length=16)
    try:
        return f"predicted {predictor.predict([KINDS_OF_INPUT[name]])}"
    except DataError as error:
        return "" if "not finite numbers" in str(error) else str(error)


ROWS = (
    Row(
        "H8",
        "all scores on random and degenerate cases: one class, all equal, all wrong, one example, none, NaN, infinity; "
        "models with NaN in the head",
        "equal to scikit-learn, scipy, seqeval (conlleval's rule) and SQuAD's scripts to 1e-12 on 1,200 cases; clear "
        "errors for no examples and for non-finite numbers",
        len(FAMILIES) * CASES * len((*VALUE_SHAPES, *ERROR_SHAPES)) + len(KINDS_OF_INPUT),
        scores,
    ),
)
