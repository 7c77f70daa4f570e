"""Every key of [seq2seq] takes effect: on the task built from a recipe, on the generated texts, and on truncation."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from maskloom.config import FinetuneRecipe, validate_recipe
from maskloom.data.batch import SourceTargetBatch
from maskloom.models.assembled import build_model
from maskloom.models.transformer_config import TransformerConfig
from maskloom.tasks.kinds import KINDS
from maskloom.tasks.tables import ReadingOptions
from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

KIND = KINDS["seq2seq"]
END = 2


def task_of(**section):
    recipe = validate_recipe(FinetuneRecipe, {"task": "seq2seq", "seq2seq": section}, source="test")
    return KIND.make((), None, recipe.task_settings(KIND.settings))


def values_of(task):
    return {"label_smoothing": task.objective.label_smoothing, **asdict(task.objective.generation)}


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("label_smoothing", 0.3, "label_smoothing"),
        ("beam", 7, "beam"),
        ("length_penalty", 1.5, "length_penalty"),
        ("min_tokens", 9, "min_tokens"),
        ("no_repeat_ngram", 3, "no_repeat_ngram"),
        ("max_target_length", 11, "max_tokens"),
    ],
)
def test_a_key_changes_its_own_part_of_a_task(key, value, name):
    default, changed = values_of(task_of()), values_of(task_of(**{key: value}))
    assert default[name] != value
    assert changed == {**default, name: value}


@pytest.fixture(scope="module")
def found():
    """A function that decodes a few sources with large random weights, into lists of tokens without an end."""
    model = build_model(
        TransformerConfig(
            vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=20
        ),
        ("decoder",),
        seed=0,
    ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "word" not in name:  # so that texts end, some of them early
                parameter.mul_(4.0)
    draw, lengths = np.random.default_rng(0), np.full(40, 5)
    ids, marks = draw.integers(4, 20, lengths.sum()), np.tile([1, END], (len(lengths), 1))
    nothing = np.zeros(0, np.int64)
    batch = SourceTargetBatch(ids, ids * 0, lengths, nothing, lengths * 0, None, np.arange(len(lengths)), marks)

    def search(**section):
        outputs = task_of(**{"beam": 1, "max_target_length": 30, "length_penalty": 0.0, **section})
        outputs = outputs.objective.outputs(model, batch)
        tokens = outputs.rows[:, 0].long().tolist()
        ends = np.cumsum(outputs.counts)
        return [tokens[end - count : end - 1] for count, end in zip(outputs.counts, ends, strict=True)]

    return search


def test_a_key_changes_what_is_found(found):
    plain = found()
    lengths = [*map(len, plain)]
    assert min(lengths) < 4
    assert max(lengths) == 30
    assert min(map(len, found(min_tokens=4))) == 4
    assert max(map(len, found(max_target_length=6))) == 6
    assert any(len(set(text)) < len(text) for text in plain)
    assert all(len(set(text)) == len(text) for text in found(no_repeat_ngram=1))
    beams = found(beam=4)
    assert beams != plain
    assert sum(map(len, found(beam=4, length_penalty=3.0))) > sum(map(len, beams))


@pytest.mark.parametrize(
    ("limit", "lengths", "cut"), [(6, [4, 6, 6], (1, 2)), (5, [4, 5, 5], (2, 4)), (9, [4, 6, 8], (0, 0))]
)
def test_targets_beyond_their_limit_are_cut_counted_and_noted(limit, lengths, cut, tmp_path):
    words = ["ein", "Hund", "rennt", "sehr", "schnell", "weg"]
    path = tmp_path / "train.tsv"
    path.write_text(
        "source\ttarget\n" + "".join(f"{words[number - 2]}\t{' '.join(words[:number])}\n" for number in (2, 4, 6)),
        encoding="utf-8",
    )
    tokenizer = WordPieceTokenizer(Vocabulary([*SPECIAL_TOKENS, *words]), max_length=32, lowercase=False)
    data = KIND.read(path, ReadingOptions())
    encoded = task_of(max_target_length=limit).encode(data, tokenizer, 16)
    assert encoded.targets.lengths.tolist() == lengths  # including their marks
    last = encoded.targets.token_ids[encoded.targets.offsets[1:] - 1]
    assert set(last.tolist()) == {tokenizer.vocabulary.sep_id}  # a truncated target still has its end
    account, (examples, tokens) = encoded.account(), cut
    assert (account["num_truncated_targets"], account["num_truncated_target_tokens"]) == (examples, tokens)
    note = f"train.tsv: {examples} of 3 examples exceed {limit} tokens and lose {tokens} tokens (targets)"
    assert encoded.notes(Path("train.tsv")) == ([note] if examples else [])
    assert encoded.texts == [(example.label,) for example in data.examples]  # references for scoring are not truncated
