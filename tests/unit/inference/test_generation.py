"""Many prompts in one call: which ones are continued together, and the order of the results."""

from collections import Counter

import pytest
import torch
from tests.unit.inference.generators import SIZES, generator_folder

from maskloom.checkpoints.huggingface import save_model
from maskloom.data.batch import SourceTargetBatch
from maskloom.generation.search import Continuation, Generation, batched_by_length
from maskloom.inference import Predictor
from maskloom.inference.span_filling import filled
from maskloom.models.assembled import build_model
from maskloom.models.bert_config import BertConfig
from maskloom.runs.predict import generate
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

LENGTHS = [3, 9, 1, 12, 2, 9, 30, 1, 4, 20]
TEXTS = [" ".join((["one", "two", "three", "four"] * 8)[:length]) for length in LENGTHS]


def test_prompts_of_similar_length_go_together_and_come_back_in_order():
    batches = []

    def make(prompts, numbers):
        batches.append([len(prompt) for prompt in prompts])
        return [Continuation([number]) for number in numbers]

    found = batched_by_length([[0] * length for length in LENGTHS], 7, 4, make)
    assert [text.token_ids for text in found] == [[7 + place] for place in range(len(LENGTHS))]
    assert batches == [[30, 20, 12, 9], [9, 4, 3, 2], [1, 1]]
    assert batched_by_length([], 0, 4, make) == []


@pytest.mark.parametrize("name", ["transformer", "gpt"])
def test_answers_depend_on_no_company(tmp_path, name):
    folder, how = generator_folder(tmp_path, name), Generation(max_tokens=12, temperature=0.9, seed=4)
    predictor = Predictor.load(folder, batch_size=3)
    together = predictor.generate(TEXTS, how, first=7)
    alone = [predictor.generate([text], how, first=7 + place)[0] for place, text in enumerate(TEXTS)]
    assert [text["text"] for text in together] == [text["text"] for text in alone]
    assert len({text["text"] for text in together}) > len(TEXTS) / 2


@pytest.mark.parametrize(
    ("name", "precision", "dtypes"),
    [
        ("transformer", "fp32", {torch.float32}),
        ("transformer", "bf16", {torch.bfloat16}),
        ("gpt", "bf16", {torch.float32}),  # which always generates in fp32
    ],
)
def test_weights_are_packed_in_the_precision_that_generates(tmp_path, monkeypatch, name, precision, dtypes):
    packed = []
    monkeypatch.setattr(
        "maskloom.inference.predictor.pack_for_inference",
        lambda module, *, decodes, dtype=torch.float32: packed.append(dtype),
    )
    Predictor.load(generator_folder(tmp_path, name), device="cpu", precision=precision)
    assert len(packed) == 2
    assert set(packed) == dtypes


def test_long_sources_are_cut_and_counted_as_in_predictions(tmp_path):
    folder, longest = generator_folder(tmp_path, "transformer"), "one two three four five six seven eight"
    predictor = Predictor.load(folder, max_length=6)
    predicted = predictor.predict([longest, "one two"])
    assert predictor.truncation == {"num_truncated_examples": 1, "max_length": 6}
    generated = predictor.generate([longest, "one two"])
    assert [text["text"] for text in generated] == [text["text"] for text in predicted]
    (cut,) = predictor.generate([longest])
    assert cut == predictor.generate(["one two three four"])[0]
    assert cut["log_probability"] != Predictor.load(folder).generate([longest])[0]["log_probability"]
    assert predictor.num_truncated == 3


def test_blanks_are_filled_by_length_too(tmp_path, monkeypatch):
    seen, real = [], SourceTargetBatch.of_sources.__func__

    def of_sources(cls, sources, marks, numbers):
        seen.append((max(map(len, sources)), list(numbers)))
        return real(cls, sources, marks, numbers)

    monkeypatch.setattr(SourceTargetBatch, "of_sources", classmethod(of_sources))
    words = ["<extra_id_0>", "one", "two", "three", "four"]
    predictor = Predictor.load(generator_folder(tmp_path, "t5", words), batch_size=2)
    filled = predictor.fill_spans(["one <X>", "one two three four <X>", "<X> two", "two two two <X>"], first=5)
    assert [text["text"].split()[0] for text in filled][:2] == ["one", "one"]
    assert seen == [(7, [6, 8]), (4, [5, 7])]


@pytest.mark.parametrize("name", ["transformer", "gpt", "t5"])
def test_a_file_is_tokenised_once_to_check_it_and_once_to_use_it(tmp_path, monkeypatch, name):
    seen, fills = Counter(), Generation(max_tokens=2) if name == "t5" else None
    method = "blank_ids" if fills else "prompt_ids"
    real = getattr(Predictor, method)

    def counted(self, texts, *given, **named):
        seen.update(texts)
        return real(self, texts, *given, **named)

    monkeypatch.setattr(Predictor, method, counted)
    predictor = Predictor.load(generator_folder(tmp_path, name, ["<extra_id_0>", "one", "two"]), max_length=6)
    texts = ["one <X> two", "two <X>", "<X> two one one one one"][: 2 if fills else 3]
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    done = generate(predictor, tmp_path / "in.txt", tmp_path / "out.jsonl", {"max_tokens": 2}, fills=fills)
    assert done["num_texts"] == len(texts)
    assert seen == dict.fromkeys(texts, 2)
    assert done.get("num_truncated_examples") == (2 if name == "transformer" else None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a <X><Y> b", "a one b"),
        ("a <X>(b) <Y>", "a (b) one"),
        ('<X> "b" <Y>', '"b" one'),
        ("<X>? a <Y>!", "? a one!"),
        ("<Y> a <X>", "a one"),
    ],
)
def test_an_empty_filling_joins_no_words(tmp_path, text, expected):
    """Regression: the space before an empty blank was lost before another blank, a bracket and a quote."""
    tokenizer = Predictor.load(generator_folder(tmp_path, "t5", ["<extra_id_0>", "<extra_id_1>", "one"])).tokenizer
    said = [tokenizer.vocabulary.ids[token] for token in ("<extra_id_0>", "<extra_id_1>", "one")]
    assert filled(text, Continuation(said), tokenizer)["text"] == expected


def test_ids_beyond_the_vocabulary_have_no_text(tmp_path):
    writer = Predictor.load(generator_folder(tmp_path / "t5", "t5", ["<extra_id_0>", "one"]))
    vocabulary = writer.tokenizer.vocabulary
    written = [vocabulary.ids["<extra_id_0>"], vocabulary.ids["one"], len(vocabulary)]
    assert filled("<X> two", Continuation(written), writer.tokenizer)["fillings"] == ["one"]
    empty = filled("one <X> two <Y>. a <X> b <X>c", Continuation(written[:2]), writer.tokenizer)
    assert (empty["text"], empty["fillings"]) == ("one one two. a b c", ["one", "", "", ""])
    reader = Predictor.load(generator_folder(tmp_path / "gpt", "gpt"))
    vocabulary = reader.tokenizer.vocabulary
    assert reader.text_of([vocabulary.ids["one"], len(vocabulary)]) == "one"
    config = BertConfig(vocab_size=len(vocabulary) + 2, max_position_embeddings=80, **SIZES)
    save_model(build_model(config, ("mlm",), seed=3), tmp_path / "bert")
    WordPieceTokenizer(vocabulary).save(tmp_path / "bert")
    (candidates,) = Predictor.load(tmp_path / "bert").fill_mask("one [MASK]", top_k=100)
    assert len(candidates) == len(vocabulary)
