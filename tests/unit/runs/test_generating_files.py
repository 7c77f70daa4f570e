"""Files of prompts and of texts with blanks: rows that a model cannot read are found before it generates anything."""

import json

import pytest
from tests.unit.inference.generators import generator_folder

from maskloom.errors import DataError
from maskloom.generation.search import Generation
from maskloom.inference import Predictor
from maskloom.runs.predict import generate
from maskloom.runs.report.generation import generation_report
from maskloom.tasks.tables import ReadingOptions

SKIPS, GREEDY = ReadingOptions(on_bad_rows="skip"), Generation(4, 0.0)
LINES = {"gpt": ("one two", "four " * 90, "three"), "t5": ("one <X>", "two", "three <X> one")}
MESSAGES = {"gpt": "line 2: 91 tokens, but the model reads 80", "t5": "line 2: 0 blanks in 'two'"}


@pytest.mark.parametrize("name", ["gpt", "t5"])
def test_rows_that_do_not_fit_the_model_are_named_or_dropped(name, tmp_path, monkeypatch):
    folder = generator_folder(tmp_path / "model", name, ["<extra_id_0>", "one", "two", "three", "four"])
    predictor = Predictor.load(folder)
    source, target, fills = tmp_path / "texts.txt", tmp_path / "out.jsonl", GREEDY if name == "t5" else None
    source.write_text("\n".join(LINES[name]) + "\n")
    with monkeypatch.context() as patch:
        for made in ("continuations", "fill_blanks"):
            patch.setattr(Predictor, made, lambda *_: pytest.fail("it generated before it had read all rows"))
        with pytest.raises(DataError, match=f"texts.txt, {MESSAGES[name]}"):
            generate(predictor, source, target, {}, fills=fills)
    assert not target.exists()
    told = generate(predictor, source, target, {"max_tokens": 4} if fills is None else {}, fills=fills, reading=SKIPS)
    assert (told["num_texts"], told["data"]["num_rows"], told["data"]["num_kept"]) == (2, 3, 2)
    assert told["data"]["dropped"] == {"does not fit the model": 1}
    assert told["data"]["first_dropped_lines"] == {"does not fit the model": 2}
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert [(row["index"], row["line"]) for row in rows] == [(0, 1), (1, 3)]
    source.write_text(LINES[name][1])
    with pytest.raises(DataError, match="no usable rows: 1 read"):
        generate(predictor, source, target, {}, fills=fills, reading=SKIPS)
    if fills is None:
        source.write_text("\n".join(LINES[name]))
        shown = generation_report(predictor, folder, source, tmp_path / "page.html", {"max_tokens": 4}, SKIPS)[1]
        assert [row["prompt"] for row in shown] == ["one two", "three"]


def test_cut_sources_are_counted_once(tmp_path):
    folder, source = generator_folder(tmp_path / "model", "bart"), tmp_path / "texts.txt"
    (folder / "maskloom.json").write_text('{"kind": "seq2seq", "max_length": 4}')
    source.write_text("one two\none two three\n")
    predictor, page = Predictor.load(folder), tmp_path / "page.html"
    told = generate(predictor, source, tmp_path / "out.jsonl", {"max_tokens": 3})
    assert (told["num_truncated_examples"], told["max_length"]) == (1, 4)
    generation_report(predictor, folder, source, page, {"max_tokens": 3})  # as --output with --report
    assert "1 source to 4 tokens" in page.read_text(encoding="utf-8")
    (row,) = generation_report(Predictor.load(folder), folder, ["one two three"], page, {"max_tokens": 3})[1]
    assert (row["num_truncated_examples"], row["max_length"]) == (1, 4)
    assert "1 source to 4 tokens" in page.read_text()
