"use strict";
// Accuracy against uploaded bytes: points by line, and the fronts of those that are shown.

const state = { hidden: new Set(), log: true };
const data = JSON.parse(byId("data").textContent);

// No other point is better for as few bytes, or as good for fewer.
function paretoFront(points) {
  const best = [];
  for (const p of [...points].sort((a, b) => a.x - b.x || b.y - a.y)) {
    if (!best.length || p.y > best.at(-1).y) best.push(p);
  }
  return best;
}

function draw() {
  const shown = data.lines.filter((_, i) => !state.hidden.has(i));
  const open = paretoFront(shown.filter((l) => !l.records).flatMap((l) => l.points));
  const all = paretoFront(shown.flatMap((l) => l.points));
  const steps = (name, points, dashed) => ({ name, colour: 7, dashed, steps: true, points: points.map(({ x, y }) => ({ x, y })) });
  const fronts = [steps("front without records", open, false)];
  if (all.some((p) => !open.includes(p))) fronts.push(steps("front with records", all, true));
  // A line's points are dots; what a reader sees of one is its own name.
  const dots = shown.flatMap((line) => line.points.map((p) => ({ name: p.name, colour: line.group, line: false, dots: 4, points: [p] })));
  const summary = `Accuracy against bytes uploaded. On the front without records: ${open.map((p) => `${p.name} ${formats.exactPercent(p.y)}`).join("; ")}.`;
  chart(byId("front"), { x: { label: "uploaded", format: formats.bytes, log: state.log }, y: share,
    series: shown.length ? [...fronts, ...dots] : [], describe: summary, empty: "all lines are hidden" });
}

function legend() {
  const lines = [...document.querySelectorAll("[data-line]")], groups = [...document.querySelectorAll("[data-group]")];
  const of = (group) => data.lines.map((_, i) => i).filter((i) => data.lines[i].group === Number(group.dataset.group));
  const show = () => {
    for (const button of lines) button.setAttribute("aria-pressed", String(!state.hidden.has(Number(button.dataset.line))));
    for (const button of groups) button.setAttribute("aria-pressed", String(of(button).some((i) => !state.hidden.has(i))));
    draw();
  };
  for (const button of lines) {
    button.addEventListener("click", () => {
      const number = Number(button.dataset.line);
      if (!state.hidden.delete(number)) state.hidden.add(number);
      show();
    });
  }
  for (const button of groups) {
    button.addEventListener("click", () => {
      const hide = button.getAttribute("aria-pressed") === "true";
      for (const i of of(button)) { if (hide) state.hidden.add(i); else state.hidden.delete(i); }
      show();
    });
  }
  byId("scale").addEventListener("change", (event) => { state.log = event.target.value === "log"; draw(); });
}

legend();
draw();
byId("table-csv").addEventListener("click", () => saveFile(`${slug(document.title.split(" · ")[0])}.csv`, data.csv, "text/csv"));
sortableTables();
document.documentElement.dataset.ready = "yes";
