"""Vectors of sentence-transformers folders, compared with transformers' hidden states pooled by hand."""

import functools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.unit.inference.generators import SIZES, generator_folder
from tests.unit.inference.generators import WORDS as NUMBERS

from maskloom.checkpoints.huggingface import read_config, save_model
from maskloom.checkpoints.published.sentence_transformers import (
    SentenceModules,
    copy_modules,
    read_modules,
    write_modules,
)
from maskloom.errors import ConfigError, DataError
from maskloom.inference import Predictor
from maskloom.models.assembled import build_model
from maskloom.models.bart_config import BartConfig, MarianConfig
from maskloom.models.bert import BertConfig
from maskloom.models.gpt_config import GptConfig
from maskloom.runs.convert import conversion_lines, convert
from maskloom.runs.export import describe_vectors
from maskloom.system.files import write_json
from maskloom.text.byte_pair_tokenizer import BytePairTokenizer
from maskloom.text.vocabulary import SPECIAL_TOKENS, SpecialTokens, Vocabulary
from maskloom.text.vocabulary_training import VocabularySettings, train_vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
TEXTS = ["alpha", "beta gamma delta epsilon zeta", "eta theta", "alpha beta gamma " * 6]
TYPES = "sentence_transformers.models."
FLAGS = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
}


def write_encoder(folder, prefix=""):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    config = BertConfig(
        vocab_size=len(tokens), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=20, initializer_range=0.5,
    )  # fmt: skip
    save_model(build_model(config, (), seed=3), folder / prefix)
    WordPieceTokenizer(Vocabulary(tokens), max_length=20).save(folder / prefix)
    return folder


def write_list(folder, *kinds, prefix=""):
    modules = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else prefix, "type": TYPES + kind}
        for n, kind in enumerate(kinds)
    ]
    write_json(folder / "modules.json", modules)
    for module in modules[1:]:
        (folder / module["path"]).mkdir(exist_ok=True)


def write_pooling(folder, **config):
    (folder / "1_Pooling").mkdir(exist_ok=True)
    write_json(folder / "1_Pooling" / "config.json", config)


@functools.cache
def peer(folder):
    """Return the tokenizer of a folder and transformers' model of it, for tests that do not change the folder."""
    from transformers import BertModel

    return Predictor.load(folder).tokenizer, BertModel.from_pretrained(folder).eval()


def by_hand(folder, text, pooling, max_length=20):
    """Pool transformers' hidden states of one text as sentence-transformers documents it."""
    tokenizer, model = peer(folder)
    ids = tokenizer.encode(text, max_length=max_length).ids
    with torch.no_grad():
        hidden = model(torch.tensor([ids])).last_hidden_state[0]
    return {
        "mean": hidden.mean(0),
        "cls": hidden[0],
        "max": hidden.max(0).values,
    }[pooling]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.mark.parity
@pytest.mark.parametrize("pooling", FLAGS)
@pytest.mark.parametrize("has_flags", [True, False])
def test_pooling_length_and_normalisation_come_from_the_folder(tmp_path, encoder, pooling, has_flags):
    pytest.importorskip("transformers")
    folder = write_encoder(tmp_path)
    write_list(folder, "Transformer", "Pooling", "Normalize")
    flags = {flag: mode == pooling for mode, flag in FLAGS.items()}
    write_pooling(folder, **(flags if has_flags else {"pooling_mode": pooling}))
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 8, "do_lower_case": False})
    predictor = Predictor.load(folder)
    found = predictor.encode(TEXTS)
    plain = predictor.encode(TEXTS, normalize=False)
    assert predictor.num_truncated == 2
    for text, vector, unscaled in zip(TEXTS, found, plain, strict=True):
        expected = by_hand(encoder, text, pooling, max_length=8).numpy()
        np.testing.assert_allclose(unscaled, expected, atol=1e-5)
        np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), atol=1e-5)
    other = predictor.encode(TEXTS, pooling="cls" if pooling != "cls" else "mean", normalize=False)
    assert not np.allclose(other, plain, atol=1e-2)
    assert Predictor.load(folder, max_length=20).max_length == 20


def test_a_class_of_another_package_is_not_taken_for_that_of_sentence_transformers(tmp_path):
    write_list(tmp_path, "Transformer", "Pooling")
    write_pooling(tmp_path)
    listed = (tmp_path / "modules.json").read_text()
    (tmp_path / "modules.json").write_text(listed.replace(TYPES + "Pooling", "custom_pooling.Pooling"))
    with pytest.raises(DataError, match=r"modules\.json: the module 'custom_pooling\.Pooling' is not supported"):
        read_modules(tmp_path).changed(None, None)


def test_the_encoder_in_a_folder_of_its_own(tmp_path, encoder):
    folder = write_encoder(tmp_path, "0_Transformer")
    write_list(folder, "Transformer", "Pooling", prefix="0_Transformer")
    write_pooling(folder, pooling_mode_cls_token=True)
    write_json(folder / "0_Transformer" / "sentence_bert_config.json", {"max_seq_length": 8, "do_lower_case": False})
    predictor = Predictor.load(folder)
    assert (predictor.modules.pooling, predictor.max_length) == ("cls", 8)
    expected = Predictor.load(encoder, max_length=8).encode(TEXTS, pooling="cls")
    np.testing.assert_allclose(predictor.encode(TEXTS), expected, atol=1e-5)


def test_what_is_written_is_read_back(tmp_path, encoder):
    assert read_modules(encoder) == SentenceModules()
    for pooling, normalize in [("mean", False), ("max", True)]:
        folder = write_encoder(tmp_path / pooling)
        write_modules(folder, hidden_size=16, max_length=12, pooling=pooling, normalize=normalize)
        expected = SentenceModules(pooling, normalize, 12)
        assert read_modules(folder) == expected
        assert np.array_equal(
            Predictor.load(folder).encode(TEXTS),
            Predictor.load(encoder, max_length=12).encode(TEXTS, pooling=pooling, normalize=normalize),
        )
    with pytest.raises(ConfigError, match="pooling 'sum' is not one of"):
        describe_vectors(encoder, "sum")  # pyright: ignore[reportArgumentType]


def test_a_model_folder_gets_the_files_for_its_vectors(tmp_path, encoder):
    folder = write_encoder(tmp_path)
    describe_vectors(folder, "cls", normalize=True)
    assert read_modules(folder) == SentenceModules("cls", True, 20)
    expected = Predictor.load(encoder).encode(TEXTS, pooling="cls", normalize=True)
    assert np.array_equal(Predictor.load(folder).encode(TEXTS), expected)
    write_json(folder / "maskloom.json", {"max_length": 7})
    describe_vectors(folder, "mean")
    assert read_modules(folder) == SentenceModules("mean", False, 7)


def test_byte_pairs_that_other_programs_read_without_marks_or_cannot_pad_are_refused(tmp_path):
    """Regression: the folder of a GPT promised vectors over `<start>` and `<extract>`, which only maskloom adds."""
    pairs, _ = train_vocabulary(["low lower lowest"] * 3, VocabularySettings(40, model="bpe"))
    of_bytes, _ = train_vocabulary(["low lower"] * 3, VocabularySettings(270, lowercase=False, model="byte-bpe"))
    pieces = [token for token in of_bytes.vocabulary.tokens if not token.startswith("<") or token == "<"]
    end = "<|endoftext|>"
    as_gpt_2 = Vocabulary([end, *pieces], SpecialTokens(begin=end, end=end), prefix="")
    unpadded = BytePairTokenizer(as_gpt_2, of_bytes.merges, lowercase=False)
    refusals = {"pairs": "without <start> and <extract> around it", "unpadded": "needs a padding token", "bytes": None}
    for (name, message), tokenizer in zip(refusals.items(), (pairs, unpadded, of_bytes), strict=True):
        config = GptConfig(vocab_size=len(tokenizer.vocabulary), max_position_embeddings=80, **SIZES)
        save_model(build_model(config, ("lm",), seed=3), tmp_path / name)
        tokenizer.save(tmp_path / name)
        if message is None:
            describe_vectors(tmp_path / name, "mean")
            continue
        with pytest.raises(ConfigError, match=message):
            describe_vectors(tmp_path / name, "mean")
        assert not (tmp_path / name / "modules.json").exists()


@pytest.mark.parity
def test_no_folder_promises_vectors_that_sentence_transformers_computes_otherwise(tmp_path):
    """Regression: it pools the decoder of a BART that generates text, and runs no Marian without a decoder's input."""
    transformers = pytest.importorskip("transformers")
    generating = generator_folder(tmp_path / "bart", "bart")
    with pytest.raises(ConfigError, match=r"states of a BART's decoder, .* use `maskloom embed --pooling mean`"):
        describe_vectors(generating, "mean")
    published = {"architectures": ["BartModel"], "transformers_version": "5.0"}
    write_json(generating / "config.json", read_config(generating) | published)
    with pytest.raises(ConfigError, match="states of a BART's decoder"):
        describe_vectors(generating, "mean")
    assert not (generating / "modules.json").exists()

    for kind in (BartConfig, MarianConfig):
        config = kind(vocab_size=13, max_position_embeddings=80, initializer_range=0.5, **SIZES).with_marks(0, 2, 3)
        folder = tmp_path / kind.__name__
        save_model(build_model(config, (), seed=3), folder)
        WordPieceTokenizer(Vocabulary([*SPECIAL_TOKENS, *NUMBERS])).save(folder)
        model, ids = transformers.AutoModel.from_pretrained(folder).eval(), torch.tensor([[2, 5, 6, 3]])
        if kind is MarianConfig:
            with pytest.raises(ConfigError, match="cannot compute vectors with a Marian"):
                describe_vectors(folder, "mean")
            with pytest.raises(ValueError, match="decoder_input"):
                model(ids)
        else:
            describe_vectors(folder, "mean")
            with torch.no_grad():
                expected = model(ids).last_hidden_state[0].mean(0)
            np.testing.assert_allclose(Predictor.load(folder).encode(["one two"])[0], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("kinds", "pooling", "settings", "message"),
    [
        (
            ("Transformer", "Pooling", "WordWeights"),
            {},
            {},
            r"modules\.json: the module 'WordWeights' is not supported",
        ),
        (("Transformer", "Normalize"), {}, {}, r"modules\.json: the module 'Normalize' is not supported"),
        (("Transformer", "Pooling"), {"pooling_mode": "lasttoken"}, {}, r"1_Pooling/config\.json: pooling by 'lasttok"),
        (
            ("Transformer", "Pooling"),
            {"pooling_mode_weightedmean_tokens": True},
            {},
            "pooling by .*weightedmean. is not",
        ),
        (("Transformer", "Pooling"), {"pooling_mode": ["mean", "max"]}, {}, "by .*mean.*max.* is not supported"),
        (("Transformer", "Pooling"), {"pooling_mode": []}, {}, "pooling by .* is not supported"),
        (("Transformer", "Pooling", "Dense"), {}, {}, r"modules\.json: the module 'Dense' is not supported"),
        (("Transformer", "Pooling", "Normalize", "Dense"), {}, {}, "the module 'Dense' is not supported"),
        (("Transformer", "Pooling"), {}, {"do_lower_case": True}, "do_lower_case = True is not supported"),
        (("Transformer", "Pooling"), {}, {"truncate_dim": 5}, "truncate_dim = 5 is not supported"),
        (("Transformer", "Pooling"), {}, {"default_prompt_name": "query"}, "default_prompt_name = 'query' is not supp"),
    ],
)
def test_modules_that_would_give_other_vectors_need_a_pooling_of_ones_own(
    tmp_path, encoder, kinds, pooling, settings, message
):
    folder = write_encoder(tmp_path)
    write_list(folder, *kinds)
    if "Pooling" in kinds:
        write_pooling(folder, **pooling)
    file = "sentence_bert_config.json" if "do_lower_case" in settings else "config_sentence_transformers.json"
    write_json(folder / file, {"prompts": {"query": "x "}, **settings})
    predictor = Predictor.load(folder)
    with pytest.raises(DataError, match=message):
        predictor.encode(TEXTS)
    assert np.array_equal(predictor.encode(TEXTS, pooling="cls"), Predictor.load(encoder).encode(TEXTS, pooling="cls"))


@pytest.mark.parametrize(
    ("kinds", "settings", "message"),
    [
        (("Transformer",), {}, "no Pooling module"),
        (("StaticEmbedding", "Pooling"), {}, "the first module is 'StaticEmbedding'"),
        (("Transformer", "Pooling"), {"max_seq_length": "8"}, "max_seq_length = '8'"),
    ],
)
def test_wrong_files_of_modules_are_refused(tmp_path, kinds, settings, message):
    write_list(tmp_path, *kinds)
    write_json(tmp_path / "sentence_bert_config.json", settings)
    with pytest.raises(DataError, match=message):
        read_modules(tmp_path)


@pytest.mark.parametrize(
    "content", ["{}", "[1]", "[]", '[{"path": "../x", "type": "a.Transformer"}]', "[{}]", "nonsense"]
)
def test_damaged_lists_of_modules_are_refused(tmp_path, content):
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(DataError, match=r"modules\.json"):
        read_modules(tmp_path)


def test_a_module_above_the_folder_is_refused_and_nothing_is_copied_from_there(tmp_path):
    source, target = tmp_path / "from" / "model", tmp_path / "to" / "model"
    source.mkdir(parents=True)
    target.mkdir(parents=True)
    write_json(source.parent / "note.json", {"whose": "theirs"})
    write_json(target.parent / "note.json", {"whose": "mine"})
    kinds = {"Transformer": "", "Pooling": ".."}
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds.items()]
    write_json(source / "modules.json", modules)
    for use in (read_modules, lambda folder: copy_modules(folder, target)):
        with pytest.raises(DataError, match=r"modules\.json: '\.\.' is not the name of a folder inside this one"):
            use(source)
    assert json.loads((target.parent / "note.json").read_text()) == {"whose": "mine"}


def test_the_published_folder_asks_for_length_1_and_256_tokens(minilm_folder):
    assert json.loads((minilm_folder / "sentence_bert_config.json").read_text())["max_seq_length"] == 256
    predictor = Predictor.load(minilm_folder)
    assert predictor.max_length == 256
    vectors = predictor.encode(["A sentence.", "word " * 400])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)
    assert predictor.num_truncated == 1


@pytest.mark.parametrize("prefix", ["", "0_Transformer"])
def test_a_converted_model_makes_the_same_vectors(tmp_path, prefix):
    folder = write_encoder(tmp_path / "source", prefix)
    write_list(folder, "Transformer", "Pooling", "Normalize", prefix=prefix)
    write_pooling(folder, pooling_mode="max")
    write_json(folder / prefix / "sentence_bert_config.json", {"max_seq_length": 9})
    result = convert(folder / prefix, tmp_path / "out")
    assert "vectors are computed as modules.json specifies" in "\n".join(conversion_lines(result))
    before, after = Predictor.load(folder), Predictor.load(tmp_path / "out")
    assert (after.modules.pooling, after.modules.normalizes, after.max_length) == ("max", True, 9)
    np.testing.assert_array_equal(after.encode(TEXTS), before.encode(TEXTS))
    assert "vectors" not in "\n".join(conversion_lines(convert(write_encoder(tmp_path / "plain"), tmp_path / "second")))


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
@pytest.mark.parametrize("lengths", [[2, 0], [0, 2, 0], [0]])
def test_a_text_without_tokens_has_a_vector_of_zeros(pooling, lengths):
    modules = SentenceModules(pooling=pooling, normalizes=True)
    vectors = modules.vectors(torch.ones(sum(lengths), 4), torch.tensor(lengths))
    assert vectors.tolist() == [[0.5 if length else 0.0] * 4 for length in lengths]


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_vectors_on_an_apple_gpu_are_pooled_on_the_processor(pooling):
    """torch has no segment_reduce there."""

    def on_apple(tensor):
        moved = SimpleNamespace(device=torch.device("mps"), cpu=lambda: tensor)
        moved.float = lambda: moved
        return moved

    hidden, lengths = torch.randn(5, 4), torch.tensor([2, 3])
    modules = SentenceModules(pooling=pooling, normalizes=True)
    assert torch.equal(modules.vectors(on_apple(hidden), on_apple(lengths)), modules.vectors(hidden, lengths))
