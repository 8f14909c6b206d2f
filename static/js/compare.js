// [data-key=x]: pressing that key, where nobody types, follows the link or presses the button.
"use strict";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
  [...document.querySelectorAll("[data-key]")].find((one) => one.dataset.key === event.key)?.click();
});
