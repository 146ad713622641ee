"use strict";
// The simulated link, and what a round takes on it.

const byId = (id) => document.getElementById(id);
const link = { up: 1, down: 1.7, latency: 1.7, computing: true }; // powers of ten: Mbit/s, ms
const byRound = { label: "round", format: formats.whole, whole: true };
const share = { format: formats.percent, exact: formats.exactPercent, low: 0, high: 1 };

const seconds = (latency) => (latency < 0.01 ? 0 : 10 ** latency / 1000);
const rate = (v) => (v < 0 ? `${Number((10 ** v * 1000).toPrecision(2))} kbit/s`
  : v >= 3 ? "1 Gbit/s" : `${Number((10 ** v).toPrecision(2))} Mbit/s`);

// A round: latency twice, the message down, the computing, and the largest message up.
function minutesOf({ up, down, latency, computing }) {
  return (r) => (2 * seconds(latency) + (8 * r.each_down) / (10 ** down * 1e6)
    + (8 * r.slowest_up) / (10 ** up * 1e6) + (computing ? r.seconds : 0)) / 60;
}

// From rounds to a running total, by round.
function totals(rounds, of) {
  let sum = 0;
  const at = new Map(rounds.map((r) => [r.round, (sum += of(r))]));
  const found = (r) => at.get(r.round);
  found.note = true;
  return found;
}

function linkControls(draw) {
  const show = () => {
    byId("up-value").textContent = rate(link.up);
    byId("down-value").textContent = rate(link.down);
    byId("latency-value").textContent = `${Math.round(1000 * seconds(link.latency))} ms`;
    for (const name of ["up", "down", "latency"]) byId(name).setAttribute("aria-valuetext", byId(`${name}-value`).textContent);
    draw();
  };
  for (const name of ["up", "down", "latency"]) {
    const input = byId(name);
    input.value = link[name];
    input.addEventListener("input", () => { link[name] = Number(input.value); show(); });
  }
  byId("computing").checked = link.computing;
  byId("computing").addEventListener("change", (event) => { link.computing = event.target.checked; show(); });
  show();
}
