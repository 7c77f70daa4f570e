"""Batches of fine-tuning that cannot fit into memory."""

import pytest
from tests.fine_tuning import finetune

from maskloom.errors import ConfigError
from maskloom.training.faults import memory
from tools.golden_losses import finetuning, names

KINDS = [name.partition("/")[2] for name in names() if name.startswith("finetune/") and "features" not in name]


def of_batch(recipe, **values):
    return recipe.model_copy(update={"training": recipe.training.model_copy(update={"steps": 2, **values})})


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_beyond_memory_is_refused_before_anything_is_written(kind, tmp_path, monkeypatch):
    """Regression: only pre-training refused it; fine-tuning filled the memory, until the system ended the process."""
    recipe, files = finetuning(kind, tmp_path)
    free, out = [20_000], tmp_path / "run"
    whole = of_batch(recipe, batch_size=1_000_000, micro_batch_size=None)
    monkeypatch.setattr(memory, "available_memory", lambda: free[0])
    told = r"training: a batch of [\d,]+ sequences, about [\d,]+ tokens, takes about [\d.]+ GiB of memory, but 0\.0 are"
    with pytest.raises(ConfigError, match=f"{told} available; set "):
        finetune(whole, out=out, **files)
    free[0] = 1
    with pytest.raises(ConfigError, match=f"{told} available; set a smaller batch size"):
        finetune(of_batch(recipe, batch_size=1_000_000, micro_batch_size="auto"), out=out, **files)
    assert not out.exists()
    free[0] = 1 << 40
    finetune(of_batch(recipe, batch_size=4), out=out, **files)
    free[0] = 1
    finetune(of_batch(recipe, batch_size=4), out=out, resume=True, **files)  # whose recipe may not change


def test_a_batch_that_only_looks_too_large_is_not_refused(tmp_path, monkeypatch):
    recipe, files = finetuning("single", tmp_path)
    kept, keep = [], memory.kept_bytes

    def kept_bytes(*given):
        kept.append(keep(*given))
        return kept[-1]

    monkeypatch.setattr(memory, "kept_bytes", kept_bytes)
    monkeypatch.setattr(memory, "_MOST_KEPT", 10**9)
    monkeypatch.setattr(memory, "available_memory", lambda: 50_000_000)
    finetune(of_batch(recipe, batch_size=4, micro_batch_size=None), out=tmp_path / "run", **files)
    assert kept
