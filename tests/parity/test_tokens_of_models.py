"""The tokens that transformers' tokenizers return beside our models, passed on to these models as they are."""

import pytest
import torch
import transformers

from maskloom.models.assembled import build_model
from maskloom.models.bart_config import BartConfig
from maskloom.models.bert_config import BertConfig
from maskloom.models.gpt_config import GptConfig
from maskloom.models.t5_config import T5Config
from maskloom.runs.model_writing import write_model_folder
from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

pytestmark = pytest.mark.parity

WORDS = WordPieceTokenizer(Vocabulary([*SPECIAL_TOKENS, "one", "two", "three"]))
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 8}
RANDOM = {**SIZES, "initializer_range": 0.5}


@pytest.mark.parametrize(
    ("config", "head", "num_segments"),
    [
        (GptConfig(**RANDOM), "lm", 1),
        (GptConfig(**RANDOM, pre_norm=True), "lm", 1),
        (BartConfig(**RANDOM), "decoder", 1),
        (T5Config(**SIZES), "decoder", 1),
        (BertConfig(**RANDOM, type_vocab_size=1), "mlm", 1),
        (BertConfig(**RANDOM), "mlm", 2),
    ],
    ids=["gpt", "gpt2", "bart", "t5", "bert without segments", "bert"],
)
@torch.no_grad()
def test_a_model_reads_no_segments_that_it_has_no_vectors_of(config, head, num_segments, tmp_path):
    model = build_model(config, (head,), seed=3).eval()
    write_model_folder(tmp_path, model, WORDS, None)
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path)("one two", "three", return_tensors="pt")
    assert ("token_type_ids" in tokens) == (num_segments == 2)
    assert tokens["input_ids"].tolist() == [WORDS.encode("one two", "three").ids]
    hidden = model.encoder(tokens["input_ids"], tokens.get("token_type_ids")).last_hidden_state
    peer = transformers.AutoModel.from_pretrained(tmp_path).eval()
    peer = peer.get_encoder() if head == "decoder" else peer
    assert (peer(**tokens).last_hidden_state - hidden).abs().max() < 1e-4
