// Credit for one picture: the bars of a section's tables change to that picture's shares, and back.
for (const section of document.querySelectorAll(".credit")) {
  const form = section.querySelector("form");
  if (!form) continue;
  const shares = JSON.parse(section.querySelector("script").textContent); // by method: [pictures][groups], in percent
  const tables = [...section.querySelectorAll("table")].map((table) => ({ table, all: table.tBodies[0].innerHTML }));

  const update = () => {
    const query = form.elements.query.value;
    for (const { table, all } of tables) {
      table.tBodies[0].innerHTML = all;
      if (query !== "") draw([...table.tBodies[0].rows], shares[table.dataset.method][query]);
    }
    for (const words of section.querySelectorAll("[data-of]")) words.hidden = (words.dataset.of === "one") !== (query !== "");
    const picture = form.querySelector(".thumbnail");
    picture.className = `thumbnail q${query}`;
    picture.hidden = query === "";
    form.querySelector("output").value = `Credit for ${form.elements.query.selectedOptions[0].text}`;
  };

  form.hidden = false;
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
}

function draw(rows, ofQuery) {
  const training = rows.filter((row) => "training" in row.dataset).map((row) => 100 * row.dataset.training);
  const end = Math.max(...ofQuery.slice(0, training.length), ...training);
  rows.forEach((row, group) => {
    row.querySelector(".value").textContent = `${ofQuery[group].toFixed(1)}%`;
    if (group >= training.length) return; // all others together have no bar
    row.querySelector(".share").style.width = `${(100 * ofQuery[group]) / end}%`;
    row.querySelector(".of-training").style.left = `${(100 * training[group]) / end}%`;
    row.querySelector(".interval")?.remove();
    row.querySelector(".range").textContent = "";
  });
}

for (const link of document.querySelectorAll(".to-credit")) {
  link.hidden = !document.querySelector(".credit form");
  link.addEventListener("click", (event) => {
    event.preventDefault();
    for (const form of document.querySelectorAll(".credit form")) {
      form.elements.query.value = link.dataset.query;
      form.dispatchEvent(new Event("input"));
    }
    const head = document.querySelector(link.getAttribute("href"));
    head.focus({ preventScroll: true });
    head.scrollIntoView();
  });
}
