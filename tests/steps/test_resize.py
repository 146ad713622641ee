"""Small images: means of squares, linear interpolation, and what is refused."""

import pytest
import torch

from fedstill.errors import RequestError
from fedstill.steps.resize import enlarged, shrunk, small_shape


def test_a_small_pixel_is_the_mean_of_a_square() -> None:
    image = torch.tensor([[1.0, 3.0, 5.0, 5.0], [5.0, 7.0, 5.0, 5.0]])[None, None, None]
    assert shrunk(image, 2).tolist() == [[[[[4.0, 5.0]]]]]  # slot form is kept
    assert shrunk(image[0], 2).tolist() == [[[[4.0, 5.0]]]]


def test_enlarging_interpolates_between_the_centres_of_pixels() -> None:
    """Centres of a row of two pixels lie at 0.5 and 1.5; those of four at 0.25, 0.75, 1.25, 1.75.
    Outside the outermost centres the pixel is repeated."""
    row = torch.tensor([[0.0, 4.0], [0.0, 4.0]])[None, None]
    assert enlarged(row, 2)[0, 0].tolist() == [[0.0, 1.0, 3.0, 4.0]] * 4


def test_a_factor_of_one_changes_nothing() -> None:
    images = torch.rand(2, 3, 4, 4)
    assert shrunk(images, 1) is images
    assert enlarged(images, 1) is images
    assert small_shape((5,), 1) == (5,)


def test_the_factor_must_divide_the_sides_of_images() -> None:
    assert small_shape((3, 32, 28), 2) == (3, 16, 14)
    for shape in ((3, 32, 30), (7,)):
        with pytest.raises(RequestError, match=r"method\.shrink = 4: .*set method\.shrink = 1"):
            small_shape(shape, 4)
