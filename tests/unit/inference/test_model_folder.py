"""What the tokenizer in a model's folder says of the model."""

import pytest

from maskloom.config import FinetuneRecipe, load_recipe
from maskloom.errors import DataError
from maskloom.inference.model_folder import resolve_model_folder, tokenizer_read
from maskloom.models.bert_config import BertConfig
from maskloom.runs.finetune_restarts import start_of
from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

WORDS = WordPieceTokenizer(Vocabulary([*SPECIAL_TOKENS, "one", "two"]))


@pytest.mark.parametrize("positions", [1024, 512, 64])
def test_a_new_model_takes_texts_as_long_as_it_has_positions(positions):
    config = BertConfig(vocab_size=7, max_position_embeddings=positions)
    assert tokenizer_read(config, WORDS).max_length == positions
    assert tokenizer_read(config, WORDS).vocabulary is WORDS.vocabulary


def test_a_new_transformer_and_its_targets_may_have_as_many_tokens_as_it_has_positions(tmp_path):
    for name in ("sources", "targets"):
        WORDS.save(tmp_path / name)
    recipe = load_recipe(FinetuneRecipe, None, ["task=seq2seq", "model.size=tiny"])
    for sources in (None, tmp_path / "sources"):
        tokenizer, config = start_of(recipe, tmp_path / "targets", sources)
        assert config.max_position_embeddings == 1024
        assert (tokenizer.max_length, tokenizer.of_targets.max_length) == (1024, 1024)


@pytest.mark.parametrize(
    ("file", "command"), [("recipe.toml", "export"), ("pytorch_model.bin", "convert"), ("bert.ckpt.index", "convert")]
)
def test_the_command_that_makes_a_model_folder_can_be_copied(file, command, tmp_path):
    folder = tmp_path / "my model"
    folder.mkdir()
    (folder / file).touch()
    with pytest.raises(DataError, match=f": maskloom {command} '{folder}' --out DIR$"):
        resolve_model_folder(folder)
