"use strict";
// Several runs in the same figures: means over seeds, and bands from the worst to the best.

function entryCurve(entry, xOf) {
  const seeds = entry.seeds.map((rounds) => {
    const x = xOf(rounds);
    return new Map(rounds.filter((r) => r.accuracy !== null).map((r) => [r.round, { x: x(r), y: r.accuracy }]));
  });
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  return [...seeds[0].keys()].filter((round) => seeds.every((s) => s.has(round))).map((round) => {
    const at = seeds.map((s) => s.get(round)), ys = at.map((p) => p.y);
    const point = { x: mean(at.map((p) => p.x)), y: mean(ys), note: `round ${round}` };
    return seeds.length > 1 ? { ...point, low: Math.min(...ys), high: Math.max(...ys) } : point;
  });
}

function described(series, what) {
  const ends = series.filter((s) => s.points.length).map((s) => `${s.name} ends at ${formats.exactPercent(s.points.at(-1).y)}`);
  return `${what}. ${ends.join("; ") || "Nothing measured yet"}.`;
}

function curves(host, data, x, xOf, what) {
  const series = data.entries.map((entry, colour) => ({ name: entry.label, colour, points: entryCurve(entry, xOf) }));
  // Runs whose costs are far apart share an axis only if it is logarithmic.
  const ends = series.filter((s) => s.points.length).map((s) => s.points.at(-1).x).filter((v) => v > 0);
  const log = Boolean(x.zero) && Math.max(...ends) > 15 * Math.min(...ends);
  chart(host, { x: { ...x, log }, y: share, series, describe: described(series, what), empty: "no round was evaluated yet" });
}

function front(host, data) {
  const placed = data.entries.map((entry, colour) => ({ entry, colour })).filter(({ entry }) => entry.accuracy !== null);
  const several = (entry) => (entry.seeds.length > 1 ? { low: entry.low, high: entry.high } : {});
  const dots = placed.map(({ entry, colour }) => ({ name: entry.label, colour, line: false, dots: 6,
    points: [{ x: entry.up, y: entry.accuracy, ...several(entry) }] }));
  const line = { name: "front", colour: 7, dashed: true, points: data.front.map((i) => ({ x: data.entries[i].up, y: data.entries[i].accuracy })) };
  const summary = `Accuracy at the end against bytes uploaded. On the Pareto front: ${data.front.map((i) => data.entries[i].label).join("; ")}.`;
  chart(host, { x: { label: "uploaded", format: formats.bytes, log: true }, y: share, series: [line, ...dots], describe: summary,
    empty: "no round was evaluated yet" });
}

const data = JSON.parse(byId("data").textContent);
curves(byId("accuracy"), data, byRound, () => (r) => r.round, "Accuracy by round");
curves(byId("by-bytes"), data, { label: "uploaded", format: formats.bytes, zero: true }, (rounds) => totals(rounds, (r) => r.up), "Accuracy by bytes uploaded");
linkControls(() => curves(byId("by-minutes"), data, { label: "time", format: formats.minutes, zero: true },
  (rounds) => totals(rounds, minutesOf(link)), "Accuracy by simulated minutes"));
front(byId("front"), data);
document.documentElement.dataset.ready = "yes";
