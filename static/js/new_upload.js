// A file that is dropped or pasted anywhere, or chosen, is looked at at once. The answer is shown in place, so that the
// file stays chosen and need not be chosen again to store it.
"use strict";
const form = document.getElementById("upload");
const send = async (action) => {
  const fields = new FormData(form);
  fields.set("do", action);
  const place = document.getElementById("outcome");
  place.setAttribute("aria-busy", "true");
  try {
    const answer = await fetch(form.action, { method: "POST", body: fields });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("outcome");
    place.replaceChildren(...(fresh || page.body).childNodes);
  } catch (error) {
    place.textContent = `The server did not answer: ${error.message}`;
  }
  place.removeAttribute("aria-busy");
};
form.addEventListener("submit", (event) => {
  event.preventDefault();
  send(event.submitter?.value || "look");
});
form.addEventListener("change", () => form.elements.file.files.length && send("look"));
addEventListener("paste", (event) => {
  const text = event.clipboardData.getData("text");
  if (event.target.closest("input") || !(text || event.clipboardData.files.length)) return;
  const pasted = new DataTransfer();
  pasted.items.add(event.clipboardData.files[0] || new File([text], "pasted.txt"));
  form.elements.file.files = pasted.files;
  send("look");
});
const mark = (isOver) => form.classList.toggle("dragging", isOver);
addEventListener("dragover", (event) => (event.preventDefault(), mark(true)));
addEventListener("dragleave", (event) => event.relatedTarget || mark(false));
addEventListener("drop", (event) => {
  event.preventDefault();
  mark(false);
  if (!event.dataTransfer.files.length) return;
  form.elements.file.files = event.dataTransfer.files;
  send("look");
});
