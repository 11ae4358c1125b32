"""Group norms over all copies at once have the same output, and give every copy its own gradient."""

import pytest
import torch
from torch import Tensor, nn

from dtrak.gradients.block_parameters import norms_of_each_copy


@pytest.mark.parametrize("positions", [(5, 3), (7,), ()])
def test_each_copy_has_the_gradient_of_its_own_pass(positions: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    norm = nn.GroupNorm(2, 6)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x, weights = torch.randn(4, 6, *positions, requires_grad=True), torch.randn(4, 6, *positions)
    expected = [
        torch.autograd.grad((norm(x[copy : copy + 1]) * weights[copy : copy + 1]).sum(), [norm.weight, norm.bias])
        for copy in range(4)
    ]
    plain = norm(x)
    (to_input,) = torch.autograd.grad((plain * weights).sum(), x)
    found: dict[str, Tensor] = {}
    receivers = {key: lambda rows, key=key: found.__setitem__(key, rows) for key in ("weight", "bias")}
    with norms_of_each_copy({norm: receivers}):
        joined = norm(x)
        (own,) = torch.autograd.grad((joined * weights).sum(), x, retain_graph=True)
        (joined * weights).sum().backward()
    torch.testing.assert_close(joined, plain)
    torch.testing.assert_close(own, to_input)
    for index, key in enumerate(("weight", "bias")):
        torch.testing.assert_close(found[key], torch.stack([one[index] for one in expected]))
    assert "forward" not in vars(norm)


def test_an_error_leaves_the_norm_as_it_was() -> None:
    norm = nn.GroupNorm(1, 2)
    with pytest.raises(RuntimeError, match="shape"), norms_of_each_copy({norm: {}}):
        norm(torch.ones(3, 5, 2))
    assert torch.isfinite(norm(torch.randn(3, 2, 4))).all()
