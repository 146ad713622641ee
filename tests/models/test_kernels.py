"""The kernels of the papers' ConvNet: their gradient against autograd, C++ against PyTorch."""

import hashlib
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedstill.errors import RequestError
from fedstill.models import ConvNet
from fedstill.models.kernels import library
from fedstill.models.kernels.kernel import Kernel
from fedstill.models.kernels.native import NativeKernel
from fedstill.rng import Rng
from fedstill.types import Params
from tests.models.test_winograd import SHAPES, WIDTH, apart, some_weights


def some_images(shape: tuple[int, ...], many: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(many, *shape, generator=Rng(1).at("x").torch(), dtype=dtype)


def gradient_of(outputs: tuple[Tensor, ...], x: Tensor) -> Tensor:
    """The gradient of a random combination of the outputs."""
    generator = Rng(2).at("directions").torch()
    total = x.new_zeros(())
    for out in outputs:
        direction = torch.randn(out.shape, generator=generator, dtype=torch.float64)
        total = total + (out * direction.to(out.dtype)).sum()
    return torch.autograd.grad(total, x)[0]


@pytest.mark.parametrize("shape", [*SHAPES, (3, 16, 32)])
@pytest.mark.parametrize("last", [1, 2, 4])
def test_the_pixel_gradient_is_autograds(shape: tuple[int, ...], last: int) -> None:
    model = ConvNet(shape, 10, width=WIDTH)
    params = some_weights(model)
    x = some_images(shape, 6).requires_grad_(True)
    fast, slow = model.pixel_features_by(params, last)(x), model.features(params, x)[-last:]
    assert len(fast) == last
    for these, those in zip(fast, slow, strict=True):
        torch.testing.assert_close(these, those, rtol=1e-8, atol=1e-8)
    expected = gradient_of(slow, x)
    torch.testing.assert_close(gradient_of(fast, x), expected, rtol=1e-8, atol=1e-8)


def test_the_gradient_of_one_early_output_alone() -> None:
    model = ConvNet((1, 28, 28), 10, width=WIDTH)
    params = some_weights(model)
    x = some_images(model.shape, 3).requires_grad_(True)
    for layer in (0, 1):
        fast = model.pixel_features_by(params, 4)(x)[layer]
        slow = model.features(params, x)[layer]
        expected = gradient_of((slow,), x)
        torch.testing.assert_close(gradient_of((fast,), x), expected, rtol=1e-8, atol=1e-8)


def test_the_last_outputs_are_the_last_of_all() -> None:
    model = ConvNet((1, 28, 28), 10, width=WIDTH)
    params, x = some_weights(model), some_images((1, 28, 28), 20)
    everything = model.inference(params, x)
    for last in (1, 2, 3, 4):
        found = model.inference_by(params, last)(x)
        assert all(torch.equal(a, b) for a, b in zip(found, everything[-last:], strict=True))


def test_a_gradient_belongs_to_its_own_forward_pass() -> None:
    """Memory is used again: a later forward pass must not change what an earlier one kept."""
    model = ConvNet((1, 28, 28), 10, width=WIDTH)
    params = some_weights(model)
    first, second = (some_images((1, 28, 28), 6).mul(k).requires_grad_(True) for k in (1.0, -0.5))
    forward = model.pixel_features_by(params, 2)
    expected = gradient_of(forward(first), first)
    outputs = forward(first)
    forward(second)
    assert torch.equal(gradient_of(outputs, first), expected)


def test_mixed_precision_leaves_the_kernel_exact() -> None:
    model = ConvNet((1, 28, 28), 10, width=WIDTH)
    params = some_weights(model, torch.float32)
    x = some_images((1, 28, 28), 6, torch.float32).requires_grad_(True)
    forward = model.pixel_features_by(params, 2)
    expected = forward(x)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = forward(x)[0]
        assert torch.equal(model.inference(params, x)[-2], expected)
    assert torch.equal(mixed, expected)


def test_no_image_has_no_outputs() -> None:
    model = ConvNet((1, 28, 28), 10, width=WIDTH)
    params, x = some_weights(model), some_images((1, 28, 28), 0).requires_grad_(True)
    for found in (model.inference(params, x), model.pixel_features_by(params, 4)(x)):
        assert [out.shape for out in found] == [out.shape for out in model.features(params, x)]
    assert gradient_of(found, x).shape == x.shape


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.SWITCH, "on")
    if library.compiled() is None:
        pytest.skip("no C++ compiler")


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("shape", [*SHAPES, (3, 16, 32)])
@pytest.mark.parametrize("width", [64, 96])
def test_native_equals_double_precision_to_rounding(shape: tuple[int, ...], width: int) -> None:
    model = ConvNet(shape, 10, width=width)
    params = some_weights(model, torch.float32)
    x = some_images(shape, 7, torch.float32).requires_grad_(True)
    exact = x.detach().double().requires_grad_(True)
    right = model.features({k: v.double() for k, v in params.items()}, exact)
    assert isinstance(library.kernel_for(params["block0.conv.weight"], 64), NativeKernel)
    for found in (model.inference(params, x), model.pixel_features_by(params, 4)(x)):
        for these, those in zip(found, right, strict=True):
            assert these.dtype == torch.float32
            assert apart(these.detach(), those.detach()) < 2e-5
    # A ReLU whose input is a rounding error from zero lets the gradient through or does not.
    assert apart(gradient_of(found, x), gradient_of(right, exact)) < 5e-3


@pytest.mark.usefixtures("native")
def test_native_computes_each_image_alone_and_the_same_bits_again() -> None:
    model = ConvNet((1, 28, 28), 10, width=WIDTH)
    params = some_weights(model, torch.float32)
    x = some_images((1, 28, 28), 19, torch.float32).requires_grad_(True)
    forward = model.pixel_features_by(params, 3)
    together = forward(x)[:2]
    again = model.pixel_features_by(params, 3)(x)[:2]
    assert all(torch.equal(a, b) for a, b in zip(together, again, strict=True))
    for n in (0, 18):
        alone = forward(x[n : n + 1])[:2]
        for a, b in zip(together, alone, strict=True):
            torch.testing.assert_close(a[n : n + 1], b, rtol=1e-4, atol=1e-5)
    assert torch.equal(gradient_of(together, x), gradient_of(again, x))


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("weight", ["block0.conv.weight", "block1.conv.weight", "block1.norm.bias"])
def test_native_lets_nan_through_as_pytorch_does(weight: str) -> None:
    """Otherwise a network that has diverged would be evaluated as if it had not."""
    model = ConvNet((1, 28, 28), 10, width=WIDTH)
    params = some_weights(model, torch.float32)
    params[weight].view(-1)[0] = torch.nan
    x = some_images((1, 28, 28), 2, torch.float32).requires_grad_(True)
    found, right = model.pixel_features_by(params, 4)(x), model.features(params, x)
    for these, those in zip(found, right, strict=True):
        assert torch.equal(these.isnan(), those.isnan())
    assert gradient_of(found, x).isnan().all()


@pytest.mark.usefixtures("native")
def test_other_networks_are_computed_by_pytorch() -> None:
    def kernel(model: ConvNet, dtype: torch.dtype = torch.float32) -> Kernel:
        params: Params = model.init(Rng(0).torch())
        return library.kernel_for(params["block0.conv.weight"].to(dtype), 64)

    assert isinstance(kernel(ConvNet((1, 16, 16), 10, width=64)), NativeKernel)
    for other in (
        kernel(ConvNet((1, 16, 16), 10, width=72)),
        kernel(ConvNet((2, 16, 16), 10, width=64)),
        kernel(ConvNet((1, 16, 16), 10, width=64), torch.float64),
    ):
        assert not isinstance(other, NativeKernel)


@pytest.mark.usefixtures("native")
def test_the_compiled_kernel_serves_narrow_networks_on_digits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Width 32 gains by it on 28x28 and not on colours or 8x8; without it, on none of them."""
    digits, *others = (
        ConvNet(shape, 10, width=32) for shape in ((1, 28, 28), (3, 32, 32), (1, 8, 8))
    )
    params, x = some_weights(digits, torch.float32), some_images((1, 28, 28), 3, torch.float32)
    assert digits.fast_inference
    assert not any(model.fast_inference for model in others)
    found = digits.inference(params, x)
    monkeypatch.setenv(library.SWITCH, "off")
    assert not digits.fast_inference
    for mine, plain in zip(found, digits.features(params, x), strict=True):
        assert apart(mine, plain) < 1e-5


def test_native_is_off_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(library.SWITCH, raising=False)
    assert not library.switched_on()
    assert not isinstance(library.kernel_for(torch.zeros(64, 1, 3, 3), 64), NativeKernel)
    monkeypatch.setenv(library.SWITCH, "yes")
    with pytest.raises(RequestError, match="FEDSTILL_NATIVE is 'yes'; use on or off"):
        library.switched_on()


@pytest.mark.parametrize("compiler", ["missing", "broken", "terse"])
def test_without_a_working_compiler_pytorch_serves(
    compiler: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(library.SWITCH, "on")
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path))
    terse = tmp_path / "terse"  # its message is an empty line, and a byte that is no text
    terse.write_bytes(b"#!/bin/sh\nprintf '\\n\\377\\n'\nprintf '\\n' >&2\nexit 1\n")
    terse.chmod(0o755)
    false = {"missing": None, "broken": "/bin/false", "terse": str(terse)}[compiler]
    monkeypatch.setattr("shutil.which", lambda _: false)
    library.compiled.cache_clear()
    with pytest.warns(UserWarning, match="PyTorch serves instead"):
        found = library.kernel_for(torch.zeros(64, 1, 3, 3), 64)
    library.compiled.cache_clear()
    assert not isinstance(found, NativeKernel)
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.parametrize("planted", ["writable", "link", "file"])
def test_a_library_that_others_could_have_planted_is_not_loaded(
    planted: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(library.SWITCH, "on")
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path))
    folder = tmp_path / f"native-{os.geteuid()}"
    if planted == "writable":
        folder.mkdir()
        folder.chmod(0o777)
    elif planted == "link":
        folder.symlink_to(tmp_path, target_is_directory=True)
    else:
        folder.touch()
    library.compiled.cache_clear()
    with pytest.warns(UserWarning, match="PyTorch serves instead"):
        assert library.compiled() is None
    library.compiled.cache_clear()


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("damage", ["half", "empty", "other", "no digest"])
def test_a_damaged_library_is_compiled_anew(
    damage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Half of a library ends the process that loads it, so none is loaded unread."""
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path))
    path = library._built(library._own_folder())
    whole = path.read_bytes()
    if damage == "no digest":
        path.with_suffix(".sha256").unlink()
    else:
        path.write_bytes({"half": whole[: len(whole) // 2], "empty": b"", "other": b"x"}[damage])
    library.compiled.cache_clear()
    assert library.compiled() is not None
    library.compiled.cache_clear()
    assert path.with_suffix(".sha256").read_text() == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.usefixtures("native")
def test_nobody_else_can_write_where_libraries_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path / "cache"))
    library.compiled.cache_clear()
    before = os.umask(0)  # where all files are writable by all
    try:
        assert library.compiled() is not None
    finally:
        os.umask(before)
        library.compiled.cache_clear()
    (kept,) = (tmp_path / "cache").iterdir()
    assert kept.stat().st_mode & 0o077 == 0
