"""T5 compared with transformers: weights in both directions, every layer, logits, losses, gradients and decoding."""

import json

import pytest
import torch
import transformers
from tests.moved_weights import moved
from tests.unused_tensors import unused_tensors

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.checkpoints.tensor_files import open_weights, safetensors_pieces
from maskloom.errors import DataError
from maskloom.generation.search import Generation
from maskloom.generation.sources import decode_sources
from maskloom.layers.relative_attention import RelativeBias
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import build_model
from maskloom.models.t5_config import T5Config

pytestmark = pytest.mark.parity

SIZES = {"vocab_size": 99, "d_model": 21, "d_kv": 6, "d_ff": 30, "num_heads": 4, "dropout_rate": 0.0}
DEPTHS = {"num_layers": 3, "num_decoder_layers": 2, "decoder_start_token_id": 0}
LENGTHS, TARGETS = [150, 40, 3], [140, 9, 1]


def ids_of(lengths):
    ids = torch.randint(2, 99, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(len(lengths)))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.where(mask, ids, 0), mask


@pytest.fixture(params=["relu", "gated-gelu", "gated-silu"])
def projection(request):
    return request.param


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def is_tied(request):
    return request.param


@pytest.fixture
def peer(projection, is_tied):
    torch.manual_seed(0)
    config = transformers.T5Config(**SIZES, **DEPTHS, feed_forward_proj=projection, tie_word_embeddings=is_tied)
    peer = transformers.T5ForConditionalGeneration(config).eval()
    if not is_tied:
        peer.lm_head.weight = torch.nn.Parameter(torch.randn(99, 21) * 21**-0.5)
    return peer


def our_outputs(model):
    ids, mask = ids_of(LENGTHS)
    targets, is_target = ids_of(TARGETS)
    output = model.encoder(ids, attention_mask=mask, keep_hidden_states=True)
    head, layouts = model.heads["decoder"], [SequenceLayout.from_lengths(part) for part in (TARGETS, LENGTHS)]
    vectors = head(targets[is_target], layouts[0], output.last_hidden_state[mask], layouts[1])
    return output, head.logits(vectors), vectors


def their_outputs(peer):
    (ids, mask), (targets, is_target) = ids_of(LENGTHS), ids_of(TARGETS)
    more = {"decoder_input_ids": targets, "output_hidden_states": True}
    return peer(ids, attention_mask=mask.long(), **more), mask, is_target


def assert_alike(model, peer):
    expected, mask, is_target = their_outputs(peer)
    output, logits, _ = our_outputs(model)
    for ours, theirs in zip(output.hidden_states, expected.encoder_hidden_states, strict=True):
        assert (ours - theirs)[mask].abs().max() < 1e-5
    scale = expected.logits.abs().max().clamp(min=1.0)
    assert (logits - expected.logits[is_target]).abs().max() / scale < 1e-5


@torch.no_grad()
def test_what_transformers_writes_opens_here_and_what_is_written_here_opens_there(peer, is_tied, tmp_path):
    moved(peer).save_pretrained(tmp_path / "theirs")
    model, report = load_model(tmp_path / "theirs")
    assert report.new_parameters == unused_tensors(tmp_path / "theirs", report) == ()
    assert list(model.heads) == ["decoder"]
    assert model.config.tie_word_embeddings == is_tied
    assert_alike(model.eval(), peer)
    save_model(model, tmp_path / "ours")
    again, found = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(found[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert_alike(model, again.eval())
    for name, value in peer.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    assert load_model(tmp_path / "ours")[0].config == model.config
    assert type(transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")) is type(peer)


def test_losses_and_gradients(peer, tmp_path):
    peer.save_pretrained(tmp_path)
    model, _ = load_model(tmp_path)
    expected, _, is_target = their_outputs(peer)
    labels = torch.randint(2, 99, (sum(TARGETS),), generator=torch.Generator().manual_seed(5))
    theirs = torch.nn.functional.cross_entropy(expected.logits[is_target], labels, reduction="sum")
    theirs.backward()
    _, _, vectors = our_outputs(model.eval())
    ours = model.heads["decoder"].loss_sum(vectors, labels)
    ours.backward()
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    gradients, head = {name: parameter.grad for name, parameter in peer.named_parameters()}, model.heads["decoder"]
    for name, parameter in (
        ("encoder.block.0.layer.0.SelfAttention.relative_attention_bias", model.encoder.relative_bias.weight),
        ("decoder.block.0.layer.0.SelfAttention.relative_attention_bias", head.relative_bias.weight),
        ("decoder.block.1.layer.1.EncDecAttention.q", head.layers[1].cross_attention.query.weight),
        ("shared", model.encoder.word_embeddings),
    ):
        gradient = gradients[f"{name}.weight"]
        assert (parameter.grad - gradient).abs().max() / gradient.abs().max() < 1e-4, name


@pytest.mark.parametrize("name", ["T5Model", "T5EncoderModel", "T5ForTokenClassification"])
@torch.no_grad()
def test_other_classes(name, tmp_path):
    kind = getattr(transformers, name)
    peer = moved(kind(transformers.T5Config(**SIZES, **DEPTHS)).eval())
    peer.save_pretrained(tmp_path / "theirs")
    model, report = load_model(tmp_path / "theirs")
    assert (report.new_parameters, unused_tensors(tmp_path / "theirs", report)) == ((), ())
    assert list(model.heads) == {"T5Model": ["decoder"], "T5EncoderModel": []}.get(name, ["tagger"])
    ids, mask = ids_of(LENGTHS)
    hidden = model.eval().encoder(ids, attention_mask=mask).last_hidden_state
    save_model(model, tmp_path / "ours")
    again, found = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(found[key] for key in ("missing_keys", "mismatched_keys"))
    for one in (peer, again.eval()):
        body = getattr(one, "transformer", one).encoder
        assert (hidden - body(ids, attention_mask=mask.long()).last_hidden_state)[mask].abs().max() < 1e-5
        if name == "T5ForTokenClassification":
            logits = one(ids, attention_mask=mask.long()).logits
            assert (model.heads["tagger"](hidden) - logits)[mask].abs().max() < 1e-5


def test_a_head_that_transformers_lacks_is_not_opened_there(tmp_path):
    config = T5Config(vocab_size=99, hidden_size=20, num_attention_heads=4, num_hidden_layers=1, intermediate_size=8)
    save_model(build_model(config, ("classifier",), num_labels=2), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["model_type"] == "maskloom_t5"
    with pytest.raises(ValueError, match="does not recognize this architecture"):
        transformers.AutoConfig.from_pretrained(tmp_path)
    assert list(load_model(tmp_path)[0].heads) == ["classifier"]


@pytest.mark.parametrize("is_tied", [True], ids=["tied"])
@pytest.mark.parametrize("projection", ["relu"])
def test_copies_of_the_words_are_taken_and_must_be_copies(peer, tmp_path):
    peer.save_pretrained(tmp_path)
    tensors = {name: stored.read().clone() for name, stored in open_weights(tmp_path).items()}
    shared = tensors["shared.weight"]
    copies = dict.fromkeys(("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"), shared)
    unread = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.zeros(32, 4)}
    for name in ("shared.weight", "encoder.embed_tokens.weight"):
        only = {key: value for key, value in {**tensors, **copies, **unread}.items() if key != name}
        written = b"".join(safetensors_pieces({key: value.clone() for key, value in only.items()}))
        (tmp_path / "model.safetensors").write_bytes(written)
        model, report = load_model(tmp_path)
        assert torch.equal(model.encoder.word_embeddings, shared)
        assert unused_tensors(tmp_path, report) == ()
    changed = {**tensors, "lm_head.weight": shared + 1}
    (tmp_path / "model.safetensors").write_bytes(b"".join(safetensors_pieces(changed)))
    with pytest.raises(DataError, match=r"lm_head\.weight differs from shared\.weight, to which T5 ties it"):
        load_model(tmp_path)


def test_buckets():
    distances = torch.arange(-300, 301)
    for causal in (False, True):
        for number, longest in ((32, 128), (16, 40), (64, 1000)):
            found = RelativeBias(number, longest, 1, causal=causal).buckets(distances)
            theirs = transformers.models.t5.modeling_t5.T5Attention._relative_position_bucket
            expected = theirs(distances, bidirectional=not causal, num_buckets=number, max_distance=longest)
            assert torch.equal(found, expected)


@pytest.mark.parametrize("projection", ["relu"])
@torch.no_grad()
def test_greedy_and_beam_search_give_the_same_tokens(peer, tmp_path):
    for parameter in peer.parameters():
        parameter.add_(torch.randn_like(parameter) * parameter.std() * 0.5)
    peer.save_pretrained(tmp_path)
    model = load_model(tmp_path)[0].eval()
    sources = [[5, 6, 7, 8, 9, 10, 1], [44, 3, 1], [7] * 30 + [1]]
    layout = SequenceLayout.from_lengths([len(source) for source in sources])
    flat = torch.tensor([token for source in sources for token in source])
    hidden = model.encoder.encode_packed(flat, flat * 0, layout).last_hidden_state
    num_ended = 0
    for beam in (None, 1, 4):
        how = Generation(14, temperature=0.0) if beam is None else Generation(14, beam=beam, length_penalty=0.0)
        search = {} if beam in (None, 1) else {"num_beams": beam, "length_penalty": 0.0, "early_stopping": False}
        whole = decode_sources(model, hidden, layout, how, begin=[0], end=98)
        for end in (98, whole[0].token_ids[4]):
            found = decode_sources(model, hidden, layout, how, begin=[0], end=end)
            for source, ours in zip(sources, found, strict=True):
                keys = {"max_new_tokens": 14, "eos_token_id": end, "do_sample": False, **search}
                theirs = peer.generate(torch.tensor([source]), **keys)[0, 1:].tolist()
                assert ours.token_ids == (theirs[: theirs.index(end)] if end in theirs else theirs)
                num_ended += ours.is_ended
    assert num_ended >= 3
