"""Why send data instead of a gradient? FedDM's one-dimensional example (its appendix C).

    python examples/surrogate_1d.py [surrogate_1d.svg]

A hundred points on a line have the label of their sign, a tenth of them the wrong one; the model
is sigmoid(w x). Twenty synthetic points are matched to them around w = 0, with the same steps as
FedDM's clients. Their loss then follows the true one over the whole ball. The tangent, which is all
that a gradient gives the server, is close only near w = 0.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fedstill.models import Model
from fedstill.records import Scaling
from fedstill.rng import Rng
from fedstill.steps.ball import sample_ball
from fedstill.steps.matching import Matching, class_means, pixel_gradient
from fedstill.types import Params, Task

POINTS, FLIPPED, SYNTHETIC_PER_CLASS, RADIUS = 100, 0.1, 10, 5.0
CENTRE = {"w": torch.zeros(1)}


class Logistic(Model):
    """One weight; the outputs that are matched are the log-probabilities of the two classes."""

    def init(self, generator: torch.Generator) -> Params:
        return {"w": torch.zeros(1)}

    def features(self, params: Params, x: Tensor) -> tuple[Tensor, ...]:
        logit = params["w"] * x
        return (torch.cat([logsigmoid(-logit), logsigmoid(logit)], 1),)


@dataclass(frozen=True)
class Example:
    """The points, and the synthetic points of both classes [2, 10, 1]."""

    x: Tensor
    y: Tensor
    synthetic: Tensor

    def loss(self, w: Tensor) -> Tensor:
        """The true loss at each of these weights: binary cross-entropy."""
        signs = (2 * self.y - 1) * self.x
        return -logsigmoid(w[:, None] * signs).mean(1)

    def surrogate(self, w: Tensor) -> Tensor:
        """The synthetic points' loss, each class with its share of the labels."""
        shares = torch.stack([(self.y == label).float().mean() for label in (0, 1)])
        signs = torch.tensor([-1.0, 1.0])[:, None] * self.synthetic[..., 0]
        return -(logsigmoid(w[:, None, None] * signs).mean(2) * shares).sum(1)

    def tangent(self, w: Tensor) -> Tensor:
        """The line that touches the true loss at w = 0."""
        signs = (2 * self.y - 1) * self.x
        return self.loss(torch.zeros(1)) - 0.5 * signs.mean() * w

    def errors(self, radius: float = RADIUS) -> tuple[float, float]:
        """Root mean square error over the ball: the surrogate's and the tangent's."""
        w = torch.linspace(-radius, radius, 201)
        true = self.loss(w)
        surrogate, tangent = (
            float((guess(w) - true).square().mean().sqrt())
            for guess in (self.surrogate, self.tangent)
        )
        return surrogate, tangent


def example(seed: int = 0, iterations: int = 1000, learning_rate: float = 0.5) -> Example:
    """Draw the points and match twenty to them."""
    rng = Rng(seed)
    x = torch.randn(POINTS, generator=rng.at("x").torch())
    flip = torch.rand(POINTS, generator=rng.at("flip").torch()) < FLIPPED
    y = ((x >= 0) ^ flip).long()
    task = Task(Logistic(), (1,), 2, 1, 1, Scaling((), ()))
    counts = torch.bincount(y, minlength=2)
    how = Matching(layers=1)
    points = torch.randn(2, SYNTHETIC_PER_CLASS, 1, generator=rng.at("synthetic").torch())
    stream = rng.at("weights").torch()
    for _ in range(iterations):
        weights = sample_ball(CENTRE, RADIUS, stream)
        means = class_means(task, weights, [(x[:, None], y)], counts, how)
        gradient, _ = pixel_gradient(task, weights, points, means, how)
        points = points - learning_rate * gradient
    return Example(x, y, points)


def figure(shown: Example, radius: float = RADIUS) -> str:
    """The three curves as an SVG picture."""
    w = torch.linspace(-radius, radius, 201)
    curves = {
        "true loss": (shown.loss(w), "#1f2937", ""),
        "surrogate (20 synthetic points)": (
            shown.surrogate(w),
            "#d97706",
            'stroke-dasharray="7 5"',
        ),
        "tangent (gradient)": (shown.tangent(w), "#2563eb", ""),
    }
    top = 1.1 * float(max(curves["true loss"][0].max(), curves["tangent (gradient)"][0].max()))
    bottom = min(0.0, 1.1 * float(curves["tangent (gradient)"][0].min()))
    left, right, up, down = 60, 620, 60, 340

    def at(weight: float, value: float) -> tuple[float, float]:
        across = (weight + radius) / (2 * radius)
        high = (value - bottom) / (top - bottom)
        return left + across * (right - left), down - high * (down - up)

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 660 400" font-family="sans-serif">',
        '<rect width="660" height="400" fill="#ffffff"/>',
        f'<text x="{left}" y="32" font-size="17" font-weight="bold" fill="#1f2937">'
        "A surrogate from synthetic data against the tangent</text>",
        f'<clipPath id="plot"><rect x="{left}" y="{up}" width="{right - left}" '
        f'height="{down - up}"/></clipPath>',
    ]
    for tick in range(5):
        value = bottom + tick / 4 * (top - bottom)
        y = at(0, value)[1]
        parts.append(f'<path d="M{left} {y:.1f}H{right}" stroke="#e5e7eb"/>')
        parts.append(
            f'<text x="{left - 8}" y="{y + 4:.1f}" font-size="11" fill="#6b7280" '
            f'text-anchor="end">{value:.1f}</text>'
        )
    for weight in (-radius, -radius / 2, 0.0, radius / 2, radius):
        x = at(weight, 0)[0]
        parts.append(
            f'<text x="{x:.1f}" y="{down + 18}" font-size="11" fill="#6b7280" '
            f'text-anchor="middle">{weight:g}</text>'
        )
    parts.append(
        f'<text x="{(left + right) / 2}" y="{down + 42}" font-size="12" fill="#6b7280" '
        'text-anchor="middle">weight w</text>'
    )
    for number, (name, (values, colour, dash)) in enumerate(curves.items()):
        points = (at(a, b) for a, b in zip(w.tolist(), values.tolist(), strict=True))
        path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
        parts.append(
            f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2.5" {dash} '
            'clip-path="url(#plot)"/>'
        )
        y = up + 14 + 20 * number
        parts.append(
            f'<path d="M{right - 230} {y}h26" stroke="{colour}" stroke-width="2.5" {dash}/>'
        )
        parts.append(
            f'<text x="{right - 196}" y="{y + 4}" font-size="12" fill="#1f2937">{name}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Print the errors and write the figure."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "surrogate_1d.svg")
    shown = example()
    surrogate, tangent = shown.errors()
    print(f"error over |w| <= {RADIUS:g}: surrogate {surrogate:.4f}, tangent {tangent:.4f}")
    out.write_text(figure(shown))
    print(f"figure: {out}")


if __name__ == "__main__":
    main()
