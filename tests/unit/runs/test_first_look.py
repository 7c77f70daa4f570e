"""How much of a file commands inspect before they import torch."""

from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from maskloom.config import FinetuneRecipe, load_recipe
from maskloom.errors import ConfigError, DataError
from maskloom.runs import first_look
from maskloom.runs.first_look import (
    check_page,
    look_at_input,
    look_at_questions,
    look_at_sources,
    look_at_training_data,
    read_context,
    with_task,
)
from maskloom.runs.reading_defaults import reading_of_sources
from maskloom.tasks.tables import ReadingOptions


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "model" / "maskloom.json").write_text('{"kind": "single", "takes_pairs": false}', encoding="utf-8")
    return tmp_path / "model"


def rows(path: Path, num_good: int, last: str = "") -> Path:
    path.write_text("text,label\n" + "a,x\n" * num_good + last, encoding="utf-8")
    return path


def test_the_first_rows_of_a_file_are_looked_at(model: Path, tmp_path: Path, monkeypatch) -> None:
    late, early = rows(tmp_path / "late.csv", 20_000, "a\n"), rows(tmp_path / "early.csv", 900, "a\n")
    reading = ReadingOptions()
    monkeypatch.setattr(first_look, "_ROWS", 100_000)
    with pytest.raises(DataError, match=r"late\.csv: line 20002: wrong number of fields"):
        look_at_training_data(model, [late], reading, FinetuneRecipe())
    with pytest.raises(DataError, match=r"late\.csv: line 20002"):
        look_at_input([model], late, reading, needs_label=True)
    monkeypatch.setattr(first_look, "_ROWS", 1000)
    look_at_training_data(model, [late], reading, FinetuneRecipe())
    look_at_input([model], late, reading, needs_label=True)
    with pytest.raises(DataError, match=r"early\.csv: line 902"):
        look_at_training_data(model, [early], reading, FinetuneRecipe())


def test_the_form_of_all_tags_is_looked_at_before_torch_is_imported(model: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(first_look, "_ROWS", 100_000)
    train = tmp_path / "train.txt"
    train.write_text("Anna B-PER\nsees O\n\n" * 5_000 + "Bob X-PER\n", encoding="utf-8")
    reading = ReadingOptions()
    with pytest.raises(DataError, match=r"train\.txt: line 15001: unknown form of tag: 'X-PER'"):
        look_at_training_data(model, [train], reading, FinetuneRecipe(task="tagging"))
    plain = load_recipe(FinetuneRecipe, None, ["task=tagging", "tagging.scheme=plain"])
    look_at_training_data(model, [train], reading, plain)


def test_a_folder_in_place_of_data_is_not_taken_for_another_task(model: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder") as caught:
        look_at_training_data(model, [tmp_path], ReadingOptions(), FinetuneRecipe())
    assert "the task is single" not in str(caught.value)


def test_small_files_come_first(model: Path, tmp_path: Path) -> None:
    large, small = rows(tmp_path / "train.csv", 5, "a\n"), rows(tmp_path / "dev.csv", 2, "a\n")
    with pytest.raises(DataError, match=r"dev\.csv: line 4"):
        look_at_training_data(model, [large, small], ReadingOptions(), FinetuneRecipe())


def test_questions_and_their_text_are_looked_at(model: Path, tmp_path: Path) -> None:
    text, blank = tmp_path / "text.txt", tmp_path / "blank.txt"
    text.write_text("some text", encoding="utf-8")
    blank.write_text(" \n", encoding="utf-8")
    look_at_questions([model], text, ["q"])
    look_at_questions([model], Path("-"), ["q"])
    for path, message in ((blank, "the file is empty"), (tmp_path / "absent", "cannot be read")):
        with pytest.raises(DataError, match=message):
            look_at_questions([model], path, ["q"])
    with pytest.raises(DataError, match="there is no such folder"):
        look_at_questions([model, tmp_path / "absent"], text, ["q"])
    with pytest.raises(ConfigError, match="question 2 is empty"):
        look_at_questions([model], text, ["q", " "])


def test_a_text_that_is_too_large_is_not_called_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: piped text that was cut in the middle of a character was "not UTF-8"."""
    monkeypatch.setattr(first_look, "_MAX_TEXT_BYTES", 2)
    monkeypatch.setattr(first_look.sys, "stdin", SimpleNamespace(buffer=BytesIO("éé".encode())))
    with pytest.raises(DataError, match="-: larger than 2 bytes, the limit for one search"):
        read_context("-")


@pytest.mark.parametrize(("name", "content"), [("t.txt", "EU B-ORG\n"), ("t.json", "{}"), ("t.conll", "EU B-ORG\n")])
def test_data_of_another_kind_names_the_task_to_give(model: Path, tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(
        DataError, match=r"; the task is single by default; --task sets tagging .*, span .* or another$"
    ):
        look_at_training_data(model, [tmp_path / name], ReadingOptions(), FinetuneRecipe())


def test_a_file_named_for_a_language_points_to_translation(model: Path, tmp_path: Path) -> None:
    (tmp_path / "train.de").write_text("ein Mann\n")
    with pytest.raises(
        DataError, match=r"seq2seq \(.* targets in separate files: --set seq2seq\.target_suffix=en\) or another$"
    ):
        look_at_training_data(model, [tmp_path / "train.de"], ReadingOptions(), FinetuneRecipe())


def test_a_missing_vocabulary_is_not_asked_for_the_files_of_a_model(tmp_path: Path) -> None:
    recipe = load_recipe(FinetuneRecipe, {"model.size": "tiny"})
    message = f"^{tmp_path / 'none'}: no such folder; expected a vocabulary, model, corpus or run folder$"
    with pytest.raises(DataError, match=message):
        look_at_training_data(tmp_path / "none", [rows(tmp_path / "a.csv", 2)], ReadingOptions(), recipe)


def test_a_missing_file_says_nothing_of_tasks(model: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train\.cvs: no such file or folder$"):
        look_at_training_data(model, [tmp_path / "train.cvs"], ReadingOptions(), FinetuneRecipe())


def test_a_wrong_row_of_a_table_says_nothing_of_tasks(model: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,label\na\n")
    with pytest.raises(DataError, match=r"expected 2$"):
        look_at_training_data(model, [tmp_path / "t.csv"], ReadingOptions(), FinetuneRecipe())


@pytest.mark.parametrize(
    ("train", "dev", "message"),
    [
        ("a,x\nb,x\n", "a,x\n", r"train\.csv: all 2 rows have the label 'x'; a classifier needs at least two"),
        ("a,x\nb,y\n", "a,x\nb,z\n", r"dev\.csv: line 3: the label 'z' is not one .* 'x', 'y'; .*\(--labels FILE\)$"),
    ],
)
def test_labels_are_looked_at_where_both_files_are_read_whole(
    model: Path, tmp_path: Path, monkeypatch, train: str, dev: str, message: str
) -> None:
    files = [tmp_path / "train.csv", tmp_path / "dev.csv"]
    for path, content in zip(files, (train, dev), strict=True):
        path.write_text(f"text,label\n{content}")
    with pytest.raises(DataError, match=message):
        look_at_training_data(model, files, ReadingOptions(), FinetuneRecipe())
    rest = "".join(f"text {number},x\n" for number in range(2000))
    files[0].write_text(f"text,label\n{train}{rest}")  # the rest is unread, so nothing is reported
    monkeypatch.setattr(first_look, "_ROWS", 1000)
    look_at_training_data(model, files, ReadingOptions(), FinetuneRecipe())


def test_a_class_list_gives_labels_that_training_data_lacks(model: Path, tmp_path: Path) -> None:
    files = [tmp_path / "train.csv", tmp_path / "dev.csv"]
    files[0].write_text("text,label\na,x\nb,y\n")
    files[1].write_text("text,label\na,z\n")
    (tmp_path / "labels.txt").write_text("x\ny\nz\n")
    look_at_training_data(model, files, ReadingOptions(labels=str(tmp_path / "labels.txt")), FinetuneRecipe())


@pytest.mark.parametrize(
    "settings",
    [
        '{"kind": "x"}',
        '{"kind": ["single"]}',
        '{"kind": "single", "reading": [1]}',
        '{"kind": "single", "takes_pairs": "x"}',
    ],
)
def test_settings_that_nobody_knows_are_left_to_who_opens_the_model(model: Path, tmp_path: Path, settings: str) -> None:
    (model / "maskloom.json").write_text(settings, encoding="utf-8")
    look_at_input([model], rows(tmp_path / "rows.csv", 3), ReadingOptions(), needs_label=True)


def test_a_format_of_another_task_is_refused_beside_a_task(model: Path, tmp_path: Path) -> None:
    train, recipe = rows(tmp_path / "train.csv", 2), FinetuneRecipe(task="seq2seq")
    with pytest.raises(ConfigError, match="task = 'seq2seq', but the format cola is a single task"):
        look_at_training_data(model, [train], ReadingOptions(format="cola"), recipe)


def test_a_suffix_of_targets_is_refused_where_there_are_none(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--target-suffix en: a single task has no targets"):
        look_at_input([model], rows(tmp_path / "a.csv", 2), ReadingOptions(target_suffix="en"), needs_label=True)


def test_sources_are_read_as_in_fine_tuning(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("de,text,en\na,b,c\n", encoding="utf-8")
    stored = {"text_column": "de", "label_column": "en"}
    known = {"kind": "seq2seq", "reading": stored}
    assert reading_of_sources(path, None, known).options.text_column == "de"
    assert reading_of_sources(path, ReadingOptions(text_column="text"), known).options.text_column == "text"
    assert reading_of_sources(path, None, {"kind": "single", "reading": stored}).options.text_column is None
    lines = tmp_path / "a.de"
    lines.write_text("ein Mann\n\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.de: line 2: empty prompt or source"):
        look_at_sources(model, lines, ReadingOptions())
    look_at_sources(model, lines, ReadingOptions(on_bad_rows="skip"))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("swag", "pair.both_orders=true", "format swag: pair.both_orders = true: task = 'choice' does not read pairs"),
        ("conll2003", "auxiliary_lm=0.5", "format conll2003: auxiliary_lm = 0.5: task = 'tagging' reads tokens"),
        ("sts-b", 'class_weights="balanced"', "format sts-b: class_weights: task = 'regression' has no labels"),
    ],
)
def test_keys_that_do_not_fit_the_task_of_a_format_are_refused(name: str, change: str, message: str) -> None:
    recipe = load_recipe(FinetuneRecipe, None, [change])
    with pytest.raises(ConfigError, match=message):
        with_task(recipe, ReadingOptions(format=name))


def test_the_task_of_a_format_leaves_the_other_keys_as_they_were_given() -> None:
    recipe = with_task(load_recipe(FinetuneRecipe, None, ["training.epochs=2.0"]), ReadingOptions(format="swag"))
    assert recipe == load_recipe(FinetuneRecipe, None, ["training.epochs=2.0", "task=choice"])
    assert recipe.training.model_fields_set == {"epochs"}


@pytest.mark.parametrize("reading", ['{"text_column": 3}', '{"on_bad_rows": "pass"}', '{"suffix": "de"}'])
def test_a_wrong_stored_way_of_reading_names_its_file(model: Path, tmp_path: Path, reading: str) -> None:
    """Regression: commands reported the value without the file."""
    path = rows(tmp_path / "in.csv", 2)
    message = r"model/maskloom\.json, reading: (text_col|on_bad|unknown key 'suffix)"
    for kind in ("single", "seq2seq"):
        (model / "maskloom.json").write_text(f'{{"kind": "{kind}", "reading": {reading}}}', encoding="utf-8")
        with pytest.raises(DataError, match=message):
            look_at_input([model], path, ReadingOptions(), needs_label=False)
        with pytest.raises(DataError, match=message):
            look_at_sources(model, path, ReadingOptions())


def test_a_page_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.html").mkdir()
    for wrong in (tmp_path, tmp_path / "x.html", tmp_path / "page.txt"):
        with pytest.raises(ConfigError, match=r"--report names the page to write, an \.html file"):
            check_page(wrong, "--report")
    with pytest.raises(ConfigError, match=r"the folder .*absent does not exist"):
        check_page(tmp_path / "absent" / "page.html", "--report")
