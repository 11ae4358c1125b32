// Talking to the server. What is not ready yet is waited for, and how far it is shown.

import { showWork } from "./parts.js";

const POLL = 300; // milliseconds
const TRIES = 6; // where the server has too much to do

export async function get(path, parameters = {}, signal = undefined) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== undefined && value !== ""));
  for (;;) {
    const response = await patiently(() => fetch(`${path}?${query}`, { signal }));
    const body = await understood(response);
    if (response.status !== 202) return body;
    await finished(body.question, signal);
  }
}

export async function ask(form, signal) {
  const body = await understood(await fetch("api/ask", { method: "POST", body: form, signal }));
  return finished(body.question, signal);
}

let followed = 0; // questions

// Follow a question to its end; gives what it has made.
async function finished(question, signal) {
  followed += 1;
  try {
    while (question.state === "waiting" || question.state === "working") {
      showWork(question);
      await pause(POLL, signal);
      question = (await understood(await patiently(() => fetch(`api/questions/${question.id}`, { signal })))).question;
    }
  } finally {
    followed -= 1;
    if (!followed) showWork(null);
  }
  if (question.state === "failed") throw new Error(question.error);
  return question.result;
}

async function understood(response) {
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

async function patiently(request) {
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
