// The form above the pictures chooses which methods and which pictures are shown, and in which order.
// The matches of methods that are not shown are taken out of the page, which keeps it fast.
const list = document.getElementById("queries");
const filters = document.getElementById("filters");
const status = document.getElementById("status");
const cards = [...list.children].map((element) => {
  const kept = element.querySelector("template")?.content.children ?? [];
  const all = [element.querySelector(".by-method"), ...kept];
  return { element, byMethod: new Map(all.map((one) => [one.dataset.method, one])) };
});
const first = [...cards[0].byMethod.keys()][0];
let shownMethods = [first];

function value(name) {
  return filters.elements[name]?.value ?? "";
}

/** Return the value that `share` percent of the pictures are below, and write it into the output beside its slider. */
function least(name, output, method) {
  const share = Number(value(name));
  if (!filters.elements[name]) return -Infinity;
  const values = cards.map(({ byMethod }) => Number(byMethod.get(method).dataset[name] ?? 0)).sort((a, b) => a - b);
  const threshold = share ? values[Math.floor((share / 100) * values.length)] : -Infinity;
  filters.elements[output].value = share ? `≥ ${threshold.toPrecision(3)}` : "any";
  filters.elements[name].setAttribute("aria-valuetext", share ? `at least ${threshold.toPrecision(3)}` : "any");
  return threshold;
}

function sorted(order, method) {
  const of = (card) => card.byMethod.get(method).dataset[order];
  if (order === "class") {
    const collator = new Intl.Collator("en", { numeric: true });
    return [...cards].sort((a, b) => collator.compare(of(a) ?? "", of(b) ?? ""));
  }
  return order ? [...cards].sort((a, b) => (of(b) ?? 0) - (of(a) ?? 0)) : cards;
}

function showMethods(methods) {
  if (methods.join() === shownMethods.join()) return;
  for (const { element, byMethod } of cards) {
    for (const one of element.querySelectorAll(".by-method")) one.remove();
    element.append(...methods.map((name) => byMethod.get(name)));
  }
  shownMethods = methods;
  list.classList.toggle("two", methods.length > 1);
}

function update() {
  const method = value("method") || first;
  const beside = value("beside") === method ? "" : value("beside");
  const leastScore = least("score", "leastScore", method);
  const leastSelfInfluence = least("selfInfluence", "leastSelfInfluence", method);
  showMethods(beside ? [method, beside] : [method]);
  let shown = 0;
  for (const { element, byMethod } of cards) {
    const { class: of, score, selfInfluence } = byMethod.get(method).dataset;
    const wrongClass = value("class") !== "" && of !== value("class");
    element.hidden = wrongClass || Number(score) < leastScore || Number(selfInfluence ?? 0) < leastSelfInfluence;
    shown += !element.hidden;
  }
  const wanted = sorted(value("order"), method).map((card) => card.element);
  if (wanted.some((element, place) => element !== list.children[place])) list.append(...wanted);
  status.textContent = shown < cards.length ? `${shown} of ${cards.length} pictures` : "";
  document.getElementById("filtered").textContent = filtered(method, beside, shown);
}

/** Say in a sentence which pictures are shown and how, for a printed page. */
function filtered(method, beside, shown) {
  const text = (name) => filters.elements[name]?.selectedOptions[0].text;
  const parts = [`Scores by ${method}${beside ? ` beside ${beside}` : ""}`, shown < cards.length ? `${shown} of ${cards.length} pictures` : `all ${shown} pictures`];
  if (value("class")) parts.push(`only ${text("class")}`);
  if (Number(value("score"))) parts.push(`strongest score ${filters.elements.leastScore.value}`);
  if (Number(value("selfInfluence"))) parts.push(`self-influence ${filters.elements.leastSelfInfluence.value}`);
  parts.push(value("order") ? `sorted by ${text("order")}` : "in their original order");
  return `${parts.join(", ")}.`;
}

function show(card) {
  if (card.hidden) {
    for (const name of ["class", "score", "selfInfluence"]) {
      if (filters.elements[name]) filters.elements[name].value = name === "class" ? "" : 0;
    }
    update();
  }
  card.focus({ preventScroll: true });
  card.scrollIntoView({ block: "center" });
}

function jump(event) {
  event.preventDefault();
  const id = value("jump").trim();
  const found = cards.find(({ element }) => element.dataset.id === id);
  if (found) show(found.element);
  else status.textContent = `There is no picture “${id}” here.`;
}

filters.hidden = false;
filters.addEventListener("input", (event) => event.target.name !== "jump" && update());
filters.addEventListener("submit", jump);
update();
