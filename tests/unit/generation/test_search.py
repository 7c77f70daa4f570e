import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.errors import ConfigError, DataError
from maskloom.generation.search import Choice, Decoder, Generation, continue_texts, largest_of
from maskloom.generation.sources import decode_sources
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.architectures import ARCHITECTURES
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.models.gpt_config import GptConfig
from maskloom.models.recurrent_config import GruConfig

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "initializer_range": 0.5}
SMALL = {"hidden_size": 16, "num_hidden_layers": 1}
PROMPTS = [[1, 2, 3], [4, 5], [6]]


def gpt(vocab_size=11, positions=24, **more):
    config = GptConfig(vocab_size=vocab_size, max_position_embeddings=positions, intermediate_size=64, **SIZES, **more)
    return build_model(config, ("lm",), seed=3).eval()


def causal_bert():
    config = BertConfig(vocab_size=11, max_position_embeddings=24, intermediate_size=64, causal=True, **SIZES)
    return build_model(config, ("mlm",), seed=3).eval()


def logits_of(model, sequences):
    ids = torch.tensor([token for sequence in sequences for token in sequence])
    layout = SequenceLayout.from_lengths([len(sequence) for sequence in sequences])
    hidden = model.encoder.encode_packed(ids, torch.zeros_like(ids), layout).last_hidden_state
    return model.vocabulary_head(hidden)


@torch.no_grad()
def log_probability(model, prompt, tokens):
    rows = torch.log_softmax(logits_of(model, [[*prompt, *tokens]]), -1)
    places = range(len(prompt) - 1, len(prompt) + len(tokens) - 1)
    return sum(float(rows[place, token]) for place, token in zip(places, tokens, strict=True))


@pytest.mark.parametrize("make", [gpt, lambda: gpt(pre_norm=True), causal_bert], ids=["gpt", "gpt2", "bert"])
@torch.no_grad()
def test_cached_steps_are_the_whole_pass(make):
    model = make()
    tokens = torch.randint(0, 11, (3, 6), generator=torch.Generator().manual_seed(0))
    decoder = Decoder(model, room=20)
    found = [decoder.start(PROMPTS)] + [decoder.step(tokens[:, step]) for step in range(6)]
    for row, prompt in enumerate(PROMPTS):
        whole = logits_of(model, [[*prompt, *tokens[row].tolist()]])[len(prompt) - 1 :]
        assert (torch.stack([step[row] for step in found]) - whole).abs().max() < 1e-5


@pytest.mark.parametrize("how", [{"min_tokens": 6}, {"no_repeat_ngram": 1}, {}])
def test_greedy_texts_are_as_likely_as_those_of_a_beam_of_one(how):
    model = gpt()
    greedy, search = (
        continue_texts(model, PROMPTS, Generation(8, **way, **how), end=9)
        for way in ({"temperature": 0.0}, {"beam": 1})
    )
    assert [text.token_ids for text in greedy] == [text.token_ids for text in search]
    assert [text.log_probability for text in greedy] == pytest.approx(
        [text.log_probability for text in search], abs=1e-5
    )


@torch.no_grad()
def test_sequences_can_be_dropped_and_repeated():
    model, decoder = gpt(), None
    decoder = Decoder(model, room=20)
    decoder.start(PROMPTS)
    decoder.take(np.array([2, 0, 0]))
    found = decoder.step(torch.tensor([7, 8, 9]))
    for row, sequence in enumerate([[6, 7], [1, 2, 3, 8], [1, 2, 3, 9]]):
        assert (found[row] - logits_of(model, [sequence])[-1]).abs().max() < 1e-5


@pytest.mark.parametrize("temperature", [1e-9, 1e-320])
def test_almost_no_temperature_takes_the_likeliest(temperature):
    drawn, greedy = (continue_texts(gpt(), PROMPTS, Generation(9, value)) for value in (temperature, 0.0))
    assert [text.token_ids for text in drawn] == [text.token_ids for text in greedy]


def test_greedy_takes_the_likeliest_and_equals_a_beam_of_one():
    model = gpt()
    greedy = continue_texts(model, PROMPTS, Generation(max_tokens=8, temperature=0.0))
    assert [text.token_ids for text in continue_texts(model, PROMPTS, Generation(max_tokens=8, beam=1))] == [
        text.token_ids for text in greedy
    ]
    for prompt, text in zip(PROMPTS, greedy, strict=True):
        for place, token in enumerate(text.token_ids):
            assert int(logits_of(model, [[*prompt, *text.token_ids[:place]]])[-1].argmax()) == token
        assert text.log_probability == pytest.approx(log_probability(model, prompt, text.token_ids), abs=1e-4)


def test_a_wide_beam_finds_the_best_of_all():
    model, prompt = gpt(vocab_size=5), [1, 2]
    (found,) = continue_texts(model, [prompt], Generation(max_tokens=3, beam=125))
    best = max(itertools.product(range(5), repeat=3), key=lambda tokens: log_probability(model, prompt, tokens))
    assert tuple(found.token_ids) == best


@pytest.mark.parametrize("prompt", [[3], [2, 2], [1]])
def test_a_beam_weighs_ended_texts_by_their_length(prompt):
    model, end = gpt(vocab_size=5), 4
    (found,) = continue_texts(model, [prompt], Generation(max_tokens=3, beam=125), end=end)
    texts = [(*tokens, end) for size in range(3) for tokens in itertools.product(range(4), repeat=size)]
    texts += itertools.product(range(4), repeat=3)
    scores = {tokens: log_probability(model, prompt, tokens) for tokens in texts}
    best = max(texts, key=lambda tokens: scores[tokens] / len(tokens))
    assert best != max(texts, key=scores.__getitem__)  # the length decides
    assert (*found.token_ids, *([end] if found.is_ended else [])) == best


def test_draws_follow_the_distribution():
    model, prompt = gpt(), [1, 2, 3]
    found = continue_texts(model, [prompt] * 4000, Generation(max_tokens=1, seed=5))
    counts = torch.bincount(torch.tensor([text.token_ids[0] for text in found]), minlength=11) / 4000
    assert (counts - logits_of(model, [prompt])[-1].softmax(-1)).abs().max() < 0.03


@pytest.mark.parametrize(("how", "kept"), [({"top_k": 3}, 3), ({"top_p": 0.6}, None), ({"temperature": 1e-3}, 1)])
def test_rare_tokens_can_be_left_out(how, kept):
    model, prompt = gpt(), [1, 2, 3]
    probabilities = logits_of(model, [prompt])[-1].softmax(-1).sort(descending=True)
    if kept is None:
        kept = int((probabilities.values.cumsum(0) < how["top_p"]).sum()) + 1
        assert 1 < kept < 11
    found = continue_texts(model, [prompt] * 400, Generation(max_tokens=1, **how))
    assert {text.token_ids[0] for text in found} == set(probabilities.indices[:kept].tolist())


def test_a_text_has_its_draws_whatever_stands_beside_it():
    model, how = gpt(), Generation(max_tokens=9, seed=2)
    together = continue_texts(model, PROMPTS, how)
    for number, prompt in enumerate(PROMPTS):
        assert continue_texts(model, [prompt], how, numbers=[number])[0].token_ids == together[number].token_ids
    assert continue_texts(model, PROMPTS, Generation(max_tokens=9, seed=3)) != together


def test_an_end_ends_and_some_tokens_never_come():
    model = gpt()
    free = continue_texts(model, [[1]], Generation(max_tokens=6, temperature=0.0))[0].token_ids
    ended = continue_texts(model, [[1]], Generation(max_tokens=6, temperature=0.0), end=free[2])[0]
    assert ended.is_ended
    assert ended.token_ids == free[: free.index(free[2])]
    without = continue_texts(model, [[1]], Generation(max_tokens=6, temperature=0.0), never=[free[0]])[0].token_ids
    assert free[0] not in without


def test_the_context_ends_a_text():
    model = gpt(positions=6)
    for how in ({"temperature": 0.0}, {"beam": 2}, {}):
        found = continue_texts(model, [[1, 2, 3], [1]], Generation(max_tokens=50, **how))
        assert [len(text.token_ids) for text in found] == [3, 5]


@pytest.mark.parametrize(
    ("prompt", "message"), [([], "prompt 2: 0 tokens; expected 1 to 23"), ([1] * 24, "prompt 2: 24 tokens")]
)
def test_a_prompt_has_tokens_and_leaves_room(prompt, message):
    with pytest.raises(DataError, match=message):
        continue_texts(gpt(), [[1], prompt], Generation())


def test_a_model_that_sees_both_ways_continues_nothing():
    config = BertConfig(vocab_size=11, max_position_embeddings=24, intermediate_size=64, **SIZES)
    with pytest.raises(ConfigError, match="only a left-to-right model"):
        continue_texts(build_model(config, ("mlm",), seed=0), [[1]], Generation())


@pytest.mark.parametrize("config", [GruConfig(causal=True, **SMALL), GptConfig(pre_norm=True, **SIZES)])
def test_a_left_to_right_model_fine_tuned_without_its_head_says_what_keeps_it(config, tmp_path):
    save_model(build_model(config, ("classifier",), 2, seed=0), tmp_path)
    with pytest.raises(ConfigError, match=r"no language-model head .* auxiliary_lm above 0"):
        continue_texts(load_model(tmp_path)[0], [[1]], Generation())


def test_broken_weights_are_said():
    model = gpt()
    model.encoder.word_embeddings.data.fill_(math.nan)
    with pytest.raises(DataError, match="not finite"):
        continue_texts(model, [[1]], Generation())


@pytest.mark.parametrize(
    "values",
    [
        {"max_tokens": 0},
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"beam": 0},
        {"seed": -1},
        {"max_tokens": "4"},
    ],
)
def test_wrong_settings_are_named(values):
    with pytest.raises(ConfigError, match=f"{next(iter(values))} "):
        Generation(**values)


@pytest.mark.parametrize("beam", [0, 1001])
def test_the_range_of_a_beam_is_named(beam):
    with pytest.raises(ConfigError, match=f"beam {beam}: expected a whole number from 1 to 1,000$"):
        Generation(beam=beam)


def test_the_largest_seed_is_named():
    with pytest.raises(ConfigError, match=r"seed 9223372036854775808: expected .* at least 0, below 2\^63"):
        Generation(seed=2**63)


def test_a_search_draws_nothing():
    with pytest.raises(ConfigError, match="beam = 2 with temperature, top_k: beam search does not sample"):
        Generation(beam=2, temperature=0.5, top_k=4)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": 0.0, "top_k": 3}, "temperature = 0 with top_k: the most likely token is always taken"),
        ({"temperature": 0.0, "top_p": 0.5, "seed": 1}, "temperature = 0 with top_p, seed: the most likely token"),
        ({"beam": 2, "seed": 1}, "beam = 2 with seed: beam search does not sample; to sample, give a temperature"),
        ({"num_best": 2, "temperature": 0.0}, "num_best 2 exceeds the beam, 1"),
        ({"length_penalty": 0.6}, "length_penalty 0.6: it is only for beam search"),
    ],
)
def test_settings_that_would_change_nothing_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        Generation(**values)
    with pytest.raises(ConfigError, match=message):
        Generation().changed(values)


def test_usual_values_are_refused_only_where_they_are_given():
    usual = {"top_k": None, "top_p": 1.0, "seed": 0}
    assert Generation(temperature=0.0, **usual) == Generation().changed({"temperature": 0.0, "top_k": None})
    assert Generation(beam=3, temperature=1.0, **usual) == Generation(beam=3)
    with pytest.raises(ConfigError, match="temperature = 0 with top_p, seed: the most likely"):
        Generation().changed({"temperature": 0.0, **usual})
    for given in ({"beam": 3, "seed": 0}, {"beam": 3, "temperature": 1.0}):
        with pytest.raises(ConfigError, match=r"beam = 3 with (seed|temperature): beam search does not sample"):
            Generation().changed(given)


@pytest.mark.parametrize("width", [600, 1000, 4096])
def test_the_largest_of_blocks_are_the_largest_of_all(width):
    values = torch.randn(7, width, generator=torch.Generator().manual_seed(2))
    values[3, -1] = 9.0  # in the part beyond the last complete block, if there is one
    values[4, 64:70] = 9.0 - torch.arange(6)
    (found, places), expected = largest_of(values, 3), values.topk(3)
    assert torch.equal(found, expected.values)
    assert torch.equal(places, expected.indices)


@pytest.mark.parametrize("how", [{}, {"temperature": 0.0}, {"beam": 1}])
@pytest.mark.parametrize("notes", [False, True])
def test_a_text_without_an_end_token_stops_when_no_other_token_may_follow(how, notes):
    prompts, steps = PROMPTS[:1] if notes else PROMPTS, [] if notes else None
    settings = Generation(max_tokens=15, no_repeat_ngram=1, **how)
    found = continue_texts(causal_bert(), prompts, settings, never=[0, 7], steps=steps)
    for text, prompt in zip(found, prompts, strict=True):
        assert sorted([*prompt, *text.token_ids]) == [1, 2, 3, 4, 5, 6, 8, 9, 10]
        assert math.isfinite(text.log_probability)
        assert text.finish == "length"


def test_numbers_of_an_apple_gpu_are_read_on_the_processor():
    """It has no fp64, in which scores and token ids are read together."""
    given = [torch.tensor([9.0, 8.0]), torch.tensor([[1.5], [-0.25]]), torch.tensor([2, 7])]
    on_apple = [SimpleNamespace(device=torch.device("mps"), cpu=lambda part=part: part) for part in given]
    choose = Choice(None, (), Generation(), [0, 1])
    assert choose.read(*given) == choose.read(*on_apple) == [[1.5, 2.0], [-0.25, 7.0]]


@pytest.mark.parametrize("name", [name for name, row in ARCHITECTURES.items() if row.has_decoder])
@torch.no_grad()
def test_a_source_without_tokens_has_the_same_target_alone_and_beside_another(name):
    row = ARCHITECTURES[name]
    model = build_model(row.config_type.of_size("tiny", row.sizes, vocab_size=11), ("decoder",), seed=3).eval()
    found = []
    for lengths in ([0], [0, 3], [0, 0]):
        layout = SequenceLayout.from_lengths(lengths)
        hidden = torch.ones(layout.num_tokens, model.config.hidden_size)
        found.append(decode_sources(model, hidden, layout, Generation(4, beam=2), begin=[0], end=2)[0])
    assert found[0].token_ids == found[1].token_ids == found[2].token_ids
    assert found[0].log_probability == pytest.approx(found[1].log_probability, abs=1e-5)


def test_only_settings_that_have_an_effect_are_in_use():
    sampled = Generation(max_tokens=9, temperature=0.5, seed=3).used()
    assert {"temperature", "top_p", "seed"} <= sampled.keys()
    assert sampled.keys().isdisjoint({"beam", "length_penalty", "num_best", "top_k"})
    searched = Generation(max_tokens=9, beam=4, num_best=2, length_penalty=0.6).used()
    assert searched == {"max_tokens": 9, "beam": 4, "length_penalty": 0.6, "num_best": 2} | {
        "min_tokens": 0,
        "no_repeat_ngram": 0,
    }
