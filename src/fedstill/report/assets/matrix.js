"use strict";
// Counts as coloured cells: clients or true classes down, classes across, deeper colour for more.

const CELL_GAP = 2, NAMES = 58;

/* spec = { rows, names, labels, corner, strength(value, row), note(value, i, j), text(value), right,
            describe, beside(i, y, tall) } */
function matrix(host, spec) {
  drawn(host, () => {
    const { rows, names, labels } = spec;
    const longest = Math.max(...names.map((n) => n.length));
    const left = Math.max(NAMES, 14 + 6.6 * Math.min(16, Math.max(...labels.map((n) => n.length))));
    const right = spec.right || 4, width = Math.max(host.clientWidth, 300);
    const cell = Math.max(3, (width - left - right) / names.length);
    const upright = 7 * Math.min(16, longest) > cell;
    const top = upright ? Math.min(110, 14 + 6.6 * longest) : 22;
    const tall = clamp(Math.floor(520 / rows.length), 2, 28);
    const height = top + rows.length * tall + 4;
    const gap = tall > 8 ? CELL_GAP : 0;
    const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spec.describe });
    const short = (name) => (name.length > 16 ? `${name.slice(0, 15)}…` : name);
    const everyName = upright ? Math.ceil(13 / cell) : 1;
    names.forEach((name, j) => {
      if (j % everyName) return;
      const x = left + (j + 0.5) * cell;
      root.append(svg("text", upright ? { x: 0, y: 0, transform: `translate(${x + 4} ${top - 6}) rotate(-90)` }
        : { x, y: top - 8, "text-anchor": "middle" }, short(name)));
    });
    root.append(svg("text", { x: left - 8, y: top - 8, "text-anchor": "end", class: "quiet" }, spec.corner));
    const everyRow = Math.ceil(13 / tall);
    rows.forEach((row, i) => {
      const y = top + i * tall;
      if (i % everyRow === 0) root.append(svg("text", { x: left - 8, y: y + tall / 2 + 4, "text-anchor": "end" }, short(labels[i])));
      row.forEach((value, j) => {
        const strength = spec.strength(value, i);
        const box = svg("rect", { x: left + j * cell, y, width: Math.max(1, cell - gap), height: tall - gap, rx: gap,
          class: value > 0 ? "held" : "none", style: value > 0 ? `--strength:${(12 + 88 * strength).toFixed(0)}%` : "" });
        box.append(svg("title", {}, spec.note(value, i, j)));
        root.append(box);
        if (value > 0 && cell >= 30 && tall >= 17) {
          root.append(svg("text", { class: strength > 0.55 ? "on-deep" : "on-pale", x: left + (j + 0.5) * cell - gap / 2, y: y + tall / 2 + 3.5 - gap / 2, "text-anchor": "middle" },
            spec.text(value, i)));
        }
      });
      if (spec.beside) root.append(...spec.beside(i, { x: width - right + 10, y, tall, gap, room: right - 54, named: i % everyRow === 0 }));
    });
    if (spec.right) root.append(svg("text", { x: width - right + 10, y: top - 8, class: "quiet" }, "records"));
    host.replaceChildren(root);
    if (spec.below) host.append(make("p", { class: "about" }, spec.below));
  });
}

const shortCount = (count) => (count >= 9999.5 ? `${Math.round(count / 1000)}k` : String(Math.round(count)));

// Who holds what, with the sum of every client beside its row.
function drawHoldings(host, held) {
  const rows = held.counts, names = held.class_names, client = (i) => String(i * held.bunch);
  const most = Math.max(...rows.flat(), 1e-9);
  const sums = rows.map((row) => row.reduce((a, b) => a + b, 0));
  const biggest = Math.max(...sums, 1e-9);
  matrix(host, { rows, names, labels: rows.map((_, i) => client(i)), corner: "client", right: 96,
    strength: (count) => Math.sqrt(count / most), text: shortCount,
    note: (count, i, j) => `client ${client(i)}, ${names[j]}: ${count} records`,
    describe: `${held.clients} clients and ${names.length} classes; `
      + rows.slice(0, 12).map((row, i) => `client ${client(i)} holds ${Math.round(sums[i])} records of ${row.filter((v) => v > 0).length} classes`).join("; "),
    beside: (i, { x, y, tall, gap, room, named }) => {
      const length = (sums[i] / biggest) * room;
      const bar = svg("rect", { class: "total", x, y: y + tall * 0.25 - gap / 2, height: tall * 0.5, width: Math.max(1, length), rx: gap });
      return named ? [bar, svg("text", { x: x + 4 + length, y: y + tall / 2 + 3, class: "small" }, Math.round(sums[i]).toLocaleString("en"))] : [bar];
    },
    below: held.bunch > 1 ? `A row is the mean of ${held.bunch} clients.` : null });
}

// Which classes are taken for which: every row is coloured by its own shares.
function drawConfusion(host, names, rows) {
  const sums = rows.map((row) => Math.max(1, row.reduce((a, b) => a + b, 0)));
  const wrong = rows.flatMap((row, i) => row.map((count, j) => ({ count, i, j }))).filter(({ i, j, count }) => i !== j && count > 0);
  wrong.sort((a, b) => b.count - a.count);
  const worst = wrong.slice(0, 8).map(({ i, j, count }) => `${names[i]} taken for ${names[j]} ${count} times`);
  matrix(host, { rows, names, labels: names, corner: "true",
    strength: (count, i) => Math.sqrt(count / sums[i]), text: shortCount,
    note: (count, i, j) => `${names[i]}, predicted ${names[j]}: ${count} of ${sums[i]} test records`,
    describe: `Confusion matrix of ${names.length} classes; ${worst.join("; ") || "no test record is misclassified"}` });
}
