"""A corpus of fifty short sentences, and the rows of extensions from outside the package."""

import pytest
from tests.contract.added_architecture import BAG, BAG_FORMAT
from tests.contract.added_carrying import REMEMBERING
from tests.contract.added_objective import COPYING
from tests.contract.added_optimizer import counting, stairs
from tests.contract.added_pairs import HALVES, HALVING
from tests.contract.added_task import SMOOTHED

from maskloom.checkpoints.huggingface import FORMATS
from maskloom.data.streams.sentence_pairs import PAIR_TASKS
from maskloom.models.architectures import ARCHITECTURES
from maskloom.objectives.pretraining import PRETRAINING
from maskloom.runs.corpus import build_corpus_from_files, train_vocabulary_from_files
from maskloom.tasks.kinds import KINDS
from maskloom.text.vocabulary_training import VocabularySettings
from maskloom.training.optimizers import OPTIMIZERS, SCHEDULES


@pytest.fixture
def corpus(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"the {a} cat.\nit sees the {b} dog." for a in "abcde" for b in "abcde"))
    train_vocabulary_from_files([text], VocabularySettings(60), out=tmp_path / "vocab")
    build_corpus_from_files([text], vocab=tmp_path / "vocab", out=tmp_path / "corpus")
    return tmp_path / "corpus"


@pytest.fixture
def rows():
    """Add a row to each table for one test."""
    ARCHITECTURES["bag"] = BAG
    FORMATS["bag"] = BAG_FORMAT
    PRETRAINING["copying"] = COPYING
    PAIR_TASKS["halves"] = HALVES
    PRETRAINING["halving"] = HALVING
    PRETRAINING["remembering"] = REMEMBERING
    KINDS["smoothed"] = SMOOTHED
    OPTIMIZERS["counting"] = counting
    SCHEDULES["stairs"] = stairs
    yield
    del ARCHITECTURES["bag"], FORMATS["bag"], PAIR_TASKS["halves"], KINDS["smoothed"]
    del PRETRAINING["copying"], PRETRAINING["halving"], PRETRAINING["remembering"]
    del OPTIMIZERS["counting"], SCHEDULES["stairs"]
