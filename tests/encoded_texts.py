"""All parts of encoded documents in one."""

from collections.abc import Iterable

import numpy as np

from maskloom.data.corpus.sentence_encoding import EncodedDocuments, SentenceEncoder


def encode_all(encoder: SentenceEncoder, texts: Iterable[str]) -> EncodedDocuments:
    parts = list(encoder.parts([text.encode("utf-8", "surrogatepass") for text in texts]))
    return EncodedDocuments(
        tokens=b"".join(part.tokens for part in parts),
        sentence_lengths=np.concatenate([part.sentence_lengths for part in parts]),
        document_lengths=np.concatenate([part.document_lengths for part in parts]),
        num_empty_sentences=sum(part.num_empty_sentences for part in parts),
        num_empty_documents=sum(part.num_empty_documents for part in parts),
    )
