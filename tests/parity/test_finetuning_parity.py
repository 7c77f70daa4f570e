"""Fine-tuning compared with transformers step by step: equal numbers for equal batches without dropout."""

import numpy as np
import pytest
import torch

from maskloom.checkpoints.huggingface import load_model, read_config, save_model
from maskloom.system.files import write_json
from maskloom.tasks.encoding import encode_examples
from maskloom.tasks.examples import Example
from maskloom.tasks.kinds import make_task
from maskloom.text.tokenizer import Tokenizer
from maskloom.training.loop import train_steps
from maskloom.training.settings import FinetuneTraining
from maskloom.training.state import TrainState

pytestmark = pytest.mark.parity

NUM_STEPS, BATCH_SIZE = 4, 4
TEXTS = [
    ("The movie was a delight from start to end.", "I enjoyed every minute."),
    ("A dull, overlong film.", "It moves quickly and never bores."),
    ("Prices rose by 3.5% in May.", "In May, prices went up."),
    ("No one was hurt.", "Three people were hurt in the accident near the old bridge on Sunday morning."),
] * NUM_STEPS


DRAW = np.random.default_rng(0)
LABELS = {
    "pair": DRAW.integers(0, 2, len(TEXTS)),
    "multilabel": DRAW.integers(0, 2, (len(TEXTS), 5)).astype(np.float32),
    "regression": DRAW.uniform(0, 5, len(TEXTS)).astype(np.float32),
}
OUTPUTS = {"pair": 2, "multilabel": 5, "regression": 1}
PROBLEMS = {"pair": "single_label", "multilabel": "multi_label", "regression": "regression"}


def both(minilm_folder, folder, kind):
    """Return our model, theirs with the same weights (classifier included) and no dropout, and their tokenizer."""
    transformers = pytest.importorskip("transformers")
    start, _ = load_model(minilm_folder, heads=("classifier",), num_labels=OUTPUTS[kind], seed=1)
    names = [str(number) for number in range(OUTPUTS[kind])]
    save_model(start, folder, extra_config={"id2label": dict(zip(names, names, strict=True))})
    Tokenizer.load(minilm_folder).save(folder)
    config = read_config(folder)
    config["problem_type"] = PROBLEMS[kind] + ("" if kind == "regression" else "_classification")
    write_json(folder / "config.json", {**config, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})
    oracle = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    return load_model(folder)[0], oracle, transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind != "pair" else []) for kind in LABELS]
)
def test_losses_and_weights_agree_at_every_step(minilm_folder, tmp_path, kind):
    from transformers import get_linear_schedule_with_warmup

    model, oracle, tokenizer = both(minilm_folder, tmp_path, kind)
    labels = LABELS[kind]
    settings = FinetuneTraining(
        steps=NUM_STEPS, batch_size=BATCH_SIZE, learning_rate=1e-4, warmup_steps=2, weight_decay=0.05, max_grad_norm=0.5
    ).with_steps(len(TEXTS))
    examples = [Example(text, pair, None, line) for line, (text, pair) in enumerate(TEXTS, start=1)]
    data = encode_examples(examples, Tokenizer.load(tokenizer.name_or_path), max_length=48, labels=labels)

    def next_batch(position):
        number = position.get("batch", 0)
        return data.batch(np.arange(number * BATCH_SIZE, (number + 1) * BATCH_SIZE)), {"batch": number + 1}

    names = () if kind == "regression" else tuple(map(str, range(OUTPUTS[kind])))
    state = TrainState.fresh(model, settings)
    reports = list(train_steps(state, make_task(kind, names).objective, next_batch, settings=settings, seed=0))

    exempt = ("bias", "LayerNorm")
    named = list(oracle.named_parameters())
    groups = [
        {"params": [p for name, p in named if not any(mark in name for mark in exempt)], "weight_decay": 0.05},
        {"params": [p for name, p in named if any(mark in name for mark in exempt)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, eps=settings.adam_epsilon)
    schedule = get_linear_schedule_with_warmup(optimizer, 2, NUM_STEPS)
    oracle.train()
    for step, report in enumerate(reports):
        chosen = slice(step * BATCH_SIZE, (step + 1) * BATCH_SIZE)
        texts, pairs = zip(*TEXTS[chosen], strict=True)
        batch = tokenizer(list(texts), list(pairs), padding=True, return_tensors="pt")
        loss = oracle(**batch, labels=torch.from_numpy(labels[chosen])).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(oracle.parameters(), 0.5)
        assert report.learning_rate == pytest.approx(schedule.get_last_lr()[0], rel=1e-6)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        assert report.loss == pytest.approx(float(loss.detach()), abs=2e-5)
        assert report.gradient_norm == pytest.approx(float(norm), rel=2e-3)
    oracle.eval()
    model.eval()
    with torch.no_grad():
        batch = tokenizer("What they learned", "must be the same.", return_tensors="pt")
        ids, segments = batch["input_ids"], batch["token_type_ids"]
        found = model.heads["classifier"](model.encoder(ids, segments).pooled)
        torch.testing.assert_close(found, oracle(**batch).logits, atol=2e-4, rtol=0)
