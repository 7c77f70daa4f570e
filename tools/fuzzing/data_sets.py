"""More than forty kinds of bad data sets, each with its expected outcome."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.fuzzing import readers, seeds


@dataclass(frozen=True)
class BadData:
    """One kind: `refused` is a pattern of the expected error message; without it, `kept` and `dropped` are counts."""

    what: str
    kind: str
    name: str
    content: bytes
    refused: str | None = None
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    dev: bytes | None = None


def outcome_of(data: BadData, folder: Path) -> str:
    """Return "" if the data is handled as expected and every row is accounted for, otherwise the problem."""
    from maskloom.errors import ConfigError, DataError

    path, dev = folder / data.name, None
    path.write_bytes(data.content)
    if data.dev is not None:
        dev = folder / f"dev-{data.name}"
        dev.write_bytes(data.dev)
    # of a large file only the reading is tested; encoding ten megabytes takes seconds
    encodes = len(data.content) <= _MOST_ENCODED
    try:
        train = readers.prepared_task(data.kind, path, dev, encodes=encodes, **data.options)
    except (ConfigError, DataError) as error:
        if data.refused is None:
            return f"refused: {error}"
        return "" if re.search(data.refused, str(error)) and data.name in str(error) else f"refused otherwise: {error}"
    report = train.report
    if data.refused is not None:
        return f"accepted: {report.as_dict()}"
    if (report.num_kept, report.dropped) != (data.kept, data.dropped):
        return f"kept {report.num_kept}, dropped {report.dropped}"
    return ""


def _squad(**changes: Any) -> bytes:
    tree = json.loads(seeds.SQUAD)
    tree["data"][0]["paragraphs"][0]["qas"][0] |= changes
    return json.dumps(tree).encode()


def _swag(**changes: str) -> bytes:
    row = {"id": "1", "sent1": "He", "ending0": "a", "ending1": "b", "label": "0"}
    rows = [row, {**row, "id": "2", **changes}]
    return "\n".join([",".join(row), *(",".join(fields.values()) for fields in rows)]).encode()


_MOST_ENCODED = 1 << 20
_SKIP: dict[str, Any] = {"on_bad_rows": "skip"}
_TWO = b"text,label\na,x\nb,y\n"
_LONG = b"text\tlabel\n" + b"a" * 10_000_000 + b"\tx\nb\ty\n"
_TAGS = "EU {}\nrejects O\n\nBonn {}\nGermany {}\n"
_STS = seeds.STS_B

BAD_DATA: tuple[BadData, ...] = (
    BadData("byte-order mark", "single", "d.csv", b"\xef\xbb\xbf" + _TWO, kept=2),
    BadData("CRLF", "single", "d.csv", _TWO.replace(b"\n", b"\r\n"), kept=2),
    BadData("CR alone", "single", "d.csv", _TWO.replace(b"\n", b"\r"), kept=2),
    BadData("quotes in a GLUE table", "single", "d.tsv", b'sentence\tlabel\n"a b\t1\nc" d\t0\n', kept=2),
    BadData("line breaks in quotes", "single", "d.csv", b'text,label\n"a\nb",x\nc,y\n', kept=2),
    BadData("a quote never closed", "single", "d.csv", b'text,label\na,x\n"b,y\n', "line 3: not valid CSV"),
    BadData("a quote within a field", "single", "d.csv", b'text,label\n"a"b,x\n', "line 2: not valid CSV"),
    BadData("a short row", "single", "d.csv", b"text,label\na,x\nb\n", "line 3: wrong number of fields: 1, expected 2"),
    BadData("a long row", "single", "d.tsv", b"text\tlabel\na\tx\tz\nb\ty\n", "line 2: wrong number of fields: 3"),
    BadData("bad rows skipped", "single", "d.csv", _TWO + b"c\n,x\n", kept=2, options=_SKIP,
            dropped={"wrong number of fields": 1, "empty text": 1}),
    BadData("blank lines", "single", "d.csv", b"text,label\na,x\n\nb,y\n\n", kept=2, dropped={"blank line": 2}),
    BadData("a missing label", "single", "d.csv", b"text,label\na,x\nb,\n", "line 3: missing label"),
    BadData("a new label in dev", "single", "d.csv", _TWO, r"dev-d.csv: line 3: the label 'z'",
            dev=b"text,label\na,x\nb,z\n"),
    BadData("one class", "single", "d.csv", b"text,label\na,x\nb,x\n", "all 2 rows have the label 'x'"),
    BadData("an empty text", "single", "d.csv", b"text,label\n  ,x\nb,y\n", "line 2: empty text"),
    BadData("an empty file", "single", "d.csv", b"", "the file is empty"),
    BadData("a header alone", "single", "d.csv", b"text,label\n", "no usable rows: 0 read"),
    BadData("no column of labels", "single", "d.csv", b"text,mark\na,x\n", "line 1: no label column"),
    BadData("a column twice", "single", "d.csv", b"text,label,text\na,x,b\n", "line 1: the header has 2 columns"),
    BadData("semicolons", "single", "d.csv", b"text;label\na;x\n", "is the separator a semicolon"),
    BadData("a row of 10 MB", "single", "d.tsv", _LONG, kept=2),
    BadData("a row of 17 MiB", "single", "d.tsv", b"text\tlabel\n" + b"a" * (17 << 20), "line 2: a row larger than"),
    BadData("Latin-1", "single", "d.csv", b"text,label\na,x\ncaf\xe9,y\n", "line 3: byte 4 of the line is 0xe9"),
    BadData("UTF-16", "single", "d.csv", _TWO.decode().encode("utf-16"), "line 1: byte 1 of the line is 0xff"),
    BadData("UTF-16 without a mark", "single", "d.csv", _TWO.decode().encode("utf-16-le"), "line 1: contains a NUL"),
    BadData("NUL", "single", "d.tsv", b"text\tlabel\na\0\tx\n", "line 2: contains a NUL character"),
    BadData("gzip truncated", "single", "d.csv.gz", gzip.compress(_TWO)[:-9], "the gzip stream is corrupt"),
    BadData("not gzip", "single", "d.csv.gz", _TWO, "the gzip stream is corrupt"),
    BadData("not JSON", "single", "d.jsonl", b'{"text": "a", "label": 1}\n{\n', "line 2: not valid JSON"),
    BadData("NaN in JSON", "single", "d.jsonl", b'{"text": "a", "label": NaN}\n', "line 1: not valid JSON: NaN|no row"),
    BadData("a key twice", "single", "d.jsonl", seeds.SINGLE_LINES + b'{"text": "a", "label": 1, "label": 2}\n',
            "line 4: .*twice"),
    BadData("half a surrogate", "single", "d.jsonl", b'{"text": "\\ud800", "label": 1}\n', "line 1: .*surrogate"),
    BadData("a list for text", "single", "d.jsonl", b'{"text": ["a"], "label": 1}\n', "line 1: text is not a string"),
    BadData("labels out of range", "regression", "d.tsv", _STS.replace(b"5.000", b"5.5"), "line 2: label out of range",
            options={"format": "sts-b"}),
    BadData("a label that is no number", "regression", "d.csv", b"text,score\na,high\n",
            "line 2: label is not a finite"),
    BadData("equal scores", "regression", "d.csv", b"text,score\na,2\nb,2.0\n", "all 2 rows have the score 2"),
    BadData("a label twice", "multilabel", "d.csv", b'text,labels\na,"x,x"\n', "line 2: a label appears twice"),
    BadData("no label anywhere", "multilabel", "d.csv", b"text,labels\na,\nb,\n", "no row has any label"),
    BadData("an answer elsewhere", "span", "d.json", _squad(answers=[{"text": "France", "answer_start": 3}]),
            "question 1 .*is not at its place in the context.*occurrence is at 49"),
    BadData("no answer and no flag", "span", "d.json", _squad(answers=[]), "question 1 .*no answers: .*is_impossible"),
    BadData("answer and flag", "span", "d.json", _squad(is_impossible=True), "is_impossible is true, yet there are"),
    BadData("an id twice", "span", "d.json", _squad(id="q2"), "an id appears twice"),
    BadData("an answer outside", "span", "d.json", _squad(answers=[{"text": "x", "answer_start": 999}]),
            "outside of the"),
    BadData("IOB1", "tagging", "d.conll", _TAGS.format("I-ORG", "I-LOC", "B-LOC").encode(), kept=2),
    BadData("IOB2", "tagging", "d.conll", _TAGS.format("B-ORG", "B-LOC", "B-LOC").encode(), kept=2),
    BadData("BIOES", "tagging", "d.conll", _TAGS.format("S-ORG", "S-LOC", "S-LOC").encode(), kept=2),
    BadData("no -DOCSTART-", "tagging", "d.conll", seeds.CONLL.split(b"\n\n", 1)[1], kept=2),
    BadData("tabs", "tagging", "d.conll", seeds.CONLL_TABS, kept=2),
    BadData("columns differ", "tagging", "d.conll", b"EU B-ORG\nrejects VBZ O\n", "line 2: wrong number of columns: 3"),
    BadData("tags of two forms", "tagging", "d.conll", b"EU B-ORG\nrejects VBZ\n",
            "line 2: unknown form of tag: 'VBZ'"),
    BadData("words and tags differ", "tagging", "d.jsonl", b'{"tokens": ["a", "b"], "tags": ["O"]}\n',
            "line 1: words and tags"),
    BadData("another number of choices", "choice", "d.jsonl",
            seeds.HELLASWAG + b'{"ctx": "a", "endings": ["a", "b"], "ctx_a": "x", "ctx_b": "", "label": 0, "ind": 5}\n',
            kept=3),
    BadData("a label beyond the choices", "choice", "d.csv", _swag(label="2"), "line 3: label is none of the choices"),
    BadData("an id twice, choices", "choice", "d.csv", _swag(id="1"), "line 3: an id appears twice"),
)  # fmt: skip
