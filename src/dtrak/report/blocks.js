// A select with data-blocks="x" shows only those blocks of its section whose attribute data-x has the chosen value.
for (const select of document.querySelectorAll("select[data-blocks]")) {
  const blocks = select.closest("section").querySelectorAll(`[data-${select.dataset.blocks}]`);
  const attribute = `data-${select.dataset.blocks}`;
  const update = () => blocks.forEach((block) => (block.hidden = block.getAttribute(attribute) !== select.value));
  select.closest("form").hidden = false;
  select.addEventListener("input", update);
  update();
}
