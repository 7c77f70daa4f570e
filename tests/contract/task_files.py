"""Small random data files for every kind of task."""

import json

WORDS = [
    "the",
    "red",
    "blue",
    "cat",
    "dog",
    "Anna",
    "Rome",
    "sat",
    "ran",
    "in",
    "on",
    "house",
    "tree",
    "what",
    "who",
    "did",
    "?",
    ".",
]


def sentence(draw, low=3, high=9):
    return " ".join(draw.choice(WORDS[:12], draw.integers(low, high)))


def table(rows):
    return "data.jsonl", "".join(json.dumps(row) + "\n" for row in rows)


def single(draw, size):
    return table({"text": sentence(draw), "label": ["no", "yes"][i % 2]} for i in range(size))


def pair(draw, size):
    rows = ({"text_a": sentence(draw), "text_b": sentence(draw), "label": ["a", "b", "c"][i % 3]} for i in range(size))
    return table(rows)


def regression(draw, size):
    return table({"text": sentence(draw), "score": float(i % 5)} for i in range(size))


def multilabel(draw, size):
    return table({"text": sentence(draw), "labels": [["x"], ["x", "y"], [], ["z"]][i % 4]} for i in range(size))


def document(draw, size):
    texts = (" . ".join(sentence(draw) for _ in range(1 + i % 4)) for i in range(size))
    return table(
        {"title": sentence(draw), "text": text, "labels": [["x"], ["x", "y"], [], ["z"]][i % 4]}
        for i, text in enumerate(texts)
    )


def tagging(draw, size):
    tags = {"Anna": "B-PER", "Rome": "B-LOC"}
    lines = []
    for _ in range(size):
        lines += [f"{word} {tags.get(word, 'O')}" for word in [*sentence(draw, 3, 40).split(), "Anna", "Rome"]]
        lines.append("")
    return "data.conll", "\n".join(lines)


def span(draw, size):
    paragraphs = []
    for number in range(size):
        context = sentence(draw, 12, 40)
        answer = context.split()[3]
        found = {"text": answer, "answer_start": context.index(answer)}
        question = {"id": f"q{number}", "question": "who ran ?", "answers": [found]}
        paragraphs.append({"context": context, "qas": [question]})
    return "data.json", json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]})


def choice(draw, size):
    rows = (
        {"question": sentence(draw), "choices": [sentence(draw) for _ in range(3)], "label": i % 3} for i in range(size)
    )
    return table(rows)


def seq2seq(draw, size):
    texts = [sentence(draw) for _ in range(size)]
    return table({"source": text, "target": " ".join(reversed(text.split()))} for text in texts)


FILES = {
    "seq2seq": seq2seq,
    "single": single,
    "pair": pair,
    "regression": regression,
    "multilabel": multilabel,
    "document": document,
    "tagging": tagging,
    "span": span,
    "choice": choice,
}
