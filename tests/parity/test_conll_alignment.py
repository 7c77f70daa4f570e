"""First pieces of words and token classification compared with transformers, on CoNLL-2003 and hard words."""

import json

import numpy as np
import pytest
import torch
from tests.unused_tensors import unused_tensors
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertForTokenClassification,
)

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.data.batch import TokenBatch
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.objectives.tagging import CrfTagging, Tagging
from maskloom.tasks.kinds import TAGGING
from maskloom.tasks.tagging.encoding import encode_sentences
from maskloom.tasks.tagging.reading import TaggedSentence
from maskloom.tasks.tagging.schemes import tag_names
from maskloom.text.tokenizer import Tokenizer

pytestmark = pytest.mark.parity

LABELS = tag_names(["X"], "iob2")
HARD = ["U.S.", "1996-08-22", "naïve", "O'Brien", "Zürich", "...", "$1,000", "東京", "(Reuters)"]


def sentence(words, tags):
    return TaggedSentence(tuple(words), tuple(tags), 1)


def their_alignment(tokenizer, words, tags):
    """Return ids and labels by the usual recipe: the first piece of a word has its tag, all others -100."""
    encoding = tokenizer(list(words), is_split_into_words=True)
    seen, labels = set(), []
    for word in encoding.word_ids():
        labels.append(-100 if word is None or word in seen else LABELS.index(tags[word]))
        seen.add(word)
    return encoding["input_ids"], labels


def assert_aligned(sentences, folder):
    theirs = AutoTokenizer.from_pretrained(folder)
    data = encode_sentences(sentences, Tokenizer.load(folder), max_length=512, labels=LABELS)
    for index, given in enumerate(sentences):
        batch = data.batch(np.array([index]))
        ids, labels = their_alignment(theirs, given.words, given.tags)
        assert batch.token_ids.tolist() == ids
        assert batch.labels is not None
        assert batch.labels.tolist() == labels


def test_hard_words(minilm_folder):
    rng = np.random.default_rng(0)
    cases = [sentence(rng.permutation(HARD).tolist(), rng.choice(LABELS, len(HARD)).tolist()) for _ in range(20)]
    assert_aligned(cases, minilm_folder)


@pytest.mark.realdata
def test_conll_2003(data_folder, minilm_folder):
    examples = TAGGING.read(data_folder / "conll2003" / "test.txt").examples[:400]
    assert_aligned(
        [sentence(s.words, ["O" if t == "O" else f"{t[0]}-X" for t in s.tags]) for s in examples], minilm_folder
    )


def test_token_classification_has_equal_logits_and_loss(tmp_path):
    config = BertConfig(
        vocab_size=40, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32, initializer_range=0.3,
    )  # fmt: skip
    for heads, objective in ((("tagger",), Tagging()), (("tagger", "crf"), CrfTagging())):
        folder = tmp_path / "-".join(heads)
        save_model(build_model(config, heads, 5, seed=2), folder)
        ours, _ = load_model(folder)
        if "crf" in heads:
            take_for_a_tagger(folder)
        theirs, report = BertForTokenClassification.from_pretrained(folder, output_loading_info=True)
        assert not report["missing_keys"]
        ids = torch.randint(5, 40, (3, 9), generator=torch.Generator().manual_seed(1))
        labels = torch.randint(0, 5, (3, 9), generator=torch.Generator().manual_seed(2))
        labels[:, ::3] = -100
        ours.eval()
        batch = flat_batch(ids, labels)
        with torch.no_grad():
            expected = theirs.eval()(input_ids=ids, labels=labels)
            logits = objective.logits(ours, batch)
        torch.testing.assert_close(logits.view(3, 9, 5), expected.logits, atol=1e-5, rtol=1e-5)
        if heads == ("tagger",):
            (loss,) = objective.loss_sums(ours, batch).values()
            (count,) = objective.target_counts(batch).values()
            torch.testing.assert_close(loss.detach() / count, expected.loss, atol=1e-5, rtol=1e-5)


def take_for_a_tagger(folder):
    """Give a folder with a CRF the model type and class name that early releases wrote."""
    config = json.loads((folder / "config.json").read_text())
    named = {"model_type": "bert", "architectures": ["BertForTokenClassification"]}
    (folder / "config.json").write_text(json.dumps(config | named))


def test_transformers_refuses_a_conditional_random_field_and_says_which(tmp_path):
    """It once opened such folders and took the best tag of each word separately, so its entities differed from ours."""
    config = BertConfig(
        vocab_size=40, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32,
    )  # fmt: skip
    model = build_model(config, ("tagger", "crf"), 5, seed=2)
    save_model(model, tmp_path)
    for opener in (AutoConfig, AutoModelForTokenClassification, AutoModel):
        with pytest.raises(ValueError, match="model type `maskloom_bert_crf`"):
            opener.from_pretrained(tmp_path)
    first, report = load_model(tmp_path)
    take_for_a_tagger(tmp_path)
    old, _ = load_model(tmp_path)
    assert not unused_tensors(tmp_path, report)
    for opened in (first, old):
        assert set(opened.heads) == {"tagger", "crf"}
        assert all(
            torch.equal(opened.state_dict()[name], values)
            for name, values in model.state_dict().items()
            if "pooler" not in name
        )


def flat_batch(ids, labels):
    flat, scored = ids.flatten().numpy(), labels.flatten().numpy()
    lengths, chains = np.full(len(ids), ids.shape[1]), np.full(len(flat), -1)
    return TokenBatch(flat, np.zeros_like(flat), lengths, scored, np.arange(len(ids)), chains)
