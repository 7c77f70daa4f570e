"""Model folders from a run's checkpoints, to use a run that was ended early or to inspect one while it trains."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from maskloom.checkpoints.huggingface import CONFIG, load_model, read_config, read_model_config, stored_heads
from maskloom.checkpoints.published.sentence_transformers import PoolingMode, SentenceModules, write_modules
from maskloom.config import FinetuneRecipe, PretrainRecipe
from maskloom.errors import ConfigError, DataError
from maskloom.inference.model_folder import (
    WORD_VECTORS,
    load_tokenizer,
    read_settings,
    tokenizer_read,
    with_word_vectors,
)
from maskloom.models.architectures import architecture_of
from maskloom.models.assembled import EncoderWithHeads, build_model
from maskloom.models.bart_config import BartConfig, MarianConfig
from maskloom.models.heads import HEADS
from maskloom.models.model_config import ModelConfig
from maskloom.recipe_files import load_recipe
from maskloom.runs.finetune_restarts import heads_of as task_heads
from maskloom.runs.finetune_restarts import start_of
from maskloom.runs.model_writing import check_new_folder, filled, finetuning_card, pretraining_card, write_model_folder
from maskloom.runs.pretrain import logged_metrics, start_config
from maskloom.runs.pretraining_plan import heads_of
from maskloom.runs.run_folder import METRICS, RECIPE, TASK, described_model, kind_of_run, run_id
from maskloom.system.files import copy_files, numbered_folders, replacing_folder, write_bytes
from maskloom.system.foreign_files import read_json_object
from maskloom.tasks.kinds import make_task
from maskloom.text.byte_pair_tokenizer import BytePairTokenizer
from maskloom.text.tokenizer import Tokenizer
from maskloom.training.checkpointing.checkpoints import check_checkpoint, step_folders, step_of


def export(run: Path, out: Path, *, step: int | None = None, stage: str | None = None) -> dict[str, Any]:
    """Write a model folder from a run's checkpoint, and return its step and its scores.

    By default the newest complete checkpoint is exported, or the model of a finished fine-tuning run or search, or of a
    run without checkpoints. `step` selects another one, `stage` a phase of pre-training ("phase-1") or a seed of
    fine-tuning ("seed-0"). The run may be training meanwhile. Raises ConfigError for other folders of several runs, and
    for a checkpoint that does not exist; DataError for damaged ones, and if the vocabulary or base model is gone.
    """
    check_new_folder(out)
    is_default = step is None and stage is None
    if (run / CONFIG).exists() and not (run / RECIPE).exists() and is_default:
        return _copy_of(run, out)
    content = described_model(run)
    kind, found = kind_of_run(content), _stages(run)
    if kind in ("search", "glue"):
        if kind == "search" and is_default and (run / "model" / CONFIG).exists():
            return _copy_of(run / "model", out)
        raise ConfigError(f"{run} contains several runs; export one of them")
    recipe = load_recipe(PretrainRecipe if kind == "pretrain" else FinetuneRecipe, run / RECIPE)
    has_model = is_default and (run / "model" / CONFIG).exists()
    is_finished = kind == "finetune" and is_default and (run / METRICS).exists()
    if has_model and is_finished:
        return _copy_of(run / "model", out)
    chosen, refused = _chosen(run, found, step, stage)
    if chosen is None or is_finished:
        if has_model:
            return _copy_of(run / "model", out)
        steps = {name: sorted(map(step_of, step_folders(folder))) for name, folder in found.items()}
        held = "; ".join(f"{name}: steps {', '.join(map(str, numbers))}" for name, numbers in steps.items() if numbers)
        asked = [f"stage {stage!r}"] if stage is not None else []
        asked += [f"step {step}"] if step is not None else []
        raise ConfigError(f"{run}: no checkpoint of {', '.join(asked) or 'any step'}; available: {held or 'none yet'}")
    stage, checkpoint = chosen
    step = step_of(checkpoint)
    scores = logged_metrics(run, "evaluation", stage, step) or {}
    if isinstance(recipe, PretrainRecipe):
        _export_pretraining(checkpoint, out, recipe, content, scores)
    else:
        _export_finetuning(checkpoint, run, out, recipe, content, scores)
    return {"stage": stage, "step": step, "scores": scores, "skipped": refused, "model": str(out)}


def describe_vectors(folder: Path, pooling: PoolingMode, *, normalize: bool = False) -> None:
    """Write into a model folder how to compute its vectors, for sentence-transformers and for `maskloom embed`.

    Texts are truncated where fine-tuning truncated them, else at the model's maximum length. Raises ConfigError for an
    unknown pooling, and for a model with which sentence-transformers cannot compute the same vectors.
    """
    _refuse_other_vectors(folder, pooling)
    model, limit = read_model_config(folder), load_tokenizer(folder).max_length
    longest = min(limit, model.max_position_embeddings, read_settings(folder).get("max_length", limit))
    write_modules(folder, hidden_size=model.hidden_size, max_length=longest, pooling=pooling, normalize=normalize)


def _refuse_other_vectors(folder: Path, pooling: PoolingMode) -> None:
    kind, config = str(read_config(folder).get("model_type")), read_model_config(folder)
    SentenceModules().changed(pooling, None, config)
    if kind.startswith("maskloom"):
        reason = f"sentence-transformers cannot open a model of type {kind!r}"
    elif isinstance(config, MarianConfig):
        reason = "sentence-transformers cannot compute vectors with a Marian"
    elif isinstance(config, BartConfig) and "decoder" in stored_heads(folder):
        reason = "sentence-transformers pools the states of a BART's decoder, maskloom those of its encoder"
    elif (special := (tokenizer := load_tokenizer(folder)).vocabulary.special).pad is None:
        reason = "sentence-transformers needs a padding token, which this vocabulary lacks"
    elif isinstance(tokenizer, BytePairTokenizer) and special.classify not in (None, special.begin):
        reason = f"sentence-transformers reads a text without {special.begin} and {special.classify} around it"
    else:
        return
    raise ConfigError(f"{folder}: {reason}; for its vectors, use `maskloom embed --pooling {pooling}`")


def _stages(run: Path) -> dict[str, Path]:
    """Return the folders of checkpoints by phase of pre-training or seed of fine-tuning, latest first."""
    phases, seeds = numbered_folders(run / "checkpoints", "phase"), numbered_folders(run / "restarts", "seed")
    return {path.name: path if path in phases else path / "checkpoints" for path in reversed([*seeds, *phases])}


def _chosen(
    run: Path, found: dict[str, Path], step: int | None, stage: str | None
) -> tuple[tuple[str, Path] | None, list[str]]:
    """Return stage and folder of the newest complete checkpoint that was asked for, and why newer ones are skipped."""
    refused = []
    for name, folder in found.items():
        for path in step_folders(folder) if stage in (None, name) else []:
            if step not in (None, step_of(path)):
                continue
            try:
                check_checkpoint(path, run=run_id(run, name))
            except DataError as problem:
                refused.append(str(problem))
            else:
                return (name, path), refused
    if refused:
        raise DataError(f"no checkpoint can be used: {'; '.join(refused)}")
    return None, refused


def _copy_of(model: Path, out: Path) -> dict[str, Any]:
    with replacing_folder(out) as folder:
        copy_files(model, folder)
    return {"stage": "finished", "step": None, "scores": {}, "skipped": [], "model": str(out)}


def _export_pretraining(
    checkpoint: Path, out: Path, recipe: PretrainRecipe, content: dict[str, Any], scores: dict[str, float]
) -> None:
    corpus, init = (_place(content, name) for name in ("corpus", "init"))
    assert corpus is not None
    tokenizer = Tokenizer.load(corpus)
    config = start_config(recipe, tokenizer, init)
    model = filled(build_model(config, heads_of(recipe, config)), checkpoint)
    more = f"Step {step_of(checkpoint)} of {checkpoint.parent.name}."
    card = pretraining_card(recipe, scores, init, more, config=config)
    write_model_folder(out, model, tokenizer_read(config, tokenizer), card)


def _export_finetuning(
    checkpoint: Path, run: Path, out: Path, recipe: FinetuneRecipe, content: dict[str, Any], scores: dict[str, float]
) -> None:
    settings, source = read_json_object(run / TASK), _place(content, "model")
    assert source is not None
    if (run / "model" / WORD_VECTORS).exists():  # the run's own copy: the original may be gone or changed
        settings["settings"] = with_word_vectors(settings["settings"], run / "model")
    task = make_task(settings["kind"], settings["labels"], primary=settings["primary"], settings=settings["settings"])
    tokenizer, config = start_of(recipe, source, _place(content, "source_vocab"))
    num_tokens = len(tokenizer.of_targets.vocabulary)
    config = config.model_copy(update={"vocab_size": max(config.vocab_size, num_tokens)})
    heads = task_heads(recipe, task, config)
    model = filled(build_model(config, heads, task.num_outputs, head_options=task.head_options), checkpoint)
    what = f"{checkpoint.parent.parent.name.replace('-', ' ')}, step {step_of(checkpoint)}"
    card = finetuning_card(recipe, what=what, scores=scores, base=source, dev=content["paths"]["dev"], config=config)
    write_model_folder(out, model, tokenizer, card, extra_config=task.published_config, settings=settings)


def _place(content: dict[str, Any], name: str) -> Path | None:
    """Return the folder of one of a run's inputs, or None if it had none; raises DataError if the folder is gone."""
    place = content["paths"].get(name)
    if place is None:
        return None
    if not Path(place).is_dir():
        raise DataError(f"{place}: the run's {name} no longer exists; the export needs its vocabulary or configuration")
    return Path(place)


ONNX_FILE = "model.onnx"


def check_exportable(run: Path, pooling: PoolingMode | None, *, onnx: bool) -> None:
    """Raise ConfigError if the vectors or the ONNX graph of a model, or of a run's finished model, cannot be written.

    What is refused only later is what the weights show, and the model of a run that has none yet.
    """
    for folder in (run, run / "model"):
        if pooling is not None and (folder / CONFIG).exists():
            _refuse_other_vectors(folder, pooling)
        if onnx and (folder / CONFIG).exists():
            _refuse_decoder(read_model_config(folder), folder)


def _refuse_decoder(config: ModelConfig, folder: Path) -> None:
    if (row := architecture_of(config)).has_decoder or row.reads_spelling:
        raise ConfigError(f"{folder}: the architecture {row.name} cannot be exported to ONNX")


def write_onnx(folder: Path) -> list[str]:
    """Write `model.onnx` into a model folder, in fp32 for any batch size and length, and return its output names.

    Inputs are input_ids, attention_mask and token_type_ids, int64 (batch, length). Outputs are last_hidden_state,
    pooler_output if the folder has a pooler, and one per head: `logits` for a task head, `mlm`, `lm` and `nsp` after
    pre-training. The logits of a tagger with a conditional random field are its emissions; its transitions stay in
    model.safetensors. Raises ConfigError for BiLSTMs, models of documents and architectures that have a decoder or read
    words by their characters.
    """
    model, report = load_model(folder)
    _refuse_decoder(model.config, folder)
    if "bilstm_tagger" in model.heads or model.encoder.top is not None:
        raise ConfigError(f"{folder}: a BiLSTM cannot be exported to ONNX")
    if "document" in model.heads:
        raise ConfigError(f"{folder}: a model of documents cannot be exported to ONNX")
    graph = _Graph(model.eval(), has_pooler=not any("pooler" in name for name in report.new_parameters))
    # two rows of different lengths, so that the exporter takes no size for a constant
    ids, mask = torch.zeros(2, 7, dtype=torch.int64), torch.ones(2, 7, dtype=torch.int64)
    mask[1, 4:] = 0
    longest = model.config.max_position_embeddings
    sizes = {0: torch.export.Dim("batch", min=1, max=2**20), 1: torch.export.Dim("length", min=1, max=longest)}
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    with warnings.catch_warnings():
        # torch warns of its own internals, and that torchvision is absent
        warnings.simplefilter("ignore")
        exporter.setLevel(logging.ERROR)
        try:
            program = torch.onnx.export(
                graph,
                (ids, mask, torch.zeros_like(ids)),
                dynamo=True,
                dynamic_shapes=(dict(sizes), dict(sizes), dict(sizes)),
                input_names=["input_ids", "attention_mask", "token_type_ids"],
                output_names=graph.names,
                verbose=False,
            )
        finally:
            exporter.setLevel(level)
    assert program is not None
    write_bytes(folder / ONNX_FILE, program.model_proto.SerializeToString())
    return graph.names


class _Graph(nn.Module):
    """A model as a function of padded ids, with a fixed order of outputs."""

    def __init__(self, model: EncoderWithHeads, *, has_pooler: bool) -> None:
        super().__init__()
        self.model, self.has_pooler = model, has_pooler
        pretraining = {"mlm", "lm", "nsp"}
        self.heads = [name for name in model.heads if HEADS[name].reads in ("pooled", "tokens")]
        self.names = ["last_hidden_state", *(["pooler_output"] if has_pooler else [])]
        self.names += [name if name in pretraining else "logits" for name in self.heads]

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        """Return the encoder's outputs and each head's."""
        output = self.model.encoder(input_ids, token_type_ids, attention_mask)
        read = {"pooled": output.pooled, "tokens": output.last_hidden_state}
        outputs = (self.model.heads[name](read[HEADS[name].reads]) for name in self.heads)
        return output.last_hidden_state, *([output.pooled] if self.has_pooler else []), *outputs
