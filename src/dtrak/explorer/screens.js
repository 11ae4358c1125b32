// The screens for pictures and training images: all of them in a grid, and each alone.
//
// A screen is built once, as `node`; `update` is called whenever the method, the damping or the set changes.

import { count, credit, described, element, matches, name, number, pager, picture, run, tiles } from "./parts.js";
import { change, lastPlace, link, remember } from "./route.js";
import { get } from "./server.js";

const FIRST = 10; // matches that are shown at first
const MAX_MATCHES = 500; // the server's limit

const titleOf = (set) => run.sets.find((one) => one.name === set)?.title ?? set;
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const scoringOf = ({ set, method, damping }) => ({ set, method, damping });

export function pictures() {
  const grid = element("div");
  const heading = element("h2", { tabindex: "-1" });
  const total = element("output", { class: "quiet" });
  const search = searchField("Search pictures", "id, seed, label …");
  const node = element("section", {}, heading, element("div", { class: "filters" }, search.node, total), grid);
  async function update(here, signal) {
    heading.textContent = capital(titleOf(here.set));
    remember(here);
    search.follow(here.search);
    const found = await get("api/queries", { set: here.set, search: here.search, page: here.page }, signal);
    total.textContent = counted(found.total, "picture");
    show(grid, found.total ? tiles(here.set, found.items) : nothing(here), found);
  }
  return { node, update };
}

// Show a page of a list. The focus stays on the button that turned the page, and the page begins at its top.
function show(grid, list, found) {
  const button = grid.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  grid.replaceChildren(list, pager(found, (page) => change({ page })));
  const again = button && grid.querySelector(`.pager [aria-label="${button}"]`);
  (again?.disabled ? grid.querySelector(".pager button:enabled") : again)?.focus({ preventScroll: true });
  if (button) grid.scrollIntoView({ block: "nearest" });
}

function nothing(here) {
  if (here.search) return element("p", { class: "none" }, `No picture has “${here.search}” in its id or columns.`);
  return element("p", { class: "none" }, "There are none yet. ", element("a", { href: link("ask") }, "Add a picture"), ".");
}

export function training() {
  const grid = element("div");
  const total = element("output", { class: "quiet" });
  const search = searchField("Search training images", "id, label, artist, caption …");
  const label = selectField("Label", "label", [["", "any"], ...run.train.labels.map((one) => [one, one])]);
  const sort = selectField("Sort by", "sort", [["id", "id"], ["self", "self-influence"], ["total", "total influence"]]);
  const node = element("section", {},
    element("h2", { tabindex: "-1" }, "Training images"),
    element("div", { class: "filters" }, search.node, run.train.labels.length ? label : null, sort, total), grid);
  async function update(here, signal) {
    remember(here);
    search.follow(here.search);
    label.lastChild.value = here.label ?? "";
    sort.lastChild.value = here.sort ?? "id";
    const method = run.methods.find((one) => one.name === here.method);
    sort.querySelector("[value=self]").disabled = !method?.self_influence;
    const { search: words, label: only, sort: order, page } = here;
    const found = await get("api/train", { search: words, label: only, sort: order, page, ...scoringOf(here) }, signal);
    total.textContent = counted(found.total, "image") + explained(order, here);
    const none = element("p", { class: "none" }, "No training image matches.");
    show(grid, found.total ? tiles("train", found.items) : none, found);
  }
  return { node, update };
}

function explained(order, here) {
  if (order === "self") return ", sorted by the score of each for itself";
  return order === "total" ? `, sorted by the sum of the scores of each for all ${titleOf(here.set)}` : "";
}

export function onePicture() {
  return one({
    kind: "Picture",
    back: (here) => ["All " + titleOf(here.set), lastPlace("pictures", here)],
    linkTo: (id) => link("picture", id),
    load: (here, many, signal) => get("api/answer", { query: here.id, count: many, ...scoringOf(here) }, signal),
    subject: (here, found) => [here.set, found.query],
    matchesIn: () => "train",
    titles: run.index ? ["Proponents"] : ["Proponents", "Opponents"],
    none: ["No training image has a positive score.", "No training image has a negative score."],
    summary: (found) => run.index ? `The strongest of ${count(run.train.count)} training images, with their exact scores.` : `Of ${count(run.train.count)} training images, ${count(found.positive)} made the model better at this picture (proponents lowered its loss) and ${count(found.negative)} made it worse (opponents raised it). Scores are estimates, and no proof that anything was copied.`,
    facts: () => [],
    more: (here, found) => Object.entries(found.credit).map(([column, groups]) => credit(column, groups, found.prompt ?? undefined)),
    files: (here) => {
      const query = new URLSearchParams({ query: here.id, ...scoringOf(here) });
      const table = ["Scores as CSV", `api/scores.csv?${query}`];
      return run.index ? [table] : [["Attribution card", `api/card.png?${query}`], ["Card as PDF", `api/card.pdf?${query}`], table];
    },
    compare: (here) => link("compare", here.id),
  });
}

export function oneImage() {
  return one({
    kind: "Training image",
    back: (here) => run.index ? ["All " + titleOf(here.set), lastPlace("pictures", here)] : ["All training images", lastPlace("training", here)],
    linkTo: (id) => link("image", id),
    load: (here, many, signal) => get("api/transpose", { train: here.id, count: many, ...scoringOf(here) }, signal),
    subject: (here, found) => ["train", found.train],
    matchesIn: (here) => here.set,
    titles: run.index ? [] : ["Pictures that it helped", "Pictures that it hurt"], // an index finds images, not pictures
    none: ["It helped no picture of this set.", "It hurt no picture of this set."],
    summary: (found, here) => run.index ? "" : `Of the ${titleOf(here.set)}, it lowered the loss of ${count(found.positive)} and raised that of ${count(found.negative)}.`,
    facts: (found) => run.index ? [] : [
      ["Total influence", number(found.total)],
      ...(found.self_influence === null ? [] : [["Self-influence", number(found.self_influence)]]),
    ],
    more: () => [],
    files: () => [],
    compare: () => null,
  });
}

// The screen of one image: its facts, and its strongest matches.
function one(about) {
  let focusAt = null; // the match that gets the focus after more are shown
  const back = element("a", { class: "back" });
  const heading = element("h2", { tabindex: "-1" });
  const beside = element("div", { class: "picture" });
  const results = element("div", { class: "results", "aria-busy": "true" });
  const more = element("div", { class: "charts" });
  const steps = element("nav", { class: "steps", "aria-label": "Neighbours" });
  let latest = 0;
  const node = element("article", {}, element("div", { class: "top" }, back, steps), heading, beside, results, more);
  async function update(here, signal) {
    const call = ++latest;
    const [text, to] = about.back(here);
    back.replaceChildren(element("span", { "aria-hidden": "true" }, "← "), text);
    back.href = to;
    heading.textContent = heading.textContent || `${about.kind} ${here.id}`;
    const many = Math.min(Number(here.count) || FIRST, MAX_MATCHES);
    const found = await about.load(here, many, signal);
    if (call !== latest) return; // another damping or method has been chosen
    const [where, item] = about.subject(here, found);
    heading.textContent = `${about.kind} ${where === "asked" ? name(where, item) : item.id}`;
    const step = (text, rel, id) => id === null ? "" : element("a", { href: about.linkTo(id), rel, title: "also with the arrow keys" }, text);
    steps.replaceChildren(step("← Previous", "prev", found.previous), step("Next →", "next", found.next));
    if (!beside.firstChild) beside.append(picture(where, item, about.kind, "large"), element("div"));
    const facts = [...described(item.columns).map((words) => words.split(/ (.*)/s)), ...about.facts(found)];
    beside.lastChild.replaceChildren(
      element("dl", {}, ...facts.map(([term, value]) => element("div", { class: value.length > 20 ? "long" : "" }, element("dt", {}, term), element("dd", {}, value)))),
      about.compare(here) ? element("p", {}, element("a", { href: about.compare(here) }, "Compare with another picture")) : "",
      ...about.files(here).map(([title, href]) => element("p", {}, element("a", { href, download: true }, title))));
    const strongest = Math.max(...[...found.proponents, ...found.opponents].map((match) => Math.abs(match.score)));
    const both = about.titles.map((title, index) => {
      const kind = ["proponents", "opponents"][index];
      return matches(kind, title, about.matchesIn(here), found[kind], strongest, about.none[index]);
    });
    const rest = Math.max(found.positive, found.negative) > many && many < MAX_MATCHES;
    const button = element("button", { type: "button", onclick: () => showMore(many) }, "Show more");
    results.replaceChildren(element("p", { class: "quiet" }, about.summary(found, here)), ...both, rest ? button : "");
    results.setAttribute("aria-busy", "false");
    more.replaceChildren(...about.more(here, found));
    if (focusAt !== null) results.querySelectorAll(".matches a")[focusAt]?.focus();
    focusAt = null;
  }
  function showMore(many) {
    focusAt = many;
    change({ count: String(Math.min(many + 2 * FIRST, MAX_MATCHES)) });
  }
  return { node, update };
}

// A search field: typing changes the address after a short pause, and until then the address does not change the field.
function searchField(label, hint) {
  let timer = null;
  const input = element("input", { type: "search", placeholder: hint, autocomplete: "off", oninput: () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      timer = null;
      change({ search: input.value, page: "" });
    }, 150);
  } });
  const follow = (value) => timer === null && (input.value = value ?? "");
  return { node: element("label", { class: "search" }, label, input), follow };
}

function selectField(label, key, choices) {
  const options = choices.map(([value, text]) => element("option", { value }, text));
  return element("label", {}, label, element("select", { onchange: (event) => change({ [key]: event.target.value, page: "" }) }, ...options));
}

function counted(total, what) {
  return total === 1 ? `1 ${what}` : `${count(total)} ${what}s`;
}
