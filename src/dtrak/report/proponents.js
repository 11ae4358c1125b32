// The controls above the pictures: which methods are shown, which pictures, and in which order.
// The answers of methods that are not shown stay out of the page, where they cost nothing.
const list = document.getElementById("queries");
const controls = document.getElementById("controls");
const status = document.getElementById("status");
const cards = [...list.children].map((element) => {
  const kept = element.querySelector("template")?.content.children ?? [];
  const all = [element.querySelector(".answer"), ...kept];
  return { element, answers: new Map(all.map((answer) => [answer.dataset.method, answer])) };
});
const first = [...cards[0].answers.keys()][0];
let shownMethods = [first];

function value(name) {
  return controls.elements[name]?.value ?? "";
}

/** The value that `share` percent of the pictures stay below, written into the output beside its slider. */
function least(name, output, method) {
  const share = Number(value(name));
  if (!controls.elements[name]) return -Infinity;
  const values = cards.map(({ answers }) => Number(answers.get(method).dataset[name] ?? 0)).sort((a, b) => a - b);
  const threshold = share ? values[Math.floor((share / 100) * values.length)] : -Infinity;
  controls.elements[output].value = share ? `≥ ${threshold.toPrecision(3)}` : "any";
  controls.elements[name].setAttribute("aria-valuetext", share ? `at least ${threshold.toPrecision(3)}` : "any");
  return threshold;
}

function sorted(order, method) {
  const of = (card) => card.answers.get(method).dataset[order];
  if (order === "class") {
    const collator = new Intl.Collator("en", { numeric: true });
    return [...cards].sort((a, b) => collator.compare(of(a) ?? "", of(b) ?? ""));
  }
  return order ? [...cards].sort((a, b) => (of(b) ?? 0) - (of(a) ?? 0)) : cards;
}

function showAnswers(methods) {
  if (methods.join() === shownMethods.join()) return;
  for (const { element, answers } of cards) {
    for (const answer of element.querySelectorAll(".answer")) answer.remove();
    element.append(...methods.map((name) => answers.get(name)));
  }
  shownMethods = methods;
  list.classList.toggle("two", methods.length > 1);
}

function update() {
  const method = value("method") || first;
  const beside = value("beside") === method ? "" : value("beside");
  const leastScore = least("score", "leastScore", method);
  const leastOwn = least("own", "leastOwn", method);
  showAnswers(beside ? [method, beside] : [method]);
  let shown = 0;
  for (const { element, answers } of cards) {
    const { class: of, score, own } = answers.get(method).dataset;
    const wrongClass = value("class") !== "" && of !== value("class");
    element.hidden = wrongClass || Number(score) < leastScore || Number(own ?? 0) < leastOwn;
    shown += !element.hidden;
  }
  const wanted = sorted(value("order"), method).map((card) => card.element);
  if (wanted.some((element, place) => element !== list.children[place])) list.append(...wanted);
  status.textContent = shown < cards.length ? `${shown} of ${cards.length} pictures` : "";
}

function show(card) {
  if (card.hidden) {
    for (const name of ["class", "score", "own"]) {
      if (controls.elements[name]) controls.elements[name].value = name === "class" ? "" : 0;
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

controls.hidden = false;
controls.addEventListener("input", (event) => event.target.name !== "jump" && update());
controls.addEventListener("submit", jump);
update();
