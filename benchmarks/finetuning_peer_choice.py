"""The transformers side of multiple choice, following run_swag."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from finetuning_peer import Features, PeerKind

_KEYS = ("input_ids", "token_type_ids", "attention_mask")


class ChoicePeer(PeerKind):
    """BertForMultipleChoice: each ending is paired with the context and scored separately."""

    def new_model(self, folder: Path, train: Path) -> Any:
        """Return the encoder of a folder with a newly initialised layer of one output."""
        from transformers import BertForMultipleChoice

        return BertForMultipleChoice.from_pretrained(folder)

    def saved_model(self, folder: Path) -> Any:
        """Return a fine-tuned model."""
        from transformers import AutoModelForMultipleChoice

        return AutoModelForMultipleChoice.from_pretrained(folder)

    def training_features(self, path: Path) -> Features:
        """Return, for each row, its label and a list with one entry per ending under every key."""
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        firsts = [row["ctx"] for row in rows for _ in row["endings"]]
        seconds = [ending for row in rows for ending in row["endings"]]
        encoded = self.tokenizer(firsts, seconds, truncation=True, max_length=self.max_length)
        features, place = [], 0
        for row in rows:
            end = place + len(row["endings"])
            features.append({**{key: encoded[key][place:end] for key in _KEYS}, "labels": row["label"]})
            place = end
        return features

    def collate(self, rows: Features) -> dict[str, torch.Tensor]:
        """Pad to (rows, endings, tokens)."""
        num_endings = len(rows[0]["input_ids"])
        flat = [{key: row[key][ending] for key in _KEYS} for row in rows for ending in range(num_endings)]
        padded = self.tokenizer.pad(flat, return_tensors="pt")
        batch = {key: value.view(len(rows), num_endings, -1) for key, value in padded.items()}
        if "labels" in rows[0]:
            batch["labels"] = torch.tensor([row["labels"] for row in rows])
        return batch

    def score(self, model: Any, path: Path) -> dict[str, float]:
        """Return the share of rows whose correct ending scores highest."""
        features = self.training_features(path)
        logits = torch.cat([part for (part,) in self.outputs(model, features, ("logits",))])
        targets = torch.tensor([row["labels"] for row in features])
        return {"accuracy": float((logits.argmax(-1) == targets).float().mean())}
