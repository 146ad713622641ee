"use strict";
// A page of a run in progress: ask now and then whether anything changed, and put it in.
// What the reader opened, focused and scrolled to stays.

let seen = null;
async function look() {
  const sign = byId("live");
  try {
    const answer = await fetch("page", { headers: seen ? { "If-None-Match": seen } : {}, cache: "no-store" });
    if (answer.status === 200) {
      seen = answer.headers.get("ETag");
      replace(await answer.text());
    } else if (answer.status !== 304) {
      throw new Error(await answer.text());
    }
    say(byId("live"), "live", "");
  } catch (error) {
    say(sign, "waiting", String(error.message || error));
  }
  setTimeout(look, 2000);
}

function say(sign, status, why) {
  if (sign.textContent !== status) sign.textContent = status;
  sign.className = `live ${status}`;
  sign.title = why;
}

function replace(text) {
  const update = new DOMParser().parseFromString(text, "text/html");
  const open = [...document.querySelectorAll("details[open]")].map((d) => d.parentElement.id);
  const focused = document.activeElement && document.activeElement.id;
  const [x, y] = [scrollX, scrollY];
  for (const [host] of drawings) watcher.unobserve(host);
  drawings.clear();
  document.title = update.title;
  for (const node of ["header", "main", "footer", "#data"]) {
    document.querySelector(node).replaceWith(document.adoptNode(update.querySelector(node)));
  }
  boot();
  for (const id of open) document.querySelector(`#${CSS.escape(id)} details`)?.setAttribute("open", "");
  if (focused) byId(focused)?.focus({ preventScroll: true });
  scrollTo(x, y);
}
look();
