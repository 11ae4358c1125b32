// Show the credit for one picture: the tables change to the groups with the largest shares for this picture, and back.
for (const section of document.querySelectorAll(".credit")) {
  const form = section.querySelector("form");
  if (!form) continue;
  const { groups, prompts, shares } = JSON.parse(section.querySelector("script").textContent); // shares in percent, by method
  const tables = [...section.querySelectorAll("table")].map((table) => ({ table, all: table.tBodies[0].innerHTML }));

  const update = () => {
    const query = form.elements.query.value;
    for (const { table, all } of tables) {
      table.tBodies[0].innerHTML = all;
      if (query !== "") draw(table.tBodies[0], groups, shares[table.dataset.method][query]);
    }
    for (const words of section.querySelectorAll("[data-of]")) words.hidden = (words.dataset.of === "one") !== (query !== "");
    const prompt = section.querySelector(".prompt");
    if (prompt) prompt.textContent = query === "" ? "" : prompts[query];
    const picture = form.querySelector(".thumbnail");
    picture.className = `thumbnail q${query}`;
    picture.hidden = query === "";
    form.querySelector("output").value = `Credit for ${form.elements.query.selectedOptions[0].text}`;
  };

  form.hidden = false;
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
}

/** Replace the rows by copies of the first one, for the picture's largest groups, given as [index, share, low, high]. */
function draw(body, groups, ofQuery) {
  const training = ofQuery.map(([group]) => groups[group][1]);
  const end = Math.max(...ofQuery.map(([, , , high]) => high), ...training);
  const others = body.querySelector(".others");
  const row = body.rows[0].cloneNode(true);
  const rows = ofQuery.map(([group, share, low, high], index) => {
    const one = row.cloneNode(true);
    one.querySelector("th span").textContent = groups[group][0];
    one.querySelector(".value").textContent = `${share.toFixed(1)}%`;
    one.querySelector("[role=img]").ariaLabel = `${training[index].toFixed(1)}% of the training images`;
    one.querySelector(".range").textContent = `${low.toFixed(1)}–${high.toFixed(1)}`;
    one.querySelector(".share").style.width = `${(100 * share) / end}%`;
    one.querySelector(".interval").style.left = `${(100 * low) / end}%`;
    one.querySelector(".interval").style.width = `${(100 * (high - low)) / end}%`;
    one.querySelector(".of-training").style.left = `${(100 * training[index]) / end}%`;
    return one;
  });
  const sum = ofQuery.reduce((total, [, share]) => total + share, 0);
  if (others) others.querySelector(".value").textContent = `${(sum ? Math.max(0, 100 - sum) : 0).toFixed(1)}%`;
  body.replaceChildren(...rows, ...(others ? [others] : []));
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
