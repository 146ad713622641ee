"""The language models against PyTorch's layers, and through second derivatives."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.errors import RequestError
from fedstill.models import GRU, MODELS, Model, Transformer
from fedstill.models.language import LanguageModel
from fedstill.rng import Rng
from fedstill.types import Params, cross_entropy

SMALL: list[LanguageModel] = [
    GRU((5,), 7, embedding=3, width=4, depth=2),
    Transformer((5,), 7, width=4, depth=2, heads=2),
]
NAMES = ["gru", "transformer"]


def generator() -> torch.Generator:
    return Rng(0).at("language").torch()


def tokens(number: int = 3) -> Tensor:
    return torch.randint(7, (number, 5), generator=generator())


@pytest.mark.parametrize("model", SMALL, ids=NAMES)
def test_features_end_in_the_logits(model: LanguageModel) -> None:
    params = model.init(generator())
    x = tokens()
    *_, hidden, logits = model.features(params, x)
    assert logits.shape == (3, 5, 7)
    assert torch.equal(logits, model.apply(params, x))
    last = F.linear(hidden, params["linear.weight"], params["linear.bias"])
    assert torch.allclose(last, logits)
    assert {k: tuple(v.shape) for k, v in params.items()} == model.shapes
    embedded = model.embed(params, x)
    assert tuple(embedded.shape[1:]) == model.continuous_shape
    assert torch.equal(model.apply_continuous(params, embedded), logits)


@pytest.mark.parametrize("name", NAMES)
def test_initial_weights_come_from_the_generator_alone(name: str) -> None:
    model: Model = MODELS[name].cls(shape=(5,), classes=3, width=4)
    one, two = model.init(Rng(1).torch()), model.init(Rng(1).torch())
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert not torch.equal(one["linear.weight"], model.init(Rng(2).torch())["linear.weight"])


def test_the_gru_is_pytorchs() -> None:
    model = SMALL[0]
    assert isinstance(model, GRU)
    params = model.init(generator())
    reference = nn.GRU(3, 4, num_layers=2, batch_first=True)
    for layer in range(2):
        for ours, theirs in (("input", "ih"), ("hidden", "hh")):
            for part in ("weight", "bias"):
                parameter = getattr(reference, f"{part}_{theirs}_l{layer}")
                parameter.data = params[f"gru{layer}.{ours}.{part}"]
    states, _ = reference(model.embed(params, tokens()))
    assert torch.allclose(model.features(params, tokens())[-2], states, atol=1e-6)


def test_the_transformer_is_pytorchs() -> None:
    model = SMALL[1]
    assert isinstance(model, Transformer)
    params = model.init(generator())
    names = {
        "self_attn.in_proj_weight": "attention.input.weight",
        "self_attn.in_proj_bias": "attention.input.bias",
        "self_attn.out_proj.weight": "attention.output.weight",
        "self_attn.out_proj.bias": "attention.output.bias",
        "linear1.weight": "dense.input.weight",
        "linear1.bias": "dense.input.bias",
        "linear2.weight": "dense.output.weight",
        "linear2.bias": "dense.output.bias",
        "norm1.weight": "attention.norm.weight",
        "norm1.bias": "attention.norm.bias",
        "norm2.weight": "dense.norm.weight",
        "norm2.bias": "dense.norm.bias",
    }
    x = model.embed(params, tokens()) + params["position.weight"]
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    for block in range(2):
        layer = nn.TransformerEncoderLayer(
            4, 2, 16, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        layer.load_state_dict({k: params[f"block{block}.{v}"] for k, v in names.items()})
        x = layer(x, src_mask=mask)
    assert torch.allclose(model.features(params, tokens())[1], x, atol=1e-6)


@pytest.mark.parametrize("model", SMALL, ids=NAMES)
def test_no_position_sees_what_comes_after_it(model: LanguageModel) -> None:
    params = model.init(generator())
    x = tokens()
    other = x.clone()
    other[:, 3:] = (other[:, 3:] + 1) % 7
    logits, changed = model.apply(params, x), model.apply(params, other)
    assert torch.equal(logits[:, :3], changed[:, :3])
    assert not torch.allclose(logits[:, 3:], changed[:, 3:])


@pytest.mark.parametrize("model", SMALL, ids=NAMES)
def test_gradients_have_gradients(model: LanguageModel) -> None:
    """What FedSynth needs: the gradient of an SGD step by embeddings and soft labels."""
    params: Params = {k: v.double() for k, v in model.init(generator()).items()}
    leaves = [v.requires_grad_() for v in params.values()]
    x = torch.randn(1, *(model.continuous_shape or ()), generator=generator()).double()
    y = torch.randn(1, 5, 7, generator=generator()).double().softmax(-1)

    def step_length(x: Tensor, y: Tensor) -> Tensor:
        loss = cross_entropy(model.apply_continuous(params, x), y).mean()
        gradient = torch.autograd.grad(
            loss, leaves, create_graph=True, allow_unused=True, materialize_grads=True
        )
        total: Tensor = sum((g**2).sum() for g in gradient)  # type: ignore[assignment]
        return total

    assert torch.autograd.gradcheck(step_length, (x.requires_grad_(), y.requires_grad_()))


def test_language_models_refuse_what_they_cannot_be() -> None:
    with pytest.raises(RequestError, match=r"needs text, not inputs of shape \(1, 8, 8\)"):
        GRU((1, 8, 8), 10)
    with pytest.raises(RequestError, match=r"model\.heads: 3 heads .* width of 64"):
        Transformer((5,), 10, heads=3)


def test_the_loss_of_a_text_is_the_mean_over_its_positions() -> None:
    logits = torch.randn(2, 3, 4, generator=generator())
    labels = torch.tensor([[0, 1, 3], [2, -100, 1]])
    slow = [
        sum(-float(logits[n, p].log_softmax(0)[c]) for p, c in enumerate(row) if c >= 0) / 3
        for n, row in enumerate(labels.tolist())
    ]
    assert cross_entropy(logits, labels).tolist() == pytest.approx(slow, rel=1e-5)
    soft = F.one_hot(labels[:1], 4).float()
    assert torch.allclose(cross_entropy(logits[:1], soft), cross_entropy(logits[:1], labels[:1]))
