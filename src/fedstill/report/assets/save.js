"use strict";
// Figures as files: the numbers as CSV, the drawing as PNG.

function saveFile(name, content, kind) {
  const blob = content instanceof Blob ? content : new Blob([content], { type: kind });
  const anchor = make("a", { href: URL.createObjectURL(blob), download: name });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 60_000);
}

const slug = (text) => text.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60) || "figure";
const csvField = (value) => (/[",\n\r]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
const csvText = (rows) => rows.map((row) => `${row.map((v) => csvField(v ?? "")).join(",")}\n`).join("");

function figureRows(spec) {
  if (spec.items) return [[spec.label, "value"], ...spec.items.map((item) => [item.name, item.value])];
  const named = spec.series.filter((s) => s.points.length);
  return [["series", spec.x.label, "value", "low", "high"],
    ...named.flatMap((s) => s.points.map((p) => [s.name, p.x, p.y, p.low, p.high]))];
}

// A copy has no style sheet: what it says is written into every element.
const STYLED = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "font-family", "font-size", "visibility"];
function styledCopy(root) {
  const copy = root.cloneNode(true);
  const copies = [copy, ...copy.querySelectorAll("*")];
  [root, ...root.querySelectorAll("*")].forEach((node, i) => {
    const style = getComputedStyle(node);
    for (const name of STYLED) copies[i].style.setProperty(name, style.getPropertyValue(name));
  });
  copy.querySelector(".cursor")?.remove();
  return copy;
}

// The drawing under its title, with the names of its lines.
function posterOf(host, title) {
  const { spec } = drawings.get(host), drawing = styledCopy(host.querySelector("svg"));
  const style = getComputedStyle(document.documentElement), ink = style.getPropertyValue("--ink");
  const colour = (name) => style.getPropertyValue(name);
  const width = host.clientWidth + 24, inner = host.clientHeight, font = style.getPropertyValue("--font");
  const named = (spec.series || []).filter((s) => s.name && s.points.length && !s.dashed);
  const lines = named.length > 1 ? named : [];
  const height = inner + 44 + 18 * lines.length + 12;
  const text = (x, y, size, content) => svg("text", { x, y, "font-size": size, "font-family": font, fill: ink }, content);
  const root = svg("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` }, [
    svg("rect", { width, height, fill: colour("--card") }), text(12, 25, 15, title)]);
  drawing.setAttribute("x", 12);
  drawing.setAttribute("y", 38);
  root.append(drawing);
  lines.forEach((s, i) => root.append(
    svg("rect", { x: 16, y: inner + 46 + 18 * i, width: 16, height: 4, fill: colour(`--c${s.colour % 8}`) }),
    text(40, inner + 52 + 18 * i, 12, s.name)));
  return { text: new XMLSerializer().serializeToString(root), width, height };
}

async function pngOf(host, title) {
  const poster = posterOf(host, title), dense = 2;
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(poster.text)}`;
  await image.decode();
  const canvas = make("canvas");
  canvas.width = poster.width * dense;
  canvas.height = poster.height * dense;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-save]");
  if (!button) return;
  const host = byId(button.dataset.of), entry = drawings.get(host);
  if (!entry || !host.querySelector("svg")) return; // nothing is drawn yet
  const title = host.closest("figure").querySelector("figcaption").firstChild.textContent.trim();
  const name = `${slug(document.title.split(" · ")[0])}-${slug(host.id)}`;
  if (button.dataset.save === "csv") saveFile(`${name}.csv`, csvText(figureRows(entry.spec)), "text/csv");
  else saveFile(`${name}.png`, await pngOf(host, title), "image/png");
});
