import numpy as np
import pytest

from maskloom.tasks.settings import SpanSettings
from maskloom.tasks.span.encoding import encode_questions
from maskloom.tasks.span.reading import Question
from maskloom.tasks.span.task import TextFinder, decode_answers
from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

TOKENS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "?", "steve", "smith", "'", "s", "the", "a", "cafe", "b"),
    *("##ny", "x", "y", "z", "中", "文", "##"),
]  # fmt: skip
V2 = SpanSettings(has_unanswerable=True)


@pytest.fixture(scope="module")
def tokenizer():
    return WordPieceTokenizer(Vocabulary(TOKENS))


def encode(tokenizer, context, max_length=30, **settings):
    questions = [Question("q", "who?", context, None, 1)]
    return encode_questions(questions, tokenizer, SpanSettings(**settings), max_length=max_length)


def logits(encoded, window, **places):
    """Return a window's logits: 0 except at positions given like s7=3.0 for a start and e7=3.0 for an end."""
    values = np.zeros((int(encoded.lengths[window]), 2), dtype=np.float32)
    for name, value in places.items():
        values[int(name[1:]), "se".index(name[0])] = value
    return values


def found_by_pieces(pieces, words, *, lowercase=True):
    vocabulary = Vocabulary(list(dict.fromkeys([*SPECIAL_TOKENS, *pieces])))
    ids = [vocabulary.ids[piece] for piece in pieces]
    return TextFinder(WordPieceTokenizer(vocabulary, lowercase=lowercase)).find(ids, words)


@pytest.mark.parametrize(
    ("pieces", "words", "text"),
    [
        (["steve", "smith"], ["Steve", "Smith's"], "Steve Smith"),
        (["smith", "'", "s"], ["Smith's"], "Smith's"),
        (["cafe"], ["Café,"], "Café"),
        (["cafe"], ["cafe\u0301,"], "cafe\u0301,"),  # the accent is a separate character: lengths differ
        (["a", "b"], ["a\u00a0b"], "a\u00a0b"),  # the no-break space separates tokens, not words
        (["a", "b"], ["x\u200ba", "b"], "x\u200ba b"),
        (["[UNK]"], ["☃,"], "☃,"),
        (["ﬁne"], ["(ﬁne)"], "ﬁne"),
        (["中"], ["中文"], "中"),
        (["x", "y"], ["x", "y", "z"], "x y"),
        (["steve", "##ny"], ["Steveny's"], "Steveny"),
        (["##ny"], ["Steveny"], "ny"),
        (["##"], ["##"], "##"),
        ([], ["x"], "x"),
    ],
)
def test_text_of_pieces_in_the_words_of_the_context(pieces, words, text):
    found, first, last = found_by_pieces(pieces, words)
    assert found == text
    assert " ".join(words)[first : last + 1] == text


def test_cased_text_is_found_as_it_stands():
    assert found_by_pieces(["Café"], ["Café,"], lowercase=False)[0] == "Café"
    assert found_by_pieces(["café"], ["Café,"], lowercase=False)[0] == "Café,"


def test_places_are_those_of_the_context(tokenizer):
    context = "the\u202f\n Steve \tSmith's a"
    encoded = encode(tokenizer, context)
    found = next(decode_answers(encoded, [logits(encoded, 0, s5=9.0, e6=9.0)]))
    assert found.text == "Steve Smith"
    assert context[found.best["start"] : found.best["end"]] == "Steve \tSmith"
    assert found.candidates[0]["start_logit"] == 9.0
    assert sum(candidate["probability"] for candidate in found.candidates) == pytest.approx(1.0)


def test_only_spans_in_the_context_that_are_not_too_long_qualify(tokenizer):
    encoded = encode(tokenizer, "x y z a b")
    # [CLS] who ? [SEP] x y z a b [SEP]
    high = logits(encoded, 0, s0=9, e0=9, s1=9, e2=9, s3=8, e3=8, e9=9, s7=5, e5=5, s5=4, e8=3)
    assert next(decode_answers(encoded, [high])).text == "y"
    assert next(decode_answers(encoded, [logits(encoded, 0, s4=5, e8=5)])).text == "x y z a b"
    short = SpanSettings(max_answer_length=2)
    found = next(decode_answers(encoded, [logits(encoded, 0, s4=5, e8=5, e5=1)], short))
    assert found.text == "x y"
    assert max(len(candidate["text"].split()) for candidate in found.candidates) == 2


def test_a_start_counts_only_in_the_window_that_shows_it_best(tokenizer):
    encoded = encode(tokenizer, "x y z a b the s cafe steve", max_length=10, stride=2)
    assert encoded.windows[:, 1].tolist() == [0, 2, 4]
    # z is the third of x y z a b, and the first of z a b the s
    outputs = [logits(encoded, 0), logits(encoded, 1, s4=9, e4=9), logits(encoded, 2)]
    assert next(decode_answers(encoded, outputs)).text != "z"
    outputs = [logits(encoded, 0, s6=9, e6=9), logits(encoded, 1), logits(encoded, 2)]
    assert next(decode_answers(encoded, outputs)).text == "z"


def test_one_text_is_kept_once_with_its_best_score(tokenizer):
    encoded = encode(tokenizer, "x y x")
    found = next(decode_answers(encoded, [logits(encoded, 0, s6=5, e6=5, s4=3, e4=3)]))
    texts = [candidate["text"] for candidate in found.candidates]
    assert texts.count("x") == 1
    assert len(set(texts)) == len(texts)
    assert (found.best["start"], found.best["start_logit"]) == (4, 5.0)
    few = next(decode_answers(encoded, [logits(encoded, 0, s6=5, e6=5)], SpanSettings(num_best=2)))
    assert len(few.candidates) <= 2


def test_without_a_span_the_answer_is_the_word_of_the_published_code(tokenizer):
    encoded = encode(tokenizer, "x y")
    options = SpanSettings(num_best=1)
    found = next(decode_answers(encoded, [logits(encoded, 0, s0=1, e0=1)], options))
    assert [(c["text"], c["probability"], c["start_logit"]) for c in found.candidates] == [("empty", 1.0, 0.0)]
    assert found.best["start"] is None
    null = next(
        decode_answers(encoded, [logits(encoded, 0, s0=1, e0=1)], SpanSettings(num_best=1, has_unanswerable=True))
    )
    assert [candidate["text"] for candidate in null.candidates] == ["empty", ""]
    assert (null.text, null.null_odds) == ("", 2.0)


def test_the_null_score_is_the_least_of_the_windows(tokenizer):
    encoded = encode(tokenizer, "x y z a b the s cafe steve", max_length=10, stride=2)
    outputs = [
        logits(encoded, 0, s0=5, e0=2),
        logits(encoded, 1, s0=1, e0=2),
        logits(encoded, 2, s0=9, e0=9, s6=2, e6=2),
    ]
    found = next(decode_answers(encoded, outputs, V2))
    assert found.null_odds == 3.0 - 4.0
    assert found.text == found.best["text"] == "s"
    assert [candidate["text"] for candidate in found.candidates].count("") == 1
    stricter = SpanSettings(has_unanswerable=True, null_threshold=-1.5)
    found = next(decode_answers(encoded, outputs, stricter))
    assert (found.text, found.best["text"], found.as_row()["start"]) == ("", "s", None)
    at_threshold = SpanSettings(has_unanswerable=True, null_threshold=-1.0)
    assert next(decode_answers(encoded, outputs, at_threshold)).text == "s"


def test_a_context_without_pieces_has_no_answer(tokenizer):
    encoded = encode(tokenizer, "\u200b")
    outputs = [np.zeros((int(encoded.lengths[0]), 2), dtype=np.float32)]
    assert next(decode_answers(encoded, outputs)).text == "empty"
    assert next(decode_answers(encoded, outputs, V2)).text == "empty"


def test_outputs_that_do_not_fit_are_refused(tokenizer):
    encoded = encode(tokenizer, "x y")
    with pytest.raises(ValueError, match="0 outputs for 1 windows"):
        next(decode_answers(encoded, []))
    with pytest.raises(ValueError, match="window has 7 tokens but 8 rows"):
        next(decode_answers(encoded, [np.zeros((8, 2))]))


def test_any_number_of_windows_at_a_time_gives_the_same(tokenizer, monkeypatch):
    draw = np.random.default_rng(5)
    contexts = [" ".join(draw.choice(TOKENS[7:14], size)) for size in draw.integers(1, 60, 30)]
    questions = [Question(str(number), "who?", text, None, number) for number, text in enumerate(contexts)]
    encoded = encode_questions(questions, tokenizer, SpanSettings(stride=3), max_length=14)
    outputs = [draw.normal(0, 2, (length, 2)).astype(np.float32) for length in encoded.lengths]
    whole = list(decode_answers(encoded, outputs, V2))
    monkeypatch.setattr("maskloom.tasks.span.task._WINDOWS_AT_ONCE", 1)
    assert list(decode_answers(encoded, outputs, V2)) == whole
    assert len(whole) == 30
