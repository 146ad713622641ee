"use strict";
// The synthetic images on one canvas, and the spread of their pixel values.
// A tile is stored stretched to 0..255 with its own range, so both tones come from the same bytes.

const SERVER = -1; // whose images those are that the server distilled
const who = (client) => (Number(client) === SERVER ? "server" : `client ${client}`);

function decoder(data) {
  const cache = new Map();
  return (index) => {
    if (!cache.has(index)) {
      cache.set(index, new Promise((resolve, reject) => {
        const image = new Image();
        image.onload = () => {
          const canvas = make("canvas");
          canvas.width = image.naturalWidth; canvas.height = image.naturalHeight;
          const context = canvas.getContext("2d", { willReadFrequently: true });
          context.drawImage(image, 0, 0);
          resolve(context);
        };
        image.onerror = () => reject(new Error("a picture in this page is damaged"));
        image.src = `data:image/png;base64,${data.rounds[index].png}`;
      }));
    }
    return cache.get(index);
  };
}

// One tile as a small canvas; `clipped` undoes the stretching and cuts to 0..1.
function tile(sheet, round, at, tone) {
  const { across, width, height } = round;
  const pixels = sheet.getImageData((at % across) * width, Math.floor(at / across) * height, width, height);
  if (tone === "clipped") {
    const low = round.low[at] * 255, span = round.high[at] - round.low[at];
    for (let i = 0; i < pixels.data.length; i += 1) {
      if (i % 4 !== 3) pixels.data[i] = low + span * pixels.data[i]; // the array clips by itself
    }
  }
  const canvas = make("canvas");
  canvas.width = width; canvas.height = height;
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}

// Which tile goes where: classes across, as in all pictures of clients; clients down, or the images
// of one client. The layout is that of all rounds together, so that nothing jumps.
function layoutOf(data, client) {
  const held = new Set(), owners = new Set();
  let most = 1;
  for (const round of data.rounds) {
    const counts = new Map();
    round.client.forEach((owner, i) => {
      owners.add(owner);
      if (client !== "all" && owner !== Number(client)) return;
      held.add(round.label[i]);
      const n = (counts.get(round.label[i]) || 0) + 1;
      counts.set(round.label[i], n);
      if (client !== "all") most = Math.max(most, n);
    });
  }
  const clients = [...owners].sort((a, b) => a - b);
  const labels = [...held].sort((a, b) => a - b);
  return { labels, clients, rows: client === "all" ? clients.length : most };
}

function cellsOf(round, layout, client) {
  const next = new Map(), cells = [];
  round.client.forEach((owner, i) => {
    const column = layout.labels.indexOf(round.label[i]);
    if (client === "all") {
      const key = `${owner}/${column}`;
      if (!next.has(key)) { next.set(key, 1); cells.push([layout.clients.indexOf(owner), column, i]); }
    } else if (owner === Number(client)) {
      const row = next.get(column) || 0;
      next.set(column, row + 1);
      cells.push([row, column, i]);
    }
  });
  return cells;
}

let painting = 0;
async function paintImages(canvas, data, sheetOf, state) {
  const turn = (painting += 1); // a slower round must not paint over a newer one
  const round = data.rounds[state.imageRound];
  const layout = layoutOf(data, state.client);
  const sheet = await sheetOf(state.imageRound);
  if (turn !== painting) return;
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--soft"), empty = style.getPropertyValue("--empty");
  const font = `12px ${style.getPropertyValue("--font")}`;
  const context = canvas.getContext("2d");
  context.font = font;
  const names = layout.labels.map((l) => data.class_names[l] ?? String(l));
  const columns = names.length, room = canvas.parentElement.clientWidth;
  const owners = state.client === "all" ? layout.clients.map((c) => (c === SERVER ? "server" : String(c))) : [];
  const left = state.client === "all" ? 50 : 4;
  const side = clamp(Math.floor((room - left - 4) / columns) - 3, 18, 64);
  const longest = Math.max(...names.map((n) => context.measureText(n).width));
  const upright = longest > side;
  const top = (upright ? Math.min(110, longest) : 12) + 10;
  const width = left + columns * (side + 3), height = top + layout.rows * (side + 3);
  const dense = 2; // sharp on dense screens and on paper
  canvas.width = width * dense; canvas.height = height * dense;
  canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
  context.scale(dense, dense);
  context.imageSmoothingEnabled = false;
  context.font = font;
  context.fillStyle = ink;
  context.textBaseline = "middle";
  names.forEach((name, column) => {
    context.save();
    context.translate(left + column * (side + 3) + side / 2, top - 8);
    if (upright) context.rotate(-Math.PI / 2);
    context.textAlign = upright ? "left" : "center";
    context.fillText(name, 0, upright ? 0 : -3, upright ? 110 : side);
    context.restore();
  });
  context.textAlign = "right";
  if (owners.length) context.fillText("client", left - 8, top - 11);
  owners.forEach((owner, row) => context.fillText(owner, left - 8, top + row * (side + 3) + side / 2, left - 10));
  context.fillStyle = empty;
  for (let row = 0; row < layout.rows; row += 1) {
    for (let column = 0; column < columns; column += 1) {
      context.beginPath();
      context.roundRect(left + column * (side + 3), top + row * (side + 3), side, side, 3);
      context.fill();
    }
  }
  const scale = side / Math.max(round.width, round.height);
  for (const [row, column, at] of cellsOf(round, layout, state.client)) {
    const w = round.width * scale, h = round.height * scale;
    context.drawImage(tile(sheet, round, at, state.tone),
      left + column * (side + 3) + (side - w) / 2, top + row * (side + 3) + (side - h) / 2, w, h);
  }
  canvas.dataset.painted = `${round.round}/${state.client}/${state.tone}`;
}

function imagesText(data, state) {
  const round = data.rounds[state.imageRound];
  const some = data.rounds.length < data.all_rounds ? ` ${data.rounds.length} of ${data.all_rounds} rounds are kept in this page.` : "";
  if (state.client === "all") {
    const from = round.client.every((c) => c === SERVER) ? "the server has distilled"
      : `were sent by ${round.clients} ${round.clients === 1 ? "client" : "clients"}`;
    return `Round ${round.round}: one image of every class (across) from everyone (down); `
      + `${round.sent} images ${from}.${some}`;
  }
  const sent = round.client.filter((c) => c === Number(state.client)).length;
  const most = data.images === 1 ? "the first image" : `up to ${data.images} images`;
  return sent ? `Round ${round.round}, ${who(state.client)}: ${most} of every class it has.${some}`
    : `Round ${round.round}: nothing from ${who(state.client)}.${some}`;
}

// Small multiples: one panel per client.
function paintBars(host, data, state) {
  const withBars = data.rounds.map((r, i) => (r.bars ? i : -1)).filter((i) => i >= 0);
  const nearest = withBars.reduce((best, i) =>
    Math.abs(i - state.imageRound) < Math.abs(best - state.imageRound) ? i : best, withBars[0]);
  const now = data.rounds[nearest], first = data.rounds[withBars[0]];
  const clients = [...new Set(withBars.flatMap((i) => Object.keys(data.rounds[i].bars)))].map(Number).sort((a, b) => a - b);
  const most = Math.max(...clients.flatMap((c) =>
    withBars.flatMap((i) => data.rounds[i].bars[c] || [0])).map(Math.sqrt));
  const width = 150, height = 84, bottom = height - 18;
  const at = (v) => ((v - data.low) / (data.high - data.low)) * width;
  // The root of the share: one high bar (the background) would hide all others.
  const y = (share) => bottom - (Math.sqrt(share) / most) * (bottom - 18);
  host.replaceChildren(...clients.map((c) => {
    const shares = now.bars[c] || [];
    const step = width / Math.max(1, shares.length);
    const mean = shares.reduce((sum, s, i) => sum + s * (data.low + ((i + 0.5) / shares.length) * (data.high - data.low)), 0)
      / Math.max(1, shares.reduce((a, b) => a + b, 0));
    const panel = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": shares.length ? `${who(c)}, round ${now.round}: mean pixel value ${mean.toFixed(2)}` : `Nothing from ${who(c)} in round ${now.round}` });
    shares.forEach((s, i) => panel.append(svg("rect", { class: "bar", x: i * step, width: Math.max(0.5, step - 0.6),
      y: y(s), height: Math.max(0, bottom - y(s)) })));
    const before = first.bars[c];
    if (before) {
      const line = before.map((s, i) => `${i ? "H" : "M0 " + y(s) + "H"}${(i + 1) * step}${i + 1 < before.length ? "V" + y(before[i + 1]) : ""}`);
      panel.append(svg("path", { class: "before", d: line.join("") }));
    }
    for (const v of [0, 1]) {
      panel.append(svg("line", { class: "mark", x1: at(v), x2: at(v), y1: bottom, y2: bottom + 4 }),
        svg("text", { x: clamp(at(v), 4, width - 4), y: height - 3, "text-anchor": "middle" }, String(v)));
    }
    panel.append(svg("line", { class: "base", x1: 0, x2: width, y1: bottom, y2: bottom }),
      svg("text", { class: "who", x: 0, y: 11 }, who(c)));
    return panel;
  }));
}
