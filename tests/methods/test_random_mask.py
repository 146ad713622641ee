"""Random masking: unbiased, exact in its bytes, and FedAvg in the limit."""

from pathlib import Path
from typing import Any

import pytest
import torch

import fedstill
from fedstill import wire
from fedstill.errors import RequestError
from fedstill.methods.fedavg import FedAvg
from fedstill.methods.random_mask import MaskedUpdate, RandomMask, draw_mask
from fedstill.rng import Rng
from fedstill.testing import as_vector, toy_experiment, toy_run
from fedstill.types import ClientContext, Reply, ServerContext
from fedstill.wire import tree

SETUP = toy_experiment(RandomMask())
TASK = SETUP.task
SIZE = TASK.model.size


def server(number: int = 1) -> ServerContext:
    return ServerContext(TASK, number, Rng(0).at("round", number, "server"))


def test_rate_one_is_fedavg_to_the_bit(tmp_path: Path) -> None:
    options: dict[str, Any] = {"local_epochs": 2, "batch_size": 8}
    masked = toy_run(RandomMask(**options, compression=1.0), tmp_path / "masked")
    plain = toy_run(FedAvg(**options), tmp_path / "plain")
    assert tree.dump(masked.state) == tree.dump(plain.state)


def test_a_round_is_the_obvious_loop() -> None:
    method = RandomMask(compression=3.0)
    state = method.init(server())
    down = method.broadcast(server(), state)
    replies, expected = [], as_vector(state.params)
    contexts = [
        ClientContext(
            TASK, 1, k, Rng(0).at("client", k), data=SETUP.runner.records.of(k, SETUP.task)
        )
        for k in range(3)
    ]
    total = sum(len(ctx.records) for ctx in contexts)
    for k, ctx in enumerate(contexts):
        up, _ = method.client(ctx, down, None)
        assert len(up.values) == SIZE // 3
        replies.append(Reply(k, up))
        update = as_vector(FedAvg().client(ctx, state, None)[0].update)
        mask = draw_mask(down.mask_seed, k, SIZE, SIZE // 3).tolist()
        for place, value in zip(mask, up.values.tolist(), strict=True):
            assert value == update[place]
            expected[place] += len(ctx.records) / total * value * SIZE / (SIZE // 3)
    after = method.server(server(), state, replies)
    assert torch.allclose(as_vector(after.params), expected, atol=1e-6)
    assert method.report(after, replies) == {"compression": SIZE / (SIZE // 3)}


def test_masks_are_subsets_and_differ_by_client_and_round() -> None:
    method = RandomMask()
    seeds = [method.mask_seed(server(number)) for number in (1, 2)]
    assert seeds[0] == method.broadcast(server(1), method.init(server(1))).mask_seed
    masks = [draw_mask(seed, client, SIZE, 50).tolist() for seed in seeds for client in (0, 1)]
    assert all(mask == sorted(set(mask)) and len(mask) == 50 for mask in masks)
    assert len({tuple(mask) for mask in masks}) == 4


def test_the_estimate_is_unbiased() -> None:
    """Over many seeds the mean goes to the update, as 1 / sqrt(seeds)."""
    method = RandomMask(compression=4.0)
    update = torch.randn(SIZE, generator=Rng(1).torch())
    kept, seeds = method.kept(TASK), 400
    mean = torch.zeros(SIZE)
    for seed in range(seeds):
        values = update[draw_mask(seed, 0, SIZE, kept)]
        mean += as_vector(method.unmasked(TASK, values, seed, 0)) / seeds
    error = (mean - update).square().sum().sqrt() / update.square().sum().sqrt()
    expected = ((SIZE / kept - 1) / seeds) ** 0.5  # relative, from the variance of a mask
    assert float(error) == pytest.approx(expected, rel=0.15)


def test_the_bytes_give_the_rate() -> None:
    method = RandomMask(compression=8.0)
    schema = method.upload(TASK)
    assert 4 * SIZE / schema.payload("float32") == SIZE / method.kept(TASK)
    message = MaskedUpdate(torch.zeros(method.kept(TASK)), 1)
    whole = FedAvg().upload(TASK)
    saved = whole.payload("float32") - schema.payload("float32")
    assert saved == 4 * (SIZE - SIZE // 8)
    assert len(wire.encode(message, schema)) < schema.payload("float32") + 300


def test_a_rate_that_leaves_nothing_is_refused_before_any_file(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(RequestError, match=r"method.compression: 1e\+09 .* at most 10986 is") as e:
        fedstill.run("random-mask", out=out, set={"method.compression": 1e9})
    assert e.value.exit_code == 2
    assert not out.exists()
    assert RandomMask(compression=float(SIZE)).kept(TASK) == 1
    with pytest.raises(RequestError, match=r"method.compression: expected float >= 1"):
        fedstill.run("random-mask", out=out, set={"method.compression": 0.5})
