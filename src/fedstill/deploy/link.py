"""Where an app's connection to its SuperLink stands."""

from pathlib import Path

LINK = "deployment"  # the connection's name in Flower's configuration


def flower_home(app: Path) -> Path:
    """The folder with the app's connection to its SuperLink."""
    return app.resolve() / "flower"
