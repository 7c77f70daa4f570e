"""Windows, labels and answers of questions compared with Google's own run_squad.py, from bert-tensorflow 1.0.4."""

import json
import random
import subprocess
import sys

import numpy as np
import pytest

from maskloom.tasks.examples import ReadingReport
from maskloom.tasks.settings import SpanSettings
from maskloom.tasks.span.encoding import encode_questions
from maskloom.tasks.span.reading import iterate_questions
from maskloom.tasks.span.task import decode_answers
from maskloom.tasks.tables import ReadingOptions
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

pytestmark = pytest.mark.parity

# The script imports TensorFlow for flags, files and logging, and modules that need it; with stand-ins, the three
# functions run without it. Logits come from the same seeded draws on both sides; padding gets the lowest logit.
_ORACLE = """
import io, json, sys, types
import numpy as np
names = ("tensorflow", "tensorflow.compat", "tensorflow.compat.v1", "absl", "absl.flags", "six")
modules = {name: types.ModuleType(name) for name in names}
sys.modules.update(modules)
modules["tensorflow"].compat = modules["tensorflow.compat"]
tf = modules["tensorflow.compat"].v1 = modules["tensorflow.compat.v1"]
ignore = lambda *args, **kwargs: None
FLAGS = types.SimpleNamespace(version_2_with_negative=False, null_score_diff_threshold=0.0, verbose_logging=False)
tf.flags = types.SimpleNamespace(FLAGS=FLAGS, DEFINE_string=ignore, DEFINE_bool=ignore, DEFINE_integer=ignore,
                                 DEFINE_float=ignore)
files = {}
class Kept(io.StringIO):
    def __init__(self, name): super().__init__(); self.name = name
    def close(self): files[self.name] = self.getvalue(); super().close()
tf.gfile = types.SimpleNamespace(Open=lambda name, mode: io.StringIO(files[name]),
                                 GFile=lambda name, mode: Kept(name) if mode == "w" else open(name, encoding="utf-8"))
tf.logging = types.SimpleNamespace(info=ignore, warning=ignore)
tf.app = types.SimpleNamespace(run=ignore)
modules["six"].PY2, modules["six"].PY3 = False, True
modules["six"].iteritems = lambda mapping: mapping.items()
flags = modules["absl"].flags = modules["absl.flags"]
flags.DEFINE_bool, flags.FLAGS = ignore, types.SimpleNamespace(preserve_unused_tokens=False)
import bert
for name in ("modeling", "optimization"):
    sys.modules["bert." + name] = types.ModuleType("bert." + name)
    setattr(bert, name, sys.modules["bert." + name])
from bert import run_squad, tokenization
request = json.load(sys.stdin)
answers = []
for case in request["cases"]:
    tokenizer = tokenization.FullTokenizer(request["vocabulary"], do_lower_case=case["lowercase"])
    FLAGS.version_2_with_negative, FLAGS.null_score_diff_threshold = case["v2"], case["threshold"]
    files["data"] = json.dumps(case["data"])
    answer = {}
    for is_training in (True, False):
        examples = run_squad.read_squad_examples("data", is_training)
        features = []
        run_squad.convert_examples_to_features(examples, tokenizer, case["max_length"], case["stride"],
                                               case["max_question_length"], is_training, features.append)
        if is_training:
            answer["ids"] = [example.qas_id for example in examples]
            answer["windows"] = [
                [f.example_index, f.input_ids[: sum(f.input_mask)], f.segment_ids[: sum(f.input_mask)],
                 f.start_position, f.end_position] for f in features]
    results = []
    for number, feature in enumerate(features):
        length = sum(feature.input_mask)
        logits = np.round(np.random.default_rng([case["seed"], number]).normal(0, 3, (length, 2)), case["decimals"])
        padding = [-1e9] * (case["max_length"] - length)
        starts, ends = logits.astype(np.float32).astype(float).T.tolist()
        results.append(run_squad.RawResult(feature.unique_id, starts + padding, ends + padding))
    answer["predictions"], answer["nbest"], answer["odds"] = {}, {}, {}
    for number, example in enumerate(examples):
        own = [feature for feature in features if feature.example_index == number]
        for feature in own:
            feature.example_index = 0
        try:
            run_squad.write_predictions([example], own, results, case["num_best"], case["max_answer_length"],
                                        case["lowercase"], "predictions", "nbest", "odds")
        except AttributeError:  # the script has no answer where nothing but the null answer qualifies
            continue
        finally:
            for feature in own:
                feature.example_index = -1
        for name in ("predictions", "nbest", "odds"):
            answer[name].update(json.loads(files.pop(name, "{}")))
    answers.append(answer)
json.dump(answers, sys.stdout)
"""

TEXT = (
    "Steve Smith's the house (1895-1943). Japanese Héllo he\u0301llo naïve İstanbul ﬁne ＡＢ 中文字 한국어 ΟΔΟΣ "
    "a\u00a0b zero\u200bwidth soft\u00adhyphen x\u2028y $5.00 “quoted” U.S. New-York ½ unknown☃ \x01 café—bar ... "
    "John Johanson's running unaffable year in of and to , . ; by a an was is born 1895 1943 Smith"
)
WORDS = TEXT.split(" ")
BLANKS = [" ", "  ", "\n", "\t", "\u202f", " \r\n"]


def _context(draw, num_words):
    return draw.choice(["", " "]) + "".join(draw.choice(WORDS) + draw.choice(BLANKS) for _ in range(num_words))


def _data(draw, *, v2, num_words, num_questions):
    """Return random contexts with answers cut at any character, not only at words, without surrounding blanks."""
    paragraphs, number = [], 0
    for _ in range(3):
        context, questions = _context(draw, draw.randint(1, num_words)), []
        while len(questions) < num_questions:
            start = draw.randrange(len(context))
            text = context[start : start + draw.randint(1, 25)]
            if not text.strip() or text != text.strip():
                continue
            is_impossible = v2 and draw.random() < 0.3
            answers = [] if is_impossible else [{"text": text, "answer_start": start}]
            question = " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, 12))) + "?"
            questions.append({"id": str(number), "question": question, "answers": answers})
            if v2:
                questions[-1]["is_impossible"] = is_impossible
            number += 1
        paragraphs.append({"context": context, "qas": questions})
    return {"version": "2.0" if v2 else "1.1", "data": [{"title": "crafted", "paragraphs": paragraphs}]}


def _cases():
    draw = random.Random(11)
    cases = []
    for number in range(30):
        v2 = number % 2 == 1
        cases.append(
            {
                "data": _data(draw, v2=v2, num_words=draw.choice([5, 40, 200]), num_questions=draw.choice([1, 4])),
                "v2": v2,
                "lowercase": number % 3 != 0,
                "max_length": draw.choice([24, 40, 64, 384]),
                "stride": draw.choice([3, 8, 16, 128]),
                "max_question_length": draw.choice([3, 8, 16]),
                "num_best": draw.choice([1, 5, 20]),
                "max_answer_length": draw.choice([1, 8, 30]),
                "threshold": draw.choice([0.0, -3.0, 4.0]),
                "decimals": draw.choice([0, 1, 6]),
                "seed": number,
            }
        )
    return cases


@pytest.fixture(scope="module")
def vocabulary(minilm_folder):
    return minilm_folder / "vocab.txt"


@pytest.fixture(scope="module")
def pairs(vocabulary, tmp_path_factory):
    """Return every case with the script's answer and our own encodings for training and for prediction."""
    cases, found = _cases(), []
    folder = tmp_path_factory.mktemp("squad")
    words = Vocabulary.load(vocabulary.parent)
    for number, (case, answer) in enumerate(zip(cases, _ask_oracle(cases, vocabulary), strict=True)):
        path = folder / f"{number}.json"
        path.write_text(json.dumps(case["data"]), encoding="utf-8")
        questions = list(iterate_questions(path, ReadingOptions(), None, needs_label=True, report=ReadingReport(path)))
        tokenizer = WordPieceTokenizer(words, lowercase=case["lowercase"])
        settings = SpanSettings(stride=case["stride"], max_question_length=case["max_question_length"])
        both = [
            encode_questions(questions, tokenizer, settings, max_length=case["max_length"], for_training=for_training)
            for for_training in (True, False)
        ]
        found.append((case, answer, *both))
    return found


def _ask_oracle(cases, vocabulary):
    pytest.importorskip("bert", reason="the oracle package bert-tensorflow is not installed")
    done = subprocess.run(
        [sys.executable, "-c", _ORACLE],
        input=json.dumps({"cases": cases, "vocabulary": str(vocabulary)}),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_windows_labels_and_left_out_questions_are_google_s(pairs):
    num_left_out = num_windows = 0
    for case, answer, training, _ in pairs:
        assert [question.id for question in training.questions] == answer["ids"]
        all_ids = [qa["id"] for paragraph in case["data"]["data"][0]["paragraphs"] for qa in paragraph["qas"]]
        assert sorted([*answer["ids"], *training.unaligned], key=int) == all_ids
        num_left_out += len(training.unaligned)
        expected = answer["windows"]
        assert len(training) == len(expected)
        batch = training.batch(np.arange(len(training)))
        ends = np.cumsum(batch.lengths)
        for window, (question, ids, segments, start, end) in enumerate(expected):
            tokens = slice(ends[window] - batch.lengths[window], ends[window])
            assert training.windows[window, 0] == question
            assert batch.token_ids[tokens].tolist() == ids
            assert batch.segment_ids[tokens].tolist() == segments
            assert batch.labels[window].tolist() == [start, end], (case["seed"], window)
            num_windows += 1
    assert num_left_out > 3
    assert num_windows > 1000


def test_answers_candidates_and_null_odds_are_google_s(pairs):
    num_nulls = num_whole = num_crashes = 0
    for case, answer, _, encoded in pairs:
        outputs = [
            np.round(np.random.default_rng([case["seed"], number]).normal(0, 3, (length, 2)), case["decimals"])
            .astype(np.float32)
            for number, length in enumerate(encoded.lengths.tolist())
        ]  # fmt: skip
        options = SpanSettings(
            num_best=case["num_best"],
            max_answer_length=case["max_answer_length"],
            has_unanswerable=case["v2"],
            null_threshold=case["threshold"],
        )
        best = decode_answers(encoded, outputs, options, only_best=True)
        for question, found in zip(encoded.questions, decode_answers(encoded, outputs, options), strict=True):
            quick = next(best)
            assert (quick.text, quick.best["text"], quick.null_odds) == (
                found.text,
                found.best["text"],
                found.null_odds,
            )
            if question.id not in answer["predictions"]:
                assert [candidate["text"] for candidate in found.candidates] == ["empty", ""]
                num_crashes += 1
                continue
            assert found.text == answer["predictions"][question.id]
            expected = answer["nbest"][question.id]
            assert [candidate["text"] for candidate in found.candidates] == [entry["text"] for entry in expected]
            for candidate, entry in zip(found.candidates, expected, strict=True):
                assert (candidate["start_logit"], candidate["end_logit"]) == (entry["start_logit"], entry["end_logit"])
                assert candidate["probability"] == pytest.approx(entry["probability"], abs=1e-12)
            assert found.null_odds == answer["odds"].get(question.id)
            num_nulls += found.text == ""
            num_whole += len(found.candidates) > 1
    assert num_nulls > 5
    assert num_whole > 100
    assert num_crashes > 5
