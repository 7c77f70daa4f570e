"""BART compared with transformers: every class that both have, weights in both directions, and decoding."""

import pytest
import torch
import transformers
from tests.moved_weights import moved
from tests.unused_tensors import unused_tensors

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.generation.search import Generation
from maskloom.generation.sources import decode_sources
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import build_model
from maskloom.models.bart_config import BartConfig

pytestmark = pytest.mark.parity

BEGIN, PAD, END = 0, 1, 2
SIZES = {
    "many heads": {"hidden_size": 48, "num_attention_heads": 12, "num_hidden_layers": 2},
    "odd": {"hidden_size": 21, "num_attention_heads": 3, "num_hidden_layers": 2, "num_decoder_layers": 3},
    "scaled": {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "scale_embedding": True},
}


@pytest.fixture(params=SIZES)
def sizes(request):
    return SIZES[request.param]


def our_model(sizes, *heads):
    size = sizes["hidden_size"]
    more = {"vocab_size": 99, "intermediate_size": 4 * size + 1, "max_position_embeddings": 40}
    config = BartConfig(**more, **sizes, initializer_range=0.2)
    return moved(build_model(config, heads, num_labels=3, seed=1).eval())


def their_config(sizes):
    decoder_layers = sizes.get("num_decoder_layers", sizes["num_hidden_layers"])
    heads, size = sizes["num_attention_heads"], sizes["hidden_size"]
    return transformers.BartConfig(
        vocab_size=99,
        d_model=size,
        encoder_layers=sizes["num_hidden_layers"],
        decoder_layers=decoder_layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * size + 1,
        decoder_ffn_dim=4 * size + 1,
        max_position_embeddings=40,
        scale_embedding=sizes.get("scale_embedding", False),
        init_std=0.2,
    )


def peer_of(folder, name):
    peer, report = getattr(transformers, f"Bart{name}").from_pretrained(folder, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return peer.eval()


def padded(lengths=(20, 7, 2)):
    """Return texts with BART's begin and end tokens and right padding, and their mask."""
    ids = torch.randint(4, 99, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids[:, 0] = BEGIN
    ids[torch.arange(len(lengths)), torch.tensor(lengths) - 1] = END
    return torch.where(mask, ids, PAD), mask


def target_logits(model, ids, mask, targets, target_mask):
    head = model.heads["decoder"]
    source, layout = (SequenceLayout.from_lengths(part.sum(1)) for part in (mask, target_mask))
    hidden = model.encoder.encode_packed(ids[mask], torch.zeros_like(ids[mask]), source).last_hidden_state
    return head.logits(head(targets[target_mask], layout, hidden, source))


@torch.no_grad()
def test_layers_of_the_encoder_and_logits_of_targets(sizes, tmp_path):
    model = our_model(sizes, "decoder")
    save_model(model, tmp_path)
    peer = peer_of(tmp_path, "ForConditionalGeneration")
    (ids, mask), (targets, target_mask) = padded(), padded((5, 30, 9))
    expected = peer(
        ids,
        attention_mask=mask.long(),
        decoder_input_ids=targets,
        decoder_attention_mask=target_mask.long(),
        output_hidden_states=True,
    )
    output = model.encoder(ids, attention_mask=mask, keep_hidden_states=True)
    for ours, theirs in zip(output.hidden_states, expected.encoder_hidden_states, strict=True):
        assert (ours - theirs)[mask].abs().max() < 1e-5
    found = target_logits(model, ids, mask, targets, target_mask)
    assert (found - expected.logits[target_mask]).abs().max() < 1e-5


@torch.no_grad()
def test_without_heads_it_is_the_decoder_on_the_same_tokens(sizes, tmp_path):
    model = our_model(sizes)
    save_model(model, tmp_path)
    ids, mask = padded()
    expected = peer_of(tmp_path, "Model")(ids, attention_mask=mask.long()).last_hidden_state
    found = model.encoder(ids, attention_mask=mask).last_hidden_state
    assert (found - expected)[mask].abs().max() < 1e-5


@torch.no_grad()
def test_two_heads_are_two_models_there_and_one_here(sizes, tmp_path):
    model, (ids, mask) = our_model(sizes, "decoder", "classifier"), padded()
    save_model(model, tmp_path)
    peer = transformers.BartForConditionalGeneration.from_pretrained(tmp_path).eval()
    expected = peer(ids, attention_mask=mask.long(), decoder_input_ids=ids).logits
    back = load_model(tmp_path)[0].eval()
    assert sorted(back.heads) == ["classifier", "decoder"]
    assert (target_logits(back, ids, mask, ids, mask) - expected[mask]).abs().max() < 1e-4
    assert torch.equal(*(part.heads["classifier"](part.encoder(ids, None, mask).pooled) for part in (model, back)))


@torch.no_grad()
def test_a_classifier_reads_the_last_end(sizes, tmp_path):
    model = our_model(sizes, "classifier")
    save_model(model, tmp_path)
    ids, mask = padded()
    expected = peer_of(tmp_path, "ForSequenceClassification")(ids, attention_mask=mask.long()).logits
    found = model.heads["classifier"](model.encoder(ids, attention_mask=mask).pooled)
    assert (found - expected).abs().max() < 1e-5


@torch.no_grad()
def test_spans_are_of_the_decoder(sizes, tmp_path):
    model = our_model(sizes, "span")
    save_model(model, tmp_path)
    ids, mask = padded()
    expected = peer_of(tmp_path, "ForQuestionAnswering")(ids, attention_mask=mask.long())
    found = model.heads["span"](model.encoder(ids, attention_mask=mask).last_hidden_state)
    assert (found - torch.stack([expected.start_logits, expected.end_logits], -1))[mask].abs().max() < 1e-5


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("Model", "decoder"),
        ("ForConditionalGeneration", "decoder"),
        ("ForSequenceClassification", "classifier"),
        ("ForQuestionAnswering", "span"),
    ],
)
@torch.no_grad()
def test_what_transformers_writes_opens_here(sizes, name, head, tmp_path):
    torch.manual_seed(0)
    peer = getattr(transformers, f"Bart{name}")(their_config(sizes)).eval()
    if name == "ForConditionalGeneration":
        peer.final_logits_bias.normal_()
        peer.generation_config.forced_bos_token_id = 5  # not in config.json
    peer.save_pretrained(tmp_path)
    model, report = load_model(tmp_path)
    assert model.config.forced_bos_token_id == (5 if name == "ForConditionalGeneration" else None)
    assert report.new_parameters == (("final_logits_bias",) if name == "Model" else ())
    assert unused_tensors(tmp_path, report) == ()
    assert list(model.heads) == [head]
    ids, mask = padded()
    whole, _ = load_model(tmp_path, heads=())
    body = peer if name == "Model" else peer.model
    expected = body(ids, attention_mask=mask.long()).last_hidden_state
    assert (whole.eval().encoder(ids, attention_mask=mask).last_hidden_state - expected)[mask].abs().max() < 1e-5
    if name == "ForConditionalGeneration":
        expected = peer(ids, attention_mask=mask.long(), decoder_input_ids=ids).logits
        assert (target_logits(model.eval(), ids, mask, ids, mask) - expected[mask]).abs().max() < 1e-5
    save_model(model, tmp_path / "again")
    assert load_model(tmp_path / "again")[0].config == model.config


@torch.no_grad()
def test_a_model_for_generation_becomes_a_classifier_and_back(tmp_path):
    save_model(our_model(SIZES["odd"], "decoder"), tmp_path)
    model, report = load_model(tmp_path, heads=("classifier",), num_labels=3)
    assert unused_tensors(tmp_path, report) == ("final_logits_bias",)
    assert {name.split(".")[0] for name in report.new_parameters} == {"classification_head"}
    save_model(model, tmp_path / "classifier")
    back, report = load_model(tmp_path / "classifier", heads=("decoder",))
    assert report.new_parameters == ("final_logits_bias",)
    assert len(unused_tensors(tmp_path / "classifier", report)) == 4
    ids, mask = padded()
    first, _ = load_model(tmp_path)
    one, other = (target_logits(part.eval(), ids, mask, ids, mask) for part in (first, back))
    assert (one - other - first.heads["decoder"].bias).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("bos", "more"),
    [
        (None, {}),
        (None, {"length_penalty": None}),  # ours averages over a text's tokens, theirs has the exponent 1
        (BEGIN, {"min_tokens": 6}),
        (None, {"no_repeat_ngram": 2}),
        (BEGIN, {"no_repeat_ngram": 2}),
    ],
)
@torch.no_grad()
def test_decoding_gives_the_same_tokens(bos, more, tmp_path):
    model = our_model({**SIZES["odd"], "forced_bos_token_id": bos}, "decoder")
    model.heads["decoder"].bias[0, BEGIN] = 9.0 * (bos is not None)  # so that it would come again and again
    save_model(model, tmp_path)
    peer = peer_of(tmp_path, "ForConditionalGeneration")
    ids, mask = padded()
    layout = SequenceLayout.from_lengths(mask.sum(1))
    hidden = model.encoder.encode_packed(ids[mask], torch.zeros_like(ids[mask]), layout).last_hidden_state
    num_begin = 1 if bos is None else 2
    for beam in (1, 4):
        settings = Generation(**{"max_tokens": 18, "beam": beam, "length_penalty": 0.0, **more})
        found = decode_sources(model, hidden, layout, settings, begin=[END], end=END)
        theirs = peer.generate(
            ids,
            attention_mask=mask.long(),
            do_sample=False,
            num_beams=beam,
            max_length=num_begin + 18,
            min_length=num_begin + more.get("min_tokens", 0),
            no_repeat_ngram_size=more.get("no_repeat_ngram", 0),
            length_penalty=0.0 if settings.length_penalty is not None else 1.0,
        )
        assert bos is None or set(theirs[:, 1].tolist()) == {bos}
        for text, tokens in zip(found, theirs[:, num_begin:].tolist(), strict=True):
            assert text.token_ids == tokens[: tokens.index(END)]
            assert text.is_forced == (len(text.token_ids) == 17)  # the end is forced only at the last step
