"""The table of data sets known by name."""

from dataclasses import dataclass

from fedstill.scaling import Kind, Scaling

TOKENS = Scaling((), ())  # numbers of tokens are used as they are


@dataclass(frozen=True)
class Part:
    """One domain of a data set that lies in several places."""

    domain: str
    hub: str | None  # None: not on the hub, so a local copy is needed
    subset: str | None = None  # the hub's name for a part of a data set


@dataclass(frozen=True)
class Source:
    """A data set known by name. Its constants are public; they are never recomputed.

    ``owners`` are the usual names of the column that says whose a record is. ``partition`` and
    ``model`` are what a request that names neither gets.
    """

    name: str
    description: str
    hub: str | None
    scaling: Scaling
    owners: tuple[str, ...] = ()
    text: bool = False
    channels: int | None = None  # what all images are turned into; None: the first one decides
    image_size: int | None = None
    parts: tuple[Part, ...] = ()
    partition: str | None = None
    model: str | None = None
    kind: Kind | None = None  # what they show; None: what their shape suggests
    records: int | None = None  # for training: published, so nothing about anyone

    @property
    def built_in(self) -> bool:
        """Whether it comes with the package."""
        return self.hub is None and not self.parts


# Computed once over the public training records and then frozen: constants that followed the data
# at hand would differ between clients, and would leak their records.
_DIGITS = Scaling((0.3059,), (0.3763,))
_DIGIT_DOMAINS = Scaling((0.4059,), (0.3267,))
_NEUTRAL = Scaling((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "digits",
            "1,797 handwritten digits of 8x8 pixels, built in",
            None,
            _DIGITS,
            kind="writing",
            records=1438,
        ),
        Source(
            "digit-domains",
            "the same in five variants of 16x16 pixels, one client each, built in",
            None,
            _DIGIT_DOMAINS,
            kind="writing",
            partition="natural",
        ),
        Source(
            "mnist",
            "70,000 handwritten digits of 28x28 pixels",
            "ylecun/mnist",
            Scaling((0.1307,), (0.3081,)),
            kind="writing",
            records=60_000,
        ),
        Source(
            "fashion-mnist",
            "70,000 pictures of clothes, 10 kinds, 28x28 pixels",
            "zalando-datasets/fashion_mnist",
            Scaling((0.2860,), (0.3530,)),
            records=60_000,
        ),
        Source(
            "cifar10",
            "60,000 colour photographs, 10 classes, 32x32 pixels",
            "uoft-cs/cifar10",
            Scaling((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
            records=50_000,
        ),
        Source(
            "cifar100",
            "60,000 colour photographs, 100 classes, 32x32 pixels",
            "uoft-cs/cifar100",
            Scaling((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
            records=50_000,
        ),
        Source(
            "femnist",
            "814,000 handwritten digits and letters of 28x28 pixels, one client per writer",
            "flwrlabs/femnist",
            Scaling((0.5,), (0.5,)),
            kind="writing",
            owners=("writer_id", "writer"),
            channels=1,
            partition="natural",
        ),
        Source(
            "digit-five",
            "digits from MNIST, MNIST-M, SVHN, synthetic digits and USPS, one client each",
            None,
            _NEUTRAL,
            kind="writing",
            owners=("domain",),
            channels=3,
            image_size=32,
            parts=(
                Part("mnist", "ylecun/mnist"),
                Part("mnist-m", "Mike0307/MNIST-M"),
                Part("svhn", "ufldl-stanford/svhn", "cropped_digits"),
                Part("synthetic", None),
                Part("usps", "flwrlabs/usps"),
            ),
            partition="natural",
        ),
        Source(
            "office-home",
            "15,500 pictures of things in offices and homes, 65 kinds, four domains",
            "flwrlabs/office-home",
            Scaling((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            owners=("domain",),
            channels=3,
            image_size=64,
            partition="natural",
        ),
        Source(
            "shakespeare",
            "plays by Shakespeare, next character, one client per speaker",
            "flwrlabs/shakespeare",
            TOKENS,
            owners=("character_id", "speaker"),
            text=True,
            partition="natural",
            model="gru",
        ),
        Source(
            "reddit",
            "50,000 posts of Reddit, next character or word, one client per author",
            "dim/tldr_17_50k",
            TOKENS,
            owners=("author",),
            text=True,
            partition="natural",
            model="gru",
        ),
    )
}
