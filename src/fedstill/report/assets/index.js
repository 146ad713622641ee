"use strict";
// All runs of a folder: filter them by words, order them by a column.

const state = { words: "", order: "" };

function filterRows() {
  const words = state.words.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = [...document.querySelectorAll("#runs tbody tr")];
  let shown = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
    shown += row.hidden ? 0 : 1;
  }
  byId("filter-count").textContent = `${shown} of ${rows.length}`;
}

const ORDERS = { "": ["changed (UTC)", true], name: ["run", false], accuracy: ["accuracy", true], up: ["up", false] };
function orderRows() {
  const table = document.querySelector("#runs table"), [head, descending] = ORDERS[state.order];
  const column = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent === head);
  sortings.set("runs", [column, descending]);
  sortTable(table, column, descending);
}

function boot() {
  sortableTables();
  const filter = byId("filter"), order = byId("order");
  filter.value = state.words;
  order.value = state.order;
  filter.addEventListener("input", () => { state.words = filter.value; filterRows(); });
  order.addEventListener("change", () => { state.order = order.value; orderRows(); });
  filterRows();
  document.documentElement.dataset.ready = "yes";
}
boot();
