"""CoNLL-2003 as its files are distributed (Tjong Kim Sang and De Meulder 2003): a word a line, four columns.

They are the word, its part of speech, the tag of its phrase and that of its entity; a blank line ends a sentence and
-DOCSTART- opens a document. The published score is conlleval's F1. Parts of speech, `--label-column 2`, have another
score, so that the row leaves it to the tags.
"""

from __future__ import annotations

from maskloom.tasks.catalog.row import CatalogRow

CONLL2003 = CatalogRow(name="conll2003", kind="tagging", text="1", pair=None, label="4", primary=None)
