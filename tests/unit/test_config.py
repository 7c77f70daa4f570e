import tomllib
from dataclasses import replace

import pytest

from maskloom.config import (
    FinetuneRecipe,
    PretrainRecipe,
    load_recipe,
    recipe_toml,
    unread_sections,
    validate_recipe,
)
from maskloom.data.settings import PretrainingData
from maskloom.errors import ConfigError
from maskloom.layers.layer_mix import LAYER_CHOICES
from maskloom.recipe_files import reason_of, recipe_keys
from maskloom.runs.recipes import recipe_of_run
from maskloom.tasks.kinds import KINDS
from maskloom.words.settings import WordsRecipe


def test_defaults_are_the_papers_masking_and_optimiser() -> None:
    recipe = PretrainRecipe()
    assert (recipe.data.masked_lm_prob, recipe.data.mask_prob, recipe.data.keep_prob) == (0.15, 0.8, 0.1)
    assert recipe.data.resolved_max_predictions() == 20
    assert recipe.data.model_copy(update={"max_length": 512}).resolved_max_predictions() == 80
    assert (recipe.training.adam_beta1, recipe.training.adam_beta2, recipe.training.weight_decay) == (0.9, 0.999, 0.01)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.stps=5", "did you mean 'training.steps'"),
        ("trainin.steps=5", "did you mean 'training'"),
        ("training.steps=many", "training.steps = 'many'"),
        ("training.steps=0", "training.steps = 0"),
        ("training.steps=-3", "training.steps = -3"),
        ("training.learning_rate=1e400", "training.learning_rate = inf"),
        ("training.learning_rate=nan", "training.learning_rate"),
        ("data.masked_lm_prob=1.5", "data.masked_lm_prob = 1.5"),
        ("data.max_length=2", "data.max_length = 2"),
        ("model.size=huge", "model.size = 'huge'"),
        ("seed=-1", "seed = -1"),
        ("seed", "expected key=value"),
        ("training.steps=5\nseed=3", "a line break"),
        ("training.steps=5\r\nseed=3", "a line break"),
        ("training.steps=5#000", "training.steps = '5#000'"),
        ("seed.sub=1", "seed"),
    ],
)
def test_a_wrong_override_names_the_key(override: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe(PretrainRecipe, None, [override])
    assert expected in str(caught.value)


@pytest.mark.parametrize("kind", [PretrainRecipe, FinetuneRecipe, WordsRecipe])
def test_numbers_are_finite(kind: type[PretrainRecipe]) -> None:
    keys = [key.path for key in recipe_keys(kind) if ".N." not in key.path and isinstance(key.default, float)]
    assert len(keys) >= 3
    for key in keys:
        for value in ("nan", "inf", "-inf"):
            with pytest.raises(ConfigError, match=f"{key} = {value}: it must be a finite number"):
                load_recipe(kind, None, [f"{key}={value}"])


@pytest.mark.parametrize(("text", "value"), [(".3", 0.3), (" .25 ", 0.25), ("1.", 1.0), ("3e-1", 0.3), (".5e-1", 0.05)])
def test_a_number_may_be_written_as_hands_write_it(text: str, value: float) -> None:
    assert load_recipe(PretrainRecipe, None, [f"training.learning_rate={text}"]).training.learning_rate == value


def test_the_default_cap_on_predictions_never_cuts_what_the_rate_asks_for() -> None:
    for rate in (0.01, 0.05, 0.15, 0.3, 0.5, 0.9):
        for length in range(5, 600):
            data = PretrainingData(masked_lm_prob=rate, max_length=length)
            assert data.resolved_max_predictions() >= max(1, round(rate * length))
    assert PretrainRecipe().data.model_copy(update={"max_predictions_per_seq": 7}).resolved_max_predictions() == 7


def test_messages_are_free_of_pydantics_own_terms() -> None:
    assert reason_of({"msg": "Value error, it is odd"}) == "it is odd"
    with pytest.raises(ConfigError, match=r"phases\.0 = 3: it must be a table$"):
        load_recipe(PretrainRecipe, None, ["phases=[3]"])
    with pytest.raises(
        ConfigError, match=r"training\.device = 'gpu': not a valid value of this key: Device to train on: auto"
    ):
        load_recipe(PretrainRecipe, None, ["training.device=gpu"])


def test_shares_that_exceed_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="may not exceed 1"):
        load_recipe(PretrainRecipe, None, ["data.mask_prob=0.9", "data.keep_prob=0.2"])


def test_a_target_s_lengths_fit_together() -> None:
    at_most = load_recipe(FinetuneRecipe, None, ["seq2seq.min_tokens=5", "seq2seq.max_target_length=5"])
    assert at_most.seq2seq.min_tokens == 5
    with pytest.raises(ConfigError, match=r"seq2seq\.min_tokens = 6: it may not exceed max_target_length = 5$"):
        load_recipe(FinetuneRecipe, None, ["seq2seq.min_tokens=6", "seq2seq.max_target_length=5"])


def test_all_wrong_keys_are_named_at_once(tmp_path) -> None:
    path = tmp_path / "r.toml"
    path.write_text("colour = 1\n[training]\nsteps = 1.5\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_recipe(PretrainRecipe, path)
    assert "colour" in str(caught.value)
    assert "training.steps = 1.5" in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"a = = 1", b"\xff\xfe", b"[a\n"])
def test_a_file_that_is_not_toml_is_named(tmp_path, content: bytes) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"broken\.toml"):
        load_recipe(PretrainRecipe, path)


def test_a_missing_recipe_is_named(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml"):
        load_recipe(PretrainRecipe, tmp_path / "absent.toml")


def test_a_recipe_written_as_toml_reads_back_equal(tmp_path) -> None:
    overrides = [
        "seed=7",
        "model.config.hidden_size=64",
        'model.config.hidden_act="gelu_new"',
        "training.save_every=3",
        "phases=[{max_length=32, steps=3}, {max_length=64, steps=1, learning_rate=1e-5}]",
    ]
    recipe = load_recipe(PretrainRecipe, None, overrides)
    path = tmp_path / "recipe.toml"
    path.write_text(recipe_toml(recipe), encoding="utf-8")
    assert load_recipe(PretrainRecipe, path) == recipe


def test_finetuning_counts_its_steps_from_epochs() -> None:
    recipe = load_recipe(FinetuneRecipe, None, ["training.batch_size=32", "training.epochs=3"])
    section = recipe.training.with_steps(3668)
    assert section.steps == 343
    assert section.resolved_warmup_steps() == 34


def test_a_new_model_learns_faster_by_default() -> None:
    new = ["model.architecture=lstm"]
    for changes, rate in (([], 5e-5), (new, 1e-3), ([*new, "training.learning_rate=2e-5"], 2e-5)):
        assert load_recipe(FinetuneRecipe, None, changes).training.learning_rate == rate


def test_more_warm_up_than_counted_steps_is_refused() -> None:
    recipe = load_recipe(FinetuneRecipe, None, ["training.warmup_steps=31", "training.batch_size=4"])
    assert recipe.training.with_steps(44).warmup_steps == 31
    said = r"training\.warmup_steps = 31: 40 examples give only 30 steps; lower it with --set training\.warmup_steps=3$"
    with pytest.raises(ConfigError, match=said):
        recipe.training.with_steps(40)


@pytest.mark.parametrize("name", ["transformer-base-as-published", "transformer-big-as-published"])
@pytest.mark.parametrize(("steps", "fitting"), [(20, 2), (5, 1)])
def test_a_warm_up_beyond_few_steps_is_refused_with_one_that_fits(name: str, steps: int, fitting: int) -> None:
    less, given = f"training.warmup_steps={fitting}", {"steps": steps}
    rule = f"warmup_steps = 4000: it may not exceed training.steps = {steps}; lower it with --set {less}"
    with pytest.raises(ConfigError, match=f"{rule}$"):
        recipe_of_run(FinetuneRecipe, name, changes=[], flags=given)
    assert recipe_of_run(FinetuneRecipe, name, changes=[less], flags=given).training.warmup_steps == fitting


def test_a_micro_batch_beyond_its_batch_is_refused_with_one_that_fits() -> None:
    with pytest.raises(ConfigError, match=r"micro_batch_size = 64: .* = 32; lower it with --set training\.micro.*=32$"):
        load_recipe(PretrainRecipe, None, ["training.micro_batch_size=64"])


def test_counts_of_phases_are_held_against_the_phase_alone() -> None:
    phases = "phases=[{max_length=64, steps=30, batch_size=64}]"
    taken = load_recipe(PretrainRecipe, None, [phases, "training.warmup_steps=30", "training.micro_batch_size=64"])
    assert taken.training.steps > 30
    rule = r"training\.warmup_steps = 31: it may not exceed phases\.0\.steps = 30"
    with pytest.raises(ConfigError, match=rf"{rule}; lower it with --set training\.warmup_steps=3$"):
        load_recipe(PretrainRecipe, None, [phases, "training.steps=40", "training.warmup_steps=31"])


def test_extensions_end_before_the_last_step_of_the_last_phase_or_of_the_counted_ones() -> None:
    phases = "phases=[{max_length=64, steps=30}, {max_length=64, steps=20000}]"
    planned = "training.extensions=[{at=12000, steps=12000}]"
    assert load_recipe(PretrainRecipe, None, [phases, planned]).training.extensions[0].at == 12_000
    with pytest.raises(ConfigError, match=r"training\.extensions at \[30\]: .* before phases\.0\.steps"):
        load_recipe(PretrainRecipe, None, ["phases=[{max_length=64, steps=30}]", planned.replace("12000", "30")])
    recipe = load_recipe(FinetuneRecipe, None, ["training.extensions=[{at=9, steps=9}]", "training.batch_size=4"])
    assert recipe.training.with_steps(16).steps == 12
    with pytest.raises(ConfigError, match=r"training\.extensions at 9: 12 examples give only 9 steps"):
        recipe.training.with_steps(12)


def test_the_clock_refuses_a_rate_that_falls_from_nothing() -> None:
    falling = ["training.schedule=inverse_sqrt", "training.warmup_ratio=0.0"]
    for kind in (PretrainRecipe, FinetuneRecipe):
        assert load_recipe(kind, None, falling).training.minutes is None
        assert load_recipe(kind, None, ["training.minutes=2.0", falling[0]]).training.warmup_ratio == 0.1
        assert load_recipe(kind, None, ["training.minutes=2.0", falling[1]]).training.schedule == "linear"
        said = r"training\.warmup_ratio = 0 with training\.minutes = 2: training\.schedule = 'inverse_sqrt' falls"
        with pytest.raises(ConfigError, match=said):
            load_recipe(kind, None, [*falling, "training.minutes=2.0"])


def test_the_clock_takes_warm_up_as_a_share_and_no_extension() -> None:
    for kind, key in ((PretrainRecipe, "training"), (FinetuneRecipe, "training"), (PretrainRecipe, "phases.0")):
        changes = ["phases=[{max_length=64, steps=30}]"] if key == "phases.0" else []
        said = rf"{key}\.warmup_steps = 3: with training\.minutes, give training\.warmup_ratio instead"
        with pytest.raises(ConfigError, match=said):
            load_recipe(kind, None, [*changes, "training.minutes=2.0", f"{key}.warmup_steps=3"])
    with pytest.raises(ConfigError, match=r"training\.minutes = 5e-324: it must be greater than or equal to 0\.001"):
        load_recipe(FinetuneRecipe, None, ["training.minutes=5e-324"])
    with pytest.raises(ConfigError, match=r"training\.minutes = 2: this run was extended with --steps"):
        load_recipe(FinetuneRecipe, None, ["training.minutes=2.0", "training.extensions=[{at=9, steps=9}]"])


@pytest.mark.parametrize("layers", [*LAYER_CHOICES, "0,1", "-1, -2", "12"])
def test_every_choice_of_layers_is_a_recipes(layers: str) -> None:
    chosen = load_recipe(FinetuneRecipe, None, ["task=tagging", f'features.layers="{layers}"'])
    assert chosen.features is not None
    assert chosen.features.layers == layers


def test_layers_that_are_not_mixed_are_not_normalised_for_it() -> None:
    changes = ["task=tagging", "mix.layer_norm=true"]
    assert load_recipe(FinetuneRecipe, None, [*changes, "features.layers=scalar_mix"]).mix.layer_norm
    with pytest.raises(ConfigError, match=r"mix\.layer_norm = true: of \[features\], only layers = 'scalar_mix' are"):
        load_recipe(FinetuneRecipe, None, [*changes, "features.layers=last"])


def test_what_a_caller_knows_more_is_said_with_the_place(tmp_path) -> None:
    def check(_recipe: PretrainRecipe) -> None:
        raise ConfigError("too much of it")

    (tmp_path / "r.toml").write_text("seed = 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"r\.toml: too much of it$"):
        load_recipe(PretrainRecipe, tmp_path / "r.toml", check=check)


def test_class_weights_with_odd_label_names_survive_toml(tmp_path) -> None:
    weights = {"not entailed": 2.0, "yes": 1.0, "\U0001f600": 3.0, "\x7f": 4.0}
    model = {"size": "tiny", "word_vectors": "\U0001f600\x7f.bin"}
    recipe = load_recipe(FinetuneRecipe, {"class_weights": weights, "model": model})
    path = tmp_path / "recipe.toml"
    path.write_text(recipe_toml(recipe), encoding="utf-8")
    assert load_recipe(FinetuneRecipe, path) == recipe


def test_the_clock_for_a_run_that_was_extended_is_refused_in_the_flags_of_the_command(tmp_path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text("[training]\nsteps = 9\n[[training.extensions]]\nat = 4\nsteps = 6\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_recipe(PretrainRecipe, path, ["training.minutes=30.0"], flags={"training.minutes": "--minutes 30"})
    expected = "training.minutes = 30: this run was extended with --steps, so its length is in steps; omit --minutes"
    assert str(caught.value) == f"{path} with --minutes 30: {expected}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["auxiliary_lm=0.5"], r"auxiliary_lm = 0\.5: task = .seq2seq. already predicts every token"),
        (["frozen=true", "seq2seq.source_first=true"], r"source_first = true trains parts of the encoder"),
    ],
)
def test_settings_that_a_task_with_targets_would_not_follow_are_refused(changes: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe(FinetuneRecipe, None, ["task=seq2seq", *changes])


@pytest.mark.parametrize("change", ["keep_best=true", "max_evaluation_instances=8"])
def test_what_only_pre_training_reads_is_refused_in_fine_tuning(change: str) -> None:
    with pytest.raises(ConfigError, match=f"{change.partition('=')[0]}: only pre-training reads it"):
        load_recipe(FinetuneRecipe, None, [f"training.{change}"])


@pytest.mark.parametrize(
    ("made_from", "changes", "message"),
    [
        ("seq2seq", ["auxiliary_lm=0.5"], "task = 'ours' already predicts every token"),
        ("seq2seq", ["frozen=true", "ours.source_first=true"], "ours.source_first = true trains parts of the encoder"),
        ("seq2seq", ["keep_restarts=true"], "models of task = 'ours' cannot form an ensemble"),
        ("tagging", ['class_weights="balanced"', "ours.crf=true"], "ours.crf = true scores whole sentences"),
    ],
)
def test_the_rules_for_a_kind_of_task_follow_from_its_row(made_from, changes, message, monkeypatch):
    monkeypatch.setitem(KINDS, "ours", replace(KINDS[made_from], name="ours"))
    with pytest.raises(ConfigError, match=message):
        load_recipe(FinetuneRecipe, None, ["task=ours", *changes])
    if made_from == "seq2seq":
        recipe = load_recipe(FinetuneRecipe, None, ["task=ours", 'model.size="tiny"'])
        assert recipe.model is not None
        assert recipe.model.architecture == "transformer"


def test_a_causal_objective_has_single_segments_and_no_masks():
    recipe = validate_recipe(PretrainRecipe, {"objective": "causal_lm"}, source="r")
    assert recipe.data.next_sentence is False
    assert validate_recipe(PretrainRecipe, tomllib.loads(recipe_toml(recipe)), source="r") == recipe
    assert PretrainRecipe().data.next_sentence is True
    for data, said in (
        ({"next_sentence": True}, "data.next_sentence = true needs a bidirectional model"),
        ({"masked_lm_prob": 0.3}, "leave out data.masked_lm_prob"),
        ({"keep_prob": 0.0, "whole_word_masking": True}, "leave out data.keep_prob, data.whole_word_masking"),
    ):
        with pytest.raises(ConfigError, match=said):
            validate_recipe(PretrainRecipe, {"objective": "causal_lm", "data": data}, source="r")


@pytest.mark.parametrize(
    ("kind", "changes", "told"),
    [
        (PretrainRecipe, [], []),
        (PretrainRecipe, ["denoising.infill_rate=0.5"], ["[denoising]: ignored, objective = 'masked_lm' does not"]),
        (PretrainRecipe, ["denoising.infill_rate=0.5", "objective=denoising"], []),
        (FinetuneRecipe, ["span.stride=128"], []),  # the default
        (
            FinetuneRecipe,
            ["span.stride=64", "seq2seq.beam=2", "task=span"],
            ["[seq2seq]: ignored, task = 'span' does not"],
        ),
    ],
)
def test_a_section_that_is_changed_and_not_read_is_told(kind, changes, told):
    assert unread_sections(load_recipe(kind, None, changes)) == [f"{sentence} read it" for sentence in told]
