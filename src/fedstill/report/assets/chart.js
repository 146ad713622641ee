"use strict";
// Line and point charts as SVG: they follow the width of the page, the mouse and the arrow keys.
// Only text nodes and attributes are set, so names from data can never become markup.

const SVG = "http://www.w3.org/2000/svg";

function make(name, attributes = {}, children = [], space = null) {
  const node = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  for (const child of [].concat(children)) node.append(child);
  return node;
}
const svg = (name, attributes, children) => make(name, attributes, children, SVG);

// Draw again whenever the place changes its width, and only then.
const drawings = new Map();
const watcher = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const entry = drawings.get(target);
    if (entry && target.isConnected && entry.width !== target.clientWidth) redraw(target);
  }
});
function redraw(host) {
  const entry = drawings.get(host);
  entry.width = host.clientWidth;
  entry.draw(host);
}
function drawn(host, draw, spec = null) {
  drawings.set(host, { draw, width: -1, spec });
  redraw(host);
  watcher.observe(host);
}

/* spec = { label, describe, x: {label, format, whole, log, exact}, y: {label, format, low, high},
            series: [{name, colour, points: [{x, y, low, high, note}], dots, line, dashed, steps}],
            empty } */
function chart(host, spec) {
  drawn(host, () => paint(host, spec), spec);
}

function extent(values, fallback) {
  if (!values.length) return fallback;
  return [Math.min(...values), Math.max(...values)];
}

function axes(spec, width, height) {
  const points = spec.series.flatMap((s) => s.points);
  const ys = points.flatMap((p) => [p.y, p.low ?? p.y, p.high ?? p.y]);
  let [x0, x1] = extent(points.map((p) => p.x), [0, 1]);
  let [y0, y1] = extent(ys, [0, 1]);
  const room = (y1 - y0 || Math.abs(y1) || 1) * 0.08;
  y0 = spec.y.low !== undefined ? Math.max(spec.y.low, y0 - room) : y0 - room;
  y1 = spec.y.high !== undefined ? Math.min(spec.y.high, y1 + room) : y1 + room;
  if (y1 - y0 < 1e-12) { y0 -= 0.5; y1 += 0.5; }
  const log = spec.x.log && x0 > 0;
  if (!log && spec.x.zero) x0 = 0;
  if (x1 - x0 < 1e-12 * Math.max(1, Math.abs(x1))) {
    [x0, x1] = log ? [x0 / 2, x1 * 2] : [x0 - 0.5, x1 + 0.5];
  }
  const yTicks = ticks(y0, y1, Math.max(3, Math.floor(height / 52)));
  const yFormat = spec.y.format;
  const widest = Math.max(...yTicks.map((t) => yFormat(t).length), 1);
  const box = { left: 14 + 7 * widest, right: width - 14, top: 12, bottom: height - 40 };
  const share = log ? (v) => Math.log(v / x0) / Math.log(x1 / x0) : (v) => (v - x0) / (x1 - x0);
  const inset = spec.x.zero && !log ? 0 : 10;
  const plotWidth = box.right - box.left - 2 * inset;
  return {
    box, yTicks, log, yFormat,
    xTicks: (log ? logTicks : ticks)(x0, x1, Math.max(2, Math.floor(plotWidth / 78)), spec.x.whole),
    x: (v) => box.left + inset + share(v) * plotWidth,
    y: (v) => box.bottom - ((v - y0) / (y1 - y0)) * (box.bottom - box.top),
  };
}

function paint(host, spec) {
  const width = Math.max(240, host.clientWidth), height = host.clientHeight || 260;
  const filled = spec.series.filter((s) => s.points.length);
  if (!filled.length) {
    host.replaceChildren(make("p", { class: "empty" }, spec.empty || "nothing to show yet"));
    return;
  }
  const at = axes(spec, width, height);
  const root = svg("svg", {
    width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0,
    "aria-label": spec.describe,
  });
  root.append(grid(at, spec, width, height));
  for (const series of filled) root.append(curve(series, at));
  const cursor = svg("g", { class: "cursor", visibility: "hidden" });
  root.append(cursor);
  const tip = make("div", { class: "tip", hidden: "" });
  const spoken = make("p", { class: "hidden", "aria-live": "polite" });
  host.replaceChildren(root, tip, spoken);
  follow(host, root, cursor, tip, spoken, spec, filled, at);
}

function grid(at, spec, width, height) {
  const { box } = at;
  const group = svg("g", { class: "axes", "aria-hidden": "true" });
  for (const t of at.yTicks) {
    group.append(
      svg("line", { x1: box.left, x2: box.right, y1: at.y(t), y2: at.y(t) }),
      svg("text", { x: box.left - 7, y: at.y(t) + 4, "text-anchor": "end" }, at.yFormat(t)),
    );
  }
  for (const t of at.xTicks) {
    const label = spec.x.format(t), half = 3.6 * label.length;
    group.append(svg("text", { x: Math.min(at.x(t), width - half), y: box.bottom + 17,
      "text-anchor": "middle" }, label));
  }
  group.append(
    svg("line", { class: "base", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    svg("text", { class: "name", x: (box.left + box.right) / 2, y: height - 5,
      "text-anchor": "middle" }, spec.x.label + (at.log ? " (logarithmic)" : "")),
  );
  return group;
}

function curve(series, at) {
  const group = svg("g", { class: `series c${series.colour % 8}` });
  const spread = series.points.filter((p) => p.low !== undefined);
  if (spread.length > 1 && series.line !== false) {
    const upper = spread.map((p) => `${at.x(p.x)},${at.y(p.high)}`);
    const lower = spread.map((p) => `${at.x(p.x)},${at.y(p.low)}`).reverse();
    group.append(svg("polygon", { class: "spread", points: [...upper, ...lower].join(" ") }));
  }
  if (series.line !== false && series.points.length > 1) {
    const path = series.points.map((p, i) => {
      const x = at.x(p.x).toFixed(1), y = at.y(p.y).toFixed(1);
      return series.steps && i ? `H${x}V${y}` : `${i ? "L" : "M"}${x} ${y}`;
    });
    group.append(svg("path", { d: path.join(""), class: series.dashed ? "dashed" : "" }));
  }
  if (series.dots || series.points.length <= 40) {
    for (const p of series.points) {
      if (series.line === false && p.low !== undefined && p.high > p.low) {
        group.append(svg("path", { class: "whisker", d: `M${at.x(p.x)} ${at.y(p.low)}V${at.y(p.high)}` }));
      }
      group.append(svg("circle", { cx: at.x(p.x), cy: at.y(p.y), r: series.dots || 2.6 }));
    }
  }
  return group;
}

// The nearest mark on the x axis, from the mouse or step by step from the keyboard.
function follow(host, root, cursor, tip, spoken, spec, filled, at) {
  const places = [...new Set(filled.flatMap((s) => s.points.map((p) => p.x)))].sort((a, b) => a - b);
  let now = -1;
  function show(index, speak) {
    now = clamp(index, 0, places.length - 1);
    const x = places[now];
    const hits = filled.flatMap((s) => s.points.filter((p) => p.x === x).map((p) => ({ s, p })));
    const px = at.x(x);
    cursor.replaceChildren(
      svg("line", { x1: px, x2: px, y1: at.box.top, y2: at.box.bottom }),
      ...hits.map(({ s, p }) => svg("circle", { class: `c${s.colour % 8}`, cx: px, cy: at.y(p.y), r: 5 })),
    );
    cursor.setAttribute("visibility", "visible");
    const exact = spec.y.exact || spec.y.format;
    const head = `${spec.x.label} ${(spec.x.exact || spec.x.format)(x)}`;
    const lines = hits.map(({ s, p }) => {
      const name = filled.length > 1 ? `${s.name}: ` : "";
      const band = p.low !== undefined && p.high > p.low ? ` (${exact(p.low)} to ${exact(p.high)})` : "";
      return `${name}${exact(p.y)}${band}${p.note ? `, ${p.note}` : ""}`;
    });
    tip.replaceChildren(make("b", {}, head), ...lines.map((line) => make("div", {}, line)));
    tip.hidden = false;
    const left = px > at.box.right - tip.offsetWidth - 16 ? px - tip.offsetWidth - 12 : px + 12;
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${at.box.top + 4}px`;
    if (speak) spoken.textContent = `${head}: ${lines.join("; ")}`;
  }
  function hide() { cursor.setAttribute("visibility", "hidden"); tip.hidden = true; now = -1; }
  root.addEventListener("pointermove", (event) => {
    const x = event.clientX - root.getBoundingClientRect().left;
    let best = 0;
    places.forEach((p, i) => { if (Math.abs(at.x(p) - x) < Math.abs(at.x(places[best]) - x)) best = i; });
    if (best !== now) show(best, false);
  });
  root.addEventListener("pointerleave", hide);
  root.addEventListener("blur", hide);
  root.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: now + 1, ArrowLeft: now < 0 ? places.length - 1 : now - 1,
      Home: 0, End: places.length - 1 };
    if (event.key === "Escape") hide();
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(moves[event.key], true);
  });
}

// Bars, one per name, for quantities that belong to clients or classes.
function bars(host, spec) {
  drawn(host, () => {
    if (!spec.items.some((item) => item.value > 0)) {
      host.replaceChildren(make("p", { class: "empty" }, spec.empty));
      return;
    }
    const width = Math.max(240, host.clientWidth), height = host.clientHeight || 260;
    const most = spec.most || Math.max(...spec.items.map((i) => i.value));
    const marks = ticks(0, most, 4);
    const left = 14 + 7 * Math.max(...marks.map((t) => spec.format(t).length));
    const step = (width - left - 14) / spec.items.length;
    const longest = Math.min(spec.longest || 12, Math.max(...spec.items.map((i) => i.name.length)));
    const upright = longest > 3 && 7 * longest > step; // long names read upwards
    const bottom = height - (upright ? 28 + 6.6 * longest : 40);
    const y = (v) => bottom - (v / most) * (bottom - 14);
    const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spec.describe });
    const axis = svg("g", { class: "axes", "aria-hidden": "true" });
    for (const t of marks) {
      axis.append(svg("line", { x1: left, x2: width - 14, y1: y(t), y2: y(t) }),
        svg("text", { x: left - 7, y: y(t) + 4, "text-anchor": "end" }, spec.format(t)));
    }
    const every = Math.ceil((upright ? 13 : 26) / step);
    spec.items.forEach((item, i) => {
      const x = left + i * step;
      const bar = svg("rect", { class: "bar", x: x + step * 0.12, width: Math.max(1, step * 0.76),
        y: y(item.value), height: Math.max(0, bottom - y(item.value)), rx: Math.min(3, step / 5) });
      bar.append(svg("title", {}, item.note));
      root.append(bar);
      if (i % every === 0) {
        const short = item.name.length > longest ? `${item.name.slice(0, longest - 1)}…` : item.name;
        axis.append(svg("text", upright ? { transform: `translate(${x + step / 2 + 4} ${bottom + 6}) rotate(-90)`, "text-anchor": "end" }
          : { x: x + step / 2, y: bottom + 17, "text-anchor": "middle" }, short));
      }
    });
    axis.append(svg("text", { class: "name", x: (left + width) / 2, y: height - 5, "text-anchor": "middle" }, spec.label));
    root.prepend(axis);
    host.replaceChildren(root);
  }, spec);
}
