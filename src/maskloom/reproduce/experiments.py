"""Experiments from section 5 of the BERT paper, Table 8 of its later version, and a comparison at equal training time.

Each experiment states what is trained and which trends should appear.

The papers' numbers are percentages or perplexities under their own task names; the tasks here differ, so only
rankings can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from maskloom.recipe_files import SHIPPED

# One score per seed, by arm and column.
Scores = Mapping[str, Mapping[str, list[float]]]
Measure = Callable[[Scores], list[float]]


@dataclass(frozen=True)
class Arm:
    """A row of a table: a pre-trained model, or a checkpoint of one, and how it is fine-tuned.

    `model` names one of the experiment's models. `settings` override the fine-tuning recipe; `at` is the fraction of
    pre-training steps after which the checkpoint is taken, 1 for the final model. `paper` has the published numbers by
    column of the paper. An arm with a `kind` is measured only on tasks of that kind, and never on kinds in `not_for`. A
    `linear` arm has no Transformer: it is a linear classifier over tokens or over the model's word vectors. `millions`
    is the parameter count of the paper's model, in millions; if set, the table has a column of parameters.
    """

    name: str
    model: str
    settings: tuple[str, ...] = ()
    paper: Mapping[str, float] = field(default_factory=dict)
    at: float = 1.0
    kind: str | None = None
    not_for: tuple[str, ...] = ()
    linear: Literal["tokens", "vectors"] | None = None
    millions: float | None = None


@dataclass(frozen=True)
class Trend:
    """A claim of the paper, and a measure that returns one number per seed: positive if the claim holds.

    A trend with a `task` is stated only where that task is measured in addition to the experiment's roles.
    """

    claim: str
    measure: Measure
    task: str | None = None

    def verdict(self, scores: Scores) -> dict[str, Any]:
        """Return the mean and standard error over seeds, and the verdict.

        A trend is "shown" if the mean exceeds twice its standard error, "denied" if it is below minus that, and "not
        shown" otherwise. With scores missing or a single seed it is "not measured".
        """
        try:
            values = self.measure(scores)
        except KeyError as error:
            return {"claim": self.claim, "verdict": "not measured", "why": f"no scores of {error.args[0]}"}
        if len(values) < 2:
            return {"claim": self.claim, "verdict": "not measured", "why": "one seed has no spread", "values": values}
        mean, error = fmean(values), stdev(values) / sqrt(len(values))
        verdict = "shown" if mean > 2 * error else "denied" if mean < -2 * error else "not shown"
        return {"claim": self.claim, "verdict": verdict, "mean": mean, "standard_error": error, "values": values}


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper, or a comparison of recipes within a budget.

    `models` has the pre-training settings by model name. `measures` names the pre-training metrics shown as columns,
    and `probes` the roles of the tasks; `tasks` are those of the paper's table, all measured at scales above tiny.
    `published` has rows of the paper that no arm repeats, `note` what else the paper says. With `recipes`, one per
    model, each model is pre-trained once and seeds vary only fine-tuning; `given` are existing model folders.
    `finetuning` is a recipe that replaces the scale's own. Without `models`, arms are trained from scratch with a
    vocabulary built from the task's own texts.
    """

    title: str
    section: str | None
    models: Mapping[str, tuple[str, ...]]
    arms: tuple[Arm, ...]
    trends: tuple[Trend, ...]
    measures: tuple[str, ...] = ()
    probes: tuple[str, ...] = ("pair", "sentence", "span")
    tasks: tuple[str, ...] = ()
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    note: str = ""
    recipes: Mapping[str, Path] = field(default_factory=dict)
    finetuning: Path | None = None
    given: Mapping[str, Path] = field(default_factory=dict)

    @property
    def is_curve(self) -> bool:
        """Whether checkpoints of a model are compared over the steps of its pre-training."""
        return any(arm.at < 1.0 for arm in self.arms)


@dataclass(frozen=True)
class Budget:
    """Minutes of pre-training for each recipe, and model folders from elsewhere by their names in the table."""

    minutes: float
    beside: Mapping[str, Path] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.minutes:g} minutes"


def beyond(one: Measure, other: Measure) -> Measure:
    """Return how much one measure exceeds another, per seed."""
    return lambda scores: [high - low for high, low in zip(one(scores), other(scores), strict=True)]


def above(better: str, worse: str, column: str) -> Measure:
    """Return how much one arm's scores exceed another's, per seed."""
    return beyond(lambda scores: scores[better][column], lambda scores: scores[worse][column])


def below(better: str, worse: str, column: str) -> Measure:
    """Return how far one arm's scores are below another's, per seed, for measures where lower is better."""
    return above(worse, better, column)


def within(bound: float, one: str, other: str, column: str) -> Measure:
    """Return how far two arms' scores are closer to each other than a bound, per seed."""
    difference = above(one, other, column)
    return lambda scores: [bound - abs(value) for value in difference(scores)]


def _claims(column: str, *rows: tuple[str, str, str]) -> tuple[Trend, ...]:
    """Return a trend for each claim with its better and its worse arm."""
    return tuple(Trend(claim, above(better, worse, column)) for claim, better, worse in rows)


def _on(tasks: Sequence[str], claim: str, better: str, worse: str) -> tuple[Trend, ...]:
    """Return a trend for each task of the paper that is measured in addition to the roles."""
    return tuple(Trend(f"{claim} on {task}", above(better, worse, task), task) for task in tasks)


_CLOSE = 1.0  # point of accuracy, F1 or BLEU
_PAIRS = "data.next_sentence=true"
_NO_LOSS = "data.next_sentence_loss=false"
_LEFT_TO_RIGHT = ("objective=causal_lm", _PAIRS, _NO_LOSS)
_TABLE_5 = ("MNLI-m", "QNLI", "MRPC", "SST-2", "SQuAD")


def _paper(names: tuple[str, ...], *values: float) -> dict[str, float]:
    return dict(zip(names, values, strict=True))


TABLE_5 = Experiment(
    title="Table 5: pre-training tasks",
    section="5.1",
    models={"BERT": (), "No NSP": (_NO_LOSS,), "LTR & No NSP": _LEFT_TO_RIGHT},
    arms=(
        Arm("BERT", "BERT", paper=_paper(_TABLE_5, 84.4, 88.4, 86.7, 92.7, 88.5)),
        Arm("No NSP", "No NSP", paper=_paper(_TABLE_5, 83.9, 84.9, 86.5, 92.6, 87.9)),
        Arm("LTR & No NSP", "LTR & No NSP", paper=_paper(_TABLE_5, 82.1, 84.3, 77.5, 92.1, 77.8)),
        Arm("+ BiLSTM", "LTR & No NSP", ("bilstm=true",), paper=_paper(_TABLE_5, 82.1, 84.1, 75.7, 91.6, 84.9)),
    ),
    trends=(
        Trend("next-sentence prediction helps to tell which passages follow another", above("BERT", "No NSP", "pair")),
        Trend("both directions help to find a span", above("No NSP", "LTR & No NSP", "span")),
        Trend("a BiLSTM gives a left-to-right model part of that back", above("+ BiLSTM", "LTR & No NSP", "span")),
        Trend("but not all of it", above("No NSP", "+ BiLSTM", "span")),
        Trend(
            "spans gain more from both directions than sentences do",
            beyond(above("No NSP", "LTR & No NSP", "span"), above("No NSP", "LTR & No NSP", "sentence")),
        ),
        *_on(("mnli", "qnli", "mrpc", "squad"), "next-sentence prediction helps", "BERT", "No NSP"),
        *_on(("mnli", "qnli", "mrpc", "sst-2", "squad"), "both directions help", "No NSP", "LTR & No NSP"),
    ),
    tasks=("mnli", "qnli", "mrpc", "sst-2", "squad"),
)  # fmt: skip


def _size(layers: int, hidden: int, heads: int) -> tuple[str, ...]:
    return (
        f"model.config.num_hidden_layers={layers}",
        f"model.config.hidden_size={hidden}",
        f"model.config.num_attention_heads={heads}",
    )


# Layers/hidden size/heads, smallest first; sizes that differ only in heads are ordered by the number of heads.
_SIZES: Mapping[str, tuple[str, ...]] = {
    "tiny": ("1/64/1", "2/64/1", "2/128/1", "2/128/2", "4/128/2"),
    "one-gpu": ("2/128/2", "4/256/1", "4/256/4", "4/512/8", "8/512/8"),
    "paper": ("3/768/12", "6/768/3", "6/768/12", "12/768/12", "12/1024/16", "24/1024/16"),
}
_TABLE_6 = ("perplexity", "MNLI-m", "MRPC", "SST-2")
_PUBLISHED_SIZES = {
    "3/768/12": (5.84, 77.9, 79.8, 88.4), "6/768/3": (5.24, 80.6, 82.2, 90.7), "6/768/12": (4.68, 81.9, 84.8, 91.3),
    "12/768/12": (3.99, 84.4, 86.7, 92.9), "12/1024/16": (3.54, 85.7, 86.9, 93.3),
    "24/1024/16": (3.23, 86.6, 87.8, 93.7),
}  # fmt: skip


def table_6(scale: str) -> Experiment:
    """Return Table 6, model sizes, at a scale."""
    sizes, published = _SIZES[scale], {size: _paper(_TABLE_6, *row) for size, row in _PUBLISHED_SIZES.items()}
    few, many = next(pair for pair in pairwise(sizes) if pair[0].rsplit("/", 1)[0] == pair[1].rsplit("/", 1)[0])
    growing = [size for size in sizes if size != few]
    return Experiment(
        title="Table 6: model size (layers/hidden/heads)",
        section="5.2",
        models={size: _size(*map(int, size.split("/"))) for size in sizes},
        arms=tuple(Arm(size, size, paper=published.get(size, {})) for size in sizes),
        trends=(
            *(
                Trend(f"perplexity falls from {small} to {large}", below(large, small, "mlm_perplexity"))
                for small, large in pairwise(growing)
            ),
            Trend("more heads at equal size lower perplexity", below(many, few, "mlm_perplexity")),
            Trend("the largest model is better on sentences than the smallest", above(sizes[-1], sizes[0], "sentence")),
            Trend("the largest model is better on pairs than the smallest", above(sizes[-1], sizes[0], "pair")),
            *_on(("mnli", "mrpc", "sst-2"), "the largest model is better than the smallest", sizes[-1], sizes[0]),
        ),
        measures=("mlm_perplexity",),
        probes=("pair", "sentence"),
        tasks=("mnli", "mrpc", "sst-2"),
        published={size: row for size, row in published.items() if size not in sizes},
    )


_LAYERS = {
    "embeddings": 91.0, "last": 94.9, "second_to_last": 95.6, "sum_last_four": 95.9, "concat_last_four": 96.1,
    "sum_all": 95.5,
}  # fmt: skip


def _features(layers: str, scale: str) -> tuple[str, ...]:
    width, epochs = (128, 3) if scale == "tiny" else (256, 10)
    return (
        *(f"features.layers={layers}", f"features.lstm_size={width}"),
        *("training.learning_rate=1e-3", f"training.epochs={epochs}"),
    )


def table_7(scale: str) -> Experiment:
    """Return Table 7, frozen features, at a scale; below "paper" of a model of four layers, whose sums are one."""
    paper = {layers: {"NER": value} for layers, value in _LAYERS.items()}
    measured = [layers for layers in _LAYERS if scale == "paper" or layers != "sum_all"]
    frozen = (Arm(layers, "BERT", _features(layers, scale), paper[layers], kind="tagging") for layers in measured)
    return Experiment(
        title="Table 7: features of a frozen encoder",
        section="5.4",
        models={"BERT": _size(4, 128, 2) if scale == "tiny" else ()},
        arms=(Arm("fine-tuning", "BERT", paper={"NER": 96.4}, kind="tagging"), *frozen),
        trends=_claims(
            "conll2003",
            ("the last layer is better than the embeddings", "last", "embeddings"),
            ("the second-to-last layer is better than the last", "second_to_last", "last"),
            ("four layers are better than the last", "concat_last_four", "last"),
            ("fine-tuning is better than the best features", "fine-tuning", "concat_last_four"),
        ),
        probes=("conll2003",),
        published={layers: row for layers, row in paper.items() if layers not in measured},
    )


_TABLE_8 = ("MNLI", "NER fine-tuned", "NER features")
_MASKS = {
    "80/10/10": (84.2, 95.4, 94.9), "100/0/0": (84.3, 94.9, 94.0), "80/0/20": (84.1, 95.2, 94.6),
    "80/20/0": (84.4, 95.2, 94.7), "0/20/80": (83.7, 94.8, 94.6), "0/0/100": (83.6, 94.9, 94.6),
}  # fmt: skip


def _masking(name: str) -> tuple[str, ...]:
    mask, keep, _ = map(int, name.split("/"))
    return f"data.mask_prob={mask / 100}", f"data.keep_prob={keep / 100}"


def table_8(scale: str) -> Experiment:
    """Return Table 8, masking rates, at a scale; "tiny" halves the steps and uses features of both layers."""
    is_tiny, kept, plain, random = scale == "tiny", "80/10/10", "100/0/0", "0/0/100"
    # With pairs, such small models stay on the unigram plateau unless some predicted tokens are kept.
    shorter = ("training.steps=1500", "data.next_sentence=false") if is_tiny else ()
    frozen = _features("1,2" if is_tiny else "concat_last_four", scale)
    of_features = above(f"{kept}, features", f"{plain}, features", "conll2003")
    more, close = "features suffer more from [MASK] alone than fine-tuning does", "are within one point on"
    return Experiment(
        title="Table 8 of the later version: masking (mask/same/random)",
        section="C.2",
        models={name: (*_masking(name), *shorter) for name in _MASKS},
        arms=(
            *(Arm(name, name, paper=_paper(_TABLE_8, *values)) for name, values in _MASKS.items()),
            *(Arm(f"{name}, features", name, frozen, kind="tagging") for name in _MASKS),
        ),
        trends=(
            Trend("features suffer where every predicted token is [MASK]", of_features),
            Trend("random tokens alone are worse than the mix, fine-tuned", above(kept, random, "sentence")),
            Trend(more, beyond(of_features, above(kept, plain, "conll2003"))),
            Trend(f"fine-tuned, {kept} and {plain} {close} sentences", within(_CLOSE, kept, plain, "sentence")),
            Trend(f"fine-tuned, {kept} and {plain} {close} named entities", within(_CLOSE, kept, plain, "conll2003")),
            Trend(f"fine-tuned, {kept} and {plain} {close} mnli", within(_CLOSE, kept, plain, "mnli"), "mnli"),
            *_on(("mnli",), "random tokens alone are worse than the mix, fine-tuned,", kept, random),
        ),
        probes=("sentence", "conll2003"),
        tasks=("mnli",),
    )


_STEPS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
FIGURE_4 = Experiment(
    title="Figure 4: steps of pre-training",
    section="5.3",
    models={"BERT": (), "LTR": _LEFT_TO_RIGHT},
    arms=tuple(
        Arm(f"{curve} {at:.0%}", model, paper={"MNLI-m, about": end} if at == 1.0 else {}, at=at)
        for curve, model, end in (("masked", "BERT", 84.4), ("left-to-right", "LTR", 82.0))
        for at in _STEPS
    ),
    trends=(
        *_claims(
            "sentence",
            ("more steps help the masked model", "masked 100%", "masked 10%"),
            ("more steps help the left-to-right model", "left-to-right 100%", "left-to-right 10%"),
            ("the last 60% of the steps still help the masked model", "masked 100%", "masked 40%"),
            ("the masked one leads at 40%", "masked 40%", "left-to-right 40%"),
            ("the masked one leads at 100%", "masked 100%", "left-to-right 100%"),
        ),
        *_on(("mnli",), "the last 60% of the steps still help the masked model", "masked 100%", "masked 40%"),
        *_on(("mnli",), "the masked one leads at the end", "masked 100%", "left-to-right 100%"),
    ),
    probes=("sentence",),
    tasks=("mnli",),
    note="The paper plots MNLI from 200,000 to 1,000,000 steps without giving numbers, so its values are approximate. "
    "There the masked model leads almost from the start, and gains almost one point from 500,000 to 1,000,000 steps.",
)

# Rows of Table 3 of Vaswani et al. 2017: the key that changes, its value at each scale, the paper's row name, its
# BLEU on newstest2013, and its parameters in millions.
_SIZES_3: tuple[tuple[str, str, tuple[int, int, int], str, float, int], ...] = (
    ("one head", "num_attention_heads", (1, 1, 1), "h 1", 24.9, 65),
    ("half the heads", "num_attention_heads", (2, 2, 4), "h 4", 25.5, 65),
    ("twice the heads", "num_attention_heads", (8, 8, 16), "h 16", 25.8, 65),
    ("four times the heads", "num_attention_heads", (16, 16, 32), "h 32", 25.4, 65),
    ("a quarter of the key size", "key_size", (8, 16, 16), "d_k 16", 25.1, 58),
    ("half the key size", "key_size", (16, 32, 32), "d_k 32", 25.4, 60),
    ("fewer layers", "num_hidden_layers", (1, 2, 2), "N 2", 23.7, 36),
    ("two thirds of the layers", "num_hidden_layers", (2, 3, 4), "N 4", 25.3, 50),
    ("more layers", "num_hidden_layers", (4, 6, 8), "N 8", 25.5, 80),
    ("half the width", "hidden_size", (64, 128, 256), "d 256", 24.5, 28),
    ("twice the width", "hidden_size", (256, 512, 1024), "d 1024", 26.0, 168),
    ("half the feed-forward", "intermediate_size", (256, 512, 1024), "d_ff 1024", 25.4, 53),
    ("twice the feed-forward", "intermediate_size", (1024, 2048, 4096), "d_ff 4096", 26.2, 90),
)
_SETTINGS_3: Mapping[str, tuple[str, float]] = {
    "no dropout": ("model.config.hidden_dropout_prob=0.0", 24.6),
    "dropout 0.2": ("model.config.hidden_dropout_prob=0.2", 25.5),
    "no label smoothing": ("seq2seq.label_smoothing=0.0", 25.3),
    "label smoothing 0.2": ("seq2seq.label_smoothing=0.2", 25.7),
    "learned positions": ("model.config.learned_positions=true", 25.7),
}
# Each scale's recipe overrides, and its width, feed-forward width and heads, which the big model doubles.
_SCALES_3: Mapping[str, tuple[tuple[str, ...], tuple[int, int, int]]] = {
    "tiny": (("training.epochs=1.0", *_size(3, 128, 4), "model.config.intermediate_size=512"), (128, 512, 4)),
    "one-gpu": (('model.size="mini"', "model.config.intermediate_size=1024"), (256, 1024, 4)),
    "paper": (('model.size="base"', "model.config.intermediate_size=2048"), (512, 2048, 8)),
}


def transformer_table_3(scale: str) -> Experiment:
    """Return the table of Transformer variations on Multi30k; "tiny" trains 3 layers of width 128 for one epoch.

    Differs from the paper: the big model is not trained longer than the others.
    """
    base, task, (change, (width, feed_forward, heads)) = "the model", "multi30k", _SCALES_3[scale]
    place = list(_SCALES_3).index(scale)
    big = (
        *(f"model.config.hidden_size={2 * width}", f"model.config.intermediate_size={2 * feed_forward}"),
        *(f"model.config.num_attention_heads={2 * heads}", "model.config.hidden_dropout_prob=0.3"),
    )
    rows = [
        *((name, (f"model.config.{key}={sizes[place]}",), {row: bleu}, millions)
          for name, key, sizes, row, bleu, millions in _SIZES_3),
        *((name, (setting,), {"the same": bleu}, 65) for name, (setting, bleu) in _SETTINGS_3.items()),
        ("big", big, {"big": 26.4}, 213),
    ]  # fmt: skip
    return Experiment(
        title="Table 3 of Vaswani et al. 2017: variations of the Transformer",
        section=None,
        models={},
        arms=(
            Arm(base, "", change, {"base": 25.8}, millions=65),
            *(Arm(name, "", (*change, *own), paper, millions=millions) for name, own, paper, millions in rows),
        ),
        trends=(
            *_claims(
                task,
                ("one head is worse", base, "one head"),
                ("more layers are better than fewer", "more layers", "fewer layers"),
                ("a wider model is better", "twice the width", "half the width"),
                ("a wider feed-forward is better", "twice the feed-forward", "half the feed-forward"),
                ("dropout helps", base, "no dropout"),
                ("label smoothing helps", base, "no label smoothing"),
            ),
            Trend(
                "learned positions are within one BLEU of sinusoids", within(_CLOSE, base, "learned positions", task)
            ),
        ),
        probes=(task,),
        finetuning=SHIPPED / "translation.toml",
    )  # fmt: skip


LOSS = "masked_loss"
"""The column of losses on masks that all models share."""
BUDGET_TASKS = ("sentence", "pair", "span", "mr", "sst-2", "cola", "mrpc", "rte", "squad", "conll2003")
_OURS, _PAPERS = "one-hour", "the paper's, size mini"
_LEAD = 0.5  # nats
_WORD_VECTORS = ("features.layers=embeddings", "features.lstm_size=128", "training.learning_rate=1e-3")


def what_it_buys(budget: Budget, tasks: Sequence[str]) -> Experiment:
    """Return the comparison, on the given tasks, of recipes with equal budgets and the model folders in `beside`."""
    beside, lead = budget.beside, lambda scores: [_LEAD] * len(scores[_OURS][LOSS])
    recipes = {_OURS: SHIPPED / "one-hour.toml", _PAPERS: Path(__file__).with_name("budget-paper.toml")}
    others, texts = (*beside, _PAPERS), tuple(task for task in tasks if task not in ("span", "squad", "conll2003"))
    compared = [
        *((other, task) for other in others for task in tasks),
        *product(("word vectors", "bag of words"), texts),
    ]
    return Experiment(
        title=f"What {budget} buy",
        section=None,
        models=dict.fromkeys(recipes, (f"training.minutes={budget.minutes:g}",)),
        arms=(
            *(Arm(name, name) for name in (*recipes, *beside)),
            Arm("word vectors", _OURS, _WORD_VECTORS, not_for=("span",), linear="vectors"),
            Arm("bag of words", _OURS, not_for=("span", "tagging"), linear="tokens"),
        ),
        trends=(
            *(Trend(f"the loss is half a nat below that of {other}", beyond(below(_OURS, other, LOSS), lead))
              for other in others),
            *(Trend(f"better than {other} on {task}", above(_OURS, other, task)) for other, task in compared),
        ),
        measures=(LOSS,),
        probes=tuple(tasks),
        recipes=recipes,
        given=beside,
    )  # fmt: skip


EXPERIMENTS: dict[str, Callable[[str], Experiment]] = {
    "table5": lambda scale: TABLE_5,
    "table6": table_6,
    "table7": table_7,
    "table8": table_8,
    "figure4": lambda scale: FIGURE_4,
    "transformer-table3": transformer_table_3,
}
"""Functions from a scale (tiny, one-gpu or paper) to an experiment, by name in `maskloom reproduce`."""


def experiment_of(results: Mapping[str, Any]) -> Experiment:
    """Return the experiment that stored results belong to."""
    name, scale = results["experiment"], results["scale"]
    if name in EXPERIMENTS:
        return EXPERIMENTS[name](scale)
    beside = {other: Path(folder) for other, folder in results.get("beside", {}).items()}
    return what_it_buys(Budget(float(scale.removesuffix(" minutes")), beside), list(results["columns"]))
