"""A pre-training task on pairs of texts added from outside the package; docs/ADDING.md shows this file."""

from typing import ClassVar

from maskloom.data.corruption import Masking
from maskloom.data.settings import PretrainingData
from maskloom.data.streams.sentence_pairs import PairTask, SentencePairs
from maskloom.objectives.pretraining import Pretraining


class HalvesData(PretrainingData):
    """The keys of [data], with another task on pairs of texts."""

    pairs: ClassVar[str] = "halves"


HALVES = PairTask("halves", SentencePairs.swapped_pairs, least_sentences=2)
HALVING = Pretraining("mlm", Masking, data=HalvesData, needs=("mask",))
