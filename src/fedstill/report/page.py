"""The page about one run.

Text is written here; figures are drawn in the page by a few hundred lines of plain JavaScript into
SVG. A plotting library would do it too, but would weigh more than all the rest in every file: the
smallest form of Plotly has 1.2 MB, and a page may have 3 MB, images included.
"""

import tomli_w

from fedstill.draw.numbers import duration, in_bytes, in_percent
from fedstill.report.contents import contents
from fedstill.report.embed import data_script, document, table, text
from fedstill.report.sentences import NO_PRIVACY, command, epsilon_explained, sentence
from fedstill.report.source import RunView

SCRIPTS = ("scales.js", "chart.js", "link.js", "images.js", "report.js")

_SLIDERS = "".join(
    f'<label for="{name}"><span>{label}</span><output id="{name}-value" for="{name}"></output>'
    f'<input type="range" id="{name}" min="{low}" max="{high}" step="any"></label>'
    for name, label, low, high in (  # powers of ten: of Mbit/s, and of ms
        ("up", "up, per client", -1.5, 3),
        ("down", "down, per client", -1.5, 3),
        ("latency", "latency", 0, 3.5),
    )
)
LINK = (
    f'<fieldset class="controls" id="link"><legend>The link</legend>{_SLIDERS}'
    '<label class="check" for="computing"><input type="checkbox" id="computing" checked> '
    "<span>count the computing time measured here</span></label></fieldset>"
)


def report_page(run: RunView, *, live: bool = False) -> str:
    """The run as one HTML page; ``live`` makes it look for news while it is open."""
    scripts = (*SCRIPTS, "live.js") if live else SCRIPTS
    return document(f"{run.title} · fedstill", report_body(run, live=live), scripts, live=live)


def report_body(run: RunView, *, live: bool = False) -> str:
    """What changes during the run: all that can be seen, and the data."""
    notes = list(run.notes)
    data = contents(run, notes)
    sections = [
        _learning(),
        _cost(),
        _holdings() if data["holdings"] else "",
        _images() if data["synthetic"] else "",
        _details() if any(m.details for m in run.rounds) else "",
        _clients(run),
        _privacy(run),
        _rounds(run),
        _again(run),
        _machine(run),
    ]
    alive = ' <span class="live" id="live" role="status">live</span>' if live else ""
    return (
        '<a class="skip" href="#learning">Skip to the figures</a>'
        f'<header class="top"><p class="brand">fedstill <span>report</span>{alive}</p>'
        f"<h1>{text(run.title)} {_pill(run)}</h1>"
        f'<p class="lead">{text(sentence(run))}</p>{notes_list(notes)}{_tiles(run)}</header>'
        f"<main>{''.join(sections)}</main>"
        f"<footer><p>{text(run.path.resolve().name)} · fedstill {text(_version(run))}</p></footer>"
        f"{data_script('data', data)}"
    )


def _pill(run: RunView) -> str:
    return f'<span class="pill {text(run.status)}">{text(run.status)}</span>'


def notes_list(notes: list[str]) -> str:
    """What the reader should know before reading on."""
    if not notes:
        return ""
    items = "".join(f"<li>{text(note)}</li>" for note in notes)
    return f'<ul class="notes" aria-label="Remarks">{items}</ul>'


def _version(run: RunView) -> str:
    return str(run.summary.get("version", ""))


def _tiles(run: RunView) -> str:
    known = run.summary
    tiles = [
        ("accuracy", in_percent(known.get("accuracy")), "of the test records"),
        ("best", in_percent(known.get("best_accuracy")), _best_round(run)),
        ("uploaded", in_bytes(known["up_bytes"]), "by all clients"),
        ("downloaded", in_bytes(known["down_bytes"]), "by all clients"),
        ("rounds", f"{known['rounds_done']}", f"of {run.planned}"),
        ("computing", duration(known["seconds"]), "in total, here"),
    ]
    if known.get("epsilon") is not None:
        delta = known.get("delta")
        tiles.append(
            ("epsilon", f"{known['epsilon']:.2f}", f"at delta {delta:g}" if delta else "spent")
        )
    return (
        '<dl class="tiles">'
        + "".join(
            f"<div><dt>{text(name)}</dt><dd>{text(value)}<small>{text(more)}</small></dd></div>"
            for name, value, more in tiles
        )
        + "</dl>"
    )


def _best_round(run: RunView) -> str:
    best = max(run.measured, key=lambda m: m.accuracy or 0.0, default=None)
    return f"in round {best.round}" if best else "not measured"


def section(name: str, title: str, lead: str, body: str) -> str:
    """A card of the page."""
    return (
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>'
        f'<p class="about">{lead}</p>{body}</section>'
    )


def figure(name: str, title: str, tall: str = "") -> str:
    """A place for a drawing. Its height is fixed by the style sheet, so nothing moves later."""
    return (
        f'<figure><figcaption>{title}</figcaption><div class="plot {tall}" id="{name}"></div>'
        "</figure>"
    )


def _learning() -> str:
    figures = figure("accuracy", "Accuracy by round") + figure("loss", "Loss by round")
    lead = (
        "How well the server's model did on the official test split. Move over a figure, or focus "
        "it and use the arrow keys, to read values."
    )
    return section("learning", "Learning", lead, f'<div class="pair">{figures}</div>')


def _cost() -> str:
    figures = figure("by-bytes", "Accuracy by bytes uploaded") + figure(
        "by-minutes", "Accuracy by simulated minutes"
    )
    lead = (
        "Bytes are counted on the wire, not estimated. The minutes are those of a network whose "
        "speed you set: all clients send at once, and a round waits for the largest message."
    )
    return section("cost", "Cost", lead, f'<div class="pair">{figures}</div>{LINK}')


def _holdings() -> str:
    lead = "Records of each class at each client: the deeper the colour, the more."
    body = '<figure><div class="matrix" id="matrix"></div></figure>'
    return section("holdings", "Who held what", lead, body)


def _images() -> str:
    controls = (
        '<fieldset class="controls" id="images-controls"><legend>Show</legend>'
        '<label class="wide" for="image-round"><span>round</span>'
        '<output id="image-round-value" for="image-round"></output>'
        '<input type="range" id="image-round" min="0" step="1"></label>'
        '<button type="button" id="play" aria-pressed="false">play</button>'
        '<label for="image-client"><span>client</span><select id="image-client"></select></label>'
        '<label for="tone"><span>pixels</span><select id="tone">'
        '<option value="clipped">as they are, cut to 0 .. 1</option>'
        '<option value="stretched">each image stretched</option></select></label></fieldset>'
    )
    body = (
        f'{controls}<figure><div class="scroll" tabindex="0" aria-label="Images">'
        '<canvas id="images" role="img"></canvas></div>'
        '<figcaption id="images-text" aria-live="polite"></figcaption></figure>'
        "<h3>Pixel values</h3>"
        '<p class="about">How the values of the pixels are spread, client by client, in the round '
        "above (filled) and in the first round shown (line). The values of a photograph lie "
        'between the marks 0 and 1.</p><figure><div class="bars" id="bars"></div></figure>'
    )
    lead = "What the clients sent, by class, client and round."
    return section("synthetic", "Synthetic images", lead, body)


def _details() -> str:
    lead = "Numbers that the method itself reports, round by round."
    return section(
        "details", "Inside the method", lead, '<div class="pair" id="details-figures"></div>'
    )


def _clients(run: RunView) -> str:
    lead = "What each client gave, and the replies that did not reach the model."
    refused = [(m.round, client, reason) for m in run.rounds for client, reason in m.failed.items()]
    refused += [  # a defence, in versions that have one, may trust a reply less than others
        (m.round, client, f"trusted {verdict.trust:.0%}: {verdict.reason}")
        for m in run.rounds
        for client, verdict in m.defence.items()
        if verdict.trust < 1
    ]
    body = figure("contributions", "Uploaded by each client")
    if refused:
        shown = refused[:200]
        more = f"<p>and {len(refused) - 200} more</p>" if len(refused) > 200 else ""
        body += f"<h3>Refused, failed or doubted: {len(refused)}</h3>"
        body += table(("round", "client", "reason"), shown, numbers=9) + more
    else:
        body += '<p class="good">No reply was refused and no client failed.</p>'
    return section("clients", "Clients", lead, body)


def _privacy(run: RunView) -> str:
    epsilon = run.summary.get("epsilon")
    if epsilon is None:
        return section("privacy", "Privacy", text(NO_PRIVACY), "")
    statement = epsilon_explained(epsilon, run.summary.get("delta"))
    if run.summary.get("privacy"):  # what exactly the run guarantees
        statement = f"{statement} {run.summary['privacy']}"
    spent = figure("epsilon", "Budget spent (epsilon) by round")
    return section("privacy", "Privacy", text(statement), spent)


def _rounds(run: RunView) -> str:
    names = sorted({name for m in run.rounds for name in m.details})[:6]
    head = ("round", "accuracy", "loss", "up", "down", "seconds", "clients", "failed", *names)
    rows = [
        (
            m.round,
            in_percent(m.accuracy),
            "-" if m.loss is None else f"{m.loss:.4f}",
            in_bytes(m.up_bytes),
            in_bytes(m.down_bytes),
            f"{m.seconds:.1f}",
            len(m.clients),
            len(m.failed),
            *(f"{m.details[name]:.4g}" if name in m.details else "-" for name in names),
        )
        for m in run.rounds
    ]
    body = f"<details><summary>{len(rows)} rounds as a table</summary>{table(head, rows)}</details>"
    return section("rounds", "The numbers", "Everything above, as text.", body)


def _again(run: RunView) -> str:
    lead = "The first asks for the same run in short; the second is the whole configuration."
    config = tomli_w.dumps(run.config)
    body = (
        f"{_code('command', command(run))}"
        "<details><summary>config.toml</summary><p>Save it and run "
        f"<code>fedstill run --config config.toml</code>.</p>{_code('config', config)}</details>"
    )
    return section("again", "Run it again", lead, body)


def _code(name: str, code: str) -> str:
    return (
        f'<div class="code"><button type="button" class="copy" data-of="{name}">copy</button>'
        f'<pre id="{name}" tabindex="0">{text(code)}</pre></div>'
    )


def _machine(run: RunView) -> str:
    lead = "The same seed gives the same bits on the same versions and kind of processor."
    sums = {
        key: str(run.summary[key])
        for key in ("seed", "data_sha256", "partition_sha256", "experiment_sha256")
        if run.summary.get(key) is not None
    }
    blocks = []
    for session in run.sessions[-1:]:
        facts = {"started": session.started, "command": session.command}
        blocks.append(_facts({**facts, **session.versions, **session.hardware}))
    if len(run.sessions) > 1:
        starts = ", ".join(s.started for s in run.sessions)
        blocks.append(f"<p>Begun and resumed: {text(starts)}.</p>")
    if not run.sessions:
        blocks.append("<p>The folder does not say what the run was computed with.</p>")
    return section("machine", "Versions and machine", lead, "".join(blocks) + _facts(sums))


def _facts(facts: dict[str, str]) -> str:
    items = "".join(f"<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>" for k, v in facts.items())
    return f'<dl class="facts">{items}</dl>'
