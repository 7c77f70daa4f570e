"""Two published biLMs give what bilm-tf and AllenNLP computed, with state carried across sentences."""

import json
from pathlib import Path

import h5py
import pytest
import torch

from maskloom.checkpoints.huggingface import load_model
from maskloom.checkpoints.published.elmo import published_elmo
from maskloom.errors import DataError
from maskloom.layers.attention import LayerState
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.runs.convert import convert
from maskloom.text.spelled_tokenizer import BEGIN_SENTENCE, CONTINUES, END_SENTENCE, SpelledTokenizer
from maskloom.text.tokenizer import Tokenizer

SENTENCES = {"allennlp": "sentences.json", "bilm_tf": "lm_embeddings_sentences.json"}

pytestmark = [pytest.mark.parity, pytest.mark.realdata]


@pytest.fixture(params=SENTENCES)
def folder(request: pytest.FixtureRequest, data_folder: Path) -> Path:
    found = data_folder / "elmo_fixtures" / request.param
    if not found.is_dir():
        pytest.skip(f"no published weights at {found}")
    return found


def vectors(path: Path) -> dict[str, torch.Tensor]:
    with h5py.File(path) as file:
        return {name: torch.from_numpy(array[...]) for name, array in file.items()}


@torch.no_grad()
def largest_error(folder: Path, *, carries: bool = True) -> float:
    """Return the largest |x - y| / (1 + |y|) of the top layer, both directions, over all sentences of a fixture.

    In exact arithmetic the largest |x - y| is 1.14e-6 for AllenNLP's file, whose numbers are fp32.
    """
    encoder = published_elmo(folder)[0].encoder.eval()
    rows = json.loads((folder / SENTENCES[folder.name]).read_text(encoding="utf-8"))
    expected = [vectors(folder / f"lm_embeddings_{row}.hdf5") for row in range(len(rows))]
    tokenizer = SpelledTokenizer.of()
    past = [LayerState(torch.zeros(len(rows), *layer.state_shape)) for layer in encoder.layers]
    largest = 0.0
    for number, sentences in enumerate(zip(*rows, strict=True)):
        words = [tokenizer.chunk_ids_batch(text.split()) for text in sentences]
        ids = [[BEGIN_SENTENCE, *(byte for word in part for byte in word), END_SENTENCE] for part in words]
        packed, layout = (
            torch.tensor([index for part in ids for index in part]),
            SequenceLayout.from_lengths([len(part) for part in ids]),
        )
        kept = past if carries else None
        states = encoder.encode_packed(packed, packed * 0, layout, keep_hidden_states=True, past=kept).hidden_states
        wanted = torch.cat([torch.cat([*row[str(number)]], 1) for row in expected])
        errors = (states[-1][packed < CONTINUES] - wanted).abs() / (1 + wanted.abs())
        largest = max(largest, float(errors.max()))
    return largest


def test_the_top_layer_is_theirs(folder: Path) -> None:
    assert largest_error(folder) < 1e-6


def test_without_the_state_of_the_sentence_before_it_is_not(folder: Path) -> None:
    assert largest_error(folder, carries=False) > 0.1


def test_it_is_converted_to_a_folder_that_gives_the_same(folder: Path, tmp_path: Path) -> None:
    result = convert(folder, tmp_path / "elmo")
    assert result["dropped"] == result["made_up"] == []
    published, converted = published_elmo(folder)[0], load_model(tmp_path / "elmo")[0]
    ids = torch.tensor(Tokenizer.load(tmp_path / "elmo").encode("Some words, spelled.").ids)[None]
    both = [model.encoder.eval()(ids, keep_hidden_states=True).hidden_states for model in (published, converted)]
    assert all(torch.equal(*pair) for pair in zip(*both, strict=True))


def test_missing_and_wrong_parts_are_named(folder: Path, tmp_path: Path) -> None:
    for name in ("options.json", "lm_weights.hdf5"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    options = json.loads((tmp_path / "options.json").read_text(encoding="utf-8"))
    for key, value, message in (
        ("n_layers", 3, r"Cell2/LSTMCell/B: missing"),
        ("dim", 65, r"LSTMCell/B: gives \(2, 1, 256\), but options.json needs \(2, 1, 260\)"),
        ("projection_dim", "16", r"options\.json: hidden_size"),
    ):
        changed = {**options, "lstm": {**options["lstm"], key: value}}
        (tmp_path / "options.json").write_text(json.dumps(changed), encoding="utf-8")
        with pytest.raises(DataError, match=message):
            published_elmo(tmp_path)
    (tmp_path / "options.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match=r"options\.json: 'lstm' is missing"):
        published_elmo(tmp_path)
    (tmp_path / "lm_weights.hdf5").unlink()
    with pytest.raises(DataError, match=r"0 files \*weights\*\.hdf5 next to options\.json"):
        published_elmo(tmp_path)
