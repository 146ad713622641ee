"use strict";
// A search: its history, the importance of settings, and trials as lines across their settings.

const data = JSON.parse(byId("data").textContent);
const done = data.trials.filter((t) => t.state === "complete" && t.value !== null);

function drawHistory() {
  let best = -Infinity;
  const points = done.map((t) => ({ x: t.number, y: t.value }));
  const line = points.map((p) => ({ x: p.x, y: (best = Math.max(best, p.y)) }));
  chart(byId("by-trial"), { x: { label: "trial", format: formats.whole, whole: true }, y: share,
    series: [{ name: "best so far", colour: 1, points: line, steps: true, dashed: true }, { name: "trial", colour: 0, points, line: false, dots: 4 }],
    describe: points.length ? `Accuracy of ${points.length} trials; the best reaches ${formats.exactPercent(best)}.` : "No trial was completed.",
    empty: "no trial was completed" });
}

const shortName = (name, kind) => (kind && name.startsWith(`${kind}.`) ? name.slice(kind.length + 1) : name);
function drawImportance(host, part) {
  const items = Object.entries(part.importance).map(([name, value]) => ({ name: shortName(name, part.kind), value, note: `${name}: ${formats.exactPercent(value)}` }));
  bars(host, { items, format: formats.percent, label: "setting", empty: "no setting mattered", longest: 24,
    describe: `Importance of settings: ${items.map((i) => i.note).join("; ")}` });
}

// An axis of a setting: numbers by value (by its logarithm where they span decades), words by place.
function axisOf(name, trials) {
  const values = trials.map((t) => t.params[name]);
  if (values.every((v) => typeof v === "number")) {
    const low = Math.min(...values), high = Math.max(...values);
    const log = low > 0 && high / low >= 50;
    const at = (v) => (high === low ? 0.5 : log ? Math.log(v / low) / Math.log(high / low) : (v - low) / (high - low));
    return { at, marks: [...new Set([low, high])].map((v) => [at(v), formats.number(v)]) };
  }
  const words = [...new Set(values.map(String))].sort();
  const at = (v) => (words.length === 1 ? 0.5 : words.indexOf(String(v)) / (words.length - 1));
  return { at, marks: words.slice(0, 12).map((w) => [at(w), w]) };
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
function drawSettings(host, part) {
  const trials = done.filter((t) => part.params.every((name) => name in t.params));
  drawn(host, () => {
    if (!trials.length) { host.replaceChildren(make("p", { class: "empty" }, "no trial was completed")); return; }
    const lows = Math.min(...trials.map((t) => t.value)), highs = Math.max(...trials.map((t) => t.value));
    const strength = (t) => (highs === lows ? 1 : (t.value - lows) / (highs - lows));
    const axes = [...part.params.map((name) => ({ name: shortName(name, part.kind), ...axisOf(name, trials), of: (t) => t.params[name] })),
      { name: "accuracy", at: (v) => (highs === lows ? 0.5 : (v - lows) / (highs - lows)), marks: [[0, formats.percent(lows)], [1, formats.percent(highs)]], of: (t) => t.value }];
    const step = Math.max(96, (host.clientWidth - 120) / Math.max(1, axes.length - 1));
    const width = 120 + step * (axes.length - 1), height = host.clientHeight, top = 34, bottom = height - 20;
    const x = (i) => 60 + i * step, y = (share) => bottom - share * (bottom - top);
    const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": `${trials.length} trials by ${axes.map((a) => a.name).join(", ")}` });
    const said = byId(`${host.id}-text`);
    for (const t of [...trials].sort((a, b) => a.value - b.value)) {
      const path = axes.map((a, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(a.at(a.of(t))).toFixed(1)}`).join("");
      const line = svg("path", { class: "trial", d: path, style: `--strength:${(14 + 86 * strength(t)).toFixed(0)}%` });
      const text = `Trial ${t.number}: ${formats.exactPercent(t.value)}; ${part.params.map((n) => `${shortName(n, part.kind)} ${typeof t.params[n] === "number" ? formats.number(t.params[n]) : t.params[n]}`).join(", ")}`;
      line.append(svg("title", {}, text));
      line.addEventListener("pointerenter", () => { said.textContent = text; });
      root.append(line);
    }
    axes.forEach((a, i) => {
      root.append(svg("line", { class: "axis", x1: x(i), x2: x(i), y1: top, y2: bottom }),
        svg("text", { class: "name", x: x(i), y: 14, "text-anchor": "middle" }, cut(a.name, Math.floor(step / 7))));
      for (const [share, text] of a.marks) root.append(svg("text", { x: x(i) + 5, y: y(share) + (share > 0.5 ? -5 : 13) }, cut(text, Math.floor((step - 8) / 7))));
    });
    host.replaceChildren(make("div", { class: "scroll", tabindex: 0 }, root));
  });
}

drawHistory();
data.parts.forEach((part, i) => {
  if (byId(`importance-${i}`)) drawImportance(byId(`importance-${i}`), part);
  drawSettings(byId(`settings-${i}`), part);
});
sortableTables();
document.documentElement.dataset.ready = "yes";
