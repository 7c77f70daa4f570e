"""The page about an encoder's attention shows the numbers that the model computes."""

import re
from xml.etree import ElementTree

import pytest
import torch
from tests.integration.tiny_models import WORDS, model_folder
from tests.unit.inference.generators import generator_folder

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.errors import ConfigError, DataError
from maskloom.inference import Predictor
from maskloom.inference.inspection import self_attention
from maskloom.models.assembled import build_model
from maskloom.models.recurrent_config import LstmConfig
from maskloom.runs.report import generation
from maskloom.tasks.tables import ReadingOptions

PAIR = [f"The animal didn't cross the street because it was too {word}." for word in ("tired", "wide")]


def attention_report(model, *given):
    return generation.attention_report(Predictor.load(model), model, *given)


def charts_of(page):
    """Return the charts of a page, several of the same name in order, as trees."""
    found = {}
    for whole, name in re.findall(r'(<svg [^>]*aria-label="([^"]*)".*?</svg>)', page.read_text("utf-8"), re.DOTALL):
        found.setdefault(name, []).append(ElementTree.fromstring(whole))
    return found


def cells_of(chart):
    """Return the values that a chart tells, by row and column, and their labels."""
    told = [(cell, cell.find("title").text.rsplit(": ", 1)) for cell in chart.iter("rect") if len(cell)]
    places = [(int(cell.get("y")), int(cell.get("x"))) for cell, _ in told]
    return {place: float(value) for place, (_, (_, value)) in zip(places, told, strict=True)}, [
        label for _, (label, _) in told
    ]


def check(chart, expected, tokens):
    values, labels = cells_of(chart)
    shown = torch.zeros_like(expected)
    for place, value in values.items():
        shown[place] = value
    smallest = float(expected.max()) / 25
    assert (shown - expected).abs()[expected > smallest].max() < 1e-3
    assert (expected[shown == 0.0] < smallest).all()
    assert labels == [f"{tokens[row]}, {tokens[column]}" for row, column in values]


@pytest.fixture(scope="module")
def peers(minilm_folder):
    """transformers' model and tokenizer."""
    transformers = pytest.importorskip("transformers")
    peer = transformers.BertModel.from_pretrained(minilm_folder, attn_implementation="eager").eval()
    return peer, transformers.AutoTokenizer.from_pretrained(minilm_folder)


@pytest.mark.parity
@pytest.mark.parametrize("has_pairs", [False, True])
@torch.no_grad()
def test_every_head_of_every_layer_shows_the_attention_of_transformers(minilm_folder, peers, tmp_path, has_pairs):
    peer, tokenizer = peers
    path, page = tmp_path / "in.csv", tmp_path / "page.html"
    path.write_text("".join(f'"{text}","What was it?"\n' for text in ["text", *PAIR]), encoding="utf-8")
    reading = ReadingOptions(text_column="text", pair_column="What was it?" if has_pairs else None)
    about = attention_report(minilm_folder, path, page, reading)
    assert about == {"page": str(page), "num_shown": 2, "num_left_out": 0}
    charts = charts_of(page)
    for number, text in enumerate(PAIR):
        given = tokenizer(text, *["What was it?"] * has_pairs, return_tensors="pt")
        tokens = tokenizer.convert_ids_to_tokens(given["input_ids"][0])
        layers = torch.cat(peer(**given, output_attentions=True).attentions)
        for layer, heads in enumerate(layers, start=1):
            check(charts[f"Self-attention, layer {layer}"][number], heads.mean(0), tokens)
            for head, expected in enumerate(heads, start=1):
                check(charts[f"layer {layer}, head {head}"][number], expected, tokens)
        check(charts["Self-attention, all layers"][number], layers.mean((0, 1)), tokens)
        attention = {token: layers[..., tokens.index("it"), tokens.index(token)] for token in ("animal", "street")}
        if not has_pairs:  # the figures of docs/TASKS.md
            stated = ("0.68", "0.67") if number == 0 else ("0.28", "0.56")
            animal = attention["animal"]
            assert tuple(f"{animal[layer - 1, head - 1]:.2f}" for layer, head in ((4, 2), (6, 12))) == stated
            assert attention["street"].max() < 0.245
    assert {len(found) for name, found in charts.items() if "layer" in name} == {2}
    assert "The animal didn&#39;t cross the street because it was too wide." in page.read_text("utf-8")
    assert not re.search(r"(src|href)=|https?:|url\(|@import|<script", page.read_text("utf-8"))


def test_the_numbers_in_the_documentation_are_those_of_the_model(minilm_folder):
    predictor, found = Predictor.load(minilm_folder), []
    for text in PAIR:
        ids = predictor.tokenizer.encode(text).ids
        words = [predictor.tokenizer.vocabulary.tokens[token] for token in ids]
        rows = self_attention(predictor, ids)["self"].probabilities[:, :, words.index("it")]
        found.append([rows[..., words.index(word)] for word in ("animal", "street")])
    assert [f"{float(animal[3, 1]):.2f} {float(animal[5, 11]):.2f}" for animal, _ in found] == [
        "0.68 0.67",
        "0.28 0.56",
    ]
    assert 0.23 < max(float(street.max()) for _, street in found) < 0.24


def file_of(folder, text):
    (folder / "in.txt").write_text(f"{text}\n", encoding="utf-8")
    return folder / "in.txt"


def test_masks_in_a_file_are_plain_text(tmp_path):
    model, page = model_folder(tmp_path / "model", heads=("mlm",), num_labels=None), tmp_path / "page.html"
    assert attention_report(model, file_of(tmp_path, "alpha [MASK] beta\n"), page)["num_shown"] == 2
    assert "alpha, beta: 0." in page.read_text("utf-8")
    assert "[MASK], " not in page.read_text("utf-8")
    assert "Only the first" not in page.read_text("utf-8")


def test_of_a_long_file_with_long_texts_the_first_are_shown(tmp_path, monkeypatch):
    model, page = model_folder(tmp_path / "model"), tmp_path / "page.html"
    (tmp_path / "in.txt").write_text("".join(f"{word} beta\n" for word in WORDS), encoding="utf-8")
    assert attention_report(model, tmp_path / "in.txt", page) == {"page": str(page), "num_shown": 5, "num_left_out": 3}
    assert "Only the first 5 texts are shown; 3 more are left out." in page.read_text("utf-8")
    assert "theta" not in page.read_text("utf-8")
    monkeypatch.setattr(generation, "_TOLD", 150)  # two layers and two heads of texts with four tokens: 320
    attention_report(model, tmp_path / "in.txt", page)
    charts = charts_of(page)
    assert {bool(cells_of(chart)[0]) for chart in charts["layer 1, head 2"]} == {False}
    assert {bool(cells_of(chart)[0]) for chart in charts["Self-attention, layer 1"]} == {True}
    names = [text.text for text in charts["layer 1, head 2"][0].iter("text")]
    assert names == 2 * ["[CLS]", "alpha", "beta", "[SEP]"]


def test_encoders_of_other_architectures_are_shown_and_those_without_attention_refused(tmp_path):
    for name in ("t5", "gpt"):
        model = generator_folder(tmp_path / name, name)
        attention_report(model, file_of(tmp_path, "one two"), tmp_path / "page.html")
        predictor = Predictor.load(model)
        ids = predictor.tokenizer.encode("one two").ids
        tokens = [predictor.tokenizer.vocabulary.tokens[token] for token in ids]
        expected = self_attention(predictor, ids)["self"].probabilities
        check(charts_of(tmp_path / "page.html")["layer 2, head 3"][0], expected[1, 2], tokens)
    vocabulary = Predictor.load(model).tokenizer
    config = LstmConfig(vocab_size=len(vocabulary.vocabulary), hidden_size=8)
    save_model(build_model(config, ("classifier",), 2, seed=3), tmp_path / "lstm")
    vocabulary.save(tmp_path / "lstm")
    with pytest.raises(ConfigError, match=r"lstm: the architecture .* has no self-attention for --report to show"):
        attention_report(tmp_path / "lstm", tmp_path / "in.txt", tmp_path / "lstm.html")


def test_what_cannot_be_shown_is_refused(tmp_path):
    model = model_folder(tmp_path / "model")
    for name, text in (("in.txt", ""), ("in.csv", "text\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match=name):
            attention_report(model, tmp_path / name, tmp_path / "page.html")
    loaded, _ = load_model(model)
    loaded.encoder.layers[0].attention.qkv.weight.data.fill_(3e38)
    save_model(loaded, tmp_path / "broken")
    Predictor.load(model).tokenizer.save(tmp_path / "broken")
    with pytest.raises(DataError, match="the model's attention has values that are not finite"):
        attention_report(tmp_path / "broken", file_of(tmp_path, "alpha"), tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
