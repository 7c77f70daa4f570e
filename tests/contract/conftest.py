"""A corpus of fifty short sentences, for tests of extensions from outside the package."""

import pytest

from maskloom.runs.corpus import build_corpus_from_files, train_vocabulary_from_files
from maskloom.text.vocabulary_training import VocabularySettings


@pytest.fixture
def corpus(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"the {a} cat.\nit sees the {b} dog." for a in "abcde" for b in "abcde"))
    train_vocabulary_from_files([text], VocabularySettings(60), out=tmp_path / "vocab")
    build_corpus_from_files([text], vocab=tmp_path / "vocab", out=tmp_path / "corpus")
    return tmp_path / "corpus"
