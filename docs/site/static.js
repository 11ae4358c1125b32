// The explorer without a server: requests to its API are answered from data.js, which has the scores of one method at
// one damping. What needs the model (new pictures, another damping, cards) is left out.

const bytes = Uint8Array.from(atob(window.DATA.scores), (one) => one.charCodeAt(0));
const data = { ...window.DATA, scores: new Float32Array(bytes.buffer) };
const realFetch = window.fetch.bind(window);

window.fetch = async (address, options) => {
  const path = String(address);
  if (!path.startsWith("api/")) return realFetch(address, options);
  const [name, query] = path.slice(4).split("?");
  try {
    return reply(ANSWERS[name](data, Object.fromEntries(new URLSearchParams(query))));
  } catch (error) {
    return reply({ error: error.message }, 404);
  }
};

const reply = (body, status = 200) => new Response(JSON.stringify(body), { status, headers: { "Content-Type": "application/json" } });
const found = (list, id) => {
  const place = list.findIndex((one) => one.id === id);
  if (place < 0) throw new Error(`there is no '${id}' among the ${list.length} images`);
  return place;
};
const around = (list, place) => ({ previous: list[place - 1]?.id ?? null, next: list[place + 1]?.id ?? null });

// The scores of one picture [N], or of one training image for all pictures [Q].
const row = (data, q) => [...data.scores.subarray(q * data.train.length, (q + 1) * data.train.length)];
const column = (data, n) => data.pictures.map((_, q) => data.scores[q * data.train.length + n]);

function strongest(entries, values, count, sign) {
  const order = values.map((value, place) => [sign * value, place]).filter(([key]) => key > 0).sort(([a, i], [b, j]) => b - a || i - j);
  return order.slice(0, count).map(([, place]) => ({ ...entries[place], score: values[place] }));
}

function bothEnds(entries, values, count) {
  return {
    proponents: strongest(entries, values, count, 1),
    opponents: strongest(entries, values, count, -1),
    positive: values.filter((value) => value > 0).length,
    negative: values.filter((value) => value < 0).length,
  };
}

function page(entries, { search = "", label = "", page = 0, size = 66 }) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (one) => [one.id, ...Object.values(one.columns)].join("\n").toLowerCase();
  const kept = entries.filter((one) => words.every((word) => text(one).includes(word)) && (!label || String(one.columns.label) === label));
  const at = Math.min(Number(page), Math.floor(Math.max(0, kept.length - 1) / size));
  return { total: kept.length, page: at, size: Number(size), items: kept.slice(at * size, (at + 1) * size) };
}

const ANSWERS = {
  run: (data) => data.run,
  damping: () => ({}),
  queries: (data, query) => page(data.pictures, query),
  train: (data, query) => {
    if (!["self", "total"].includes(query.sort)) return page(data.train, query);
    const value = query.sort === "self" ? (n) => data.self_influence[n] : (n) => column(data, n).reduce((a, b) => a + b, 0);
    const scored = data.train.map((one, n) => ({ ...one, score: value(n) }));
    return page(scored.sort((a, b) => b.score - a.score), query);
  },
  answer: (data, { query, count = 10 }) => {
    const place = found(data.pictures, query);
    return { query: data.pictures[place], ...around(data.pictures, place), ...bothEnds(data.train, row(data, place), count), credit: data.credit[place] };
  },
  transpose: (data, { train, count = 10 }) => {
    const place = found(data.train, train);
    const values = column(data, place);
    return {
      train: data.train[place], ...around(data.train, place), ...bothEnds(data.pictures, values, count),
      self_influence: data.self_influence[place], total: values.reduce((a, b) => a + b, 0),
    };
  },
};
