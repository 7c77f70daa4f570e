"""Characters on which the `tokenizers` library and Google's rules agree, in any surroundings.

Their Unicode tables are of different ages, so they part on recent punctuation and marks, unassigned code points,
private use, part of one Chinese block, and on capital sigma, whose lower case Python chooses by its neighbours. Only
text made of the characters below is given to the library; the rest takes the slower rules in
`maskloom.text.normalization`.

The list is written out, not computed, so that a result does not hang on the Unicode version of Python: the ranges were
assigned long ago and their categories no longer move. A test compares both sides on every single one of them.
"""

from __future__ import annotations

import re

_RANGES = """
0000-0377 037A-037F 0384-038A 038C 038E-03A1 03A4-0527 0531-0556 0559-058A 0591-05C7 05D0-05EA 05F0-05F4
0606-061B 061E-06FF 0900-097F 0993-09A8 09E6-09FB 0A13-0A28 0A66-0A75 0A93-0AA8 0ABC-0AC5 0AE6-0AF1
0B13-0B28 0B66-0B77 0BAE-0BB9 0BE6-0BFA 0C12-0C28 0C2A-0C39 0C66-0C6F 0C92-0CA8 0CAA-0CB3 0CE6-0CEF
0D02-0D0C 0D12-0D3A 0D54-0D63 0D66-0D7F 0D85-0D96 0D9A-0DB1 0DE6-0DEF 0E01-0E3A 0E3F-0E5B 0E8C-0EA3
0EA7-0EB9 0ED0-0ED9 1000-10C5 10D0-10FC 1100-1248 1260-1288 1290-12B0 12C8-12D6 12D8-1310 1318-135A
135D-137C 1780-17DD 17E0-17E9 17F0-17F9 1E00-1F15 1F20-1F45 1F5F-1F7D 1F80-1FB4 1FB6-1FC4 1FC6-1FD3
1FDD-1FEF 2000-2064 2074-208E 2090-209C 20A0-20B9 2100-218B 2190-23F3 2400-2426 2460-2AFF 2E80-2E99
2E9B-2EF3 2F00-2FD5 3000-302D 3030-303F 3041-3096 3099-30FF 3105-312D 3131-318E 3190-31BA 31F0-321E
3220-32FE 3300-4DB5 4E00-9FCB A000-A48C AC00-D7A3 F900-FA6D FB00-FB06 FB1D-FB36 FB46-FBB1 FE00-FE0F
FE30-FE52 FE54-FE66 FE76-FEFC FEFF FF01-FFBE 1D400-1D454 1D456-1D49C 1D4AE-1D4B9 1D4C5-1D505 1D51E-1D539
1D552-1D6A5 1D6A8-1D7CB 1D7CE-1D7FF 1F300-1F64F 1F680-1F6C5 20000-2A6D6
"""


def agreed_ranges() -> list[tuple[int, int]]:
    """Return the first and last code point of every range, in ascending order."""
    pairs = [text.split("-") for text in _RANGES.split()]
    return [(int(pair[0], 16), int(pair[-1], 16)) for pair in pairs]


_DISAGREED = re.compile("[^" + "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in agreed_ranges()) + "]")


def is_agreed(text: str) -> bool:
    """Return whether the library and Google's rules are known to cut this text in the same way."""
    return text.isascii() or _DISAGREED.search(text) is None
