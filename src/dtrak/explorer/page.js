// The page: reads the run, shows the screen that the address names, and updates method, pictures and damping with it.

import { newPicture } from "./ask.js";
import { comparison } from "./compare.js";
import { count, element, plain, run } from "./parts.js";
import { arrival, change, go, isDefault, link, route, setDefaults } from "./route.js";
import { get } from "./server.js";
import { oneImage, onePicture, pictures, training } from "./screens.js";

const SCREENS = { pictures, picture: onePicture, compare: comparison, training, image: oneImage, ask: newPicture };
// A tab's screen, its text, and the screens for which it is marked.
// An index has no list of its training images.
const TABS = [["pictures", "Pictures", ["pictures", "picture", "compare"]], ["training", "Training images", ["training", "image"]], ["ask", "New picture", ["ask"]]];
const SET_LABELS = { asked: "added" }; // texts of sets that are not their names

const [main, scoring, methods, sets, slider, meaning, ticks, marks, problem, tabs, trust, used, advanced, copy] = ["main", "scoring", "methods", "sets", "damping", "meaning", "ticks", "marks", "problem", "tabs", "trust", "used", "advanced", "copy"].map((id) => document.getElementById(id));

let shown = { key: null, screen: null };
let leaving = new AbortController(); // aborts the requests of the last screen
const scrolled = new Map(); // how far each address was scrolled

function choices(fieldset, name, options, chosen) {
  const list = options.map(({ value, text, hint }) => element("label", { title: hint },
    element("input", { type: "radio", name, value, checked: value === chosen, onchange: () => choose(name, value) }),
    element("span", {}, text)));
  fieldset.lastElementChild.replaceChildren(...list);
  fieldset.hidden = options.length < 2;
}

// A picture belongs to its set, so that another set is shown with the list of its pictures.
function choose(name, value) {
  if (name === "set" && ["picture", "compare"].includes(route().screen)) go(link("pictures", "", { set: value }));
  else change({ [name]: value, page: "" });
}

async function show() {
  const here = route();
  const key = `${here.screen}/${here.id}${["picture", "compare"].includes(here.screen) ? here.set : ""}`;
  const isNew = key !== shown.key;
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  problem.hidden = true;
  if (isNew) {
    shown = { key, screen: (SCREENS[here.screen] ?? pictures)() };
    main.replaceChildren(shown.screen.node);
  }
  updateForm(here);
  main.classList.add("stale"); // while the update takes long, the old content is pale
  const updating = Promise.all([shown.screen.update(here, signal), here.screen !== "ask" && updateDamping(here, signal)]);
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
  if (cameBack && !signal.aborted) scrollTo(0, scrolled.get(location.hash) ?? scrollY);
}

// Update the tabs and the form to what the address says.
function updateForm(here) {
  tabs.replaceChildren(...TABS.filter(([screen]) => !(run.index && screen === "training")).map(([screen, text, marked]) =>
    element("a", { href: link(screen), "aria-current": marked.includes(here.screen) ? "page" : undefined }, text)));
  for (const [fieldset, value] of [[methods, here.method], [sets, here.set]]) {
    for (const input of fieldset.querySelectorAll("input")) input.checked = input.value === value;
  }
  scoring.hidden = run.index || here.screen === "ask"; // an index has one method; a new picture is scored by all of them
  trust.replaceChildren(element("b", {}, "How far to trust it: "), ...withCode(run.trust[here.method] ?? ""),
    isDefault("damping", here) ? "" : " This holds for the damping that the run’s scores have, not for the one chosen below.");
  used.textContent = `${here.method}${isDefault("damping", here) ? "" : ", another damping"}`;
  document.title = `${here.id || "Explorer"} · ${run.name}`;
}

// What stands between backticks is a command.
function withCode(text) {
  return text.split("`").map((part, place) => (place % 2 ? element("code", {}, part) : part));
}

async function updateDamping(here, signal) {
  const damped = run.methods.find((one) => one.name === here.method)?.damped ?? false;
  slider.disabled = !damped;
  scoring.classList.toggle("undamped", !damped);
  if (!damped) {
    meaning.textContent = `${here.method} has no damping`;
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

// A screen that is opened by a link gets the focus and starts at its top; going back restores how far it was scrolled.
function arrive() {
  main.querySelector("h2")?.focus({ preventScroll: true });
  scrollTo(0, Math.min(scrollY, main.getBoundingClientRect().top + scrollY - 16));
  arrival.by = "";
}

// The address has the whole view, so that somebody else sees the same.
async function copyAddress() {
  try {
    await navigator.clipboard.writeText(location.href);
    copy.textContent = "Copied";
  } catch {
    copy.textContent = "Copy it from the address bar";
  }
  setTimeout(() => (copy.textContent = "Copy link"), 2000);
}

// The arrow keys go to the neighbours of an image, unless the focus is on something that uses them.
function stepByKey(event) {
  if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey || event.target.closest("input, select, textarea")) return;
  const which = { ArrowLeft: "prev", ArrowRight: "next" }[event.key];
  const to = which && main.querySelector(`.steps a[rel=${which}]`);
  if (to) {
    event.preventDefault();
    to.click();
  }
}

// Show the newest change only: changes that arrive while one is being shown are skipped, except the last.
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
  if (run.index && !run.sets[0].count && !location.hash) history.replaceState(null, "", link("ask"));
  const here = route();
  choices(methods, "method", run.methods.map((one) => ({ value: one.name, text: one.name, hint: one.summary })), here.method);
  choices(sets, "set", run.sets.map((one) => ({ value: one.name, text: SET_LABELS[one.name] ?? one.name, hint: one.title })), here.set);
  advanced.open = !isDefault("method", here) || !isDefault("damping", here);
  history.scrollRestoration = "manual";
  copy.addEventListener("click", copyAddress);
  addEventListener("keydown", stepByKey);
  slider.addEventListener("input", () => change({ damping: String(Number((10 ** slider.value).toPrecision(3))) }));
  scoring.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("changed", ({ detail }) => ("damping" in detail ? refresh() : show()));
  addEventListener("hashchange", () => show());
  addEventListener("click", (event) => {
    const clicked = event.target.closest?.("a[href^='#']");
    if (clicked && clicked.id !== "skip") {
      scrolled.set(location.hash, scrollY);
      arrival.by = "link";
    }
  });
  for (const kind of ["dragover", "drop"]) addEventListener(kind, (event) => event.preventDefault()); // or the browser would open a picture that is dropped beside the field
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
