// A plan holds for what it was made of: what was changed since has to be planned before it can start.
"use strict";
const choices = document.getElementById("choices");
choices.addEventListener("change", (event) => {
  if (event.target.name === "suite") {
    location.assign(`?${new URLSearchParams({ stream: choices.elements.stream.value, suite: event.target.value })}`);
    return;
  }
  const start = document.querySelector("[data-start]");
  if (start) start.disabled = true;
  document.querySelector("[data-plan]")?.classList.add("primary");
});
