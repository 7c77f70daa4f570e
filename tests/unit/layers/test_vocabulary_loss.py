import pytest
import torch
import torch.nn.functional as F

from maskloom.layers import vocabulary_loss as module
from maskloom.layers.processor import matrix_products, onednn
from maskloom.layers.vocabulary_loss import vocabulary_loss


def example(num_rows, hidden_size, vocab_size, dtype=torch.float32, scale=1.0):
    generator = torch.Generator().manual_seed(num_rows)
    hidden, decoder, bias = (
        (scale * torch.randn(shape, generator=generator)).to(dtype).requires_grad_()
        for shape in ((num_rows, hidden_size), (vocab_size, hidden_size), (vocab_size,))
    )
    return (hidden, decoder, bias), torch.randint(vocab_size, (num_rows,), generator=generator)


def plain(hidden, decoder, bias, labels, weights=None, smoothing=0.0):
    logits = F.linear(hidden, decoder, bias)
    if weights is None:
        return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
    return (F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing) * weights).sum()


class Repeatable(torch.autograd.Function):
    """Repeats the whole computation in each backward pass, because gradcheck runs several."""

    @staticmethod
    def forward(ctx, hidden, decoder, bias, labels):
        ctx.save_for_backward(hidden, decoder, bias, labels)
        with torch.enable_grad():
            return vocabulary_loss(hidden, decoder, bias.detach().requires_grad_(), labels).detach()

    @staticmethod
    def backward(ctx, gradient):
        *parameters, labels = ctx.saved_tensors
        copies = [parameter.detach().requires_grad_() for parameter in parameters]
        with torch.enable_grad():
            loss = vocabulary_loss(*copies, labels)
        return (*torch.autograd.grad(loss, copies, gradient), None)


@pytest.mark.parametrize("num_logits", [1, 22, 10**6])
def test_gradcheck(monkeypatch, num_logits):
    monkeypatch.setattr(module, "_NUM_LOGITS", num_logits)
    parameters, labels = example(5, 3, 11, torch.float64)
    assert torch.autograd.gradcheck(Repeatable.apply, (*parameters, labels))


@pytest.mark.parametrize(
    ("shape", "num_logits"),
    [((7, 6, 13), 10**6), ((7, 6, 13), 13 * 3), ((96, 64, 6000), 10**6), ((300, 64, 3000), 3000 * 100)],
)
@pytest.mark.parametrize("factor", [1.0, -0.37])
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_values_and_gradients_are_those_of_the_plain_computation(
    monkeypatch, shape, num_logits, factor, is_weighted, smoothing
):
    monkeypatch.setattr(module, "_NUM_LOGITS", num_logits)
    parameters, labels = example(*shape, scale=0.3)
    weights = torch.rand(len(labels), generator=torch.Generator().manual_seed(0)) * 2 if is_weighted else None
    ours = vocabulary_loss(*parameters, labels, weights, smoothing=smoothing)
    expected = plain(*parameters, labels, weights, smoothing)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    gradients = (torch.autograd.grad(factor * loss, parameters) for loss in (ours, expected))
    for gradient, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-4)
        assert gradient.is_contiguous()


def test_smoothing_over_the_other_words_alone_is_a_larger_smoothing():
    """tensor2tensor and fairseq give e / (V - 1) to each of the other words: ours with e V / (V - 1) instead of e."""
    (hidden, decoder, bias), labels = example(7, 6, 13, torch.float64)
    logs = F.linear(hidden, decoder, bias).log_softmax(1)
    target = torch.full_like(logs, 0.1 / 12).scatter(1, labels[:, None], 0.9)
    found = vocabulary_loss(hidden, decoder, bias, labels, smoothing=0.1 * 13 / 12)
    torch.testing.assert_close(found, -(target * logs).sum(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_logits", [1, 40, 10**6])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_a_bias_may_be_absent_and_terms_may_be_weighted(monkeypatch, num_logits, smoothing):
    monkeypatch.setattr(module, "_NUM_LOGITS", num_logits)
    (hidden, decoder, _), labels = example(7, 3, 11)
    weights = torch.tensor([1.0, 0.0, 0.5, 2.0, 1.0, 0.25, 3.0])
    found = vocabulary_loss(hidden, decoder, None, labels, weights, smoothing=smoothing)
    expected = plain(hidden, decoder, None, labels, weights, smoothing)
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    gradients = [torch.autograd.grad(loss, (hidden, decoder)) for loss in (found, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)
    with torch.no_grad():
        unlearned = vocabulary_loss(hidden, decoder, None, labels, weights, smoothing=smoothing)
        assert float(unlearned) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("learns", [True, False])
def test_smoothing_is_that_of_torch_and_after_conversion_that_of_other_programs(learns):
    """Pitfall: e / V on every word is not e / (V - 1) on every word but the label."""
    epsilon, num_words = 0.1, 11
    (hidden, decoder, bias), labels = example(7, 3, num_words, torch.float64)
    logs = torch.log_softmax(F.linear(hidden, decoder, bias), 1).detach()
    of_labels, of_all = logs.gather(1, labels[:, None]).sum(), logs.sum()
    # Tensor2Tensor and fairseq: 1 - e for the label, e / (V - 1) for each of the others
    others = -((1 - epsilon) * of_labels + epsilon / (num_words - 1) * (of_all - of_labels))
    ours = -((1 - epsilon) * of_labels + epsilon / num_words * of_all)
    with torch.set_grad_enabled(learns):
        for smoothing, expected in ((epsilon, ours), (epsilon * num_words / (num_words - 1), others)):
            found = vocabulary_loss(hidden, decoder, bias, labels, smoothing=smoothing)
            torch.testing.assert_close(found.double(), expected, rtol=1e-12 if learns else 1e-6, atol=0)
    torch.testing.assert_close(ours, plain(hidden, decoder, bias, labels, smoothing=epsilon).detach())
    assert abs(float((ours - others) / ours)) > 1e-3


def test_a_label_that_is_all_but_impossible_has_a_finite_loss():
    hidden = torch.tensor([[300.0, -300.0]], requires_grad=True)
    decoder, bias, labels = torch.eye(2, requires_grad=True), torch.zeros(2), torch.tensor([1])
    loss = vocabulary_loss(hidden, decoder, bias, labels)
    assert float(loss.detach()) == pytest.approx(600.0)
    torch.testing.assert_close(torch.autograd.grad(loss, hidden)[0], torch.tensor([[1.0, -1.0]]))


def test_impossible_labels_among_others_count_what_their_logits_say(monkeypatch):
    monkeypatch.setattr(module, "_NUM_LOGITS", 66)
    (hidden, decoder, bias), labels = example(6, 4, 22)
    with torch.no_grad():
        bias[3] = 200.0
        bias[5] = 120.0
    labels[::2], labels[1] = 3, 5
    expected = plain(*(x.double() for x in (hidden, decoder, bias)), labels)
    assert expected > 200
    torch.testing.assert_close(vocabulary_loss(hidden, decoder, bias, labels).double(), expected, rtol=1e-6, atol=0)


def test_no_prediction_costs_nothing_and_moves_nothing():
    parameters, labels = example(0, 4, 9)
    loss = vocabulary_loss(*parameters, labels)
    assert float(loss.detach()) == 0.0
    assert all(float(gradient.abs().sum()) == 0.0 for gradient in torch.autograd.grad(loss, parameters))


def test_a_second_backward_pass_is_refused_in_words():
    parameters, labels = example(3, 4, 9)
    loss = vocabulary_loss(*parameters, labels)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="can run only once"):
        loss.backward()


def test_a_shared_decoder_gets_both_gradients():
    (_, decoder, bias), labels = example(6, 4, 9)
    ids = torch.tensor([1, 1, 8, 0, 2, 3])
    expected = torch.autograd.grad(plain(decoder[ids], decoder, bias, labels), decoder)[0]
    torch.testing.assert_close(
        torch.autograd.grad(vocabulary_loss(decoder[ids], decoder, bias, labels), decoder)[0], expected
    )


def test_without_gradient_and_in_half_precision_it_is_plain():
    parameters, labels = example(4, 4, 9)
    with torch.no_grad():
        assert torch.equal(vocabulary_loss(*parameters, labels), plain(*parameters, labels))
    half, labels = example(4, 4, 9, torch.bfloat16)
    loss = vocabulary_loss(*half, labels)
    assert loss.dtype == torch.float32
    loss.backward()
    assert half[0].grad is not None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_logits", [10**6, 3000 * 100])
def test_under_autocast_loss_and_gradients_of_the_weights_stay_in_fp32(monkeypatch, dtype, num_logits):
    monkeypatch.setattr(module, "_NUM_LOGITS", num_logits)
    parameters, labels = example(300, 64, 3000, scale=0.3)
    expected = plain(*parameters, labels)
    with torch.autocast("cpu", dtype):
        ours = vocabulary_loss(*parameters, labels)
    assert ours.dtype == torch.float32
    assert float(ours.detach()) == pytest.approx(float(expected.detach()), rel=2e-3)
    found, wanted = (torch.autograd.grad(loss, parameters) for loss in (ours, expected))
    for gradient, exact in zip(found, wanted, strict=True):
        assert gradient.dtype == torch.float32
        assert float((gradient - exact).norm() / exact.norm()) < 2e-2


def test_in_half_precision_the_loss_of_a_target_without_probability_is_exact():
    """5,003 rows are not a number of rows that oneDNN's products see as they are."""
    hidden, decoder = torch.full((5003, 4), 50.0, requires_grad=True), torch.eye(4).repeat(3, 1).requires_grad_()
    bias, labels = torch.zeros(12), torch.arange(5003) % 12
    bias[0] = 200.0
    with torch.autocast("cpu", torch.bfloat16):
        loss = vocabulary_loss(hidden, decoder, bias, labels)
    assert float(loss.detach()) == pytest.approx(200.0 * float((labels != 0).sum()), rel=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_on_a_gpu_it_is_the_same(monkeypatch, dtype):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    monkeypatch.setattr(module, "_NUM_LOGITS", 3000 * 6)
    parameters, labels = example(301, 64, 3000, scale=0.3)  # in half precision, three rows are added
    expected = torch.autograd.grad(plain(*parameters, labels), parameters)
    moved = [parameter.detach().cuda().requires_grad_() for parameter in parameters]
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        ours = vocabulary_loss(*moved, labels.cuda())
    for gradient, exact in zip(torch.autograd.grad(ours, moved), expected, strict=True):
        assert float((gradient.cpu() - exact).norm() / exact.norm()) < 2e-2


@pytest.mark.parametrize("smallest", [1, 1 << 40])
def test_the_decoders_gradient_is_summed_in_the_orientation_that_its_library_prefers(monkeypatch, smallest):
    """MKL adds a product to a sum of its own; oneDNN's products are added, short side first."""
    if not onednn._has_wide_kernels():
        pytest.skip("no AVX-512 here, so nothing goes to oneDNN")
    monkeypatch.setattr(onednn, "_library", "onednn")
    monkeypatch.setattr(matrix_products, "SMALLEST_GRADIENT", smallest)
    d_logits, rows, decoder = torch.randn(2048, 700), torch.randn(2048, 32), torch.randn(700, 32)
    total = module._DecoderGradient(decoder, is_single=False)
    for first in (0, 1024):
        total.add(d_logits[first : first + 1024], rows[first : first + 1024])
    assert total._is_transposed == (smallest == 1)
    torch.testing.assert_close(total.scaled(torch.tensor(2.0)), 2 * d_logits.t() @ rows, rtol=1e-4, atol=1e-3)


def test_smoothing_is_least_at_less_confidence_so_perplexity_rises_with_it():
    """The loss over the label's probability, with the rest spread evenly, has a closed form and a minimum."""
    num_words, shares, perplexities = 12, torch.linspace(0.05, 0.99, 95), []
    others = (1 - shares) / (num_words - 1)
    decoders = torch.stack([shares, *[others] * (num_words - 1)], 1).log()
    for epsilon in (0.0, 0.1, 0.2):
        losses = torch.stack([
            vocabulary_loss(torch.ones(1, 1), logits[:, None], None, torch.tensor([0]), smoothing=epsilon)
            for logits in decoders
        ])  # fmt: skip
        target = 1 - epsilon + epsilon / num_words
        torch.testing.assert_close(losses, -(target * shares.log() + (1 - target) * others.log()), rtol=1e-5, atol=1e-6)
        best = shares[losses.argmin()]
        assert best == pytest.approx(min(target, 0.99), abs=0.006)
        perplexities.append(float(1 / best))
    assert perplexities == sorted(set(perplexities))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_that_are_added_for_a_gpu_change_no_loss_and_no_gradient(weighted, smoothing):
    parameters, labels = example(37, 16, 100)
    weights = torch.rand(37) if weighted else None
    expected = vocabulary_loss(*parameters, labels, weights, smoothing=smoothing)
    hidden, more_labels, more_weights = module._with_empty_rows(parameters[0], labels, weights, 5)
    assert len(hidden) == len(more_labels) == len(more_weights) == 42
    found = vocabulary_loss(hidden, *parameters[1:], more_labels, more_weights, smoothing=smoothing)
    torch.testing.assert_close(found, expected)
    gradients = (torch.autograd.grad(loss, parameters) for loss in (found, expected))
    for ours, exact in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, exact)
