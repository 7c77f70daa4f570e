"""GPU kernels in Triton: norms of sums, activations, short attention and losses, each in one pass over memory.

Dropout uses the words of `layers.dropout`: two values of a row share a 32-bit hash of its key. For sums over rows, each
program writes a partial sum and torch adds them, so results are deterministic. Letters: t tokens, h hidden.
"""
# pyright: basic, reportMissingImports=false, reportPossiblyUnboundVariable=false

from __future__ import annotations

import triton
import triton.language as tl

from maskloom.layers.dropout import FACTOR_1, FACTOR_2, GAMMA

_FACTOR_1, _FACTOR_2, _GAMMA = (tl.constexpr(number) for number in (FACTOR_1, FACTOR_2, GAMMA))
_ROOT_HALF, _INVERSE_ROOT_2_PI = tl.constexpr(0.7071067811865476), tl.constexpr(0.3989422804014327)
_LOG2_E = tl.constexpr(1.4426950408889634)
# Numbers that change from call to call, for which Triton shall not compile variants such as "divisible by 16".
_CHANGING = ["word", "threshold", "num_rows", "rows_each"]


@triton.jit
def _hashed(words):
    words = words ^ (words >> 16)
    words = words * _FACTOR_1
    words = words ^ (words >> 15)
    words = words * _FACTOR_2
    return words + (words >> 16)


@triton.jit
def _kept(row_keys, columns, threshold):
    """Return a mask of the values that dropout keeps; `row_keys` are broadcast over `columns`."""
    words = _hashed(row_keys + (columns >> 1) * _GAMMA)
    halves = (words >> ((columns & 1) << 4)) & 0xFFFF
    return (halves ^ 0x8000) >= threshold


@triton.jit
def _normed(total, weight, bias, mean_place, root_place, columns, width, epsilon):
    """LayerNorm of a row; stores its mean and the reciprocal of its standard deviation."""
    inside = columns < width
    mean = tl.sum(total, 0) / width
    centered = tl.where(inside, total - mean, 0.0)
    root = tl.rsqrt(tl.sum(centered * centered, 0) / width + epsilon)
    tl.store(mean_place, mean)
    tl.store(root_place, root)
    return centered * root * tl.load(weight + columns, mask=inside) + tl.load(bias + columns, mask=inside)


@triton.jit
def _norm_gradient(upper, normed, root, width):
    """The gradient of LayerNorm with respect to a row; `upper` is the output's gradient times the weight."""
    along = tl.sum(upper * normed, 0) / width
    return (upper - tl.sum(upper, 0) / width - normed * along) * root


@triton.jit(do_not_specialize=_CHANGING)
def thinned(x, out, keys, word, threshold, factor, width, BLOCK: tl.constexpr):
    """out = dropout(x), one row per program: (t, width). The backward pass applies it to the gradient."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(x + row * width + columns, mask=inside).to(tl.float32)
    kept = _kept(_hashed(tl.load(keys + row) ^ word), columns, threshold)
    tl.store(out + row * width + columns, tl.where(kept, values * factor, 0.0), mask=inside)


@triton.jit(do_not_specialize=_CHANGING)
def normed_sum(
    hidden, added, weight, bias, out, means, roots, keys, word, threshold, factor, epsilon, width,
    BLOCK: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """out = LN(hidden + dropout(added)), one row per program: (t, h); stores means and 1 / standard deviations (t,)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    total = tl.load(added + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    if DROPS:
        kept = _kept(_hashed(tl.load(keys + row) ^ word), columns, threshold)
        total = tl.where(kept, total * factor, 0.0)
    total += tl.load(hidden + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    scaled = _normed(total, weight, bias, means + row, roots + row, columns, width, epsilon)
    tl.store(out + row * width + columns, scaled, mask=inside)


@triton.jit(do_not_specialize=_CHANGING)
def normed_sum_gradient(
    gradient, hidden, added, weight, means, roots, d_hidden, d_added, parts, keys, word, threshold, factor,
    num_rows, width, BLOCK: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Gradients of `normed_sum`; `parts` (programs, 3 h) gets partial sums for the weight, the bias and `added`."""
    program, step = tl.program_id(0), tl.num_programs(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    scales = tl.load(weight + columns, mask=inside, other=0.0)
    d_weight = tl.zeros([BLOCK], tl.float32)
    d_bias = tl.zeros([BLOCK], tl.float32)
    d_sum = tl.zeros([BLOCK], tl.float32)
    for number in range(program, num_rows, step):
        row = tl.full((), 0, tl.int64) + number
        place = row * width + columns
        total = tl.load(added + place, mask=inside, other=0.0).to(tl.float32)
        upper = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
        root = tl.load(roots + row)
        if DROPS:
            kept = _kept(_hashed(tl.load(keys + row) ^ word), columns, threshold)
            total = tl.where(kept, total * factor, 0.0)
        total += tl.load(hidden + place, mask=inside, other=0.0).to(tl.float32)
        normed = tl.where(inside, (total - tl.load(means + row)) * root, 0.0)
        lower = _norm_gradient(upper * scales, normed, root, width)
        d_weight += upper * normed
        d_bias += upper
        tl.store(d_hidden + place, lower, mask=inside)
        if DROPS:
            lower = tl.where(kept, lower * factor, 0.0)
        d_sum += lower
        tl.store(d_added + place, lower, mask=inside)
    part = parts + program * 3 * width + columns
    tl.store(part, d_weight, mask=inside)
    tl.store(part + width, d_bias, mask=inside)
    tl.store(part + 2 * width, d_sum, mask=inside)


@triton.jit(do_not_specialize=_CHANGING)
def normed_embedding(
    words, segments, positions, word_ids, segment_ids, position_ids, weight, bias, out, means, roots,
    keys, word, threshold, factor, epsilon, width, BLOCK: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """out = dropout(LN(word + segment + position)), one token per program: (t, h), from the table rows of ids (t,)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    total = tl.load(words + tl.load(word_ids + row) * width + columns, mask=inside, other=0.0)
    total += tl.load(segments + tl.load(segment_ids + row) * width + columns, mask=inside, other=0.0)
    total += tl.load(positions + tl.load(position_ids + row) * width + columns, mask=inside, other=0.0)
    scaled = _normed(total, weight, bias, means + row, roots + row, columns, width, epsilon)
    if DROPS:
        scaled = tl.where(_kept(_hashed(tl.load(keys + row) ^ word), columns, threshold), scaled * factor, 0.0)
    tl.store(out + row * width + columns, scaled, mask=inside)


@triton.jit(do_not_specialize=_CHANGING)
def normed_embedding_gradient(
    gradient, words, segments, positions, word_ids, segment_ids, position_ids, weight, means, roots, d_total, parts,
    keys, word, threshold, factor, num_rows, width, BLOCK: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """The gradient of the sum in `normed_embedding`; `parts` (programs, 2 h) gets partial sums for weight and bias."""
    program, step = tl.program_id(0), tl.num_programs(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    scales = tl.load(weight + columns, mask=inside, other=0.0)
    d_weight = tl.zeros([BLOCK], tl.float32)
    d_bias = tl.zeros([BLOCK], tl.float32)
    for number in range(program, num_rows, step):
        row = tl.full((), 0, tl.int64) + number
        upper = tl.load(gradient + row * width + columns, mask=inside, other=0.0).to(tl.float32)
        total = tl.load(words + tl.load(word_ids + row) * width + columns, mask=inside, other=0.0)
        total += tl.load(segments + tl.load(segment_ids + row) * width + columns, mask=inside, other=0.0)
        total += tl.load(positions + tl.load(position_ids + row) * width + columns, mask=inside, other=0.0)
        root = tl.load(roots + row)
        if DROPS:
            upper = tl.where(_kept(_hashed(tl.load(keys + row) ^ word), columns, threshold), upper * factor, 0.0)
        normed = tl.where(inside, (total - tl.load(means + row)) * root, 0.0)
        lower = _norm_gradient(upper * scales, normed, root, width)
        tl.store(d_total + row * width + columns, lower, mask=inside)
        d_weight += upper * normed
        d_bias += upper
    part = parts + program * 2 * width + columns
    tl.store(part, d_weight, mask=inside)
    tl.store(part + width, d_bias, mask=inside)


@triton.jit(do_not_specialize=_CHANGING)
def column_sums(
    x, gradient, out, parts, num_rows, width, rows_each,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, OF_GELU: tl.constexpr,
):  # fmt: skip
    """`parts` (row chunks, width) gets the sums over the rows of `x` (t, width).

    With OF_GELU they are those of out = gelu'(x) gradient, with exact (erf) gelu.
    """
    chunk = tl.program_id(1)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < width
    total = tl.zeros([COLUMNS], tl.float32)
    first = chunk * rows_each
    for start in range(first, tl.minimum(first + rows_each, num_rows), ROWS):
        rows = start + tl.arange(0, ROWS)
        place = rows[:, None].to(tl.int64) * width + columns[None, :]
        mask = (rows < tl.minimum(first + rows_each, num_rows))[:, None] & inside[None, :]
        values = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
        if OF_GELU:
            upper = tl.load(gradient + place, mask=mask, other=0.0).to(tl.float32)
            below = 0.5 + 0.5 * tl.erf(values * _ROOT_HALF)
            density = tl.exp2(values * values * (-0.5 * _LOG2_E)) * _INVERSE_ROOT_2_PI
            values = upper * (below + values * density)
            tl.store(out + place, values, mask=mask)
        total += tl.sum(values, 0)
    tl.store(parts + chunk * width + columns, total, mask=inside)


@triton.jit(do_not_specialize=_CHANGING)
def joined(
    first, second, third, out, parts, num_rows, width, rows_each, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Concatenate three arrays (t, width) in `out` (t, 3 width); `parts` (row chunks, 3 width) gets sums over rows.

    Each program processes columns of one array.
    """
    num_blocks = tl.cdiv(width, COLUMNS)
    number, chunk = tl.program_id(0) // num_blocks, tl.program_id(1)
    columns = tl.program_id(0) % num_blocks * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < width
    x = first
    if number == 1:
        x = second
    if number == 2:
        x = third
    total = tl.zeros([COLUMNS], tl.float32)
    start_row = chunk * rows_each
    for start in range(start_row, tl.minimum(start_row + rows_each, num_rows), ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = (rows < tl.minimum(start_row + rows_each, num_rows))[:, None] & inside[None, :]
        places = rows[:, None].to(tl.int64)
        values = tl.load(x + places * width + columns[None, :], mask=mask, other=0.0)
        tl.store(out + places * (3 * width) + number * width + columns[None, :], values, mask=mask)
        total += tl.sum(values.to(tl.float32), 0)
    tl.store(parts + chunk * (3 * width) + number * width + columns, total, mask=inside)


@triton.jit(do_not_specialize=_CHANGING)
def short_attention(
    qkv, offsets, context, log_sums, keys, word, threshold, factor, scale, num_heads,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, DROPS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """dropout(softmax(q k^T / sqrt(d))) v, one sequence and head per program, keys in one block: (t, 3 h) to (t, h).

    SIZE is d, BLOCK is at least the longest length, ROWS is the number of queries processed at a time. `log_sums`
    (t, heads) gets the base-2 logarithms of the softmax's sums.
    """
    sequence, head = tl.program_id(0) // num_heads, tl.program_id(0) % num_heads
    first = tl.load(offsets + sequence)
    length = (tl.load(offsets + sequence + 1) - first).to(tl.int32)
    hidden = num_heads * SIZE
    columns, within = tl.arange(0, BLOCK), tl.arange(0, SIZE)
    own = qkv + first * (3 * hidden) + head * SIZE
    place = columns[:, None] * (3 * hidden) + within[None, :]
    is_key = columns < length
    k = tl.load(own + hidden + place, mask=is_key[:, None], other=0.0)
    v = tl.load(own + 2 * hidden + place, mask=is_key[:, None], other=0.0)
    for start in range(0, length, ROWS):
        rows = start + tl.arange(0, ROWS)
        is_query = rows < length
        q = tl.load(own + rows[:, None] * (3 * hidden) + within[None, :], mask=is_query[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k)) * (scale * _LOG2_E)
        seen = is_key[None, :]
        if CAUSAL:
            seen = seen & (columns[None, :] <= rows[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        most = tl.max(scores, 1)
        powers = tl.exp2(scores - most[:, None])
        total = tl.sum(powers, 1)
        tl.store(log_sums + (first + rows) * num_heads + head, most + tl.log2(total), mask=is_query)
        if DROPS:
            row_keys = _hashed(tl.load(keys + first + rows, mask=is_query, other=0) ^ word) + (head << 16) * _GAMMA
            powers = tl.where(_kept(row_keys[:, None], columns[None, :], threshold), powers * factor, 0.0)
        result = tl.dot(powers.to(v.dtype), v) / total[:, None]
        out = context + first * hidden + head * SIZE + rows[:, None] * hidden + within[None, :]
        tl.store(out, result, mask=is_query[:, None])


@triton.jit(do_not_specialize=_CHANGING)
def short_attention_gradient(
    qkv, offsets, context, log_sums, d_context, d_qkv, parts, keys, word, threshold, factor, scale, num_heads,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, DROPS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Gradients of `short_attention`: dS = P (dP - dC C), dQ = dS K, dK = dS^T Q, dV = P^T dC; keys are rows here.

    `parts` (sequences, 3 h) gets the sums over each sequence's tokens.
    """
    sequence, head = tl.program_id(0) // num_heads, tl.program_id(0) % num_heads
    first = tl.load(offsets + sequence)
    length = (tl.load(offsets + sequence + 1) - first).to(tl.int32)
    hidden = num_heads * SIZE
    columns, within = tl.arange(0, BLOCK), tl.arange(0, SIZE)
    own, lower = qkv + first * (3 * hidden) + head * SIZE, d_qkv + first * (3 * hidden) + head * SIZE
    place = columns[:, None] * (3 * hidden) + within[None, :]
    is_key = columns < length
    k = tl.load(own + hidden + place, mask=is_key[:, None], other=0.0)
    v = tl.load(own + 2 * hidden + place, mask=is_key[:, None], other=0.0)
    d_k = tl.zeros([BLOCK, SIZE], tl.float32)
    d_v = tl.zeros([BLOCK, SIZE], tl.float32)
    sum_q = tl.zeros([SIZE], tl.float32)
    for start in range(0, length, ROWS):
        rows = start + tl.arange(0, ROWS)
        is_query = rows < length
        row_place = rows[:, None] * (3 * hidden) + within[None, :]
        out_place = first * hidden + head * SIZE + rows[:, None] * hidden + within[None, :]
        q = tl.load(own + row_place, mask=is_query[:, None], other=0.0)
        upper = tl.load(d_context + out_place, mask=is_query[:, None], other=0.0)
        found = tl.load(context + out_place, mask=is_query[:, None], other=0.0)
        along = tl.sum(found.to(tl.float32) * upper.to(tl.float32), 1)
        log_sum = tl.load(log_sums + (first + rows) * num_heads + head, mask=is_query, other=0.0)
        seen = is_key[:, None] & is_query[None, :]
        if CAUSAL:
            seen = seen & (columns[:, None] <= rows[None, :])
        scores = tl.dot(k, tl.trans(q)) * (scale * _LOG2_E)
        p = tl.where(seen, tl.exp2(scores - log_sum[None, :]), 0.0)
        d_p = tl.dot(v, tl.trans(upper))
        used = p
        if DROPS:
            row_keys = _hashed(tl.load(keys + first + rows, mask=is_query, other=0) ^ word) + (head << 16) * _GAMMA
            factors = tl.where(_kept(row_keys[None, :], columns[:, None], threshold), factor, 0.0)
            used = p * factors
            d_p = d_p * factors
        d_v += tl.dot(used.to(v.dtype), upper)
        d_s = (p * (d_p - along[None, :]) * scale).to(k.dtype)
        d_k += tl.dot(d_s, q)
        d_q = tl.dot(tl.trans(d_s), k)
        sum_q += tl.sum(d_q, 0)
        tl.store(lower + row_place, d_q, mask=is_query[:, None])
    tl.store(lower + hidden + place, d_k, mask=is_key[:, None])
    tl.store(lower + 2 * hidden + place, d_v, mask=is_key[:, None])
    part = parts + sequence * (3 * hidden) + head * SIZE + within
    tl.store(part, sum_q)
    tl.store(part + hidden, tl.sum(d_k, 0))
    tl.store(part + 2 * hidden, tl.sum(d_v, 0))


@triton.jit(do_not_specialize=_CHANGING)
def loss_gradient(
    logits, bias, targets, weights, losses, num_words, width, BLOCK: tl.constexpr, WEIGHTED: tl.constexpr
):
    """Cross-entropy of softmax(logits + bias), one row per program; gradients overwrite `logits` (rows, width)."""
    row = tl.program_id(0)
    own = logits + row.to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    most = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, num_words, BLOCK):
        words = start + columns
        inside = words < num_words
        scores = tl.load(own + words, mask=inside, other=0.0).to(tl.float32) + tl.load(bias + words, mask=inside)
        scores = tl.where(inside, scores, float("-inf"))
        higher = tl.maximum(most, scores)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp2((most - base) * _LOG2_E) + tl.exp2((scores - base) * _LOG2_E)
        most = higher
    top = tl.max(most, 0)
    log_total = top + tl.log(tl.sum(total * tl.exp2((most - top) * _LOG2_E), 0))
    target = tl.load(targets + row)
    weight = 1.0
    if WEIGHTED:
        weight = tl.load(weights + row)
    wanted = tl.load(own + target).to(tl.float32) + tl.load(bias + target)
    tl.store(losses + row, (log_total - wanted) * weight)
    tl.debug_barrier()  # read the target's logit before it is overwritten
    for start in range(0, width, BLOCK):
        words = start + columns
        inside = words < num_words
        scores = tl.load(own + words, mask=inside, other=0.0).to(tl.float32) + tl.load(
            bias + words, mask=inside, other=0.0
        )
        gradient = tl.exp2((scores - log_total) * _LOG2_E) - tl.where(words == target, 1.0, 0.0)
        tl.store(own + words, tl.where(inside, gradient * weight, 0.0), mask=words < width)
