// The button says how many experiments are ticked; shift ticks a range.
"use strict";
(() => {
  const button = document.querySelector("[data-rerun-chosen]");
  const boxes = [...document.querySelectorAll(".suite .tick input")];
  if (!button) return;
  const count = () => {
    const n = boxes.filter((box) => box.checked).length;
    button.disabled = !n;
    button.textContent = n ? `Rerun ${n}` : "Rerun the ticked";
  };
  let last = null;
  for (const box of boxes)
    box.addEventListener("click", (event) => {
      if (event.shiftKey && last) {
        const [from, to] = [boxes.indexOf(last), boxes.indexOf(box)].sort((a, b) => a - b);
        for (const one of boxes.slice(from, to + 1)) one.checked = box.checked;
      }
      last = box;
      count();
    });
  addEventListener("pageshow", count);
  count();
})();
