"use strict";
// Tables whose heads sort them. What the reader chose outlasts the contents of a live page.

const sortings = new Map(); // by the id of the section
const UNITS = { kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 };

// Numbers as numbers, whatever their unit; what is missing comes last in both directions.
function sortKey(cell) {
  const text = (cell.dataset.value ?? cell.textContent).trim();
  if (text === "-" || text === "") return null;
  if (!cell.classList.contains("n")) return text;
  const found = /^(-?[\d.]+(?:e[+-]?\d+)?)\s*([kMGT]B)?/.exec(text.replaceAll(",", ""));
  return found ? Number(found[1]) * (UNITS[found[2]] || 1) : text;
}

function sortTable(table, column, descending) {
  const body = table.tBodies[0];
  const keyed = [...body.rows].map((row) => [sortKey(row.cells[column]), row]);
  const order = new Intl.Collator("en", { numeric: true }).compare;
  keyed.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    const way = typeof a === "number" && typeof b === "number" ? a - b : order(String(a), String(b));
    return descending ? -way : way;
  });
  body.append(...keyed.map(([, row]) => row));
  [...table.tHead.rows[0].cells].forEach((cell, i) => {
    if (i === column) cell.setAttribute("aria-sort", descending ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
  });
}

function sortableTables() {
  for (const table of document.querySelectorAll("table.sortable")) {
    const place = table.closest("section").id;
    const sort = (column, descending) => { sortings.set(place, [column, descending]); sortTable(table, column, descending); };
    [...table.tHead.rows[0].cells].forEach((cell, column) => {
      const button = make("button", { type: "button", class: "sort" }, [...cell.childNodes]);
      cell.append(button);
      button.addEventListener("click", () => {
        const now = cell.getAttribute("aria-sort");
        // Numbers are most often wanted from the largest down, names from A on.
        sort(column, now ? now === "ascending" : cell.classList.contains("n"));
      });
    });
    if (sortings.has(place)) sortTable(table, ...sortings.get(place));
  }
}
