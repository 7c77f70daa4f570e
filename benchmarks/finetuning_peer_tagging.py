"""The transformers side of token classification, following run_ner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from finetuning_peer import Features, PeerKind


class TaggingPeer(PeerKind):
    """BertForTokenClassification; the first piece of a word carries its tag, all other pieces have none."""

    _labels: tuple[str, ...] = ()

    def new_model(self, folder: Path, train: Path) -> Any:
        """Return the encoder with a newly initialised layer for the tags that occur in training, sorted."""
        from transformers import BertForTokenClassification

        self._labels = tuple(sorted({tag for _, tags in _sentences(train) for tag in tags}))
        ids = {name: number for number, name in enumerate(self._labels)}
        return BertForTokenClassification.from_pretrained(
            folder, num_labels=len(ids), label2id=ids, id2label={number: name for name, number in ids.items()}
        )

    def saved_model(self, folder: Path) -> Any:
        """Return a fine-tuned tagger; its tags are read from its config."""
        from transformers import AutoModelForTokenClassification

        model = AutoModelForTokenClassification.from_pretrained(folder)
        self._labels = tuple(model.config.id2label[number] for number in range(model.config.num_labels))
        return model

    def training_features(self, path: Path) -> Features:
        """Return the tokens of each sentence with a tag, or -100, for each token."""
        sentences = _sentences(path)
        encoded, places = self._encoded(sentences)
        keys = ("input_ids", "token_type_ids", "attention_mask")
        features = []
        for number, (_, tags) in enumerate(sentences):
            labels = [-100] * len(encoded["input_ids"][number])
            for token, word in places[number]:
                labels[token] = self._labels.index(tags[word])
            features.append({**{key: encoded[key][number] for key in keys}, "labels": labels})
        return features

    def collate(self, rows: Features) -> dict[str, torch.Tensor]:
        """Pad the tokens, and the labels with -100."""
        labels = [row["labels"] for row in rows if "labels" in row]
        batch = dict(
            self.tokenizer.pad(
                [{key: value for key, value in row.items() if key != "labels"} for row in rows], return_tensors="pt"
            )
        )
        if labels:
            width = batch["input_ids"].shape[1]
            batch["labels"] = torch.tensor([row + [-100] * (width - len(row)) for row in labels])
        return batch

    def score(self, model: Any, path: Path) -> dict[str, float]:
        """Return precision, recall and F1 of entities from seqeval; truncated words count as O."""
        from seqeval.metrics import f1_score, precision_score, recall_score

        sentences = _sentences(path)
        encoded, places = self._encoded(sentences)
        keys = ("input_ids", "token_type_ids", "attention_mask")
        features = [{key: encoded[key][number] for key in keys} for number in range(len(sentences))]
        best = [row for (part,) in self.outputs(model, features, ("logits",)) for row in part.argmax(-1).tolist()]
        truth, found = [], []
        for (words, tags), row, tokens in zip(sentences, best, places, strict=True):
            predicted = ["O"] * len(words)
            for token, word in tokens:
                predicted[word] = self._labels[row[token]]
            truth.append(tags)
            found.append(predicted)
        return {
            "precision": float(precision_score(truth, found, zero_division=0)),
            "recall": float(recall_score(truth, found, zero_division=0)),
            "f1": float(f1_score(truth, found, zero_division=0)),
        }

    def _encoded(self, sentences: list[tuple[list[str], list[str]]]) -> tuple[Any, list[list[tuple[int, int]]]]:
        """Return the tokens and, for each sentence, the (token, word) indices of the first pieces."""
        encoded = self.tokenizer(
            [words for words, _ in sentences], is_split_into_words=True, truncation=True, max_length=self.max_length
        )
        places = []
        for number in range(len(sentences)):
            firsts: dict[int, int] = {}
            for token, word in enumerate(encoded.word_ids(number)):
                if word is not None:
                    firsts.setdefault(word, token)
            places.append([(token, word) for word, token in firsts.items()])
        return encoded, places


def _sentences(path: Path) -> list[tuple[list[str], list[str]]]:
    blocks = path.read_text(encoding="utf-8").strip().split("\n\n")
    rows = [[line.split() for line in block.split("\n")] for block in blocks]
    return [([fields[0] for fields in block], [fields[-1] for fields in block]) for block in rows]
