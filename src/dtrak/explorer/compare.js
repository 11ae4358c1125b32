// The screen that shows two pictures side by side: the address is #compare/FIRST?with=SECOND.

import { count, credit, element, matches, name, picture, run } from "./parts.js";
import { change, go, link } from "./route.js";
import { get } from "./server.js";

const SHOWN = 10; // proponents of each picture
const LISTED = 200; // pictures that can be chosen

export function comparison() {
  const back = element("a", { class: "back" });
  const heading = element("h2", { tabindex: "-1" }, "Two pictures side by side");
  const shared = element("p", { class: "quiet", role: "status" });
  const [left, right] = ["First picture", "Second picture"].map(column);
  const node = element("section", { class: "compare" }, element("div", { class: "top" }, back), heading, shared,
    element("div", { class: "pair" }, left.node, right.node));

  async function update(here, signal) {
    back.replaceChildren(element("span", { "aria-hidden": "true" }, "← "), "Only the first picture");
    back.href = link("picture", here.id);
    const { items } = await get("api/queries", { set: here.set, size: LISTED }, signal);
    const second = here.with || items[(items.findIndex((one) => one.id === here.id) + 1) % items.length]?.id;
    const both = await Promise.all([here.id, second].map((query) =>
      get("api/answer", { query, count: SHOWN, set: here.set, method: here.method, damping: here.damping }, signal)));
    left.show(here, items, both[0], (id) => go(link("compare", id, { with: second })));
    right.show(here, items, both[1], (id) => change({ with: id }));
    const ids = new Set(both[0].proponents.map((one) => one.id));
    const common = both[1].proponents.filter((one) => ids.has(one.id)).length;
    shared.textContent = common
      ? `${count(common)} of the ${SHOWN} strongest proponents of each ${common === 1 ? "is" : "are"} the same training image${common === 1 ? "" : "s"}.`
      : `Their ${SHOWN} strongest proponents are different training images.`;
  }
  return { node, update };
}

// One of the two pictures, with a field to choose another.
function column(label) {
  const choice = element("select");
  const content = element("div");
  const node = element("article", {}, element("label", {}, label, choice), content);
  function show(here, items, found, choose) {
    const known = items.some((one) => one.id === found.query.id) ? items : [found.query, ...items];
    choice.replaceChildren(...known.map((one) => element("option", { value: one.id, selected: one.id === found.query.id }, name(here.set, one))));
    choice.onchange = () => choose(choice.value);
    const strongest = Math.max(...[...found.proponents, ...found.opponents].map((match) => Math.abs(match.score)));
    content.replaceChildren(
      element("a", { href: link("picture", found.query.id), class: "large" }, picture(here.set, found.query, "Picture", "large")),
      matches("proponents", "Proponents", "train", found.proponents, strongest, "No training image has a positive score."),
      ...Object.entries(found.credit).map(([by, groups]) => credit(by, groups)));
  }
  return { node, show };
}
