"""Four hospitals, a CSV file each: heart disease (UCI), with FedDM, FedAvg and a private run.

    python examples/heart_disease.py                    # downloads the records to heart-disease/
    python examples/heart_disease.py --data-dir DIR     # DIR/cleveland.csv, hungarian.csv, ...

Every hospital is a client. What is known of the columns is declared in ``heart-disease.toml``, and
nothing of it was computed from the records, so the same file serves the private run. Of downloaded
records those with a missing value are left out, and every third one is for tests.

Records: A. Janosi, W. Steinbrunn, M. Pfisterer, R. Detrano; UCI Machine Learning Repository,
CC BY 4.0.
"""

import argparse
import csv
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

import fedstill

ADDRESS = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease"
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
# The first ten of the fourteen columns of "processed.*.data"; the last one is the diagnosis.
COLUMNS = [
    "age",
    "sex",
    "chest_pain",
    "resting_blood_pressure",
    "cholesterol",
    "fasting_sugar",
    "resting_ecg",
    "max_heart_rate",
    "exercise_angina",
    "st_depression",
]
DECLARED = Path(__file__).with_name("heart-disease.toml")


def converted(text: str) -> list[list[str]]:
    """Rows of our columns, the diagnosis as 0 or 1, and the split, from a file of UCI."""
    rows = [line.split(",") for line in text.splitlines() if line.strip()]
    whole = [row for row in rows if "?" not in row[: len(COLUMNS)]]
    return [
        [
            *(f"{float(value):g}" for value in row[: len(COLUMNS)]),
            "1" if float(row[-1]) > 0 else "0",
            "test" if number % 3 == 0 else "train",
        ]
        for number, row in enumerate(whole)
    ]


def download(folder: Path, address: str) -> Path:
    """The four files, as CSV; those that are there already are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    for hospital in HOSPITALS:
        file = folder / f"{hospital}.csv"
        if not file.exists():
            with urlopen(f"{address}/processed.{hospital}.data", timeout=30) as answer:
                rows = converted(answer.read().decode())
            with file.open("w", newline="") as out:
                csv.writer(out).writerows([[*COLUMNS, "disease", "split"], *rows])
    return folder


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", type=Path, help="folder with the four CSV files")
    parser.add_argument("--address", default=ADDRESS, help="where the files of UCI are")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/heart-disease"))
    given = parser.parse_args()
    try:
        data = given.data_dir or download(Path("heart-disease"), given.address)
    except OSError as error:
        sys.exit(f"{given.address}: {error}; give the four CSV files by --data-dir")
    runs = {"feddm": {}, "fedavg": {}, "central": {}}
    if find_spec("dp_accounting"):  # pip install 'fedstill[privacy]'
        head = {"privacy.public_size": 150, "method.head": "prototype"}
        runs["analytic"] = {"epsilon": 3.0, "rounds": 1, "set": head}
    results = []
    for method, more in runs.items():
        options = {"rounds": given.rounds, "out": given.out / method, **more}
        results.append(fedstill.run(method, data=data, config=DECLARED, **options))
    print(fedstill.compare(results))


if __name__ == "__main__":
    main()
