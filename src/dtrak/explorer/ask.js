// The screen to add a new picture: an uploaded one, or one that the model draws from a seed.

import { count, element, run, tiles } from "./parts.js";
import { go, link } from "./route.js";
import { ask, get } from "./server.js";

const MAX_BYTES = 20 * 2 ** 20; // the server's limit

export function newPicture() {
  const file = element("input", { type: "file", id: "file", accept: "image/png,image/jpeg,image/webp,image/bmp,image/gif", onchange: () => file.files[0] && upload(file.files[0]) });
  const drop = element("label", { class: "drop", for: "file" },
    element("strong", {}, "Choose a picture"), element("span", {}, "or drop one here"),
    element("small", { class: "quiet" }, "PNG, JPEG, WebP, BMP or GIF, up to 20\u00a0MB"), file);
  const seed = element("input", { type: "number", id: "seed", min: "0", step: "1", value: "0", required: true, inputmode: "numeric" });
  const prompt = element("input", { type: "text", id: "prompt", maxlength: "1000", placeholder: "the empty prompt" });
  const promptField = run.prompts ? [element("p", { class: "prompt" }, element("label", { for: "prompt" }, "Prompt"), prompt)] : [];
  const drawing = element("form", { class: "seed", onsubmit: draw },
    element("label", { for: "seed" }, "Seed"), seed, element("button", { class: "primary" }, "Draw and attribute"));
  const home = run.index ? "index" : "run";
  const problem = element("p", { class: "refused", role: "alert", hidden: true });
  const before = element("div");
  const node = element("section", { class: "ask" },
    element("h2", { tabindex: "-1" }, "Score a new picture"),
    element("p", { class: "lead" }, `The picture is fitted to the model, its gradients are computed, and ${run.index ? "the index finds the training images with the highest scores" : "every training image gets a score for it"}. The ${home} keeps the picture and its features, so that its scores are there at once the next time.`),
    element("p", { class: "quiet" }, `The ${home} keeps the ${count(run.kept.pictures)} newest pictures, with their features at most ${count(Math.round(run.kept.bytes / 2 ** 20))}\u00a0MB. Older ones are removed.`),
    problem,
    ...promptField,
    element("div", { class: "ways" },
      element("section", {}, element("h3", {}, "Upload a picture"), drop),
      run.index ? null : element("section", {}, element("h3", {}, "Let the model draw a picture"), element("p", { class: "quiet" }, `The model draws it in ${run.steps} steps of DDIM. The same seed always gives the same picture.`), drawing)),
    before);
  let leaving;

  for (const kind of ["dragenter", "dragover"]) drop.addEventListener(kind, (event) => hover(event, true));
  for (const kind of ["dragleave", "drop"]) drop.addEventListener(kind, (event) => hover(event, false));
  drop.addEventListener("drop", (event) => event.dataTransfer.files[0] && upload(event.dataTransfer.files[0]));

  function hover(event, over) {
    event.preventDefault();
    drop.classList.toggle("over", over);
  }

  function upload(chosen) {
    file.value = ""; // so that the same file can be chosen again
    if (chosen.size > MAX_BYTES) return refuse(`${chosen.name} is larger than 20 MB.`);
    return send("picture", chosen);
  }

  function draw(event) {
    event.preventDefault();
    send("seed", seed.value);
  }

  async function send(kind, value) {
    const form = new FormData();
    form.set(kind, value);
    if (run.prompts && prompt.value.trim()) form.set("prompt", prompt.value.trim());
    problem.hidden = true;
    node.classList.add("busy");
    try {
      const id = await ask(form, leaving);
      go(link("picture", id, { set: "asked" }));
    } catch (error) {
      if (error.name !== "AbortError") refuse(error.message);
    } finally {
      node.classList.remove("busy");
    }
  }

  function refuse(message) {
    problem.textContent = message;
    problem.hidden = false;
    problem.scrollIntoView({ block: "center" });
  }

  async function update(here, signal) {
    leaving = signal;
    const found = await get("api/queries", { set: "asked", sort: "newest", size: 24 }, signal);
    before.replaceChildren(...(found.total ? [element("h3", {}, "Added before"), tiles("asked", found.items)] : []));
  }
  return { node, update };
}
