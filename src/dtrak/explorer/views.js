// The views of what the run has: pictures and training images, in grids and one by one.
//
// A view is built once, as `node`, and brought up to date whenever method, damping or set change.

import { count, credit, described, element, matches, name, number, pager, picture, run, tiles } from "./parts.js";
import { change, link, route } from "./route.js";
import { get } from "./server.js";

const FIRST = 10; // matches that are shown before more are asked for
const MOST = 500; // what the server gives at once

const titleOf = (set) => run.sets.find((one) => one.name === set)?.title ?? set;
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const of = ({ set, method, damping }) => ({ set, method, damping });

export function pictures() {
  const grid = element("div");
  const heading = element("h2", { tabindex: "-1" });
  const total = element("output", { class: "quiet" });
  const search = searchField("Search pictures", "id, seed, label …");
  const node = element("section", {}, heading, element("div", { class: "filters" }, search.node, total), grid);
  async function update(here, signal) {
    heading.textContent = capital(titleOf(here.set));
    search.follow(here.search);
    const found = await get("api/queries", { set: here.set, search: here.search, page: here.page }, signal);
    total.textContent = counted(found.total, "picture");
    grid.replaceChildren(found.total ? tiles(here.set, found.items) : nothing(here), pager(found, (page) => change({ page })));
  }
  return { node, update };
}

function nothing(here) {
  if (here.search) return element("p", { class: "none" }, `No picture has “${here.search}” in its id or columns.`);
  return element("p", { class: "none" }, "There are none yet. ", element("a", { href: link("ask") }, "Ask about a picture"), ".");
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
    search.follow(here.search);
    label.lastChild.value = here.label ?? "";
    sort.lastChild.value = here.sort ?? "id";
    const own = run.methods.find((one) => one.name === here.method);
    sort.querySelector("[value=self]").disabled = !own?.self_influence;
    const { search: words, label: only, sort: order, page } = here;
    const found = await get("api/train", { search: words, label: only, sort: order, page, ...of(here) }, signal);
    total.textContent = counted(found.total, "image") + explained(order, here);
    const none = element("p", { class: "none" }, "No training image is like that.");
    grid.replaceChildren(found.total ? tiles("train", found.items) : none, pager(found, (to) => change({ page: to })));
  }
  return { node, update };
}

function explained(order, here) {
  if (order === "self") return ", by what each does for itself";
  return order === "total" ? `, by what each does for all ${titleOf(here.set)} together` : "";
}

export function onePicture() {
  return one({
    kind: "Picture",
    back: (here) => ["All " + titleOf(here.set), link("pictures")],
    there: (id) => link("picture", id),
    ask: (here, many, signal) => get("api/answer", { query: here.id, count: many, ...of(here) }, signal),
    subject: (here, found) => [here.set, found.query],
    of: () => "train",
    titles: ["Proponents", "Opponents"],
    none: ["No training image has a positive score.", "No training image has a negative score."],
    summary: (found) => `Of ${count(run.train.count)} training images, ${count(found.positive)} lowered this picture’s loss and ${count(found.negative)} raised it.`,
    facts: () => [],
    more: (here, found) => Object.entries(found.credit).map(([column, groups]) => credit(column, groups)),
    csv: (here) => `api/scores.csv?${new URLSearchParams({ query: here.id, ...of(here) })}`,
  });
}

export function oneImage() {
  return one({
    kind: "Training image",
    back: () => ["All training images", link("training")],
    there: (id) => link("image", id),
    ask: (here, many, signal) => get("api/transpose", { train: here.id, count: many, ...of(here) }, signal),
    subject: (here, found) => ["train", found.train],
    of: (here) => here.set,
    titles: ["Pictures that it helped", "Pictures that it hurt"],
    none: ["It helped no picture of this set.", "It hurt no picture of this set."],
    summary: (found, here) => `Of the ${titleOf(here.set)}, it lowered the loss of ${count(found.positive)} and raised that of ${count(found.negative)}.`,
    facts: (found) => [
      ["Total influence", number(found.total)],
      ...(found.self_influence === null ? [] : [["Self-influence", number(found.self_influence)]]),
    ],
    more: () => [],
    csv: null,
  });
}

// One image with all that it is tied to.
function one(about) {
  let many = FIRST;
  const back = element("a", { class: "back" });
  const heading = element("h2", { tabindex: "-1" });
  const beside = element("div", { class: "picture" });
  const answer = element("div", { class: "answer", "aria-busy": "true" });
  const more = element("div", { class: "charts" });
  const steps = element("nav", { class: "steps", "aria-label": "Neighbours" });
  let latest = 0;
  const node = element("article", {}, element("div", { class: "top" }, back, steps), heading, beside, answer, more);
  async function update(here, signal) {
    const own = ++latest;
    const [text, to] = about.back(here);
    back.replaceChildren(element("span", { "aria-hidden": "true" }, "← "), text);
    back.href = to;
    heading.textContent = heading.textContent || `${about.kind} ${here.id}`;
    const found = await about.ask(here, many, signal);
    if (own !== latest) return; // another damping or method was chosen meanwhile
    const [where, item] = about.subject(here, found);
    heading.textContent = `${about.kind} ${where === "asked" ? name(where, item) : item.id}`;
    const step = (text, id) => id === null ? "" : element("a", { href: about.there(id) }, text);
    steps.replaceChildren(step("Previous", found.previous), step("Next", found.next));
    if (!beside.firstChild) beside.append(picture(where, item, about.kind, "large"), element("div"));
    const facts = [...described(item.columns).map((words) => words.split(/ (.*)/s)), ...about.facts(found)];
    beside.lastChild.replaceChildren(
      element("dl", {}, ...facts.map(([term, value]) => element("div", { class: value.length > 20 ? "long" : "" }, element("dt", {}, term), element("dd", {}, value)))),
      about.csv && element("p", {}, element("a", { href: about.csv(here), download: true }, "Scores as CSV")) || "");
    const strongest = Math.max(...[...found.proponents, ...found.opponents].map((match) => Math.abs(match.score)));
    const both = ["proponents", "opponents"].map((kind, index) =>
      matches(kind, about.titles[index], about.of(here), found[kind], strongest, about.none[index]));
    const rest = Math.max(found.positive, found.negative) > many && many < MOST;
    const button = element("button", { type: "button", onclick: showMore }, "Show more");
    answer.replaceChildren(element("p", { class: "quiet" }, about.summary(found, here)), ...both, rest ? button : "");
    answer.setAttribute("aria-busy", "false");
    more.replaceChildren(...about.more(here, found));
  }
  async function showMore() {
    const first = many;
    many = Math.min(many + 2 * FIRST, MOST);
    await update(route());
    answer.querySelectorAll(".matches a")[first]?.focus();
  }
  return { node, update };
}

// Typing changes the address after a short rest; until then the field is not brought in step with it.
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
