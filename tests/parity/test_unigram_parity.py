"""Unigram pieces compared with transformers: ids, special tokens, texts, fine-tuning of a T5 folder, and blanks."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.encoded_texts import encode_all
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

import maskloom
from maskloom.data.corpus.sentence_encoding import SentenceEncoder
from maskloom.errors import ConfigError, DataError
from maskloom.inference.span_filling import check_fills, source_ids
from maskloom.text.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

TEXTS = [
    "The lowest of the low rivers wasn't lower than the newest; she sells sea shells by the sea shore!",
    "Thank you for inviting me to your party last week, and a naïve café is open. She sells shells to me.",
] * 20
SENTINELS = [f"<extra_id_{number}>" for number in range(99, -1, -1)]
TEXT = st.text() | st.lists(st.sampled_from([*" \t\n'.,é東🙂", "the", "Low", "est", "shells", "I'm"])).map("".join)


@pytest.fixture(scope="module", params=[pytest.param("inside", marks=pytest.mark.slow), "behind"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tokenizer in T5's layout, with its sentinels among the pieces or after them."""
    space = {"replacement": "▁", "prepend_scheme": "always"}
    library = tokenizers.Tokenizer(models.Unigram())
    library.normalizer = normalizers.NFKC()
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(**space)]
    )
    library.decoder = decoders.Metaspace(**space)
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=90, special_tokens=special, unk_token="<unk>", show_progress=False)
    library.train_from_iterator(TEXTS, trainer)
    if request.param == "inside":
        raw = json.loads(library.to_str())
        raw["model"]["vocab"] += [[sentinel, 0.0] for sentinel in SENTINELS]
        library = tokenizers.Tokenizer.from_str(json.dumps(raw))
    library.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in SENTINELS])
    marks = {"single": ["$A", "</s>"], "pair": ["$A", "</s>", "$B", "</s>"], "special_tokens": [("</s>", 1)]}
    library.post_processor = processors.TemplateProcessing(**marks)
    folder = tmp_path_factory.mktemp("t5")
    library.save(str(folder / "tokenizer.json"))
    named = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize("sentences", ["split", "lines"])
def test_sentences_of_a_corpus_together_are_the_whole_text(folder: Path, sentences) -> None:
    tokenizer = Tokenizer.load(folder)
    encoder = SentenceEncoder(tokenizer, sentences=sentences)
    for text in ("\n".join(TEXTS), "  She sells.\nNaïve  (café)\tis open! 東京", "Low."):
        assert np.frombuffer(encode_all(encoder, [text]).tokens, encoder.type).tolist() == tokenizer.token_ids(text)


@pytest.fixture(scope="module")
def pair(folder: Path):
    return Tokenizer.load(folder), transformers.PreTrainedTokenizerFast.from_pretrained(folder)


@given(text=TEXT)
@settings(max_examples=75, deadline=None)
def test_ids_and_texts(pair, text):
    ours, theirs = pair
    if any(mark in text for mark in ("<pad>", "</s>", "<unk>", "<extra_id_")):
        return
    ids = ours.encode(text).ids
    assert ids == theirs(text)["input_ids"]
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.encode(text, "me too").ids == (
        theirs(text, "me too")["input_ids"] if text else theirs("", "me too")["input_ids"]
    )


def test_marks_in_a_text_are_plain_unless_asked_for(pair):
    ours, theirs = pair
    text = "the <extra_id_0> low </s>"
    assert ours.vocabulary.ids["<extra_id_0>"] == len(ours.vocabulary) - 1
    assert not {*ours.token_ids(text)} & {1, len(ours.vocabulary) - 1}
    assert ours.encode("a </s>", parse_special_tokens=True).ids == theirs("a </s>")["input_ids"]
    assert ours.decode([*ours.token_ids("the"), len(ours.vocabulary) - 1]) == "the <extra_id_0>"


def test_what_is_saved_opens_in_both(pair, tmp_path):
    ours, theirs = pair
    ours.save(tmp_path)
    assert Tokenizer.load(tmp_path) == ours
    assert Tokenizer.load(tmp_path).identity() == ours.identity()
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in (*TEXTS[:2], "The <extra_id_0> walks in <extra_id_1> park"):
        assert again(text)["input_ids"] == theirs(text)["input_ids"]


def test_added_tokens_other_than_sentinels_are_refused(folder, tmp_path):
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.add_tokens(["<new>"])
    library.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(DataError, match="the added tokens <new> are not supported"):
        Tokenizer.load(tmp_path)


def test_an_old_file_without_a_type_opens_as_in_the_library(folder, pair, tmp_path):
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    del content["model"]["type"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    assert isinstance(tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).model, models.Unigram)
    assert Tokenizer.load(tmp_path).identity() == pair[0].identity()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab": [["a"]]}, "vocab is not a list of pieces with their scores"),
        ({"vocab": [["a", 0.0], ["a", 1.0]]}, r"the ids of 10\d tokens are not 0 to"),
        ({"vocab": [["<unk>", "x"]]}, "vocab is not a list"),
    ],
)
def test_damaged_files_are_refused(folder, tmp_path, change, message):
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"] |= change
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(DataError, match=message):
        Tokenizer.load(tmp_path)


def test_a_published_folder_is_trained_on_and_says_there_what_it_says_here(folder, pair, tmp_path):
    _, theirs = pair
    torch.manual_seed(0)
    keys = {"vocab_size": len(theirs) + 5, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    peer = transformers.T5ForConditionalGeneration(transformers.T5Config(**keys, decoder_start_token_id=0))
    peer.save_pretrained(tmp_path / "published")
    for path in folder.iterdir():
        (tmp_path / "published" / path.name).write_bytes(path.read_bytes())
    rows = [{"source": source, "target": target} for source, target in (("the low", "sea"), ("party", "me to you"))]
    for name, number in (("train.jsonl", 32), ("dev.jsonl", 1)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows * number), encoding="utf-8")
    recipe = {"seq2seq.label_smoothing": 0.0, "seq2seq.max_target_length": 16, "training.num_threads": 1}
    how = {"task": "seq2seq", "steps": 60, "batch_size": 8, "learning_rate": 1e-2, "max_length": 32}
    files = (tmp_path / "published", tmp_path / "train.jsonl", tmp_path / "dev.jsonl", tmp_path / "run")
    still = {**how, "steps": 1, "learning_rate": 1e-12}
    maskloom.finetune(*files[:3], tmp_path / "still", recipe=recipe, progress=False, **still)
    kept = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "still" / "model").state_dict()
    assert all((kept[name] - value).abs().max() < 1e-6 for name, value in peer.state_dict().items())
    result = maskloom.finetune(*files, recipe=recipe, progress=False, metric="exact_match", **how)
    assert result["best"]["scores"]["exact_match"] == 100
    said = maskloom.load(tmp_path / "run").predict([row["source"] for row in rows])
    assert said == [{"text": row["target"]} for row in rows]
    there = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run" / "model").eval()
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    for row in rows:
        ids = there.generate(**opened(row["source"], return_tensors="pt"), max_new_tokens=16, do_sample=False)
        assert opened.decode(ids[0], skip_special_tokens=True) == row["target"]


def test_blanks_become_the_sentinels_of_transformers(pair):
    ours, theirs = pair
    check_fills(SimpleNamespace(heads=("decoder",)), ours)
    expected = theirs("Thank you <extra_id_0> me to <extra_id_1> week")["input_ids"]
    assert source_ids("Thank you <X> me to <Y> week", "text", ours, 64) == expected
    assert source_ids("Thank you <extra_id_0> me to <extra_id_7> week", "text", ours, 64) == expected
    for text, message in (
        ("none", "text: 0 blanks in 'none'; expected 1 to 100"),
        ("<Z>" + " low" * 80, "but the model reads at most 64"),
    ):
        with pytest.raises(DataError, match=message):
            source_ids(text, "text", ours, 64)
    with pytest.raises(ConfigError, match="no decoder"):
        check_fills(SimpleNamespace(heads=("mlm",)), ours)
