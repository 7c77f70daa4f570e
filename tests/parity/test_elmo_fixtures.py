"""Two published biLMs give what bilm-tf and AllenNLP computed, with state from sentence to sentence."""

import json
import os
from pathlib import Path

import pytest
import torch

from maskloom.checkpoints.hdf5 import open_hdf5
from maskloom.checkpoints.published.elmo import published_elmo
from maskloom.layers.attention import Kept
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.text.spelled_tokenizer import BEGIN_SENTENCE, CONTINUES, END_SENTENCE, SpelledTokenizer

FOLDER = Path(os.environ.get("MASKLOOM_DATA", "nowhere")) / "elmo_fixtures"
SENTENCES = {"allennlp": "sentences.json", "bilm_tf": "lm_embeddings_sentences.json"}

pytestmark = [
    pytest.mark.parity,
    pytest.mark.realdata,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="MASKLOOM_DATA has no folder elmo_fixtures"),
]


@torch.no_grad()
def largest_error(name: str, *, carries: bool = True) -> float:
    """Return the largest |x - y| / (1 + |y|) of the top layer, both ways, over all sentences of a fixture.

    In exact arithmetic the absolute one is 1.14e-6 for AllenNLP's file, whose numbers are of fp32.
    """
    encoder = published_elmo(FOLDER / name)[0].encoder.eval()
    rows = json.loads((FOLDER / name / SENTENCES[name]).read_text(encoding="utf-8"))
    expected = [open_hdf5(FOLDER / name / f"lm_embeddings_{row}.hdf5") for row in range(len(rows))]
    tokenizer, past = SpelledTokenizer.of(), [Kept(state) for state in encoder.first_state(len(rows))]
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
        wanted = torch.cat([torch.cat([*row[str(number)].read()], 1) for row in expected])
        errors = (states[-1][packed < CONTINUES] - wanted).abs() / (1 + wanted.abs())
        largest = max(largest, float(errors.max()))
    return largest


@pytest.mark.parametrize("name", SENTENCES)
def test_the_top_layer_is_theirs(name):
    assert largest_error(name) < 1e-6


@pytest.mark.parametrize("name", SENTENCES)
def test_without_the_state_of_the_sentence_before_it_is_not(name):
    assert largest_error(name, carries=False) > 0.1
