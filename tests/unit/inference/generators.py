"""Folders of small generating models with random weights."""

from maskloom.checkpoints.huggingface import save_model
from maskloom.models.assembled import build_model
from maskloom.models.bart_config import BartConfig
from maskloom.models.bert_config import BertConfig
from maskloom.models.gpt_config import GptConfig
from maskloom.models.t5_config import T5Config
from maskloom.models.transformer_config import TransformerConfig
from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
WRITERS = {
    "transformer": (TransformerConfig, {"num_decoder_layers": 3}),
    "pre-norm": (TransformerConfig, {"pre_norm": True, "learned_positions": True}),
    "bart": (BartConfig, {"initializer_range": 0.5}),
    "t5": (T5Config, {"head_size": 6, "num_decoder_layers": 3}),
    "gated t5": (T5Config, {"gated": True, "tie_word_embeddings": False}),
}
READERS = {
    "gpt": (GptConfig, {"initializer_range": 0.5}),
    "bert": (BertConfig, {"causal": True, "rotary": True, "initializer_range": 0.5}),
}


def generator_folder(folder, name, words=WORDS, **keys):
    """Write a model of the named architecture, with a vocabulary of words; `keys` go into its configuration."""
    kind, more = (WRITERS | READERS)[name]
    vocabulary = Vocabulary([*SPECIAL_TOKENS, *words])
    marks = (vocabulary.ids[mark] for mark in ("[PAD]", "[CLS]", "[SEP]"))
    config = kind(vocab_size=len(vocabulary), max_position_embeddings=80, **SIZES, **more).with_marks(*marks)
    config = config.model_copy(update=keys)
    head = "decoder" if name in WRITERS else {"gpt": "lm", "bert": "mlm"}[name]
    save_model(build_model(config, (head,), seed=3), folder)
    WordPieceTokenizer(vocabulary).save(folder)
    return folder
