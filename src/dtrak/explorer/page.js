// The page: reads the run, follows the address, and keeps method, pictures and damping in step with it.

import { askView } from "./ask.js";
import { count, element, plain, run } from "./parts.js";
import { arrival, change, go, link, route, setDefaults } from "./route.js";
import { get } from "./server.js";
import { oneImage, onePicture, pictures, training } from "./views.js";

const VIEWS = { pictures, picture: onePicture, training, image: oneImage, ask: askView };
const TABS = [["pictures", "Pictures", ["pictures", "picture"]], ["training", "Training images", ["training", "image"]], ["ask", "Ask", ["ask"]]];

const [main, controls, methods, sets, slider, meaning, ticks, marks, problem, views] = ["main", "controls", "methods", "sets", "damping", "meaning", "ticks", "marks", "problem", "views"].map((id) => document.getElementById(id));

let shown = { key: null, view: null };
let leaving = new AbortController(); // ends what the last view still waits for
const places = new Map(); // how far each address was scrolled

function choices(fieldset, name, options, chosen) {
  const list = options.map(({ value, text, hint }) => element("label", { title: hint },
    element("input", { type: "radio", name, value, checked: value === chosen, onchange: () => choose(name, value) }),
    element("span", {}, text)));
  fieldset.lastElementChild.replaceChildren(...list);
  fieldset.hidden = options.length < 2;
}

// A picture belongs to its set: another set begins with all its pictures.
function choose(name, value) {
  if (name === "set" && route().view === "picture") go(link("pictures", "", { set: value }));
  else change({ [name]: value, page: "" });
}

async function show() {
  const here = route();
  const key = `${here.view}/${here.id}${here.view === "picture" ? here.set : ""}`;
  const isNew = key !== shown.key;
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  problem.hidden = true;
  if (isNew) {
    shown = { key, view: (VIEWS[here.view] ?? pictures)() };
    main.replaceChildren(shown.view.node);
  }
  follow(here);
  main.classList.add("stale"); // if it takes its time, what is still shown looks like it
  const updating = Promise.all([shown.view.update(here, signal), here.view !== "ask" && updateDamping(here, signal)]);
  const cameBack = isNew && arrival.by !== "link";
  if (isNew && arrival.by === "link") arrive();
  try {
    await updating;
    main.classList.remove("stale");
  } catch (error) {
    if (error.name === "AbortError") return;
    problem.textContent = error.message;
    problem.hidden = false;
  }
  if (cameBack && !signal.aborted) scrollTo(0, places.get(location.hash) ?? scrollY);
}

// Bring the controls in step with the address.
function follow(here) {
  views.replaceChildren(...TABS.map(([view, text, own]) =>
    element("a", { href: link(view), "aria-current": own.includes(here.view) ? "page" : undefined }, text)));
  for (const [fieldset, value] of [[methods, here.method], [sets, here.set]]) {
    for (const input of fieldset.querySelectorAll("input")) input.checked = input.value === value;
  }
  controls.hidden = here.view === "ask"; // which all methods answer
  document.title = `${here.id || "Explorer"} · ${run.name}`;
}

async function updateDamping(here, signal) {
  const damped = run.methods.find((one) => one.name === here.method)?.damped ?? false;
  slider.disabled = !damped;
  controls.classList.toggle("undamped", !damped);
  if (!damped) {
    meaning.textContent = `${here.method} has none`;
    ticks.replaceChildren();
    marks.replaceChildren();
    return;
  }
  const scale = await get("api/damping", { set: here.set, method: here.method, damping: here.damping }, signal);
  if (scale.relative === undefined) return;
  if (document.activeElement !== slider) slider.value = Math.log10(scale.relative);
  slider.setAttribute("aria-valuetext", `${plain(scale.relative)} times the mean eigenvalue`);
  meaning.textContent = `${plain(scale.relative)} × mean eigenvalue, keeps ${count(Math.round(scale.dimension))} of ${count(scale.rank)} directions`;
  const known = Object.entries(scale.marks);
  ticks.replaceChildren(...known.map(([, mark]) => tick(mark.relative)));
  const focused = document.activeElement?.dataset.mark;
  marks.replaceChildren(...known.map(([name, mark]) =>
    element("button", { type: "button", "data-mark": name, "aria-pressed": String(mark.damping === here.damping), onclick: () => set(mark) },
      name, element("span", {}, ` ${plain(mark.relative)}`))));
  marks.querySelector(`[data-mark="${focused}"]`)?.focus();
}

function set(mark) {
  slider.value = Math.log10(mark.relative);
  change({ damping: mark.damping });
}

function tick(relative) {
  const made = element("i");
  made.style.left = `${(100 * (Math.log10(relative) - slider.min)) / (slider.max - slider.min)}%`;
  return made;
}

// A view that a link leads to has the focus and begins at its top; one that we come back to is where it was.
function arrive() {
  main.querySelector("h2")?.focus({ preventScroll: true });
  scrollTo(0, Math.min(scrollY, main.getBoundingClientRect().top + scrollY - 16));
  arrival.by = "";
}

// Only the newest change counts: while one is being shown, those between are dropped.
let pending = false;
let busy = false;
async function refresh() {
  pending = true;
  if (busy) return;
  busy = true;
  while (pending) {
    pending = false;
    await show();
  }
  busy = false;
}

async function start() {
  Object.assign(run, await get("api/run"));
  setDefaults({ set: run.sets[0].name, method: run.methods[0].name, damping: run.damping });
  document.getElementById("name").textContent = run.name;
  document.getElementById("summary").textContent = run.summary;
  document.body.classList.toggle("pixelated", run.pixelated);
  const here = route();
  choices(methods, "method", run.methods.map((one) => ({ value: one.name, text: one.name, hint: one.summary })), here.method);
  choices(sets, "set", run.sets.map((one) => ({ value: one.name, text: one.name, hint: one.title })), here.set);
  history.scrollRestoration = "manual";
  slider.addEventListener("input", () => change({ damping: String(Number((10 ** slider.value).toPrecision(3))) }));
  controls.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("changed", ({ detail }) => ("damping" in detail ? refresh() : show()));
  addEventListener("hashchange", () => show());
  addEventListener("click", (event) => {
    if (event.target.closest("a[href^='#']")) {
      places.set(location.hash, scrollY);
      arrival.by = "link";
    }
  });
  for (const kind of ["dragover", "drop"]) addEventListener(kind, (event) => event.preventDefault()); // a picture dropped amiss must not take the page's place
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    event.stopPropagation();
    main.focus();
  });
  await show();
}

start().catch((error) => {
  problem.textContent = error.message;
  problem.hidden = false;
});
