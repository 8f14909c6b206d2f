// A plan holds for what it was made of: what was changed since has to be planned before it can start.
"use strict";
document.querySelector("[name=choose]").hidden = true; // a choice of a suite opens it
const search = document.querySelector("[data-search-cases]");
if (search) {
  search.hidden = false;
  search.addEventListener("input", () => {
    const words = search.value.trim().toLowerCase().split(/\s+/);
    for (const row of search.closest("section").querySelectorAll("tbody tr")) {
      row.hidden = !words.some((word, place) => (word || !place) && row.textContent.toLowerCase().includes(word));
    }
  });
  search.addEventListener("keydown", (event) => event.key === "Enter" && event.preventDefault());
}
const choices = document.getElementById("choices");
choices.addEventListener("formdata", ({ formData }) => {
  for (const [name, value] of [...formData]) if (!value) formData.delete(name);
});
choices.addEventListener("change", (event) => {
  if (event.target === search) return;
  if (event.target.name === "suite") {
    location.assign(`?${new URLSearchParams({ stream: choices.elements.stream.value, suite: event.target.value })}`);
    return;
  }
  const start = document.querySelector("[data-start]");
  if (start) {
    start.disabled = true;
    start.textContent = "Plan first";
  }
  document.querySelector("[data-plan]")?.classList.add("primary");
});
