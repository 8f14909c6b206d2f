"""Whether two results are the same: the harness's rule, beside `torch._dynamo.utils.same` itself."""

from __future__ import annotations

import pytest
import torch

from runner.suites.torchdynamo.comparison import compare
from runner.suites.torchdynamo.rules import AccuracyRules as Rules


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.complex64])
@pytest.mark.parametrize("shape", [(2,), (400,), (3, 500), (8, 300, 1, 1)])
@pytest.mark.parametrize(
    "rules",
    [
        Rules(1e-4),
        Rules(1e-3, equal_nan=True),
        Rules(2e-2),
        Rules(1e-3, larger_multiplier=True),
        Rules(1e-4, widest=True),
        Rules(1e-3, cosine=True),
    ],
    ids=str,
)
def test_comparison_agrees_with_the_harness(dtype: torch.dtype, shape: tuple[int, ...], rules: Rules) -> None:
    """torch._dynamo.utils.same says the same of errors from none to large."""
    torch.manual_seed(5)
    precise = torch.complex128 if dtype.is_complex else torch.float64
    both = set()
    for scale in (0.0, 1e-4, 2e-3, 1e-2, 2.5e-2, 0.1, 2.0):
        for eager_scale in (1e-6, 1e-2):
            reference = torch.randn(shape, dtype=precise)
            eager = (reference + eager_scale * torch.randn(shape, dtype=precise)).to(dtype)
            result = (eager.to(precise) + scale * torch.randn(shape, dtype=precise)).to(dtype)
            theirs = torch._dynamo.utils.same(
                {"x": [eager]},
                {"x": [result]},
                {"x": [reference]},
                cos_similarity=rules.cosine,
                tol=rules.tolerance,
                equal_nan=rules.equal_nan,
                log_error=lambda *_said: None,
                use_larger_multiplier_for_smaller_tensor=rules.larger_multiplier,
                force_max_multiplier=rules.widest,
            )
            ours = compare({"x": [eager]}, {"x": [result]}, {"x": [reference]}, rules)
            assert ours.same == theirs, ours.reason
            both.add(theirs)
    assert both == {True, False}


def test_nan_is_equal_only_where_it_may_be() -> None:
    nan, one = torch.tensor([float("nan"), 1.0]), torch.ones(2)
    assert compare(nan, nan.clone(), None, Rules(1e-3, equal_nan=True)).same
    assert not compare(nan, nan.clone(), None, Rules(1e-3)).same
    assert compare(nan, one, one.double(), Rules(1e-3)).same  # better than eager
    assert not compare(one, nan, one.double(), Rules(1e-3)).same


def test_other_objects_are_not_comparable() -> None:
    with pytest.raises(TypeError, match="object"):
        compare({"x": object()}, {"x": object()}, None, Rules(1e-3))


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("equal_nan", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize(
    ("eager", "result", "reference"),
    [
        ([1.0, INF], [1.0, INF], [1.0, INF]),
        ([1.0, INF], [1.0, -INF], [1.0, INF]),
        ([1.0, INF], [1.0, 2.0], [1.0, 2.0]),
        ([1.0, INF], [1.1, INF], [1.0, INF]),
        ([1.0, NAN], [1.0, NAN], [1.0, NAN]),
        ([1.0, NAN], [1.1, NAN], [1.0, 2.0]),
        ([1.0, NAN], [1.0, INF], [1.0, INF]),
        ([1.0, 2.0], [1.0, NAN], [1.0, 2.0]),
        ([1.0, INF], [1.0, NAN], [1.0, 2.0]),
        ([INF, NAN], [NAN, INF], [INF, NAN]),
    ],
)
def test_nan_and_infinity_compare_as_in_the_harness(
    equal_nan: bool, dtype: torch.dtype, eager: list[float], result: list[float], reference: list[float]
) -> None:
    precise = torch.complex128 if dtype.is_complex else torch.float64
    given = torch.tensor(eager, dtype=dtype), torch.tensor(result, dtype=dtype)
    wanted = torch.tensor(reference, dtype=precise)
    theirs = torch._dynamo.utils.same(
        *given, wanted, tol=1e-3, equal_nan=equal_nan, log_error=lambda *_said: None
    )
    ours = compare(*given, wanted, Rules(1e-3, equal_nan=equal_nan), measured=True)
    assert ours.same == theirs, ours.reason
    assert ours.errors.numbers == 2 * (2 if dtype.is_complex else 1)


@pytest.mark.parametrize(
    ("eager", "result"),
    [
        (torch.tensor([1000, 2]), torch.tensor([1001, 2])),
        (torch.tensor([10, 2]), torch.tensor([11, 2])),
        (torch.tensor([True, False]), torch.tensor([True, False])),
        (torch.tensor([True, False]), torch.tensor([True, True])),
        (torch.eye(3).to_sparse(), torch.eye(3).to_sparse() * 1.001),
        (torch.eye(3).to_sparse(), torch.eye(3).to_sparse() * 1.1),
        (1.5, 1.501),
        (1.5, 1.6),
        (torch.tensor(1.5), 1.5),
    ],
)
def test_integers_booleans_sparse_tensors_and_numbers_compare_as_in_the_harness(
    eager: object, result: object
) -> None:
    theirs = torch._dynamo.utils.same(eager, result, tol=1e-2, log_error=lambda *_said: None)
    assert compare(eager, result, None, Rules(1e-2), measured=True).same == theirs


@pytest.mark.parametrize("scale", [1e38, 1e-38, 1.0])
def test_error_stats_of_the_largest_and_smallest_float32(scale: float) -> None:
    numbers = torch.tensor([1.0, -0.5, 0.25, 0.5, 0.0, 0.75, 0.5]).double()
    turned = numbers.flip(0)

    def gradients(flat: torch.Tensor) -> dict[str, dict[str, torch.Tensor]]:
        """Two tensors that are one vector."""
        return {"gradients": {"a": flat[:4] * scale, "b": flat[4:] * scale}}

    eager = gradients(numbers)
    same = compare(eager, eager, eager, Rules(1e-3), measured=True)
    assert same.same
    assert same.errors.cosine == pytest.approx(1.0)
    assert same.errors.rmse_ratio == 1.0
    reference = numbers * (1 - 1e-3)
    found = compare(eager, gradients(turned), gradients(reference), Rules(1e-3), measured=True).errors
    assert found.cosine == pytest.approx(float(numbers @ turned / (numbers @ numbers)))
    errors = float((turned - reference).norm() / (numbers - reference).norm())
    assert found.rmse_ratio == pytest.approx(errors)
