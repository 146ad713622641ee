"""The terminal, for everything that is printed there."""

from collections.abc import Iterable

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from fedstill.errors import printable


class Console(RichConsole):
    """A console that no text can command: escape sequences in it are taken out.

    Rich's own (colours, the cursor of a progress bar) are not text and stay.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)
