// Keys: j and k choose a row of table[data-rows], Enter opens it, x ticks it, r reruns it, else the first; / goes
// to the filter, l to the log, other keys to what has them. Not while somebody types, nor with Ctrl, Alt or Meta.
"use strict";
(() => {
  const rows = () => [...document.querySelectorAll("table[data-rows] tbody tr")].filter((row) => row.querySelector("a"));
  const choose = (row) => {
    for (const one of rows()) delete one.dataset.chosen;
    row.dataset.chosen = "";
    row.querySelector("a")?.focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" });
  };
  const press = (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.target.closest("input:not([type=checkbox]), select, textarea, dialog")) return;
    if (event.key === "j" || event.key === "k") {
      const all = rows();
      const now = all.findIndex((row) => "chosen" in row.dataset);
      const next = event.key === "j" ? Math.min(now + 1, all.length - 1) : Math.max(now - 1, 0);
      if (all[next]) choose(all[next]);
    } else if (event.key === "l" && document.getElementById("log")) {
      document.getElementById("log").scrollIntoView({ block: "center" });
      document.getElementById("log").focus({ preventScroll: true });
    } else {
      const chosen = document.querySelector("tr[data-chosen]");
      const own = { x: chosen?.querySelector("input[type=checkbox]"), r: (chosen ?? document).querySelector("[data-rerun]") };
      const target = own[event.key] ?? document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
      if (!target) return;
      if (target.matches("input:not([type=checkbox])")) target.focus();
      else target.click();
    }
    event.preventDefault();
    event.stopImmediatePropagation(); // this page's filter goes before the site's search
  };
  document.addEventListener("keydown", press, { capture: true });
})();
