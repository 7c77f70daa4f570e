"""Trends are decided by a stated test, and the rows of every experiment fit together."""

import pytest
import torch

from maskloom.config import PretrainRecipe
from maskloom.errors import ConfigError
from maskloom.layers.layer_mix import LayerCombination
from maskloom.models.architectures import config_of
from maskloom.models.assembled import build_model
from maskloom.reproduce.experiments import EXPERIMENTS, Budget, Trend, above, below, beyond, what_it_buys, within
from maskloom.reproduce.probes import Probe
from maskloom.reproduce.running import Plan, _probes_of
from maskloom.runs.finetune import LabelledFiles

SCORES = {"a": {"x": [3.0, 4.0, 5.0], "y": [1.0, 1.0, 1.0]}, "b": {"x": [1.0, 1.0, 1.0], "y": [1.0, 2.0, 0.0]}}


def test_differences_are_taken_seed_by_seed():
    assert above("a", "b", "x")(SCORES) == [2.0, 3.0, 4.0]
    assert below("b", "a", "x")(SCORES) == [2.0, 3.0, 4.0]
    assert beyond(above("a", "b", "x"), above("a", "b", "y"))(SCORES) == [2.0, 4.0, 3.0]
    assert within(1.5, "a", "b", "y")(SCORES) == [1.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([1.0, 1.1, 0.9], "shown"),
        ([-1.0, -1.1, -0.9], "denied"),
        ([1.0, -1.0, 0.5], "not shown"),
        ([1.0, 3.0, 0.1], "not shown"),  # mean 1.37, standard error .86
        ([1.0, 3.0, 1.0], "shown"),  # mean 1.67, standard error .67
        ([0.0, 0.0, 0.0], "not shown"),
        ([1.0], "not measured"),
    ],
)
def test_a_trend_shows_where_its_mean_is_above_two_standard_errors(values, verdict):
    assert Trend("claim", lambda scores: values).verdict({})["verdict"] == verdict


def test_a_trend_without_its_scores_is_not_measured():
    found = Trend("claim", above("a", "b", "span")).verdict(SCORES)
    assert (found["verdict"], found["why"]) == ("not measured", "no scores of span")


@pytest.mark.parametrize("scale", ["tiny", "one-gpu", "paper"])
@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_every_arm_has_its_model_and_every_model_a_recipe(tmp_path, name, scale):
    experiment = EXPERIMENTS[name](scale)
    plan = Plan(experiment, scale, range(2), tmp_path, tmp_path, {}, {})
    assert {arm.model for arm in experiment.arms} == (set(experiment.models) or {""})  # "": trained from scratch
    assert len({arm.name for arm in experiment.arms}) == len(experiment.arms)
    if not experiment.models:  # each arm has its own recipe, even where a scale's size is one that another changes to
        recipes = [
            plan.finetuning(arm, Probe("multi30k", "seq2seq", LabelledFiles("", "")), 0) for arm in experiment.arms
        ]
        assert len({repr((config_of(recipe.model, vocab_size=100), recipe.seq2seq)) for recipe in recipes}) == 20
    if name == "table7":
        encoder = plan.pretraining("BERT", 0).model
        layers = config_of(encoder, vocab_size=100).num_hidden_layers
        chosen = [LayerCombination.of(arm.name, layers) for arm in experiment.arms[1:]]
        assert len({(each.layers, each.join) for each in chosen}) == len(chosen)  # no measurement has two rows
    for model in experiment.models:
        recipe = plan.pretraining(model, 1)
        assert isinstance(recipe, PretrainRecipe)
        assert recipe.seed == 1
    scored = {role: [1.0, 2.0] for role in (*experiment.probes, *experiment.tasks, *experiment.measures)}
    for trend in experiment.trends:  # equal scores, and each claim finds its scores
        verdict = trend.verdict({arm.name: scored for arm in experiment.arms})["verdict"]
        assert verdict == ("shown" if " within one " in trend.claim else "not shown")


@pytest.mark.parametrize("scale", ["tiny", "one-gpu", "paper"])
def test_every_row_of_the_papers_table_6_is_there_at_every_scale(scale):
    experiment = EXPERIMENTS["table6"](scale)
    rows = {arm.name: arm.paper for arm in experiment.arms if arm.paper} | dict(experiment.published)
    assert list(rows) == ["3/768/12", "6/768/3", "6/768/12", "12/768/12", "12/1024/16", "24/1024/16"]
    assert rows["12/768/12"] == {"perplexity": 3.99, "MNLI-m": 84.4, "MRPC": 86.7, "SST-2": 92.9}


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("table5", {"pair": "mnli", "sentence": "sst-2", "span": "squad", "qnli": "qnli", "mrpc": "mrpc"}),
        ("table6", {"pair": "mnli", "sentence": "sst-2", "mrpc": "mrpc"}),
        ("figure4", {"sentence": "sst-2", "mnli": "mnli"}),
    ],
)
def test_above_tiny_all_tasks_of_the_papers_table_are_measured(name, columns):
    names = ("cola", "sst-2", "mrpc", "mnli", "qnli", "rte", "squad")
    known = {task: Probe(task, "", LabelledFiles("", "")) for task in names}
    for with_all in (True, False):
        found = _probes_of(EXPERIMENTS[name]("paper"), known, with_all=with_all)
        wanted = {role: task for role, task in columns.items() if with_all or role not in known}
        assert {role: probe.name for role, probe in found.items()} == wanted


@pytest.mark.parametrize("scale", ["tiny", "one-gpu", "paper"])
def test_table_3_changes_one_thing_at_a_time_and_has_the_papers_parameters(tmp_path, scale):
    plan = Plan(EXPERIMENTS["transformer-table3"](scale), scale, range(1), tmp_path, tmp_path, {}, {})
    files = Probe("multi30k", "seq2seq", LabelledFiles("", ""))
    configs = [
        (arm, config_of(plan.finetuning(arm, files, 0).model, vocab_size=36_000 if arm.name == "big" else 41_000))
        for arm in plan.experiment.arms
    ]
    base = configs[0][1]
    for arm, config in configs:
        changed = [key for key, value in config if value != getattr(base, key) and key != "vocab_size"]
        assert len(changed) == {"the model": 0, "no label smoothing": 0, "label smoothing 0.2": 0, "big": 4}.get(
            arm.name, 1
        )
        if scale == "paper":
            with torch.device("meta"):
                count = sum(part.numel() for part in build_model(config, ("decoder",)).parameters())
            if not config.learned_positions:
                assert count / 1e6 == pytest.approx(arm.millions, rel=0.015)  # the paper rounds to millions


def test_a_folder_knows_other_recipes_and_takes_more_seeds(tmp_path):
    """Regression: more seeds counted as other recipes, and were refused."""

    def digest(seeds: int, **overrides: list[str]) -> str:
        plan = Plan(EXPERIMENTS["table5"]("tiny"), "tiny", range(seeds), tmp_path, tmp_path, {}, overrides)
        return plan.digest()

    assert digest(1) == digest(3)
    assert digest(1) != digest(1, pretrain=["training.steps=7"])


def test_the_models_of_table_5_read_the_same_pairs(tmp_path):
    plan = Plan(EXPERIMENTS["table5"]("tiny"), "tiny", range(1), tmp_path, tmp_path, {}, {})
    recipes = {name: plan.pretraining(name, 0) for name in plan.experiment.models}
    assert {recipe.data.next_sentence for recipe in recipes.values()} == {True}
    assert [recipe.data.pair_task for recipe in recipes.values()] == ["nsp", None, None]
    assert recipes["LTR & No NSP"].objective == "causal_lm"


def test_the_checkpoints_of_figure_4_are_kept_whatever_a_stopped_run_saves_besides(tmp_path):
    plan = Plan(EXPERIMENTS["figure4"]("tiny"), "tiny", range(1), tmp_path, tmp_path, {}, {})
    training = plan.pretraining("BERT", 0).training
    assert training.steps == 10 * training.save_every
    assert training.keep_checkpoints > 20


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("figure4", {"pretrain": ["training.steps=25"]}, r"training\.steps = 25: tenths .* a multiple of 10"),
        ("figure4", {"pretrain": ["training.minutes=1.0"]}, r"--set pretrain\.training\.minutes=1\.0: tenths of"),
        ("figure4", {"pretrain": ["training.save_every=7"]}, r"--set pretrain\.training\.save_every=7: tenths of"),
        (
            "table5",
            {"pretrain": ["training.lr=1"]},
            r"^--set 'pretrain\.training\.lr=1': unknown key 'pretrain\.training\.lr'",
        ),
        (
            "table5",
            {"pretrain": ["training.steps=10", "training.warmup_steps=20"]},
            r"--set 'pretrain\.training\.warmup_steps=20': pretrain\.training\.warmup_steps = 20: it may not exceed",
        ),
        ("table5", {"pretrain": ["seed=5"]}, r"--set pretrain\.seed: every repetition has a seed"),
        ("table5", {"finetune": ["seed = 5"]}, r"--set finetune\.seed: every repetition has a seed"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, name, overrides, message):
    plan = Plan(EXPERIMENTS[name]("tiny"), "tiny", range(1), tmp_path, tmp_path, {}, overrides)
    with pytest.raises(ConfigError, match=message):
        plan.check()


def test_recipes_of_a_budget_leave_out_the_documents_that_judge_them(tmp_path):
    experiment = what_it_buys(Budget(1.0), [])
    Plan(experiment, "budget", range(1), tmp_path, tmp_path, {}, {}).check()
    own = {"pretrain": ["data.held_out_fraction=0.1"]}
    with pytest.raises(ConfigError, match=r"held_out_fraction = 0\.1: losses are compared on the 0\.02 of"):
        Plan(experiment, "budget", range(1), tmp_path, tmp_path, {}, own).check()


@pytest.mark.parametrize("name", ["one-hour", "One hour", "the paper's, size mini", "word vectors", "bag of words"])
def test_a_model_from_elsewhere_has_a_name_and_folders_of_its_own(tmp_path, name):
    def plan(given):
        return Plan(what_it_buys(Budget(1.0, {given: tmp_path}), []), "budget", range(1), tmp_path, tmp_path, {}, {})

    plan("mine").check()
    with pytest.raises(ConfigError, match=f"--beside {name}=FOLDER: another row has this name"):
        plan(name).check()
