import numpy as np
import torch

from fedstill.rng import Rng


def test_a_stream_restarts_at_every_call() -> None:
    stream = Rng(7).at("round", 3, "client", 5)
    assert torch.equal(
        torch.randn(9, generator=stream.torch()), torch.randn(9, generator=stream.torch())
    )
    assert np.array_equal(stream.numpy().normal(size=9), stream.numpy().normal(size=9))


def test_other_names_and_seeds_are_other_streams() -> None:
    streams = [
        Rng(7).at("a"),
        Rng(8).at("a"),
        Rng(7).at("b"),
        Rng(7).at("a", "b"),
        Rng(7).at("a/b"),
        Rng(7).at("a", 1),
        Rng(7).at("a", "1"),
        Rng(7),
    ]
    draws = {tuple(torch.randint(0, 2**31, (4,), generator=s.torch()).tolist()) for s in streams}
    assert len(draws) == len(streams)


def test_at_is_associative() -> None:
    assert Rng(1).at("round", 2).at("client", 3) == Rng(1).at("round", 2, "client", 3)


def test_torch_draws_the_words_of_the_whole_mersenne_state() -> None:
    """`manual_seed` would keep 32 bits; NumPy's twister with the same state is the reference."""
    stream = Rng(3).at("x")
    reference = np.random.MT19937(stream._entropy()).random_raw(2000)
    # A small range takes one word per draw; PyTorch skips the first when it refills the state.
    drawn = torch.randint(0, 2**16, (1999,), generator=stream.torch())
    assert drawn.tolist() == (reference[1:] % 2**16).tolist()


def test_manual_seed_alone_would_collide() -> None:
    """The reason for filling the state by hand; if PyTorch changes, the detour can go."""
    one = torch.Generator().manual_seed(5)
    two = torch.Generator().manual_seed(5 + 2**40)
    assert torch.equal(torch.rand(4, generator=one), torch.rand(4, generator=two))


def test_draws_do_not_touch_global_state() -> None:
    before = torch.get_rng_state()
    torch.randn(5, generator=Rng(0).at("x").torch())
    assert torch.equal(before, torch.get_rng_state())


def test_first_draws_are_these_for_ever() -> None:
    """A changed stream changes every published number: it must never happen unnoticed."""
    assert torch.randint(0, 1000, (5,), generator=Rng(0).at("a").torch()).tolist() == FIRST_TORCH
    assert Rng(0).at("a").numpy().integers(0, 1000, 5).tolist() == FIRST_NUMPY


FIRST_TORCH = [545, 75, 173, 402, 18]
FIRST_NUMPY = [212, 450, 84, 772, 544]


def test_the_state_is_the_one_that_numpy_makes() -> None:
    """The words are hashed here, all at once: for any stream they are those of NumPy's twister."""
    for number in range(200):
        stream = Rng(number).at("client", number, "order")
        state = stream.torch().get_state().numpy()[24 : 24 + 8 * 624].view("<u8")
        expected = np.random.MT19937(stream._entropy()).state["state"]["key"]
        assert np.array_equal(state, expected)
