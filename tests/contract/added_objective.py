"""A pre-training objective added from outside the package; docs/ADDING.md shows this file."""

from dataclasses import dataclass

import numpy as np

from maskloom.data.batch import Texts
from maskloom.data.corruption import Corruption
from maskloom.data.loader import Columns, Extent
from maskloom.data.settings import PretrainingData
from maskloom.objectives.pretraining import Pretraining
from maskloom.sections import Section, key


class SayAgain(Corruption):
    """The model sees the unchanged ids and predicts each of them."""

    def __call__(self, texts):
        return texts.predicting(texts.token_ids, np.arange(texts.num_tokens), texts.token_ids)


class CopyingSection(Section):
    """The recipe section [copying]."""

    sentence: int = key(0, "Number of the sentence to read of each document, from 0; the last if it has fewer.", ge=0)


class CopyingData(CopyingSection, PretrainingData):
    """The keys of [copying] and [data]."""


@dataclass(frozen=True)
class Chosen(Columns):
    sentences: np.ndarray
    epochs: np.ndarray


class SentenceStream:
    """One sentence of each document, in corpus order."""

    def __init__(self, corpus, documents, data, seed, batch_size):
        self.corpus, self.max_length = corpus, data.max_length
        documents = np.arange(corpus.num_documents) if documents is None else documents
        first, end = corpus.document_offsets[documents], corpus.document_offsets[documents + 1]
        self.sentences = np.minimum(first + data.sentence, end - 1)

    def read(self, position, num_rows):
        first = position.get("row", 0)
        epochs, places = np.divmod(np.arange(first, first + num_rows), len(self.sentences))
        return Chosen(self.sentences[places], epochs), {"row": first + num_rows}

    def epoch(self, number):
        yield Chosen(self.sentences, np.full(len(self.sentences), number))

    def gather(self, rows):
        texts = [self.corpus.sentence(index)[: self.max_length].astype(np.int64) for index in rows.sentences.tolist()]
        ids, lengths = np.concatenate(texts), np.array([len(text) for text in texts])
        return Texts(ids, np.zeros_like(ids), lengths, keys=rows.sentences, epochs=rows.epochs)

    def extent(self):
        lengths = self.corpus.sentence_lengths[self.sentences]
        return Extent(len(lengths), np.minimum(lengths, self.max_length))


COPYING = Pretraining(
    "copy", SayAgain, SentenceStream, section=CopyingSection, data=CopyingData, names=("copying", "Tokens")
)
