"""The transformers side of texts and text pairs: one label, a score, or several labels, following run_glue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from finetuning_peer import Features, PeerKind

NUM_EMOTIONS = 28
_PROBLEMS = {
    "single": "single_label_classification",
    "regression": "regression",
    "multilabel": "multi_label_classification",
}


class TextPeer(PeerKind):
    """BertForSequenceClassification."""

    def new_model(self, folder: Path, train: Path) -> Any:
        """Return the encoder of a folder with a newly initialised classifier."""
        from transformers import BertForSequenceClassification

        numbers = {"single": len(self.task.labels), "regression": 1, "multilabel": NUM_EMOTIONS}
        return BertForSequenceClassification.from_pretrained(
            folder, num_labels=numbers[self.task.kind], problem_type=_PROBLEMS[self.task.kind]
        )

    def saved_model(self, folder: Path) -> Any:
        """Return a fine-tuned classifier."""
        from transformers import AutoModelForSequenceClassification

        return AutoModelForSequenceClassification.from_pretrained(folder)

    def training_features(self, path: Path) -> Features:
        """Return the tokens and the label of each row."""
        rows = self._rows(path)
        texts, pairs = [row[0] for row in rows], None if rows[0][1] is None else [row[1] for row in rows]
        encoded = self.tokenizer(texts, pairs, truncation=True, max_length=self.max_length)
        keys = ("input_ids", "token_type_ids", "attention_mask")
        return [{**{key: encoded[key][i] for key in keys}, "labels": row[2]} for i, row in enumerate(rows)]

    def score(self, model: Any, path: Path) -> dict[str, float]:
        """Return the scores for this kind of label, computed by scikit-learn and scipy."""
        features = self.training_features(path)
        logits = torch.cat([part for (part,) in self.outputs(model, features, ("logits",))])
        targets = [row["labels"] for row in features]
        scorer = {"single": _class_scores, "regression": _correlations, "multilabel": _label_scores}
        return scorer[self.task.kind](logits, targets)

    def _rows(self, path: Path) -> list[tuple[str, str | None, Any]]:
        rows = []
        for line in path.read_text(encoding="utf-8").split("\n")[1 if self.task.has_header else 0 :]:
            if line:
                fields = line.split("\t")
                texts = [fields[column] for column in self.task.columns]
                pair = texts[1] if len(texts) == 2 else None
                rows.append((texts[0], pair, self._label(fields[self.task.label_column])))
        return rows

    def _label(self, text: str) -> Any:
        if self.task.kind == "regression":
            return float(text)
        if self.task.kind == "multilabel":
            chosen = {int(number) for number in text.split(",")}
            return [float(number in chosen) for number in range(NUM_EMOTIONS)]
        return self.task.labels.index(text)


def _class_scores(logits: torch.Tensor, targets: list[int]) -> dict[str, float]:
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    predictions = logits.argmax(-1).tolist()
    return {
        "accuracy": float(accuracy_score(targets, predictions)),
        "f1": float(f1_score(targets, predictions, zero_division=0)),
        "matthews": float(matthews_corrcoef(targets, predictions)),
    }


def _correlations(logits: torch.Tensor, targets: list[float]) -> dict[str, float]:
    from scipy.stats import pearsonr, spearmanr

    scores = logits[:, 0].tolist()
    return {"pearson": float(pearsonr(scores, targets)[0]), "spearman": float(spearmanr(scores, targets)[0])}


def _label_scores(logits: torch.Tensor, targets: list[list[float]]) -> dict[str, float]:
    from sklearn.metrics import accuracy_score, f1_score

    chosen = (logits.sigmoid() >= 0.5).int().numpy()
    truth = torch.tensor(targets).int().numpy()
    return {
        "f1_micro": float(f1_score(truth, chosen, average="micro", zero_division=0)),
        "f1_macro": float(f1_score(truth, chosen, average="macro", zero_division=0)),
        "exact_match": float(accuracy_score(truth, chosen)),
    }
