"""Small good files of every kind that maskloom reads, created once per process."""

from __future__ import annotations

import gzip
import io
import json
from functools import cache
from pathlib import Path
from typing import Any

TEXT = (
    "A first document, in two sentences. It is short.\nIt goes on in a second line.\n\n"
    "Zweites Dokument: über Füße, 中文, Ελληνικά and \U0001f642.\n\nThird one.\n"
).encode()
JSON_TEXTS = b'{"text": "One text.", "id": 1}\n{"text": "Zwei \\u00fc.\\nLines."}\n\n{"title": "t", "text": "Three."}\n'

SINGLE = b'text,label\na good film,pos\n"bad, long\nand quoted",neg\nfine,pos\n'
SINGLE_TABS = b"sentence\tlabel\nit 's a \"charming journey\t1\nno\t0\nyes\t1\n"
PAIR = b"sentence1\tsentence2\tlabel\na b\tc d\tentailment\ne\tf\tnot_entailment\n"
REGRESSION = b"text_a,text_b,score\na,b,0.5\nc,d,4.75\n"
MULTI_LABEL = (
    b'{"text": "glad", "labels": ["joy", "love"]}\n{"text": "none", "labels": []}\n{"text": "x", "labels": "joy"}\n'
)
SINGLE_LINES = b'{"text": "good", "label": "pos"}\n{"text": "bad", "label": 0}\n{"text": "caf\\u00e9", "label": true}\n'
COLA = b"gj04\t1\t\tOur friends won't buy this.\ngj04\t0\t*\tThey drank the pub.\n"
STS_B = (
    b"index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
    b"0\tmain\tMSR\t2012\t1\tnone\tnone\tA plane.\tAn air plane.\t5.000\n"
    b"1\tmain\tMSR\t2012\t4\tnone\tnone\tA.\tB.\t3.8\n"
)
CONLL = (
    b"-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\nGerman JJ B-NP B-MISC\ncall NN I-NP O\n. . O O\n\n"
    b"Peter NNP B-NP B-PER\nBlackburn NNP I-NP I-PER\n"
)
CONLL_TABS = b"Berlin\tI-LOC\n,\tO\n\nM\xc3\xbcnchen\tI-LOC\nist\tO\nda\tO\n"
TAG_LINES = b'{"tokens": ["John", "lives"], "tags": ["B-PER", "O"]}\n{"words": ["a"], "ner_tags": ["O"], "doc_id": 3}\n'
SQUAD = json.dumps(
    {
        "version": "v2.0",
        "data": [
            {
                "title": "Normans",
                "paragraphs": [
                    {
                        "context": "The Normans were people in Normandy, a region in France.",
                        "qas": [
                            {
                                "id": "q1",
                                "question": "Where is Normandy?",
                                "is_impossible": False,
                                "answers": [{"text": "France", "answer_start": 49}],
                            },
                            {"id": "q2", "question": "Who was duke?", "is_impossible": True, "answers": []},
                        ],
                    }
                ],
            }
        ],
    }
).encode()
SPAN_LINES = (
    b'{"id": "a", "question": "Who?", "context": "Bob ran.", "answers": {"text": ["Bob"], "answer_start": [0]}}\n'
    b'{"question": "What?", "context": "Bob ran.", "answer": "ran", "answer_start": 4}\n'
)
SPAN_TABLE = b"question,context,answer,answer_start,is_impossible\nWho?,Bob ran.,Bob,0,false\nWhy?,Bob ran.,,,true\n"
SWAG = (
    b"video-id,sent1,sent2,ending0,ending1,ending2,ending3,label\nv1,He sits.,He,runs,eats,naps,sings,2\n"
    b"v2,She runs.,She,rests,eats,naps,sings,0\n"
)
HELLASWAG = (
    b'{"ind": 4, "ctx_a": "A man.", "ctx_b": "he", "endings": ["a", "b", "c", "d"], "label": 3}\n'
    b'{"ind": 6, "ctx_a": "A dog.", "ctx_b": "it", "endings": ["e", "b", "c", "d"], "label": 0}\n'
)
CODAH = b"i\tI saw a dog. It\tbarked\tmeowed\tflew\tswam\t0\no\tHe ate.\ta\tb\tc\td\t3\n"

PREDICTIONS = b'{"q1": "France", "q2": ""}'
LABEL_NAMES = b"neg\npos\nneutral\n"
SPACE = b"training.batch_size=16,32\ntraining.learning_rate=1e-5..5e-5\nsmall\nseed=1,2\n"
OVERRIDES = b"training.steps=10\nmodel.size=tiny\ndata.max_length=32\nmodel.config.num_hidden_layers=2\n"
TEST_ROWS = b"index\tsentence\tgenre\n0\ta b\tfiction\n1\tc\ttravel\n"

PRETRAIN_RECIPE: dict[str, Any] = {
    "kind": "pretrain",
    "seed": 3,
    "model": {"size": "tiny", "config": {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}},
    "data": {"max_length": 64, "masked_lm_prob": 0.15, "next_sentence": True, "max_predictions_per_seq": 10},
    "training": {"steps": 100, "batch_size": 8, "micro_batch_size": 4, "learning_rate": 1e-4, "warmup_ratio": 0.1},
}
FINETUNE_RECIPE: dict[str, Any] = {
    "kind": "finetune",
    "task": "tagging",
    "restarts": 2,
    "class_weights": {"x": 1.0, "y": 2.5},
    "data": {"max_length": 32},
    "training": {"epochs": 2.0, "batch_size": 4, "learning_rate": 5e-5, "max_grad_norm": 1.0},
    "tagging": {"scheme": "iob1", "context": "document"},
    "features": {"layers": "-1,-2", "lstm_size": 16, "lstm_layers": 1},
    "span": {"stride": 16, "null_threshold": -1.5},
}
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "the", "##b", "##ing", "é", ".", ",", "中")
SIZES = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 16,
}


def zipped(content: bytes) -> bytes:
    """Return content compressed by gzip."""
    return gzip.compress(content, mtime=0)


@cache
def zstandard_text() -> bytes:
    """Return the text compressed as two Zstandard frames."""
    import zstandard

    half = len(TEXT) // 2
    return b"".join(zstandard.ZstdCompressor().compress(part) for part in (TEXT[:half], TEXT[half:]))


@cache
def parquet_text() -> bytes:
    """Return a small Parquet file with a text column."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(pa.table({"text": ["one text", "zwei ü", "three\nlines"], "id": [1, 2, 3]}), file)
    return file.getvalue()


def tokenizer() -> Any:
    """Return a tokenizer with the small vocabulary."""
    from maskloom.text.vocabulary import Vocabulary
    from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

    return WordPieceTokenizer(Vocabulary(VOCABULARY), max_length=16)


def write_model(folder: Path, heads: tuple[str, ...] = ("classifier",), num_labels: int | None = 2) -> None:
    """Write a tiny model folder with a tokenizer and our own settings."""
    from maskloom.checkpoints.huggingface import save_model
    from maskloom.models.assembled import build_model
    from maskloom.models.bert import BertConfig

    names = {"id2label": {"0": "x", "1": "y"}, "label2id": {"x": 0, "y": 1}} if num_labels == 2 else {}
    options = {"bilstm_tagger": {"layers": "last", "lstm_size": 4, "lstm_layers": 1, "dropout": 0.1}}
    model = build_model(BertConfig(**SIZES), heads, num_labels, seed=1, head_options=options)
    save_model(model, folder, extra_config={**names, "maskloom_heads": options})
    tokenizer().save(folder)
    settings = {
        "format_version": 1,
        "kind": "single",
        "takes_pairs": False,
        "labels": ["x", "y"],
        "primary": "accuracy",
        "max_length": 12,
        "reading": {"text_column": "text", "on_bad_rows": "error"},
        "settings": {"temperature": 1.5, "class_weights": [1.0, 2.0]},
    }
    (folder / "maskloom.json").write_text(json.dumps(settings), encoding="utf-8")


def write_byte_pairs(folder: Path) -> None:
    """Train a tiny byte-pair vocabulary."""
    from maskloom.text.vocabulary_training import VocabularySettings, train_vocabulary

    train_vocabulary(["the ab the bing"] * 3, VocabularySettings(size=24, model="bpe"))[0].save(folder)


def write_corpus(folder: Path) -> None:
    """Build a tiny corpus."""
    from maskloom.data.corpus.building import build_corpus

    text = folder.with_name("corpus.txt")
    text.write_bytes(b"a b the ab. the bing, a.\n\nb b a.\nthe the.\n\n" * 3 + b"a the b.\n")
    build_corpus(text, tokenizer=tokenizer(), out=folder)


def write_features(folder: Path) -> None:
    """Write a tiny folder of stored features."""
    import numpy as np

    from maskloom.data.feature_files import FeaturePlan, FeatureWriter

    plan = FeaturePlan("model", "source", ("0", "1"), 4, np.array([2, 0, 3]))
    writer = FeatureWriter(folder, plan)
    writer.write(np.arange(3), np.ones((5, 2, 4), dtype=np.float32))
    writer.finish()
