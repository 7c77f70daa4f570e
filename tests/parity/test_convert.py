"""Published layouts of a random BERT of transformers, converted to model folders with the same logits."""

import json
import pickle
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.tensorflow_files import write_checkpoint
from transformers import BertConfig, BertForPreTraining

import maskloom
from maskloom.checkpoints.huggingface import load_model
from maskloom.checkpoints.pickled_weights import open_pickled
from maskloom.errors import ConfigError, DataError
from maskloom.inference.model_folder import resolve_model_folder
from maskloom.runs.convert import conversion_lines, convert
from maskloom.text.tokenizer import Tokenizer

pytestmark = pytest.mark.parity

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "##d", "e", "f", "."]
CONFIG = BertConfig(
    vocab_size=len(WORDS),
    hidden_size=12,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=20,
    max_position_embeddings=16,
    initializer_range=0.3,
)
# Names of the published code, written out here so that no other program's tables are involved.
TENSORFLOW = [
    ("bert.embeddings.word_embeddings.weight", "bert/embeddings/word_embeddings"),
    ("bert.embeddings.token_type_embeddings.weight", "bert/embeddings/token_type_embeddings"),
    ("bert.embeddings.position_embeddings.weight", "bert/embeddings/position_embeddings"),
    ("cls.predictions.bias", "cls/predictions/output_bias"),
    ("cls.seq_relationship.weight", "cls/seq_relationship/output_weights"),
    ("cls.seq_relationship.bias", "cls/seq_relationship/output_bias"),
]


@pytest.fixture(scope="module")
def peer():
    torch.manual_seed(0)
    model = BertForPreTraining(CONFIG).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def tensorflow_variables(peer):
    """Return the model's tensors under the names and in the orientation of the published TensorFlow code."""
    state, names = peer.state_dict(), dict(TENSORFLOW)
    found = {}
    for name, tensor in state.items():
        if name in names:
            found[names[name]] = tensor.numpy()
        elif not name.startswith("cls.predictions.decoder") and not name.endswith("position_ids"):
            path, kind = name.replace("encoder.layer.", "encoder.layer_").replace(".", "/").rsplit("/", 1)
            kind = {
                "weight": "gamma" if "LayerNorm" in path else "kernel",
                "bias": "beta" if "LayerNorm" in path else "bias",
            }[kind]
            found[f"{path}/{kind}"] = tensor.numpy().T if kind == "kernel" else tensor.numpy()
    return found


def google_release(folder, peer, *, words=WORDS, **options):
    variables = tensorflow_variables(peer)
    moments = {f"{name}/adam_{moment}": np.zeros_like(array) for name, array in variables.items() for moment in "mv"}
    write_checkpoint(
        folder / "bert_model.ckpt", {**variables, **moments, "global_step": np.array(9, dtype="int64")}, **options
    )
    published = json.loads(CONFIG.to_json_string(use_diff=False))
    keys = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act")
    keys += ("max_position_embeddings", "type_vocab_size", "initializer_range", "hidden_dropout_prob")
    content = {
        **{key: published[key] for key in keys},
        "pooler_type": "first_token_transform",
        "directionality": "bidi",
    }
    (folder / "bert_config.json").write_text(json.dumps(content))
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return folder


def hugging_face(folder, peer, weights):
    folder.mkdir()
    CONFIG.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    weights(folder, {name: tensor.clone() for name, tensor in peer.state_dict().items()})
    return folder


def sharded(folder, state):
    parts = {}
    for place, (name, tensor) in enumerate(sorted(state.items())):
        parts.setdefault(f"model-0000{place % 2 + 1}-of-00002.safetensors", {})[name] = tensor
    for file, tensors in parts.items():
        save_file(tensors, folder / file)
    weight_map = {name: file for file, tensors in parts.items() for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


LAYOUTS = {
    "tensorflow": lambda path, peer: google_release(path, peer),
    "tensorflow, shards": lambda path, peer: google_release(path, peer, num_shards=3),
    "torch.save": lambda path, peer: hugging_face(
        path, peer, lambda folder, state: torch.save(state, folder / "pytorch_model.bin")
    ),
    "torch.save before 1.6": lambda path, peer: hugging_face(
        path,
        peer,
        lambda folder, state: torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False),
    ),
    "safetensors": lambda path, peer: hugging_face(
        path, peer, lambda folder, state: save_file(state, folder / "model.safetensors")
    ),
    "safetensors, shards": lambda path, peer: hugging_face(path, peer, sharded),
}


@torch.no_grad()
@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_of_both_heads_are_those_of_transformers(tmp_path, peer, layout):
    source = LAYOUTS[layout](tmp_path / "source", peer)
    result = convert(source, tmp_path / "out")
    assert result["heads"] == ["mlm", "nsp"]
    assert result["made_up"] == []
    assert len(result["mapped"]) == 5 + 16 * 2 + 2 + 5 + 2
    ids = torch.randint(5, len(WORDS), (3, 9), generator=torch.Generator().manual_seed(1))
    segments = (torch.arange(9) > 4).long().expand(3, 9)
    expected = peer(ids, token_type_ids=segments)
    model, _ = load_model(tmp_path / "out")
    output = model.eval().encoder(ids, segments)
    torch.testing.assert_close(
        model.heads["mlm"](output.last_hidden_state), expected.prediction_logits, rtol=0, atol=1e-5
    )
    torch.testing.assert_close(model.heads["nsp"](output.pooled), expected.seq_relationship_logits, rtol=0, atol=1e-5)
    again = BertForPreTraining.from_pretrained(tmp_path / "out").eval()
    torch.testing.assert_close(again(ids, token_type_ids=segments).prediction_logits, expected.prediction_logits)
    assert maskloom.load(tmp_path / "out").encode(["a b"]).shape == (1, 12)


def test_the_account_names_what_was_dropped_and_made_up(tmp_path, peer):
    source = google_release(tmp_path / "uncased_tiny", peer)
    result = convert(source / "bert_model.ckpt", tmp_path / "out")
    assert result["mapped"]["bert.encoder.layer.1.output.dense.weight"] == "bert/encoder/layer_1/output/dense/kernel"
    assert "global_step" in result["dropped"]
    assert "bert/pooler/dense/bias/adam_m" in result["dropped"]
    assert len(result["dropped"]) == 2 * len(result["mapped"]) + 1
    text = "\n".join(conversion_lines(result))
    assert "mapped    46 tensors" in text
    assert "added     nothing" in text
    assert "uncased (the folder's name, uncased_tiny)" in text
    state = {
        name: tensor for name, tensor in peer.state_dict().items() if "pooler" not in name and "seq_rel" not in name
    }
    hugging_face(tmp_path / "bare", peer, lambda folder, _: torch.save(state, folder / "pytorch_model.bin"))
    result = convert(tmp_path / "bare", tmp_path / "second")
    assert result["made_up"] == ["bert.pooler.dense.weight", "bert.pooler.dense.bias"]
    assert result["dropped"] == ["cls.predictions.decoder.bias", "cls.predictions.decoder.weight"]


CAPITALS = [*WORDS[:-1], "A"]


@pytest.mark.parametrize(
    ("name", "words", "stored", "given", "expected"),
    [
        ("model", WORDS, None, None, True),
        ("model", CAPITALS, None, None, False),
        ("cased_L-2", WORDS, None, None, False),
        ("uncased_L-2", WORDS, None, None, True),
        ("model", WORDS, False, None, False),
        ("uncased_L-2", CAPITALS, None, None, "specify --uncased or --cased"),
        ("uncased_L-2", WORDS, False, None, "do_lower_case of the configuration says cased"),
        ("uncased_L-2", CAPITALS, None, False, False),
        ("model", CAPITALS, True, True, True),
    ],
)
def test_case_is_what_the_release_says(tmp_path, peer, name, words, stored, given, expected):
    source = google_release(tmp_path / name, peer, words=words)
    if stored is not None:
        path = source / "bert_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "do_lower_case": stored}))
    if isinstance(expected, str):
        with pytest.raises(DataError, match=expected):
            convert(source, tmp_path / "out", lowercase=given)
        assert not (tmp_path / "out").exists()
        return
    assert convert(source, tmp_path / "out", lowercase=given)["lowercase"] is expected
    tokenizer = Tokenizer.load(tmp_path / "out")
    assert tokenizer.lowercase is expected
    assert tokenizer.max_length == 16


def test_all_mismatches_are_told_at_once_and_nothing_is_written(tmp_path, peer):
    source = google_release(tmp_path / "source", peer, words=[*WORDS, "g"])
    config = json.loads((source / "bert_config.json").read_text())
    (source / "bert_config.json").write_text(json.dumps({**config, "intermediate_size": 24, "num_hidden_layers": 3}))
    with pytest.raises(DataError) as caught:
        convert(source, tmp_path / "out")
    for said in (
        r"bert/encoder/layer_0/intermediate/dense/kernel: shape (20, 12)",
        "bert.encoder.layer.2.attention.self.query.weight: missing",
        "the vocabulary has 13 tokens, the model embeds 12",
    ):
        assert said in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_other_commands_point_to_convert(tmp_path, peer):
    google = google_release(tmp_path / "google", peer)
    pickled = LAYOUTS["torch.save"](tmp_path / "pickled", peer)
    for folder in (google, pickled):
        with pytest.raises(DataError, match=f"maskloom convert {folder} --out DIR"):
            maskloom.load(str(resolve_model_folder(folder)))
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "a").touch()
    with pytest.raises(ConfigError, match="not an empty folder"):
        convert(google, tmp_path / "used")
    converted = convert(google, tmp_path / "out")["model"]
    with pytest.raises(DataError, match="no such folder"):
        convert(tmp_path / "absent", tmp_path / "other")
    assert load_file(f"{converted}/model.safetensors")


class _Call:
    """Pickled as a call of a function."""

    def __init__(self, *parts):
        self.parts = parts

    def __reduce__(self):
        return self.parts


OLD = {"_use_new_zipfile_serialization": False}


def repacked(path, change=lambda content: content, **options):
    """Rewrite a zip of torch.save with its pickle changed."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, content in parts.items():
            archive.writestr(name, change(content) if name.endswith(".pkl") else content)


def refusal(path):
    with pytest.raises(DataError, match=r"pytorch_model\.bin: ") as caught:
        open_pickled(path)
    return str(caught.value)


@pytest.mark.parametrize("options", [{}, OLD], ids=["zip", "old"])
def test_files_of_torch_save_that_do_more_than_hold_tensors_are_refused(tmp_path, peer, options):
    canary, path = tmp_path / "canary", tmp_path / "pytorch_model.bin"

    def stored(value):
        torch.save(value, path, **options)
        return refusal(path)

    assert "imports 'io open'" in stored({"a": _Call(open, (str(canary), "w"))})
    assert not canary.exists()
    assert "imports '__builtin__ bytearray'" in stored({"a": _Call(bytearray, (1 << 40,))})
    assert "imports 'torch Tensor'" in stored({"a": _Call(torch.Tensor, (1 << 40,))})
    assert "imports" in stored(peer)
    assert "names to tensors, got list" in stored([torch.ones(2)])
    assert "names to tensors, got ['model']" in stored({"model": dict(peer.state_dict())})
    assert "'a' repeats its values up to the shape (1000000, 1000000)" in stored(
        {"a": torch.zeros(1).expand(10**6, 10**6)}
    )
    assert "names to tensors, got ['n']" in stored({"n": 10**15})
    folder = hugging_face(tmp_path / "source", peer, lambda folder, _: path.rename(folder / path.name))
    with pytest.raises(DataError, match=r"source/pytorch_model\.bin: expected a dictionary from names to tensors"):
        convert(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_damaged_files_of_torch_save_are_refused_with_little_memory(tmp_path, peer):
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(pickle.dumps({"a": 1}))
    assert "neither of torch.save's two formats" in refusal(path)
    torch.save(peer.state_dict(), path, pickle_protocol=4)
    assert "imports by STACK_GLOBAL, which torch.save does not write" in refusal(path)
    torch.save(peer.state_dict(), path)
    path.write_bytes(path.read_bytes()[:-900])
    assert "not a zip file" in refusal(path)
    torch.save(peer.state_dict(), path)
    repacked(path, compression=zipfile.ZIP_DEFLATED)
    assert "compressed" in refusal(path)
    torch.save(peer.state_dict(), path)
    repacked(path, lambda content: content[:2] + b"}" * (8 << 20) + b".")
    assert "longer than any model's" in refusal(path)
    for number in (b"\x8a\x06" + (10**14).to_bytes(6, "little"), b"J\xff\xff\xff\x7f"):
        torch.save({"a": torch.ones(4)}, path)
        repacked(path, lambda content, number=number: content.replace(b"K\x04", number))
        assert "not a valid torch.save file" in refusal(path)
        torch.save({"a": torch.ones(4)}, path, **OLD)
        path.write_bytes(path.read_bytes().replace(b"K\x04", number))
        assert "not a valid torch.save file" in refusal(path)
