"use strict";
// The report's figures and controls. What the reader chose lives in `state`, which outlasts the
// page's contents: a live page puts new contents in and draws again.

const state = { imageRound: -1, client: "all", tone: "clipped" };
let player = null;

function curveOf(rounds, x, y) {
  return rounds.filter((r) => r[y] !== null && r[y] !== undefined).map((r) => ({ x: x(r), y: r[y], note: x.note && `round ${r.round}` }));
}

function described(points, what, format, how) {
  if (!points.length) return `${what}: nothing measured yet.`;
  const first = points[0], last = points[points.length - 1];
  const top = points.reduce((a, b) => (how(a.y, b.y) ? a : b));
  return `${what}: ${format(first.y)} at first, ${format(last.y)} at the end; best ${format(top.y)}.`;
}
const higher = (a, b) => a >= b, lower = (a, b) => a <= b;
const single = (points, colour = 0) => [{ name: "", colour, points }];

function drawLearning(data) {
  const accuracy = curveOf(data.rounds, (r) => r.round, "accuracy");
  chart(byId("accuracy"), { x: byRound, y: share, series: single(accuracy),
    describe: described(accuracy, "Accuracy by round", formats.exactPercent, higher), empty: "no round was evaluated yet" });
  const loss = curveOf(data.rounds, (r) => r.round, "loss");
  chart(byId("loss"), { x: byRound, y: { format: formats.number }, series: single(loss, 1),
    describe: described(loss, "Loss by round", formats.number, lower), empty: "no round was evaluated yet" });
}

function drawBytes(data) {
  const points = curveOf(data.rounds, totals(data.rounds, (r) => r.up), "accuracy");
  const none = points.length && points[points.length - 1].x === 0;
  chart(byId("by-bytes"), { x: { label: "uploaded", format: formats.bytes, zero: true }, y: share,
    series: single(none ? [] : points), empty: "nothing travelled: all records were in one place",
    describe: described(points, "Accuracy by uploaded bytes", formats.exactPercent, higher) });
}

function drawMinutes(data) {
  const points = curveOf(data.rounds, totals(data.rounds, minutesOf(link)), "accuracy");
  chart(byId("by-minutes"), { x: { label: "time", format: formats.minutes, zero: true }, y: share, series: single(points, 2),
    empty: "no round was evaluated yet", describe: described(points, "Accuracy by simulated minutes", formats.exactPercent, higher) });
}

function drawDetails(data) {
  data.details.forEach((name, i) => {
    const points = data.rounds.filter((r) => name in r.details).map((r) => ({ x: r.round, y: r.details[name] }));
    chart(byId(`detail-${i}`), { x: byRound, y: { format: formats.number }, series: single(points, 3 + i),
      describe: described(points, `${name} by round`, formats.number, lower) });
  });
}

// Accuracy of each class or client, as bars.
function shares(host, label, names, values, empty) {
  const items = names.map((name, i) => ({ name, value: values[i] ?? 0,
    note: `${label} ${name}: ${values[i] === null ? "no test records" : formats.exactPercent(values[i])}` }));
  bars(host, { items, format: formats.percent, label, most: 1, empty,
    describe: `Accuracy by ${label}: ${items.slice(0, 20).map((i) => i.note).join("; ")}` });
}

function drawClasses({ names, accuracy, counts }) {
  shares(byId("by-class"), "class", names, accuracy, "the model predicts no test record correctly");
  if (counts) drawConfusion(byId("confusion"), names, counts);
  else byId("confusion").append(make("p", { class: "empty" }, `${names.length} classes are too many for a picture; they are in confusion.json`));
}

function drawClients(data) {
  const { clients } = data;
  const items = clients.ids.map((id, i) => ({ name: String(id), value: clients.uploaded[i],
    note: `client ${id}: ${formats.bytes(clients.uploaded[i])} in ${clients.answered[i]} rounds`
      + (clients.records[i] === null ? "" : `, holds ${clients.records[i].toLocaleString("en")} records`)
      + (clients.failed[i] ? `, failed ${clients.failed[i]} times` : "") }));
  const total = items.reduce((sum, item) => sum + item.value, 0);
  bars(byId("contributions"), { items, format: formats.bytes, label: "client", empty: "uploads of single clients were not recorded",
    describe: `Uploaded by each client, ${formats.bytes(total)} in all: ${items.slice(0, 20).map((i) => i.note).join("; ")}` });
  if (clients.accuracy) shares(byId("by-client"), "client", clients.ids.map(String), clients.accuracy, "the model predicts no test record correctly");
}

function drawEpsilon(data) {
  const host = byId("epsilon");
  if (!host) return;
  const points = curveOf(data.rounds, (r) => r.round, "epsilon");
  chart(host, { x: byRound, y: { format: formats.number, low: 0 }, series: single(points, 4),
    describe: described(points, "Epsilon by round", formats.number, lower) });
}

function imageControls(data) {
  const found = data.synthetic, slider = byId("image-round"), picker = byId("image-client"), tone = byId("tone"), play = byId("play");
  const last = found.rounds.length - 1;
  const sheetOf = decoder(found);
  if (state.imageRound < 0 || state.imageRound > last || state.following) { state.imageRound = last; state.following = true; }
  slider.max = last;
  slider.value = state.imageRound;
  const { clients } = layoutOf(found, "all");
  if (state.client !== "all" && !clients.includes(Number(state.client))) state.client = "all";
  picker.append(make("option", { value: "all" }, "all, one image each"), ...clients.map((c) => make("option", { value: c }, who(c))));
  picker.value = state.client;
  tone.value = state.tone;
  const show = () => {
    const label = `${found.rounds[state.imageRound].round}`;
    byId("image-round-value").textContent = label;
    slider.setAttribute("aria-valuetext", `round ${label}`);
    const text = imagesText(found, state);
    byId("images").setAttribute("aria-label", text);
    byId("images-text").textContent = text;
    paintBars(byId("bars"), found, state);
    return paintImages(byId("images"), found, sheetOf, state);
  };
  const stop = () => { clearInterval(player); player = null; play.setAttribute("aria-pressed", "false"); play.textContent = "play"; };
  const go = (index) => { state.imageRound = index; state.following = index === last; slider.value = index; show(); };
  slider.addEventListener("input", () => { stop(); go(Number(slider.value)); });
  picker.addEventListener("change", () => { state.client = picker.value; show(); });
  tone.addEventListener("change", () => { state.tone = tone.value; show(); });
  play.addEventListener("click", () => {
    if (player) { stop(); return; }
    play.setAttribute("aria-pressed", "true");
    play.textContent = "pause";
    if (state.imageRound === last) go(0);
    player = setInterval(() => { if (state.imageRound >= last) stop(); else go(state.imageRound + 1); }, 600);
  });
  play.disabled = slider.disabled = last === 0;
  clearInterval(player);
  player = null;
  drawn(byId("images").parentElement, show);
  matchMedia("(prefers-color-scheme: dark)").onchange = show;
}

function copyButtons() {
  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const source = byId(button.dataset.of);
      try {
        await navigator.clipboard.writeText(source.textContent);
        button.textContent = "copied";
      } catch { // no clipboard here: select the text instead
        const range = document.createRange();
        range.selectNodeContents(source);
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        button.textContent = "selected";
      }
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
  }
}

function boot() {
  const data = JSON.parse(byId("data").textContent);
  drawLearning(data);
  drawBytes(data);
  linkControls(() => drawMinutes(data));
  if (data.holdings && data.holdings.counts.length) drawHoldings(byId("matrix"), data.holdings);
  if (data.synthetic) imageControls(data);
  if (data.classes) drawClasses(data.classes);
  drawDetails(data);
  drawClients(data);
  drawEpsilon(data);
  copyButtons();
  document.documentElement.dataset.ready = "yes";
}
boot();
