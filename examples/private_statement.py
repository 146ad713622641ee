"""A private run and its statement: one page for a data-protection officer.

    pip install 'fedstill[privacy]'
    python examples/private_statement.py [--epsilon 3] [--rounds 5]

The same run without privacy stands beside it, so that the price in accuracy is seen.
"""

import argparse
from pathlib import Path

import fedstill
from fedstill.report.statement import write_statement


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    given = parser.parse_args()
    options = {"clients": 5, "partition": "classes:2", "rounds": given.rounds}
    public = fedstill.run("fedavg", out=given.out / "public", **options)
    private = fedstill.run("fedavg", out=given.out / "private", epsilon=given.epsilon, **options)
    page, statement = write_statement(private.folder, audit=None)
    print(statement.plain)
    for name, result in (("without privacy", public), ("private", private)):
        print(f"{name}: accuracy {result.summary.accuracy:.1%}, epsilon {result.summary.epsilon}")
    print(f"statement: {page}")


if __name__ == "__main__":
    main()
