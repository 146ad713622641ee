"use strict";
// Several runs in the same figures: means over seeds, and bands from the worst to the best.

const state = { hidden: new Set(), scale: "auto" };
const data = JSON.parse(byId("data").textContent);

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

const shownEntries = () => data.entries.map((entry, colour) => ({ entry, colour })).filter(({ colour }) => !state.hidden.has(colour));
const nothing = () => (state.hidden.size === data.entries.length ? "all runs are hidden" : "no round was evaluated yet");

// Costs that are far apart share an axis only if it is logarithmic, unless the reader decides.
function isLog(values, apart) {
  if (state.scale !== "auto") return state.scale === "log";
  const known = values.filter((v) => v > 0);
  return Math.max(...known) > apart * Math.min(...known);
}

function curves(host, x, xOf, what) {
  const series = shownEntries().map(({ entry, colour }) => ({ name: entry.label, colour, points: entryCurve(entry, xOf) }));
  const log = Boolean(x.zero) && isLog(series.filter((s) => s.points.length).map((s) => s.points.at(-1).x), 15);
  chart(host, { x: { ...x, log }, y: share, series, describe: described(series, what), empty: nothing() });
}

function front(host) {
  const placed = shownEntries().filter(({ entry }) => entry.accuracy !== null);
  const several = (entry) => (entry.seeds.length > 1 ? { low: entry.low, high: entry.high } : {});
  const dots = placed.map(({ entry, colour }) => ({ name: entry.label, colour, line: false, dots: 6,
    points: [{ x: entry.up, y: entry.accuracy, ...several(entry) }] }));
  const steps = { name: "Pareto front", colour: 7, dashed: true, steps: true,
    points: data.front.map((i) => ({ x: data.entries[i].up, y: data.entries[i].accuracy })) };
  const summary = `Accuracy at the end against bytes uploaded. On the Pareto front: ${data.front.map((i) => data.entries[i].label).join("; ")}.`;
  chart(host, { x: { label: "uploaded", format: formats.bytes, log: isLog(placed.map(({ entry }) => entry.up), 4) }, y: share,
    series: placed.length ? [steps, ...dots] : [], describe: summary, empty: nothing() });
}

const bytesAxis = { label: "uploaded", format: formats.bytes, zero: true };
const minutesAxis = { label: "time", format: formats.minutes, zero: true };
const drawMinutes = () => curves(byId("by-minutes"), minutesAxis, (rounds) => totals(rounds, minutesOf(link)), "Accuracy by simulated minutes");
function draw() {
  curves(byId("accuracy"), byRound, () => (r) => r.round, "Accuracy by round");
  curves(byId("by-bytes"), bytesAxis, (rounds) => totals(rounds, (r) => r.up), "Accuracy by bytes uploaded");
  drawMinutes();
  front(byId("front"));
}

function legend() {
  const all = byId("show-all"), buttons = [...document.querySelectorAll("[data-entry]")];
  const show = () => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(!state.hidden.has(Number(button.dataset.entry))));
    all.disabled = state.hidden.size === 0;
    draw();
  };
  for (const button of buttons) {
    button.addEventListener("click", () => {
      const number = Number(button.dataset.entry);
      if (!state.hidden.delete(number)) state.hidden.add(number);
      show();
    });
  }
  all.addEventListener("click", () => { state.hidden.clear(); show(); });
  byId("scale").addEventListener("change", (event) => { state.scale = event.target.value; draw(); });
}

legend();
linkControls(drawMinutes);
draw();
byId("table-csv").addEventListener("click", () => saveFile(`${slug(document.title.split(" · ")[0])}.csv`, data.csv, "text/csv"));
sortableTables();
document.documentElement.dataset.ready = "yes";
