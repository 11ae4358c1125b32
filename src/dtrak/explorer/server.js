// Send requests to the server. If a result is not ready, wait for it and show the progress.

import { showWork } from "./parts.js";

const POLL = 300; // milliseconds
const OFTEN = { poll: 20, times: 15 }; // at first, as a search in an index takes some dozen milliseconds
const TRIES = 6; // while the server is too busy

export async function get(path, parameters = {}, signal = undefined) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== undefined && value !== ""));
  for (;;) {
    const response = await withRetries(() => fetch(`${path}?${query}`, { signal }));
    const body = await parsed(response);
    if (response.status !== 202) return body;
    await finished(body.question, signal);
  }
}

export async function ask(form, signal) {
  const body = await parsed(await fetch("api/ask", { method: "POST", body: form, signal }));
  return finished(body.question, signal);
}

let followed = 0; // how many items of work are being followed

// Follow work on the server to its end, and return its result.
async function finished(item, signal) {
  followed += 1;
  try {
    for (let asked = 0; item.state === "waiting" || item.state === "working"; asked += 1) {
      showWork(item);
      await pause(asked < OFTEN.times ? OFTEN.poll : POLL, signal);
      item = (await parsed(await withRetries(() => fetch(`api/questions/${item.id}`, { signal })))).question;
    }
  } finally {
    followed -= 1;
    if (!followed) showWork(null);
  }
  if (item.state === "failed") throw new Error(item.error);
  return item.result;
}

// Return the JSON of a response; throw the server's error message if it refused the request.
async function parsed(response) {
  const text = await response.text();
  let body;
  try {
    body = JSON.parse(text);
  } catch {
    throw new Error(text || `The server answered ${response.status}.`);
  }
  if (!response.ok) throw new Error(body.error);
  return body;
}

// Send a request, and try again while the server is too busy.
async function withRetries(request) {
  for (let tried = 1; ; tried += 1) {
    let response;
    try {
      response = await request();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("The server does not answer: is `dtrak serve` still running?");
    }
    if (response.status !== 503 || tried === TRIES) return response;
    await pause(POLL * tried);
  }
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("left", "AbortError"));
    });
  });
}
