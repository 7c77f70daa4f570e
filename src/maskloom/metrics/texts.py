"""Scores of texts against references: exact match, BLEU, chrF and ROUGE, by sacrebleu and rouge-score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain, zip_longest
from statistics import fmean
from typing import Any

from maskloom.errors import ConfigError
from maskloom.metrics.metric import checked_primary

TEXT_SCORES = ("bleu", "chrf", "exact_match", "rouge1", "rouge2", "rougeL")
_INSTALL = "pip install 'maskloom[seq2seq]'"


class TextMetric:
    """BLEU (Papineni et al. 2002), chrF (Popović 2015), exact match, and ROUGE (Lin 2004), in percent.

    BLEU and chrF are sacrebleu's with default settings on unmodified texts; `signatures` describe them. ROUGE is the
    mean F of rouge-score, with stemming; it is omitted if that package is missing and ROUGE is not the primary score.
    With several references per text, BLEU and chrF use all, as in sacrebleu; the others use the best. Raises
    ConfigError for a missing library.
    """

    def __init__(self, primary: str = "bleu") -> None:
        self.primary = checked_primary(primary, TEXT_SCORES, "texts")
        self._found: list[str] = []
        self._references: list[tuple[str, ...]] = []
        try:
            from sacrebleu.metrics.bleu import BLEU
            from sacrebleu.metrics.chrf import CHRF
        except ImportError:
            raise ConfigError(f"scoring texts needs the package sacrebleu: {_INSTALL}") from None
        self._bleu, self._chrf = BLEU(force=True), CHRF()  # `force`: score texts that look tokenised, too
        self._rouge: Any = None
        try:
            from rouge_score.rouge_scorer import RougeScorer
        except ImportError:
            if primary.startswith("rouge"):
                raise ConfigError(f"ROUGE needs the package rouge-score: {_INSTALL}") from None
        else:
            self._rouge = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)

    def update(self, predictions: Sequence[str], targets: Sequence[str | Sequence[str]]) -> None:
        """Add generated texts, and the reference or references of each; raises ValueError for unequal numbers."""
        if len(predictions) != len(targets):
            raise ValueError(f"texts: {len(predictions)} predictions, {len(targets)} references")
        self._found += predictions
        self._references += [(each,) if isinstance(each, str) else tuple(each) for each in targets]

    def compute(self) -> dict[str, float]:
        """Return all scores of the texts so far. Raises ValueError if there are none."""
        if not self._found:
            raise ValueError("texts: nothing to score")
        pairs = list(zip(self._found, self._references, strict=True))
        columns: list[Any] = [*zip_longest(*self._references)]  # None if a text has fewer
        scores = {
            "bleu": float(self._bleu.corpus_score(self._found, columns).score),
            "chrf": float(self._chrf.corpus_score(self._found, columns).score),
            "exact_match": 100.0 * sum(text in references for text, references in pairs) / len(pairs),
        }
        if self._rouge is not None:
            found = [self._rouge.score_multi(references, text) for text, references in pairs]
            scores |= {name: 100.0 * fmean(one[name].fmeasure for one in found) for name in found[0]}
        return scores

    def signatures(self) -> dict[str, str]:
        """Return sacrebleu's descriptions of how its scores were computed."""
        return {"bleu": str(self._bleu.get_signature()), "chrf": str(self._chrf.get_signature())}

    def reference(self) -> float | None:
        """Return the exact match of always giving the most common reference, or None for other primary scores."""
        if self.primary != "exact_match" or not self._references:
            return None
        counts = Counter(chain.from_iterable(map(set, self._references)))
        return 100.0 * max(counts.values()) / len(self._references)

    def degeneracy(self) -> str | None:
        """Report that all texts are the same although the references differ, or return None."""
        if len(self._found) > 1 and len(set(self._found)) == 1 and len(set(self._references)) > 1:
            return f"every text is {self._found[0]!r:.60}"
        return None
