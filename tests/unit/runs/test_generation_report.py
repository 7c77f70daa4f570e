"""The page about how a model generates."""

import re

import pytest
from tests.unit.inference.generators import WORDS, generator_folder

from maskloom.checkpoints.huggingface import load_model
from maskloom.errors import DataError
from maskloom.inference import Predictor
from maskloom.runs.report.generation import generation_report

SEARCH = {"max_tokens": 4, "beam": 2, "length_penalty": 0.6}


def page_of(folder, name, texts=("one two three", "four"), given=SEARCH, words=WORDS):
    model = generator_folder(folder / "model", name, words)
    _, found = generation_report(Predictor.load(model), model, texts, folder / "page.html", given)
    return (folder / "page.html").read_text(encoding="utf-8"), found


@pytest.mark.parametrize("name", ["transformer", "bart", "t5"])
def test_a_writer_is_shown_by_attention_steps_masks_and_positions(name, tmp_path):
    page, found = page_of(tmp_path, name)
    for title, number in (("Cross-attention", 1), ("Self-attention of the encoder", 3)):
        assert page.count(f"<h3>{title}</h3>") == number  # for the masks, and for both texts
    assert page.count("<h3>Cross-attention: from") == 2
    layers = 3 if name != "bart" else 2
    assert [f'aria-label="Cross-attention: from the decoder to the source, layer {number}"' in page
            for number in range(1, 5)] == [number <= layers for number in range(1, 5)]  # fmt: skip
    assert page.count('aria-label="layer 2, head 4"') == 6
    spelled = {"transformer": "Transformer", "bart": "BART", "t5": "T5"}[name]
    assert re.search(rf"architecture</t[dh]>\s*<td[^>]*>{spelled}</td>", page)
    told = re.findall(r'<td class="key">([^<]*)</td><td class="">([^<]*)', page)
    assert {("beam", "2"), ("length penalty", "0.6"), ("max tokens", "4")} <= {*told}
    assert "Finished texts, best first" in page
    assert all(one["text"] in page and f"log-probability {one['log_probability']:.3f}" in page for one in found)
    assert ("Sinusoids, encoder and decoder" in page) == (name == "transformer")
    assert ("Learned vectors, decoder" in page) == (name == "bart")
    assert "Blue: positive; orange: negative." in page
    assert ("Biases by distance, decoder" in page) == (name == "t5")
    assert page.count("similarity by distance</h3>") == {"transformer": 1, "bart": 2, "t5": 0}[name]
    blocks = re.findall(r"<b>(\d × \w+)</b> <span[^>]*>layers, ([\d,]+) parameters each<", page)
    assert [kind for kind, _ in blocks] == ["2 × TransformerLayer", f"{layers} × TransformerLayer"]
    count = sum(one.numel() for one in load_model(tmp_path / "model")[0].parameters())
    assert f"{count:,} parameters. Blocks are" in page


def test_a_gpt_is_shown_by_its_own_attention(tmp_path):
    page, _ = page_of(tmp_path, "gpt", given={"max_tokens": 4, "seed": 1})
    assert page.count("<h3>Self-attention</h3>") == 3  # for both texts and the masks
    assert "Cross-attention" not in page
    assert '<td class="key">seed</td><td class="">1</td>' in page
    assert "Learned vectors, model" in page


def test_it_holds_all_and_loads_nothing(tmp_path):
    words = [*WORDS, "<script>", "&", "\u202eabc"]
    page, _ = page_of(tmp_path, "transformer", texts=["one <script> & \u202eabc <b>x</b>"], words=words)
    assert "<b>x" not in page
    assert "<script" not in page
    assert "\u202e" not in page
    assert "&lt;b&gt;x&lt;/b&gt;" in page
    assert not re.search(r"(src|href)=|https?:|url\(|@import", page)
    assert "prefers-color-scheme: dark" in page


def test_what_is_too_long_is_cut_and_said(tmp_path):
    long = {"max_tokens": 60, "beam": 1, "min_tokens": 60}
    page, _ = page_of(tmp_path, "transformer", texts=["one two " * 30], given=long)
    assert "Only the first 48 tokens of 60 rows and 62 columns are shown." in page
    assert "Only the first 48 of 60 steps are shown." in page
    assert "60 tokens, score " in page
    assert ", stopped at the token limit" in page
    assert page.count(" (stopped at the token limit)</td>") == 1  # among the finished texts, which it is not


def test_a_file_gives_its_first_texts(tmp_path):
    model, path = generator_folder(tmp_path / "model", "t5"), tmp_path / "a.de"
    path.write_text("".join(f"{word}\n" for word in WORDS), encoding="utf-8")
    about, found = generation_report(Predictor.load(model), model, path, tmp_path / "page.html", SEARCH)
    assert about == {"page": str(tmp_path / "page.html"), "num_shown": 5, "num_left_out": 3}
    assert len(found) == 5
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<h2>Text ") == 5
    assert page.count("<h3>Self-attention of the decoder</h3>") == 6  # for the masks, and for every text
    assert "Only the first 5 texts are shown; 3 more are left out." in page
    (tmp_path / "a.csv").write_text("source\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.csv: no rows to show"):
        generation_report(Predictor.load(model), model, tmp_path / "a.csv", tmp_path / "page.html", SEARCH)
    path.write_text("one\n...\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.de, line 1: min_tokens 60: a target has at most 53 tokens, 50 more than"):
        generation_report(Predictor.load(model), model, path, tmp_path / "page.html", {"min_tokens": 60})


def test_an_old_page_is_replaced(tmp_path):
    (tmp_path / "page.html").write_text("old")
    page, _ = page_of(tmp_path, "transformer", ["one"])
    assert "old" not in page[:100]
