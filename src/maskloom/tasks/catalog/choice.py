"""Published sets of multiple choice: which text is the first, and what the second begins with.

Their readers find the columns by name, and CODAH's by number, for it has no header; the rows say what they find. ARC,
CommonsenseQA, COPA and RACE come as JSON of their own forms (tasks/choice/published.py).
"""

from __future__ import annotations

from maskloom.tasks.catalog.row import CatalogRow

CHOICE_SETS = (
    CatalogRow(name="swag", kind="choice", text="sent1", pair="sent2", label="label"),
    CatalogRow(name="hellaswag", kind="choice", text="ctx_a", pair="ctx_b", label="label"),
    CatalogRow(name="codah", kind="choice", text="2", pair=None, label="7"),
    CatalogRow(name="cosmosqa", kind="choice", text="context", pair="question", label="label"),
    CatalogRow(name="arc", kind="choice", text="question.stem", pair=None, label="answerKey"),
    CatalogRow(name="commonsenseqa", kind="choice", text="question.stem", pair=None, label="answerKey"),
    CatalogRow(name="copa", kind="choice", text="premise", pair="question", label="label"),
    CatalogRow(name="race", kind="choice", text="article", pair="questions", label="answers"),
)
