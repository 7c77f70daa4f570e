"""GPT compared with transformers: both layouts, every head, weights in both directions, and continuations."""

import json

import pytest
import torch
import transformers
from tests.moved_weights import moved
from tests.unused_tensors import unused_tensors

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.generation.search import Generation, continue_texts
from maskloom.models.assembled import build_model
from maskloom.models.gpt_config import GptConfig

pytestmark = pytest.mark.parity

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9], [10]]


@pytest.fixture(params=[False, True], ids=["openai-gpt", "gpt2"])
def pre_norm(request):
    return request.param


def our_model(pre_norm, *heads, initializer_range=0.3):
    config = GptConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=40,
        pre_norm=pre_norm,
        pad_token_id=0,
        initializer_range=initializer_range,
    )
    return build_model(config, heads, num_labels=3, seed=1).eval()


def peer_of(folder, pre_norm, name):
    return getattr(transformers, f"{'GPT2' if pre_norm else 'OpenAIGPT'}{name}").from_pretrained(folder).eval()


def padded(lengths=(20, 7, 1)):
    ids = torch.randint(1, 99, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.where(mask, ids, 0), mask


@torch.no_grad()
def test_every_layer_and_the_logits(pre_norm, tmp_path):
    model = our_model(pre_norm, "lm")
    save_model(model, tmp_path)
    peer = peer_of(tmp_path, pre_norm, "LMHeadModel")
    ids, mask = padded()
    expected = peer(ids, attention_mask=mask.long(), output_hidden_states=True)
    output = model.encoder(ids, attention_mask=mask, keep_hidden_states=True)
    for ours, theirs in zip(output.hidden_states, expected.hidden_states, strict=True):
        assert (ours - theirs)[mask].abs().max() < 1e-5
    logits = model.heads["lm"](output.last_hidden_state)
    assert (logits - expected.logits)[mask].abs().max() < 1e-5


@torch.no_grad()
def test_a_classifier_reads_the_last_token(pre_norm, tmp_path):
    model = our_model(pre_norm, "lm", "classifier")
    save_model(model, tmp_path)
    ids, mask = padded()
    expected = peer_of(tmp_path, pre_norm, "ForSequenceClassification")(ids, attention_mask=mask.long()).logits
    assert (model.heads["classifier"](model.encoder(ids, attention_mask=mask).pooled) - expected).abs().max() < 1e-5


@torch.no_grad()
def test_choices_are_scored_beside_the_language_model(pre_norm, tmp_path):
    model = our_model(pre_norm, "lm", "choice")
    save_model(model, tmp_path)
    peer = peer_of(tmp_path, pre_norm, "DoubleHeadsModel")
    ids, mask = padded((20, 7))
    found = peer(ids[None], mc_token_ids=mask.sum(1)[None] - 1)  # right padding, which no token attends to
    output = model.encoder(ids, attention_mask=mask)
    assert (model.heads["choice"](output.pooled).T - found.mc_logits).abs().max() < 1e-5
    assert (model.heads["lm"](output.last_hidden_state) - found.logits[0])[mask].abs().max() < 1e-5


@torch.no_grad()
def test_biases_and_norms_are_those_of_their_layers(pre_norm, tmp_path):
    model = moved(our_model(pre_norm, "lm", "choice", initializer_range=0.1))
    save_model(model, tmp_path)
    ids, mask = padded((20, 7))
    found = peer_of(tmp_path, pre_norm, "DoubleHeadsModel")(ids[None], mc_token_ids=mask.sum(1)[None] - 1)
    output = model.encoder(ids, attention_mask=mask)
    assert (model.heads["choice"](output.pooled).T - found.mc_logits).abs().max() < 1e-5
    assert (model.heads["lm"](output.last_hidden_state) - found.logits[0])[mask].abs().max() < 1e-5


@pytest.mark.parametrize(("head", "name"), [("tagger", "ForTokenClassification"), ("span", "ForQuestionAnswering")])
@torch.no_grad()
def test_heads_on_tokens(head, name, tmp_path):
    """Only for GPT-2's layout: transformers has no such classes for the first GPT."""
    model = our_model(True, head)
    save_model(model, tmp_path)
    peer, report = getattr(transformers, f"GPT2{name}").from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    ids, mask = padded()
    found = peer.eval()(ids, attention_mask=mask.long())
    expected = found.logits if head == "tagger" else torch.stack([found.start_logits, found.end_logits], dim=-1)
    logits = model.heads[head](model.encoder(ids, attention_mask=mask).last_hidden_state)
    assert (logits - expected)[mask].abs().max() < 1e-5


@pytest.mark.parametrize("head", ["tagger", "span"])
def test_a_head_that_transformers_lacks_is_named_as_ours(head, tmp_path):
    save_model(our_model(False, head), tmp_path)
    (named,) = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["architectures"]
    assert named.startswith("MaskloomOpenAIGPTFor")
    for kind in ("TokenClassification", "QuestionAnswering"):
        assert not hasattr(transformers, f"OpenAIGPTFor{kind}")
        with pytest.raises(ValueError, match="Unrecognized configuration class"):
            getattr(transformers, f"AutoModelFor{kind}").from_pretrained(tmp_path)
    assert head in load_model(tmp_path)[0].heads


@pytest.mark.parametrize("name", ["Model", "LMHeadModel", "ForSequenceClassification", "DoubleHeadsModel"])
@torch.no_grad()
def test_what_transformers_writes_opens_here(pre_norm, name, tmp_path):
    kind = "GPT2" if pre_norm else "OpenAIGPT"
    sizes = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40, "pad_token_id": 0}
    config = getattr(transformers, f"{kind}Config")(**sizes, bos_token_id=None, eos_token_id=None)
    peer = getattr(transformers, f"{kind}{name}")(config).eval()
    peer.save_pretrained(tmp_path)
    model, report = load_model(tmp_path)
    assert report.new_parameters == ()
    assert unused_tensors(tmp_path, report) == ()
    ids, _ = padded((20,))
    output = model.eval().encoder(ids)
    body = peer if name == "Model" else peer.transformer
    assert (output.last_hidden_state - body(ids).last_hidden_state).abs().max() < 1e-5
    save_model(model, tmp_path / "again")
    assert load_model(tmp_path / "again")[0].config == model.config


@pytest.mark.parametrize(("ends", "size"), [(False, 0), (True, 0), (False, 1), (False, 2)])
def test_greedy_and_beam_search_give_the_same_tokens(pre_norm, ends, size, tmp_path):
    model = our_model(pre_norm, "lm")
    save_model(model, tmp_path)
    peer = peer_of(tmp_path, pre_norm, "LMHeadModel")
    greedy = continue_texts(model, PROMPTS, Generation(max_tokens=11, beam=1))
    end = greedy[0].token_ids[8] if ends else None
    for beam in (1, 4):
        found = continue_texts(model, PROMPTS, Generation(max_tokens=11, beam=beam, no_repeat_ngram=size), end=end)
        assert any(text.is_ended for text in found) == ends
        for prompt, ours in zip(PROMPTS, found, strict=True):
            how = {"do_sample": False, "num_beams": beam, "max_new_tokens": 11, "pad_token_id": 0, "eos_token_id": end}
            how["no_repeat_ngram_size"] = size
            ids = torch.tensor([prompt])
            theirs = peer.generate(ids, attention_mask=torch.ones_like(ids), **how)[0, len(prompt) :].tolist()
            assert ours.token_ids == (theirs[: theirs.index(end)] if end in theirs else theirs)
            assert ours.is_ended == (end in theirs)
