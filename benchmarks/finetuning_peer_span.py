"""The transformers side of span extraction, following run_qa: features by offsets, n-best pairs, best text.

`doc_stride` means the overlap of two windows, as in run_qa. The scores follow the official script of SQuAD v1.1: its
normalisation, the maximum over all gold answers, in percent.
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from finetuning_peer import Features, PeerKind

DOC_STRIDE, NUM_BEST, MAX_ANSWER_LENGTH = 128, 20, 30
_KEYS = ("input_ids", "token_type_ids", "attention_mask")


class SpanPeer(PeerKind):
    """BertForQuestionAnswering."""

    def new_model(self, folder: Path, train: Path) -> Any:
        """Return the encoder of a folder with a newly initialised layer for start and end."""
        from transformers import BertForQuestionAnswering

        return BertForQuestionAnswering.from_pretrained(folder)

    def saved_model(self, folder: Path) -> Any:
        """Return a fine-tuned model."""
        from transformers import AutoModelForQuestionAnswering

        return AutoModelForQuestionAnswering.from_pretrained(folder)

    def training_features(self, path: Path) -> Features:
        """Return the windows of all questions with the answer's token positions, 0 if a window does not contain it."""
        questions = read_questions(path)
        encoded = self.encoded(questions)
        features = []
        for window, owner in enumerate(encoded["overflow_to_sample_mapping"]):
            answer = questions[owner]["answers"][0]
            first, last = answer["answer_start"], answer["answer_start"] + len(answer["text"])
            start, end = _positions(encoded["offset_mapping"][window], encoded.sequence_ids(window), first, last)
            row = {key: encoded[key][window] for key in _KEYS}
            features.append({**row, "start_positions": start, "end_positions": end})
        return features

    def encoded(self, questions: list[dict[str, Any]]) -> Any:
        """Return the tokenizer's windows over questions and contexts."""
        return self.tokenizer(
            [question["question"].lstrip() for question in questions],
            [question["context"] for question in questions],
            truncation="only_second",
            max_length=self.max_length,
            stride=DOC_STRIDE,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )

    def score(self, model: Any, path: Path) -> dict[str, float]:
        """Return exact match and F1 in percent."""
        questions = read_questions(path)
        return official_scores(questions, self.answers(model, questions))

    def answers(self, model: Any, questions: list[dict[str, Any]]) -> list[str]:
        """Return the best text for each question."""
        encoded = self.encoded(questions)
        windows = [{key: encoded[key][window] for key in _KEYS} for window in range(len(encoded["input_ids"]))]
        logits = [
            (starts[row].numpy(), ends[row].numpy())
            for starts, ends in self.outputs(model, windows, ("start_logits", "end_logits"))
            for row in range(len(starts))
        ]
        return best_texts(questions, encoded, logits)


def read_questions(path: Path) -> list[dict[str, Any]]:
    """Return the questions of a file in order, each with its context."""
    return [
        {**question, "context": paragraph["context"]}
        for article in json.loads(path.read_text(encoding="utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


def best_texts(questions: list[dict[str, Any]], encoded: Any, logits: list[tuple[np.ndarray, np.ndarray]]) -> list[str]:
    """Return the text of the start-end pair with the highest sum of logits over all windows of each question."""
    best: list[tuple[float, str]] = [(-np.inf, "")] * len(questions)
    for window, owner in enumerate(encoded["overflow_to_sample_mapping"]):
        starts, ends = logits[window]
        offsets, sides = encoded["offset_mapping"][window], encoded.sequence_ids(window)
        context = questions[owner]["context"]
        for start in np.argsort(starts[: len(offsets)])[-1 : -NUM_BEST - 1 : -1].tolist():
            for end in np.argsort(ends[: len(offsets)])[-1 : -NUM_BEST - 1 : -1].tolist():
                if sides[start] != 1 or sides[end] != 1 or not start <= end < start + MAX_ANSWER_LENGTH:
                    continue
                score = float(starts[start] + ends[end])
                if score > best[owner][0]:
                    best[owner] = (score, context[offsets[start][0] : offsets[end][1]])
    return [text for _, text in best]


def _positions(offsets: list[tuple[int, int]], sides: list[int | None], first: int, last: int) -> tuple[int, int]:
    """Return the first and last token of the characters first..last, or (0, 0) when the window lacks them."""
    tokens = [token for token, side in enumerate(sides) if side == 1]
    start, end = tokens[0], tokens[-1]
    if offsets[start][0] > first or offsets[end][1] < last:
        return 0, 0
    while start < len(offsets) and offsets[start][0] <= first and sides[start] == 1:
        start += 1
    while offsets[end][1] >= last and end >= tokens[0]:
        end -= 1
    return start - 1, end + 1


def official_scores(questions: list[dict[str, Any]], texts: list[str]) -> dict[str, float]:
    """Return exact match and F1, computed as in the official script of SQuAD v1.1."""
    exact = f1 = 0.0
    for question, text in zip(questions, texts, strict=True):
        golds = [answer["text"] for answer in question["answers"]]
        exact += max(float(_normalized(text) == _normalized(gold)) for gold in golds)
        f1 += max(_f1(_normalized(text).split(), _normalized(gold).split()) for gold in golds)
    return {"exact_match": 100 * exact / len(questions), "f1": 100 * f1 / len(questions)}


def _normalized(text: str) -> str:
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def _f1(words: list[str], gold: list[str]) -> float:
    common = sum((Counter(words) & Counter(gold)).values())
    return 2 * common / (len(words) + len(gold)) if common else 0.0
