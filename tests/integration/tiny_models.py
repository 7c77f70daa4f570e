"""Model folders shared by tests of prediction."""

from maskloom.checkpoints.huggingface import save_model
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.system.files import write_json
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]


def model_folder(folder, heads=("classifier",), num_labels=3, settings=None, **extra):
    """Write a two-layer model with random weights; `settings` go into maskloom.json, `extra` into config.json."""
    vocabulary = Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=24, initializer_range=0.5,
    )  # fmt: skip
    save_model(build_model(config, heads, num_labels, seed=3), folder, extra_config=extra)
    WordPieceTokenizer(vocabulary, max_length=24).save(folder)
    if settings:
        write_json(folder / "maskloom.json", settings)
    return folder
