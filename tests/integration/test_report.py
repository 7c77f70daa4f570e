"""The report command on real runs whose texts, labels and names try to inject markup into the page."""

import json
import shutil
from html.parser import HTMLParser

import pytest
from tests.fine_tuning import finetune

from maskloom.checkpoints.huggingface import save_model
from maskloom.config import FinetuneRecipe, validate_recipe
from maskloom.errors import ConfigError
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.runs.finetune import LabelledFiles
from maskloom.runs.info import describe_folder
from maskloom.runs.report.page import report
from maskloom.runs.search import Trials, search
from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

LABELS = ["</td><script>alert(1)</script>", "\u202e<svg onload=alert(2)>"]
TEXTS = ["good </table><img src=x onerror=alert(3)>", "bad {{ 7 * 191 }} <style>*{}</style>"]


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    """Return a folder with a tiny model, data with hostile texts and labels, and a fine-tuned run."""
    folder = tmp_path_factory.mktemp("report")
    vocabulary = Vocabulary([*SPECIAL_TOKENS, "good", "bad", "script", "alert", "<", ">"])
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12,
        max_position_embeddings=32,
    )  # fmt: skip
    save_model(build_model(config, (), seed=3), folder / "bert")
    WordPieceTokenizer(vocabulary, max_length=32).save(folder / "bert")
    for name, size in (("train", 16), ("dev", 12)):
        rows = ({"text": f"{TEXTS[i % 2]} {i}", "label": LABELS[i % 2]} for i in range(size))
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(folder, folder / "run", restarts=2)
    return folder


def recipe(**values):
    training = {"steps": 6, "evaluate_every": 3, "batch_size": 4, "num_threads": 1, "log_every": 1}
    values = {"data": {"max_length": 24}, "training": training, **values}
    return validate_recipe(FinetuneRecipe, values, source="test")


def run(folder, out, **values):
    files = {name: folder / f"{name}.jsonl" for name in ("train", "dev")}
    return finetune(recipe(**values), model=folder / "bert", out=out, **files)


def page_of(path):
    page = Page(path.read_text(encoding="utf-8"))
    assert not {"script", "img", "iframe", "link"} & set(page.tags)
    assert page.tags.count("style") == 1
    assert not {"onerror", "onload", "href", "src"} & set(page.attributes)
    return page


def test_texts_and_labels_cannot_break_out(setting, tmp_path, command):
    code, said = command("report", setting / "run", "--out", tmp_path / "page.html")
    assert code == 0, said
    assert f"written to {tmp_path / 'page.html'}" in said
    page = page_of(tmp_path / "page.html")
    assert LABELS[0] in page.text
    assert "\\u202e<svg onload=alert(2)>" in page.text
    assert any(text in page.text for text in TEXTS)
    assert "1337" not in page.text
    assert "of 12 are correct" in page.text


def test_examples_need_the_dev_file_as_it_was(setting, tmp_path):
    shutil.copytree(setting / "run", tmp_path / "run")
    report([tmp_path / "run"], tmp_path / "page.html", num_examples=5)
    assert "of 5 are correct; the file has 12" in page_of(tmp_path / "page.html").text
    report([tmp_path / "run"], tmp_path / "page.html", num_examples=0)
    assert "are correct" not in page_of(tmp_path / "page.html").text
    dev = setting / "dev.jsonl"
    content = dev.read_text()
    dev.write_text(content + content.splitlines()[0] + "\n")
    report([tmp_path / "run"], tmp_path / "page.html")
    assert "has changed since the run read it" in page_of(tmp_path / "page.html").text
    dev.write_text(content)


def test_a_page_takes_the_place_of_no_other_file(setting, tmp_path):
    shutil.copytree(setting / "run", tmp_path / "run")
    with pytest.raises(ConfigError, match=r"recipe\.toml: --out names the page to write, an \.html file"):
        report([tmp_path / "run"], tmp_path / "run" / "recipe.toml")
    with pytest.raises(ConfigError, match=r"recipe\.toml does not exist$"):
        report([tmp_path / "run"], tmp_path / "run" / "recipe.toml" / "page.html")


def test_a_link_to_a_page_stays(setting, tmp_path):
    (tmp_path / "page.html").symlink_to("held.html")
    report([setting / "run"], out=tmp_path / "page.html", num_examples=0)
    assert (tmp_path / "page.html").is_symlink()
    assert "</html>" in (tmp_path / "held.html").read_text()


def test_a_search_shows_its_trials_and_its_best_model(setting, tmp_path):
    files = {name: setting / f"{name}.jsonl" for name in ("train", "dev")}
    space = {"training.learning_rate": (1e-4, 1e-3)}
    search(recipe(), model=setting / "bert", data=LabelledFiles(**files), out=tmp_path / "search", trials=Trials(space))
    assert describe_folder(tmp_path / "search")["finished"]
    report([tmp_path / "search", setting / "run"], tmp_path / "page.html")
    page = page_of(tmp_path / "page.html")
    assert "search: trials" in page.text
    assert "search, best trial: examples from dev" in page.text
    assert page.text.count("of 12 are correct") == 2
