"""GPU kernels in Triton: norms of sums, activations, attention and losses.

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
_CHANGING = ["word", "threshold", "num_rows", "num_blocks", "rows_each"]


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


@triton.jit
def _keys_of_rows(places, mask, word, head):
    """Return a head's keys of rows, as `layers.dropout.head_keys` does."""
    return _hashed(tl.load(places, mask=mask, other=0) ^ word) + (head << 16) * _GAMMA


@triton.jit
def _pair_factors(row_keys, pairs, threshold, factor):
    """Dropout's factors of neighbouring columns, which share a hash, along a new last dimension."""
    words = _hashed(row_keys + pairs * _GAMMA)
    return tl.where(tl.join(words << 16, words) >= (threshold - 0x8000) << 16, factor, 0.0)


@triton.jit
def _block_of(offsets, num_blocks, num_heads, SIZE: tl.constexpr, ROWS: tl.constexpr):
    """Return head, first token, length, the program's first row within the sequence, and the program's part of sums."""
    own, block = tl.program_id(0) // num_blocks, tl.program_id(0) % num_blocks
    sequence, head = own // num_heads, own % num_heads
    first = tl.load(offsets + sequence)
    length = (tl.load(offsets + sequence + 1) - first).to(tl.int32)
    part = (sequence * num_blocks + block).to(tl.int64) * (3 * num_heads * SIZE) + head * SIZE
    return head, first, length, block * ROWS, part


@triton.jit(do_not_specialize=_CHANGING)
def attention(
    qkv, offsets, context, log_sums, keys, word, threshold, factor, scale, num_rows, num_blocks, num_heads,
    SIZE: tl.constexpr, ROWS: tl.constexpr, DROPS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """dropout(softmax(q k^T / sqrt(d))) v: (t, 3 h) to (t, h), ROWS queries of one sequence and head per program.

    Keys are read in blocks, and what was summed is rescaled whenever a score exceeds all before it (Milakov and
    Gimelshein 2018; Dao et al. 2022). SIZE is d. `log_sums` (heads, t) gets base-2 logarithms of the softmax's sums.
    """
    head, first, length, start, _ = _block_of(offsets, num_blocks, num_heads, SIZE, ROWS)
    if start < length:
        hidden = num_heads * SIZE
        within, order = tl.arange(0, SIZE), tl.arange(0, ROWS)
        own = qkv + first * (3 * hidden) + head * SIZE
        rows = start + order
        is_query = rows < length
        q = tl.load(own + rows[:, None] * (3 * hidden) + within[None, :], mask=is_query[:, None], other=0.0)
        if DROPS:
            row_keys = _keys_of_rows(keys + first + rows, is_query, word, head)
        most = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        result = tl.zeros([ROWS, SIZE], tl.float32)
        end = tl.minimum(start + ROWS, length) if CAUSAL else length
        for begin in range(0, end, ROWS):
            columns = begin + order
            is_key = columns < length
            place = columns[:, None] * (3 * hidden) + within[None, :]
            k = tl.load(own + hidden + place, mask=is_key[:, None], other=0.0)
            scores = tl.where(is_key[None, :], tl.dot(q, tl.trans(k)), float("-inf"))
            if CAUSAL:
                scores = tl.where(columns[None, :] <= rows[:, None], scores, float("-inf"))
            higher = tl.maximum(most, tl.max(scores, 1) * (scale * _LOG2_E))
            powers = tl.exp2(scores * (scale * _LOG2_E) - higher[:, None])
            shrunk = tl.exp2(most - higher)
            total = total * shrunk + tl.sum(powers, 1)
            most = higher
            if DROPS:
                pairs = begin // 2 + tl.arange(0, ROWS // 2)
                powers *= tl.reshape(_pair_factors(row_keys[:, None], pairs[None, :], threshold, factor), ROWS, ROWS)
            v = tl.load(own + 2 * hidden + place, mask=is_key[:, None], other=0.0)
            result = tl.dot(powers.to(v.dtype), v, result * shrunk[:, None])
        tl.store(log_sums + head * num_rows + first + rows, most + tl.log2(total), mask=is_query)
        out = context + first * hidden + head * SIZE + rows[:, None] * hidden + within[None, :]
        tl.store(out, result / total[:, None], mask=is_query[:, None])


@triton.jit(do_not_specialize=_CHANGING)
def query_gradient(
    qkv, offsets, context, log_sums, d_context, alongs, head_keys, d_qkv, parts,
    keys, word, threshold, factor, scale, num_rows, num_blocks, num_heads,
    SIZE: tl.constexpr, ROWS: tl.constexpr, DROPS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Gradient of `attention` with respect to q: dQ = dS K / sqrt(d) with dS = P (dP - dC C), ROWS queries per program.

    P is computed again; dP is dropout's factors times dC V^T. For `key_gradient`, `alongs` (heads, t) gets dC C and,
    with dropout, `head_keys` (heads, t) the rows' keys. `parts` (sequences, blocks, 3 h) gets sums of d_qkv over rows.
    """
    head, first, length, start, part = _block_of(offsets, num_blocks, num_heads, SIZE, ROWS)
    hidden, within = num_heads * SIZE, tl.arange(0, SIZE)
    d_q = tl.zeros([ROWS, SIZE], tl.float32)
    if start < length:
        order = tl.arange(0, ROWS)
        own = qkv + first * (3 * hidden) + head * SIZE
        rows = start + order
        is_query = rows < length
        row_place = rows[:, None] * (3 * hidden) + within[None, :]
        out_place = first * hidden + head * SIZE + rows[:, None] * hidden + within[None, :]
        of_row = head * num_rows + first + rows
        q = tl.load(own + row_place, mask=is_query[:, None], other=0.0)
        upper = tl.load(d_context + out_place, mask=is_query[:, None], other=0.0)
        found = tl.load(context + out_place, mask=is_query[:, None], other=0.0)
        log_sum = tl.load(log_sums + of_row, mask=is_query, other=0.0)
        along = tl.sum(found.to(tl.float32) * upper.to(tl.float32), 1)
        tl.store(alongs + of_row, along, mask=is_query)
        if DROPS:
            row_keys = _keys_of_rows(keys + first + rows, is_query, word, head)
            tl.store(head_keys + of_row, row_keys, mask=is_query)
        end = tl.minimum(start + ROWS, length) if CAUSAL else length
        for begin in range(0, end, ROWS):
            columns = begin + order
            is_key = columns < length
            place = columns[:, None] * (3 * hidden) + within[None, :]
            k = tl.load(own + hidden + place, mask=is_key[:, None], other=0.0)
            v = tl.load(own + 2 * hidden + place, mask=is_key[:, None], other=0.0)
            p = tl.exp2(tl.dot(q, tl.trans(k)) * (scale * _LOG2_E) - log_sum[:, None])
            p = tl.where(is_key[None, :], p, 0.0)
            if CAUSAL:
                p = tl.where(columns[None, :] <= rows[:, None], p, 0.0)
            d_p = tl.dot(upper, tl.trans(v))
            if DROPS:
                pairs = begin // 2 + tl.arange(0, ROWS // 2)
                d_p *= tl.reshape(_pair_factors(row_keys[:, None], pairs[None, :], threshold, factor), ROWS, ROWS)
            d_q = tl.dot((p * (d_p - along[:, None])).to(k.dtype), k, d_q)
        d_q *= scale
        tl.store(d_qkv + first * (3 * hidden) + head * SIZE + row_place, d_q, mask=is_query[:, None])
    tl.store(parts + part + within, tl.sum(d_q, 0))


@triton.jit(do_not_specialize=_CHANGING)
def key_gradient(
    qkv, offsets, log_sums, d_context, alongs, head_keys, d_qkv, parts,
    threshold, factor, scale, num_rows, num_blocks, num_heads,
    SIZE: tl.constexpr, ROWS: tl.constexpr, DROPS: tl.constexpr, CAUSAL: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The same with respect to k and v: dK = dS^T Q / sqrt(d), dV = P^T dC with P after dropout, ROWS keys per program.

    COLUMNS queries are read at a time. Rows are keys here, in an order that gives each thread both keys of a pair,
    which share a hash: in the layout of matrix products, a thread holds rows that are eight apart.
    """
    head, first, length, begin, part = _block_of(offsets, num_blocks, num_heads, SIZE, ROWS)
    hidden, within = num_heads * SIZE, tl.arange(0, SIZE)
    d_k = tl.zeros([ROWS, SIZE], tl.float32)
    d_v = tl.zeros([ROWS, SIZE], tl.float32)
    if begin < length:
        own, lower = qkv + first * (3 * hidden) + head * SIZE, d_qkv + first * (3 * hidden) + head * SIZE
        order = tl.arange(0, ROWS)
        rows = begin + order // 16 * 16 + order % 8 * 2 + order // 8 % 2
        pairs = begin // 2 + tl.arange(0, ROWS // 2)
        is_key = rows < length
        place = rows[:, None] * (3 * hidden) + within[None, :]
        k = tl.load(own + hidden + place, mask=is_key[:, None], other=0.0)
        v = tl.load(own + 2 * hidden + place, mask=is_key[:, None], other=0.0)
        for start in range(begin if CAUSAL else 0, length, COLUMNS):
            columns = start + tl.arange(0, COLUMNS)
            is_query = columns < length
            of_query = head * num_rows + first + columns
            # Beyond the end, queries and their gradients are 0 and add nothing.
            q = tl.load(own + columns[:, None] * (3 * hidden) + within[None, :], mask=is_query[:, None], other=0.0)
            out_place = first * hidden + head * SIZE + columns[:, None] * hidden + within[None, :]
            upper = tl.load(d_context + out_place, mask=is_query[:, None], other=0.0)
            log_sum = tl.load(log_sums + of_query, mask=is_query, other=0.0)
            along = tl.load(alongs + of_query, mask=is_query, other=0.0)
            p = tl.exp2(tl.dot(k, tl.trans(q)) * (scale * _LOG2_E) - log_sum[None, :])
            if CAUSAL:
                p = tl.where(rows[:, None] <= columns[None, :], p, 0.0)
            d_p = tl.dot(v, tl.trans(upper))
            used = p
            if DROPS:
                row_keys = tl.load(head_keys + of_query, mask=is_query, other=0)
                factors = _pair_factors(row_keys[None, :], pairs[:, None], threshold, factor)
                factors = tl.permute(tl.reshape(factors, ROWS // 16, 8, COLUMNS, 2), 0, 3, 1, 2)
                factors = tl.reshape(factors, ROWS, COLUMNS)
                used = p * factors
                d_p *= factors
            d_v = tl.dot(used.to(v.dtype), upper, d_v)
            d_k = tl.dot((p * (d_p - along[None, :])).to(k.dtype), q, d_k)
        d_k = tl.where(is_key[:, None], d_k * scale, 0.0)
        d_v = tl.where(is_key[:, None], d_v, 0.0)
        tl.store(lower + hidden + place, d_k, mask=is_key[:, None])
        tl.store(lower + 2 * hidden + place, d_v, mask=is_key[:, None])
    tl.store(parts + part + hidden + within, tl.sum(d_k, 0))
    tl.store(parts + part + 2 * hidden + within, tl.sum(d_v, 0))


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
