import json
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tests.unit.inference.generators import generator_folder

import maskloom
from maskloom.checkpoints.huggingface import save_model
from maskloom.errors import ConfigError, DataError
from maskloom.inference import Ensemble, Predictor, resolve_model_folder
from maskloom.models.assembled import build_model
from maskloom.models.bert import Bert, BertConfig
from maskloom.runs.export import describe_vectors
from maskloom.runs.predict import embed
from maskloom.system.files import write_json
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
TEXTS = ["alpha", "beta gamma delta epsilon zeta", "eta theta", "unknown alpha", "alpha beta " * 20]


def write_model(folder, heads=("mlm", "nsp"), num_labels=None, extra_tokens=(), **extra):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    config = BertConfig(
        vocab_size=len(tokens), hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=20, initializer_range=0.5,
    )  # fmt: skip
    save_model(build_model(config, heads, num_labels, seed=3), folder, extra_config=extra)
    WordPieceTokenizer(Vocabulary([*tokens, *extra_tokens]), max_length=20).save(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parity
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_equal_those_of_transformers(folder, pooling):
    transformers = pytest.importorskip("transformers")
    oracle = transformers.BertModel.from_pretrained(folder).eval()
    predictor = Predictor.load(folder)
    vectors = predictor.encode(TEXTS, pooling=pooling)
    assert predictor.num_truncated == 1
    for text, vector in zip(TEXTS, vectors, strict=True):
        ids = torch.tensor([predictor.tokenizer.encode(text).ids])
        with torch.no_grad():
            hidden = oracle(ids).last_hidden_state[0]
        expected = hidden.mean(0) if pooling == "mean" else hidden[0]
        np.testing.assert_allclose(vector, expected, atol=2e-5)


def test_company_does_not_change_a_vector(folder):
    predictor = maskloom.load(str(folder))
    together = predictor.encode(TEXTS)
    alone = np.concatenate([predictor.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    predictor.batch_size = 1
    np.testing.assert_allclose(predictor.encode(TEXTS), together, atol=1e-5)
    assert predictor.encode([]).shape == (0, 24)


def test_dropout_is_off(folder):
    predictor = Predictor.load(folder)
    assert np.array_equal(predictor.encode(TEXTS), predictor.encode(TEXTS))
    assert not predictor.model.training


@pytest.mark.parity
def test_masks_equal_those_of_transformers(folder):
    transformers = pytest.importorskip("transformers")
    oracle = transformers.BertForMaskedLM.from_pretrained(folder).eval()
    masks = Predictor.load(folder).fill_mask("alpha [MASK] gamma [MASK]", top_k=4)
    with torch.no_grad():
        logits = oracle(torch.tensor([[2, 5, 4, 7, 4, 3]])).logits[0, [2, 4]]
    expected = logits.softmax(-1).topk(4)
    assert [[entry["token_id"] for entry in mask] for mask in masks] == expected.indices.tolist()
    found = [[entry["probability"] for entry in mask] for mask in masks]
    np.testing.assert_allclose(found, expected.values, atol=1e-6)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    assert all(tokens[entry["token_id"]] == entry["token"] for mask in masks for entry in mask)


@pytest.mark.parametrize(
    ("text", "top_k", "error", "message"),
    [
        ("alpha", 5, DataError, r"0 \[MASK\]"),
        ("alpha " * 30 + "[MASK]", 5, DataError, "within the first 20 tokens"),
        ("[MASK]", 0, ConfigError, "at least 1"),
        ("[MASK]", "3", ConfigError, "top_k '3': expected a whole number"),
        (b"[MASK]", 1, DataError, "expected a string"),
    ],
)
def test_wrong_masks(folder, text, top_k, error, message):
    with pytest.raises(error, match=message):
        Predictor.load(folder).fill_mask(text, top_k=top_k)


def test_top_k_is_at_most_the_vocabulary(folder):
    (mask,) = Predictor.load(folder).fill_mask("[MASK]", top_k=1000)
    assert len(mask) == 13
    assert sum(entry["probability"] for entry in mask) == pytest.approx(1.0, abs=1e-5)


def test_heads_that_are_not_there(folder, tmp_path):
    with pytest.raises(ConfigError, match="no task head"):
        Predictor.load(folder).predict(["alpha"])
    classifier = write_model(tmp_path, heads=("classifier",), num_labels=2)
    with pytest.raises(ConfigError, match="no masked-LM head"):
        Predictor.load(classifier).fill_mask("[MASK]")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("alpha", "put it in a list"),
        (None, "expected a list of texts, got NoneType"),
        (7, "got int"),
        ({"alpha": 1}, "got dict"),
        ([None], "input 0: expected a string, got NoneType"),
        ([3], "input 0"),
        (["alpha", None], "input 1"),
        ([("a", "b", "c")], "got 3 parts"),
        (["\ud800"], "surrogate"),
    ],
)
def test_wrong_texts(folder, texts, message):
    with pytest.raises(DataError, match=message):
        Predictor.load(folder).encode(texts)


@pytest.mark.parametrize("takes_pairs", [None, False, True])
def test_any_iterable_gives_what_a_list_gives(tmp_path, takes_pairs):
    folder = write_model(tmp_path, heads=("classifier",), num_labels=2)
    write_json(folder / "maskloom.json", {"kind": "single", "takes_pairs": takes_pairs})
    texts = [(text, "beta") for text in TEXTS] if takes_pairs else TEXTS
    predictor = Predictor.load(folder)
    expected = predictor.predict(texts)
    assert len(expected) == len(texts)
    assert predictor.predict(text for text in texts) == expected
    assert predictor.predict(map(lambda text: text, texts)) == expected  # noqa: C417
    assert Ensemble([predictor]).predict(iter(texts)) == Ensemble([predictor]).predict(texts)
    assert np.array_equal(predictor.encode(iter(texts)), predictor.encode(texts))
    for wrong in (None, [None], "alpha"):
        with pytest.raises(DataError, match=r"expected .*, got "):
            predictor.predict(wrong)  # pyright: ignore[reportArgumentType]


def test_a_folder_that_is_none(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="expected a model folder, got NoneType"):
        maskloom.load(None)  # pyright: ignore[reportArgumentType]
    monkeypatch.chdir(tmp_path)
    for name in ("bert-base-uncased", "google-bert/bert-base-uncased"):
        with pytest.raises(DataError, match=r"no such folder.*nothing is downloaded.*put its files \(config.json"):
            maskloom.load(name)
    with pytest.raises(DataError, match=r"or a run$"):
        maskloom.load(tmp_path / "absent")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, "unknown device 'gpu'; known: auto, cpu, cuda"),
        ({"device": 0}, "unknown device 0"),
        ({"device": "cuda:999"}, "device 'cuda:999': torch .* finds"),
        ({"batch_size": 0}, "batch_size 0: expected a whole number of at least 1"),
        ({"batch_size": "8"}, "batch_size '8'"),
        ({"precision": "int4"}, "precision 'int4': expected auto, fp32 or bf16, on CUDA also fp16"),
        ({"precision": "fp16", "device": "cpu"}, "precision 'fp16': expected auto, fp32 or bf16"),
        ({"precision": "bf16", "int8": True}, "int8 and precision = 'bf16': choose one of them"),
    ],
)
def test_wrong_devices_and_batch_sizes(folder, options, message):
    with pytest.raises(ConfigError, match=message):
        maskloom.load(folder, **options)


def test_vectors_and_masks_in_half_precision_are_near(folder):
    model, rounded = (maskloom.load(folder, precision=precision, device="cpu") for precision in ("fp32", "bf16"))
    vectors, masks = model.encode(TEXTS), model.fill_mask("alpha [MASK]", top_k=1)
    assert np.array_equal(maskloom.load(folder).encode(TEXTS), vectors)
    half = rounded.encode(TEXTS)
    assert half.dtype == np.float32
    assert 0 < np.abs(half - vectors).max() < 0.1
    ((found,),) = rounded.fill_mask("alpha [MASK]", top_k=1)
    assert found["probability"] == pytest.approx(masks[0][0]["probability"], abs=0.1)
    assert found["probability"] != masks[0][0]["probability"]


def test_cuda_where_there_is_none(folder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match="finds no CUDA device here"):
        maskloom.load(folder, device="cuda")
    for device in ("cpu", "auto"):
        assert maskloom.load(folder, device=device).model.encoder.word_embeddings.device.type == "cpu"


@pytest.mark.parametrize("head", ["classifier", "tagger", None])
def test_the_batch_size_bounds_what_is_computed_at_once(tmp_path, monkeypatch, head):
    folder = write_model(tmp_path, heads=(head,) if head else ("mlm",), num_labels=2 if head else None)
    calls = []
    inner = Bert.encode_packed

    def watched(self, token_ids, segment_ids, layout, **options):
        calls.append(layout.num_sequences)
        return inner(self, token_ids, segment_ids, layout, **options)

    monkeypatch.setattr(Bert, "encode_packed", watched)
    for batch_size in (None, 2, 1):
        calls.clear()
        predictor = maskloom.load(folder, batch_size=batch_size)
        (predictor.predict if head else predictor.encode)(TEXTS)
        assert max(calls) >= 5 if batch_size is None else max(calls) == batch_size
        assert sum(calls) >= 5


def test_threads_share_a_model(tmp_path):
    predictor = Predictor.load(write_model(tmp_path, heads=("classifier",), num_labels=2))
    draw = random.Random(5)
    inputs = [[" ".join(draw.choices(WORDS, k=draw.randint(1, 40))) for _ in range(5)] for _ in range(16)]
    alone = [(predictor.predict(texts), predictor.encode(texts)) for texts in inputs]
    cut, predictor.num_truncated = predictor.num_truncated, 0
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda texts: (predictor.predict(texts), predictor.encode(texts)), inputs))
    for (rows, vectors), (expected, expected_vectors) in zip(together, alone, strict=True):
        assert rows == expected
        assert np.array_equal(vectors, expected_vectors)
    assert predictor.num_truncated == cut > 0


@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_the_first_token_of_a_left_to_right_model_is_no_vector_of_a_text(name, tmp_path):
    """Regression: texts with the same first token had the same vector."""
    model, source = generator_folder(tmp_path / "model", name), tmp_path / "in.txt"
    source.write_text("one two\none three\n", encoding="utf-8")
    said = (
        f"pooling = 'cls': the first token of a left-to-right {name} sees no other token of its text; use mean or max"
    )
    predictor = Predictor.load(model)
    with pytest.raises(ConfigError, match=said):
        predictor.encode(["one two"], pooling="cls")
    with pytest.raises(ConfigError, match=said):
        embed(predictor, source, tmp_path / "out.npy", pooling="cls")
    with pytest.raises(ConfigError, match=said):
        describe_vectors(model, "cls")
    assert not (tmp_path / "out.npy").exists()
    for pooling in ("mean", "max"):
        one, other = predictor.encode(["one two", "one three"], pooling=pooling)
        assert not np.array_equal(one, other)


def test_pooling_and_length_are_checked(folder):
    with pytest.raises(ConfigError, match="pooling 'sum' is not one of mean, cls"):
        Predictor.load(folder).encode(["alpha"], pooling="sum")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="takes 3 to 20 tokens"):
        Predictor.load(folder, max_length=21)
    assert Predictor.load(folder, max_length=5).max_length == 5


def test_foreign_classifier_folders(tmp_path):
    names = {"0": "no", "1": "yes"}
    folder = write_model(tmp_path, heads=("classifier",), num_labels=2, id2label=names, label2id={"no": 0, "yes": 1})
    predictor = Predictor.load(folder)
    first, second = predictor.predict(["alpha", ("beta", "gamma")])
    assert set(first["probabilities"]) == {"no", "yes"}
    assert first["probabilities"] != second["probabilities"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"0": "yes", "1": "yes"}, r"config\.json: id2label: ids 0 and 1 have the same name 'yes'"),
        ({"0": 1, "1": "1"}, r"config\.json: id2label: ids 0 and 1 have the same name '1'"),
        ({"0": "no", "1": "\ud800"}, r"config\.json: id2label: id 1 needs a name, not '"),
    ],
)
def test_labels_that_could_not_be_told_apart_or_written_are_refused(tmp_path, names, message):
    folder = write_model(tmp_path, heads=("classifier",), num_labels=2)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "id2label": names}))
    with pytest.raises(DataError, match=message):
        Predictor.load(folder)


def test_a_temperature_that_would_give_no_numbers_is_refused(tmp_path):
    folder = write_model(tmp_path, heads=("classifier",), num_labels=2)
    for kind in ("single", "multilabel"):
        content = {"kind": kind, "settings": {"temperature": 1e-300}}
        (folder / "maskloom.json").write_text(json.dumps(content))
        with pytest.raises(DataError, match=r"maskloom\.json: settings: temperature = 1e-300: it must be greater"):
            Predictor.load(folder)


def test_broken_weights_are_noticed(folder):
    predictor = Predictor.load(folder)
    with torch.no_grad():
        next(predictor.model.parameters()).fill_(float("nan"))
    with pytest.raises(DataError, match="not finite"):
        predictor.encode(["alpha"])
    with pytest.raises(DataError, match="not finite"):
        predictor.fill_mask("alpha [MASK]")


def test_a_pair_for_a_model_with_one_segment_is_refused(tmp_path):
    folder = write_model(tmp_path, heads=("classifier",), num_labels=2)
    config = Predictor.load(folder).model.config.model_copy(update={"type_vocab_size": 1})
    save_model(build_model(config, ("classifier",), 2, seed=3), folder)
    with pytest.raises(DataError, match="segment id 1: the model has ids 0 to 0"):
        Predictor.load(folder).predict([("alpha", "beta")])


def test_where_a_model_is(folder, tmp_path):
    assert resolve_model_folder(folder) == folder
    with pytest.raises(DataError, match="no such folder"):
        resolve_model_folder(tmp_path / "absent")
    with pytest.raises(DataError, match="found: nothing"):
        resolve_model_folder(tmp_path)
    (tmp_path / "recipe.toml").write_text("")
    with pytest.raises(DataError, match="--resume"):
        resolve_model_folder(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert resolve_model_folder(tmp_path) == tmp_path / "model"
    with pytest.raises(DataError, match="got a file"):
        resolve_model_folder(tmp_path / "recipe.toml")


def test_settings_that_do_not_fit(tmp_path):
    folder = write_model(tmp_path, heads=("classifier",), num_labels=2)
    for content, message in [("[]", "JSON object"), ("{", "not valid JSON"), ('{"kind": "odd"}', "'odd' is not known")]:
        (folder / "maskloom.json").write_text(content)
        with pytest.raises(DataError, match=message):
            Predictor.load(folder)


def test_a_vocabulary_larger_than_the_model(tmp_path):
    folder = write_model(tmp_path, extra_tokens=("iota",))
    with pytest.raises(DataError, match="do not belong together"):
        Predictor.load(folder)
