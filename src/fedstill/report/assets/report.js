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

function drawMatrix(host, held) {
  drawn(host, () => {
    const rows = held.counts, names = held.class_names;
    const longest = Math.max(...names.map((n) => n.length));
    const left = 58, right = 96;
    const width = Math.max(host.clientWidth, 300);
    const cell = Math.max(3, (width - left - right) / names.length);
    const upright = 7 * Math.min(16, longest) > cell;
    const top = upright ? Math.min(110, 14 + 6.6 * longest) : 22;
    const tall = clamp(Math.floor(520 / rows.length), 2, 28);
    const height = top + rows.length * tall + 4;
    const most = Math.max(...rows.flat(), 1e-9);
    const sums = rows.map((row) => row.reduce((a, b) => a + b, 0));
    const biggest = Math.max(...sums, 1e-9);
    const gap = tall > 8 ? 2 : 0;
    const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": `${held.clients} clients and ${names.length} classes; `
        + rows.slice(0, 12).map((row, i) => `client ${i * held.bunch} holds ${Math.round(sums[i])} records of ${row.filter((v) => v > 0).length} classes`).join("; ") });
    const everyName = upright ? Math.ceil(13 / cell) : 1;
    names.forEach((name, j) => {
      if (j % everyName) return;
      const x = left + (j + 0.5) * cell;
      const label = name.length > 16 ? `${name.slice(0, 15)}…` : name;
      root.append(svg("text", upright ? { x: 0, y: 0, transform: `translate(${x + 4} ${top - 6}) rotate(-90)` }
        : { x, y: top - 8, "text-anchor": "middle" }, label));
    });
    root.append(svg("text", { x: left - 8, y: top - 8, "text-anchor": "end", class: "quiet" }, "client"),
      svg("text", { x: width - right + 10, y: top - 8, class: "quiet" }, "records"));
    const everyRow = Math.ceil(13 / tall);
    rows.forEach((row, i) => {
      const y = top + i * tall;
      if (i % everyRow === 0) root.append(svg("text", { x: left - 8, y: y + tall / 2 + 4, "text-anchor": "end" }, String(i * held.bunch)));
      row.forEach((count, j) => {
        const strength = Math.sqrt(count / most);
        const box = svg("rect", { x: left + j * cell, y, width: Math.max(1, cell - gap), height: tall - gap, rx: gap,
          class: count > 0 ? "held" : "none", style: count > 0 ? `--strength:${(12 + 88 * strength).toFixed(0)}%` : "" });
        box.append(svg("title", {}, `client ${i * held.bunch}, ${names[j]}: ${count} records`));
        root.append(box);
        if (count > 0 && cell >= 30 && tall >= 17) {
          root.append(svg("text", { class: strength > 0.55 ? "on-deep" : "on-pale", x: left + (j + 0.5) * cell - gap / 2, y: y + tall / 2 + 3.5 - gap / 2, "text-anchor": "middle" },
            count >= 9999.5 ? `${Math.round(count / 1000)}k` : String(Math.round(count))));
        }
      });
      root.append(svg("rect", { class: "total", x: width - right + 10, y: y + tall * 0.25 - gap / 2, height: tall * 0.5,
        width: Math.max(1, (sums[i] / biggest) * (right - 54)), rx: gap }));
      if (i % everyRow === 0) root.append(svg("text", { x: width - right + 14 + (sums[i] / biggest) * (right - 54), y: y + tall / 2 + 3, class: "small" }, Math.round(sums[i]).toLocaleString("en")));
    });
    host.replaceChildren(root);
    if (held.bunch > 1) host.append(make("p", { class: "about" }, `A row is the mean of ${held.bunch} clients.`));
  });
}

function drawDetails(host, data) {
  const names = [...new Set(data.rounds.flatMap((r) => Object.keys(r.details)))];
  host.replaceChildren(...names.map((name) => {
    const plot = make("div", { class: "plot" });
    return make("figure", {}, [make("figcaption", {}, name.replaceAll("_", " ")), plot]);
  }));
  names.forEach((name, i) => {
    const points = data.rounds.filter((r) => name in r.details).map((r) => ({ x: r.round, y: r.details[name] }));
    chart(host.children[i].lastChild, { x: byRound, y: { format: formats.number }, series: single(points, 3 + i),
      describe: described(points, `${name} by round`, formats.number, lower) });
  });
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
  if (data.holdings && data.holdings.counts.length) drawMatrix(byId("matrix"), data.holdings);
  if (data.synthetic) imageControls(data);
  if (byId("details-figures")) drawDetails(byId("details-figures"), data);
  drawClients(data);
  drawEpsilon(data);
  copyButtons();
  document.documentElement.dataset.ready = "yes";
}
boot();
