// Swaps <main> for a fresh one every few seconds. Nothing on the page needs it to be read.
(() => {
  "use strict";
  const EVERY_MS = 5000;
  const state = document.getElementById("refresh");

  // What a reader opened or closed against the page's default stays so; everything else follows the page.
  const chosen = (root) => new Map([...root.querySelectorAll("details[id]")]
    .filter((one) => one.open !== (one.dataset.default === "open"))
    .map((one) => [one.id, one.open]));
  const scrolled = (root) => new Map([...root.querySelectorAll("[data-scroll]")]
    .filter((one) => one.scrollLeft || one.scrollTop)
    .map((one) => [one.dataset.scroll, [one.scrollLeft, one.scrollTop]]));
  const place = (one) => one && one.closest("main") && (one.id || (one.closest("details[id]") || {}).id);

  const selecting = (root) => {
    const selection = getSelection();
    return !selection.isCollapsed && root.contains(selection.anchorNode);
  };

  const swap = (fresh) => {
    const old = document.querySelector("main");
    const next = document.adoptNode(fresh.querySelector("main"));
    const [open, boxes, focus] = [chosen(old), scrolled(old), place(document.activeElement)];
    const [x, y] = [scrollX, scrollY];
    for (const one of next.querySelectorAll("details[id]")) if (open.has(one.id)) one.open = open.get(one.id);
    old.replaceWith(next);
    for (const one of next.querySelectorAll("[data-scroll]")) {
      const before = boxes.get(one.dataset.scroll);
      if (before) [one.scrollLeft, one.scrollTop] = before;
    }
    const found = focus && document.getElementById(focus);
    if (found) (found.matches("details") ? found.querySelector("summary") : found).focus({ preventScroll: true });
    scrollTo({ left: x, top: y, behavior: "instant" });
    document.title = fresh.title;
    document.getElementById("icon").href = fresh.getElementById("icon").href;
  };

  const refresh = async () => {
    const main = document.querySelector("main");
    if (document.hidden || selecting(main)) return;
    try {
      const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(EVERY_MS) });
      if (!answer.ok) throw new Error(`it answers ${answer.status}`);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!fresh.querySelector("main")) throw new Error("its answer is not this page");
      if (!selecting(main)) swap(fresh);
      state.textContent = "";
    } catch (problem) {
      const why = problem instanceof TypeError || problem.name === "TimeoutError" ? "the exporter does not answer" : problem.message;
      state.textContent = `Not refreshed since ${document.querySelector("main").dataset.time}: ${why}.`;
    }
  };

  setInterval(refresh, EVERY_MS);
  document.addEventListener("visibilitychange", refresh);
})();
