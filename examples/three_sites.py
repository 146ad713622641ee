"""Images at three sites, one folder each: SITE/CLASS/*.png. Every site is a client.

    python examples/three_sites.py [--folder FOLDER] [--rounds 5]

Without FOLDER three hospitals are made up from the built-in digits, each with other classes. Then
each site distils its images, the server trains on the union, and the report shows who held what.
"""

import argparse
from pathlib import Path

from PIL import Image

import fedstill
from fedstill.data import DataSettings, load

HELD = {"hospital-A": range(0, 5), "hospital-B": range(4, 8), "hospital-C": range(6, 10)}


def made_up(folder: Path, records: int = 600) -> Path:
    """Three sites with 8x8 digits, some classes at two of them."""
    train = load(DataSettings("digits")).train
    for number in range(min(records, len(train))):
        label = int(train.labels[number])
        sites = [site for site, classes in HELD.items() if label in classes]
        place = folder / sites[number % len(sites)] / f"digit-{label}"
        place.mkdir(parents=True, exist_ok=True)
        pixels = train.inputs[number].squeeze(0).numpy()
        Image.fromarray(pixels).save(place / f"{number:04d}.png")
    return folder


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="SITE/CLASS/*.png; default: made up")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", default="runs/three-sites")
    given = parser.parse_args()
    folder = given.folder or made_up(Path("sites"))
    result = fedstill.run("feddm", data=folder, rounds=given.rounds, out=given.out)
    known = result.summary
    print(f"{known.clients} sites: accuracy {known.accuracy:.1%} after {known.up_bytes:,} bytes up")
    print(f"report: {result.folder / 'report.html'}")


if __name__ == "__main__":
    main()
