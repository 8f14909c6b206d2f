// The inbox by keyboard: j and k move, Enter opens, x selects, Esc clears; [data-key] buttons and links by their letter.
// Without this script the same links, boxes and buttons work.
"use strict";
(() => {
  const rows = [...document.querySelectorAll("[data-row]")];
  const form = document.querySelector("form[data-inbox]");
  const said = document.querySelector("[data-selected]");
  let at = rows.findIndex((row) => row.hasAttribute("aria-current"));

  const boxes = () => [...(form?.querySelectorAll("input[name=ids]") ?? [])];
  const count = () => {
    if (!said) return;
    const checked = boxes().filter((box) => box.checked);
    const series = checked.flatMap((box) => box.value.split(" ")).length;
    const more = series > checked.length ? `, ${series} series` : "";
    said.textContent = checked.length ? `${checked.length} selected${more}` : "Selection";
    for (const button of form.querySelectorAll(".bulk button")) button.disabled = !checked.length;
  };
  const move = (step) => {
    if (!rows.length) return;
    rows[at]?.removeAttribute("data-at");
    at = Math.min(Math.max(at + step, 0), rows.length - 1);
    rows[at].setAttribute("data-at", "");
    rows[at].querySelector("a").focus({ preventScroll: true });
    rows[at].scrollIntoView({ block: "nearest" });
  };
  const keys = {
    j: () => move(1),
    k: () => move(-1),
    x: () => rows[at]?.querySelector("input[name=ids]")?.click(),
    Escape: () => {
      for (const box of boxes()) box.checked = false;
      count();
    },
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input:not([type=checkbox]), select, textarea, dialog")) return;
    if (keys[event.key] && rows.length) {
      keys[event.key]();
      if (event.key !== "Escape") event.preventDefault();
      return;
    }
    const one = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
    if (one?.matches("a")) one.click();
    else one?.focus(); // a decision takes Enter as well
  });
  form?.addEventListener("change", count);
  count();
})();
