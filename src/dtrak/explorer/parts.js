// The parts that screens are built from: elements, numbers, tiles of images, rows of matches, charts of credit.

import { link } from "./route.js";

export const run = {}; // the server's description of the run

// Make an element: element("a", { href: "#x", class: "tile" }, "text", otherElement)
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

// Write a number with three digits and a sign: +0.123, −1.23×10⁻⁵.
export function number(value) {
  const sign = value < 0 ? "−" : "+";
  const size = Math.abs(value);
  if (size === 0 || (size >= 1e-4 && size < 1e3)) return sign + plain(size);
  const [digits, power] = size.toExponential(2).split("e");
  const raised = [...String(Number(power))].map((one) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(one)]);
  return `${sign}${digits}×10${raised.join("")}`;
}

export function plain(size) {
  return size === 0 ? "0" : String(size.toPrecision(3));
}

export const count = (value) => value.toLocaleString("en");

const SHOWN_FIRST = ["label", "artist", "seed"];

// Write the columns of an image in a few words, the most important first.
export function described(columns) {
  const names = [...SHOWN_FIRST.filter((name) => name in columns), ...Object.keys(columns).filter((name) => !SHOWN_FIRST.includes(name))];
  return names.filter((name) => columns[name] !== null).map((name) => `${name} ${columns[name]}`);
}

export function picture(where, item, what, size = "small") {
  const words = described(item.columns).join(", ");
  return element("img", {
    src: `images/${size}/${where}/${item.number}?${run.version}`,
    alt: `${what} ${name(where, item)}${words ? `: ${words}` : ""}`,
    title: words || undefined,
    width: run.width,
    height: run.height,
    loading: size === "small" ? "lazy" : undefined,
  });
}

// Return a short name of an image: the seed of a drawn picture, the first letters of an upload's name, or the id.
export function name(where, item) {
  if (where !== "train" && item.columns.seed !== undefined) return `seed ${item.columns.seed}`;
  return where === "asked" ? `upload ${item.id.slice(0, 6)}` : item.id;
}

// Return the lines below a small image; its other columns are shown on hover.
function lines({ columns }) {
  const known = ["label", "artist"].filter((column) => (columns[column] ?? null) !== null);
  return known.map((column) => element("span", { class: "quiet" }, typeof columns[column] === "number" ? `${column} ${columns[column]}` : columns[column]));
}

export function address(where, item) {
  if (where !== "train") return link("picture", item.id, { set: where });
  return link("image", run.index ? String(item.number) : item.id); // in an index, images are known by their places
}

const whatIs = (where) => (where === "train" ? "Training image" : "Picture");

export function tiles(where, items) {
  return element("ol", { class: "tiles" }, ...items.map((item) =>
    element("li", {}, element("a", { href: address(where, item) },
      picture(where, item, whatIs(where)),
      element("span", { class: "about", "aria-hidden": "true" },
        element("span", {}, name(where, item)),
        item.score !== undefined && element("span", { class: "score" }, number(item.score)),
        ...lines(item))))));
}

// Show proponents or opponents, with bars relative to the strongest of both.
export function matches(kind, title, where, items, strongest, none) {
  const sign = element("span", { "aria-hidden": "true", class: "sign" }, kind === "proponents" ? "▲" : "▼");
  const list = element("ol", {}, ...items.map((item) => {
    const inner = element("span");
    inner.style.width = `${(100 * Math.abs(item.score)) / strongest}%`;
    return element("li", {}, element("a", { href: address(where, item) },
      picture(where, item, whatIs(where)),
      element("span", { class: "bar", "aria-hidden": "true" }, inner),
      element("data", { class: "score", value: item.score }, number(item.score)),
      element("span", { class: "about", "aria-hidden": "true" },
        element("span", {}, name(where, item)),
        ...lines(item))));
  }));
  return element("section", { class: `matches ${kind}` },
    element("h3", {}, sign, ` ${title}`),
    items.length ? list : element("p", { class: "none" }, none));
}

// Show each group's share of the positive scores; the vertical mark is its share of the training images.
// The thin line is the 95% interval. `prompt` is what the picture was scored with, if the model takes prompts.
export function credit(column, groups, prompt) {
  const end = Math.max(...groups.map((one) => Math.max(one.share, one.of_training, ...(one.interval ?? [])))) || 1;
  const percent = (share) => `${(100 * share).toFixed(1)}%`;
  const rows = groups.map((one) => {
    const share = element("i", { class: "share" });
    const mark = element("i", { class: "of-training" });
    share.style.width = `${(100 * one.share) / end}%`;
    mark.style.left = `${(100 * one.of_training) / end}%`;
    const [low, high] = one.interval ?? [];
    const interval = one.interval ? [element("i", { class: "interval" })] : [];
    for (const line of interval) {
      line.style.left = `${(100 * low) / end}%`;
      line.style.width = `${(100 * (high - low)) / end}%`;
    }
    return element("tr", {},
      element("th", { scope: "row" }, element("span", {}, one.group)),
      element("td", { class: "plot" }, element("div", { role: "img", "aria-label": `${percent(one.of_training)} of the training images` }, share, ...interval, mark)),
      element("td", { class: "value" }, percent(one.share)),
      element("td", { class: "range" }, one.interval ? `${(100 * low).toFixed(1)}–${(100 * high).toFixed(1)}` : ""));
  });
  return element("section", { class: "credit" },
    element("h3", {}, `Credit by ${column}`),
    element("p", { class: "quiet" }, `Each ${column}’s share of all positive scores. The thin line is the 95% interval if each ${column} had shown other images, the vertical mark its share of the training images.`),
    ...(prompt === undefined ? [] : [element("p", { class: "quiet asked" }, `Scored with ${prompt ? `the prompt “${prompt}”` : "the empty prompt"}. Credit follows the prompt as well as the picture.`)]),
    element("table", {},
      element("thead", { class: "unseen" }, element("tr", {}, ...[column, "chart", "share", "95% interval"].map((text) => element("th", { scope: "col" }, text)))),
      element("tbody", {}, ...rows)));
}

export function pager(found, go) {
  const pages = Math.ceil(found.total / found.size);
  if (pages < 2) return element("div");
  const step = (text, to, label) => element("button", { type: "button", disabled: to < 0 || to >= pages, "aria-label": label, onclick: () => go(to) }, text);
  return element("nav", { class: "pager", "aria-label": "Pages" },
    step("←", found.page - 1, "Previous page"),
    element("span", {}, `Page ${found.page + 1} of ${count(pages)}`),
    step("→", found.page + 1, "Next page"));
}

const work = Object.fromEntries(["work", "work-title", "work-stage", "work-bar", "live"].map((id) => [id, document.getElementById(id)]));

// Show the progress of work on the server; null hides it.
export function showWork(item) {
  work.work.hidden = item === null;
  if (item === null) {
    work.live.textContent = "";
    return;
  }
  const waits = item.state === "waiting";
  const title = waits ? "Waiting" : `Working on ${item.title}`;
  if (work["work-title"].textContent !== title || !work.live.textContent) work.live.textContent = title;
  work["work-title"].textContent = title;
  work["work-stage"].textContent = waits ? `for ${item.ahead === 1 ? "one computation" : `${item.ahead} computations`} before this one` : stage(item);
  if (!waits && item.total > 1) {
    work["work-bar"].max = item.total;
    work["work-bar"].value = item.done;
  } else {
    work["work-bar"].removeAttribute("value"); // the remaining time is unknown
  }
}

const STAGES = { draw: "drawing", features: "computing gradients" };

function stage({ stage, done, total, unit, seconds }) {
  if (!stage) return "";
  const left = done > 0 && done < total ? Math.round((seconds * (total - done)) / done) : 0;
  return `${STAGES[stage] ?? stage}: ${count(done)} of ${count(total)} ${unit}${left > 1 ? `, about ${left} s to go` : ""}`;
}
