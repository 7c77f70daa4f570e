"""Fine-tuning BART to generate and to classify with its own special tokens; transformers opens the results."""

import json

import pytest
import torch
import transformers
from tests.fine_tuning import finetune
from tokenizers import ByteLevelBPETokenizer

from maskloom.config import FinetuneRecipe, validate_recipe
from maskloom.inference import Predictor
from maskloom.runs.display import Progress

WORDS = ["red", "blue", "cat", "dog", "sat", "ran"]
PAIRS = [(f"{one} {other}", f"{other} {one}") for one in WORDS for other in WORDS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder as transformers writes it, with random weights."""
    folder = tmp_path_factory.mktemp("bart") / "model"
    folder.mkdir()
    library = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    library.train_from_iterator([" ".join(pair) for pair in PAIRS], vocab_size=300, special_tokens=special)
    library.save_model(str(folder))
    transformers.BartTokenizer.from_pretrained(folder).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BartConfig(
        vocab_size=library.get_vocab_size(),
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_position_embeddings=32,
        dropout=0.0,
        forced_bos_token_id=0,
    )
    transformers.BartForConditionalGeneration(config).save_pretrained(folder)
    return folder


def recipe_of(task, **more):
    training = {"epochs": 30, "batch_size": 12, "learning_rate": 2e-3}
    content = {"task": task, "training": training, "data": {"max_length": 16}, **more}
    return validate_recipe(FinetuneRecipe, content, source="test")


@pytest.mark.slow
def test_it_learns_to_turn_words_round_and_transformers_writes_the_same(folder, tmp_path):
    data = tmp_path / "data.tsv"
    data.write_text("source\ttarget\n" + "".join(f"{one}\t{other}\n" for one, other in PAIRS), encoding="utf-8")
    training = {"steps": 400, "evaluate_every": 400, "batch_size": 12, "learning_rate": 1e-3}
    section = {"beam": 2, "max_target_length": 12, "label_smoothing": 0.0}
    recipe = recipe_of("seq2seq", training=training, seq2seq=section)
    result = finetune(
        recipe, train=data, dev=data, model=folder, out=tmp_path / "run", metric="exact_match", progress=Progress()
    )
    assert result["best"]["scores"]["exact_match"] > 90
    model = tmp_path / "run" / "model"
    assert json.loads((model / "maskloom.json").read_text(encoding="utf-8"))["settings"]["decoder_start"] == 2
    sources = [source for source, _ in PAIRS[:8]]
    found = [answer["text"] for answer in Predictor.load(model).predict(sources)]
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    peer = transformers.BartForConditionalGeneration.from_pretrained(model).eval()
    inputs = tokenizer(sources, return_tensors="pt", padding=True)
    ids = peer.generate(**inputs, num_beams=2, max_length=13)
    assert tokenizer.decode(ids[0])[:7] == "</s><s>"
    assert [tokenizer.decode(row, skip_special_tokens=True) for row in ids] == found
    inputs = tokenizer([source for source, _ in PAIRS], return_tensors="pt", padding=True)
    labels = tokenizer([target for _, target in PAIRS], return_tensors="pt", padding=True)["input_ids"]
    with torch.no_grad():
        loss = peer(**inputs, labels=labels.masked_fill(labels == 1, -100)).loss
    assert result["best"]["scores"]["loss"] == pytest.approx(loss.item(), rel=1e-4)


@pytest.mark.slow
def test_a_new_classifier_reads_through_the_decoder(folder, tmp_path):
    data = tmp_path / "data.tsv"
    rows = "".join(f"{source}\t{source.split()[1]}\n" for source, _ in PAIRS)
    data.write_text("text\tlabel\n" + rows, encoding="utf-8")
    result = finetune(
        recipe_of("single"), train=data, dev=data, model=folder, out=tmp_path / "run", progress=Progress()
    )
    assert result["best"]["scores"]["accuracy"] > 0.9
    model = tmp_path / "run" / "model"
    sources = [source for source, _ in PAIRS[:8]]
    found = [answer["label"] for answer in Predictor.load(model).predict(sources)]
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    peer = transformers.AutoModelForSequenceClassification.from_pretrained(model).eval()
    with torch.no_grad():
        best = peer(**tokenizer(sources, return_tensors="pt", padding=True)).logits.argmax(1).tolist()
    assert [peer.config.id2label[label] for label in best] == found


@pytest.mark.parametrize(
    ("architecture", "opened"), [("bart", "BartForConditionalGeneration"), ("marian", "MarianMTModel")]
)
def test_a_new_model_takes_its_marks_from_the_vocabulary_and_opens_there(folder, tmp_path, architecture, opened):
    data = tmp_path / "data.tsv"
    data.write_text("source\ttarget\n" + "".join(f"{one}\t{other}\n" for one, other in PAIRS), encoding="utf-8")
    model = {"architecture": architecture, "size": "tiny", "config": {"max_position_embeddings": 32}}
    recipe = recipe_of(
        "seq2seq", model=model, training={"epochs": 1, "batch_size": 36}, seq2seq={"max_target_length": 9}
    )
    finetune(recipe, train=data, dev=data, model=folder, out=tmp_path / "run", progress=Progress())
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text(encoding="utf-8"))
    keys = ("pad_token_id", "bos_token_id", "forced_bos_token_id", "eos_token_id", "decoder_start_token_id")
    assert [config[key] for key in keys] == [1, 0, 0, 2, 2]
    peer = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run" / "model")
    assert type(peer).__name__ == opened
