const list = document.getElementById("queries");
const controls = document.getElementById("controls");
const status = document.getElementById("status");
const cards = [...list.children];

function value(name) {
  return controls.elements[name]?.value ?? "";
}

function update() {
  const method = value("method") || cards[0].querySelector(".answer").dataset.method;
  const answers = new Map();
  for (const card of cards) {
    for (const answer of card.querySelectorAll(".answer")) {
      answer.hidden = answer.dataset.method !== method;
      if (!answer.hidden) answers.set(card, answer.dataset);
    }
    card.hidden = value("label") !== "" && answers.get(card).label !== value("label");
  }
  const byStrength = (a, b) => answers.get(b).strongest - answers.get(a).strongest;
  list.append(...(value("order") === "strongest" ? [...cards].sort(byStrength) : cards));
  const shown = cards.filter((card) => !card.hidden).length;
  status.textContent = shown < cards.length ? `${shown} of ${cards.length} shown` : "";
}

function jump(event) {
  event.preventDefault();
  const id = value("jump").trim();
  const card = cards.find((one) => one.dataset.id === id);
  if (!card) {
    status.textContent = `There is no picture “${id}” here.`;
    return;
  }
  if (card.hidden) {
    controls.elements.label.value = "";
    update();
  }
  card.focus({ preventScroll: true });
  card.scrollIntoView({ block: "center" });
}

controls.hidden = false;
controls.addEventListener("change", (event) => event.target.name !== "jump" && update());
controls.addEventListener("submit", jump);
update();
