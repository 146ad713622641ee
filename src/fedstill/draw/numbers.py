"""Numbers as text, the same on the terminal and on pages."""


def in_bytes(number: float) -> str:
    """1234567 -> '1.2 MB'."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def in_time(seconds: float) -> str:
    """75 -> '1:15'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def in_percent(share: float | None) -> str:
    """0.9312 -> '93.12%'."""
    return "-" if share is None else f"{share:.2%}"


def counted(number: int, thing: str) -> str:
    """1 -> '1 round', 2 -> '2 rounds'; also 'accesses' and 'canaries'."""
    ends = {"s": f"{thing}es", "y": f"{thing[:-1]}ies"}
    plural = ends.get(thing[-1], f"{thing}s")
    return f"{number:,} {thing if number == 1 else plural}"


def duration(seconds: float) -> str:
    """75 -> '1 min 15 s'."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes < 10 else f"{minutes} min"
