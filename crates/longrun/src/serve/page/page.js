// The page: a conversation with the server that it came from. Text of a model only ever becomes text nodes.

import { Charts, number, read } from "./charts.js";
import { Prose } from "./prose.js";

const $ = (id) => document.getElementById(id);
const KEY = "longrun-key";
const SETTINGS = ["system", "temperature", "max", "tools"];

/** Messages as they are sent. An answer also has `node`, its turn on the page. */
const messages = [];
let running = null;
let editing = null;

function make(name, className, text) {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function button(text, act) {
  const node = make("button", "", text);
  node.type = "button";
  node.addEventListener("click", act);
  return node;
}

// The server.

let asking = null;

/** Asks for the key, once for all who wait. Gives false if there is none. */
function askKey(refused) {
  asking ??= new Promise((done) => {
    $("refused").textContent = refused ? "The server does not know that key." : "";
    $("ask").returnValue = "";
    $("ask").showModal();
    $("ask").addEventListener("close", () => {
      asking = null;
      done($("ask").returnValue === "use");
    }, { once: true });
  });
  return asking;
}

/** Fetches, with the key; an answer that is no success is an error with the server's words. */
async function call(path, options = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
    const response = await fetch(path, { ...options, headers });
    if (response.ok) return response;
    if (response.status === 401 && !options.quiet) {
      // Another call may have got a new one meanwhile.
      if (key !== sessionStorage.getItem(KEY) || await askKey(key !== null)) continue;
    }
    const body = await response.json().catch(() => null);
    throw new Error(body?.error?.message ?? `The server answered ${response.status}.`);
  }
}

/** The events of a streamed answer. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data:"));
      const joined = data.map((line) => line.slice(5).trimStart()).join("\n");
      if (joined === "[DONE]") return;
      if (joined) yield JSON.parse(joined);
    }
  }
}

// Turns.

function turn(role, name) {
  const node = make("li", `turn ${role}`);
  node.append(make("h2", "", name));
  $("turns").append(node);
  $("empty").hidden = true;
  return node;
}

function showUser(message) {
  message.node = turn("user", message.role === "tool" ? "Result of a call" : "You");
  const text = make("div", "text");
  text.append(make("p", "", message.content));
  message.node.append(text);
}

/** Runs `act`, and stays at the end of the conversation if it was in view. */
function following(act) {
  const box = $("scroll");
  const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 60;
  act();
  if (atEnd) box.scrollTop = box.scrollHeight;
}

/** Takes everything from message `from` on away. */
function cut(from) {
  messages.splice(from).forEach((message) => message.node.remove());
  $("empty").hidden = messages.length > 0;
  actions();
}

/** The buttons of the last message and of the last one of the user. */
function actions() {
  document.querySelectorAll(".act").forEach((node) => node.remove());
  if (running) return;
  const mine = messages.findLastIndex((message) => message.role === "user");
  if (mine < 0) return;
  const put = (message, ...buttons) => {
    let meta = message.node.querySelector(".meta");
    if (!meta) message.node.append(meta = make("p", "meta"));
    buttons.forEach((node) => node.classList.add("act"));
    meta.append(...buttons);
  };
  put(messages[mine], button("Edit", () => {
    editing = mine;
    $("editing").hidden = false;
    $("text").value = messages[mine].content;
    grow();
    $("text").focus();
  }));
  const last = messages.length - 1;
  put(messages[last], button(last === mine ? "Answer" : "Regenerate", () => {
    unedit();
    cut(mine + 1);
    answer();
  }));
}

/** An answer on the page, as it grows. */
class Answer {
  constructor() {
    this.message = { role: "assistant", content: "" };
    this.node = this.message.node = turn("assistant", $("model").value);
    this.node.classList.add("streaming");
    this.calls = [];
    this.finish = null;
    this.text = make("div", "text");
    this.node.append(this.text);
    this.prose = new Prose(this.text);
  }

  take(event) {
    if (event.error) throw new Error(event.error.message);
    if (event.usage) this.usage = event.usage;
    if (event.longrun) this.own = event.longrun;
    const choice = event.choices?.[0];
    if (!choice) return;
    this.finish = choice.finish_reason ?? this.finish;
    const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta ?? {};
    if (reasoning) this.reason(reasoning);
    if (content) {
      this.message.content += content;
      this.prose.push(content);
    }
    calls?.forEach((call) => this.call(call));
  }

  reason(text) {
    if (!this.thought) {
      const fold = make("details", "reasoning");
      fold.append(make("summary", "", "Reasoning"), this.thought = make("div", "text"));
      this.node.insertBefore(fold, this.text);
      this.thoughts = new Prose(this.thought);
    }
    this.thoughts.push(text);
  }

  call({ index, id, function: { name, arguments: json } = {} }) {
    let call = this.calls[index];
    if (!call) {
      const fold = make("details", "call");
      fold.open = true;
      const shown = make("code", "");
      fold.append(make("summary", "", `Calls ${name}`), make("pre", ""));
      fold.lastChild.append(shown);
      this.node.append(fold);
      call = this.calls[index] = { shown, fold, id, type: "function", function: { name, arguments: "" } };
    }
    call.function.arguments += json ?? "";
    call.shown.textContent = call.function.arguments;
  }

  /** The end, with what is to be said of it. */
  end(note) {
    this.node.classList.remove("streaming");
    this.prose.finish();
    this.thoughts?.finish();
    const said = [note];
    if (this.usage) {
      const { completion_tokens: tokens, prompt_tokens: prompt, prompt_tokens_details: more } = this.usage;
      said.push(tokens === 1 ? "1 token" : `${number(tokens)} tokens`);
      if (this.own?.tokens_per_second) said.push(`${number(this.own.tokens_per_second)} tokens/s`);
      said.push(`${number(more?.cached_tokens ?? 0)} of ${number(prompt)} prompt tokens from the cache`);
    }
    if (this.finish === "stop" && this.message.content === "") said.push("it said nothing");
    if (this.finish === "length") said.push("cut at the most tokens");
    this.node.append(make("p", "meta", said.filter(Boolean).join(" · ")));
    if (this.calls.length > 0) {
      const sent = this.calls.map(({ id, type, function: f }) => ({ id, type, function: f }));
      this.message.tool_calls = sent;
      this.calls.forEach((call) => this.result(call));
    }
  }

  /** A field for what a call gave. The answer goes on when all of them have something. */
  result(call) {
    const form = make("form", "row");
    const input = make("input");
    input.setAttribute("aria-label", `Result of ${call.function.name}`);
    input.placeholder = "What it gives";
    form.append(input, make("button", "", "Give"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      call.result = input.value;
      form.remove();
      if (this.calls.some((one) => one.result === undefined)) return;
      for (const one of this.calls) {
        messages.push({ role: "tool", tool_call_id: one.id, content: one.result });
        showUser(messages.at(-1));
      }
      answer();
    });
    call.fold.append(form);
  }
}

/** What is sent for the conversation as it is. */
function request() {
  const system = $("system").value.trim();
  const all = messages.map(({ node, ...message }) => message);
  const body = {
    model: $("model").value,
    messages: system ? [{ role: "system", content: system }, ...all] : all,
    stream: true,
    stream_options: { include_usage: true },
  };
  if ($("temperature").value !== "") body.temperature = Number($("temperature").value);
  if ($("max").value !== "") body.max_tokens = Number($("max").value);
  if ($("tools").value.trim() !== "") body.tools = JSON.parse($("tools").value);
  return JSON.stringify(body);
}

function busy(is) {
  $("send").hidden = is;
  $("stop").hidden = !is;
  $("scroll").setAttribute("aria-busy", is);
  $("status").textContent = is ? "Answering." : "The answer is done.";
}

/** Has the server go on with the conversation. */
async function answer() {
  if (running) return;
  // Answers that failed before they began.
  [...$("turns").children].filter((node) => !messages.some((m) => m.node === node)).forEach((node) => node.remove());
  const mine = running = new AbortController();
  busy(true);
  const shown = new Answer();
  actions();
  $("scroll").scrollTop = $("scroll").scrollHeight;
  let [note, failed] = ["", ""];
  try {
    const headers = { "Content-Type": "application/json" };
    const options = { method: "POST", body: request(), headers, signal: mine.signal };
    for await (const event of events(await call("v1/chat/completions", options))) {
      following(() => shown.take(event));
    }
    if (shown.finish === null) failed = "The server hung up before the answer was done.";
  } catch (error) {
    if (mine.signal.aborted) note = "stopped";
    else failed = error.message;
  }
  running = null;
  following(() => {
    shown.end(note);
    if (failed) shown.node.append(Object.assign(make("p", "error", failed), { role: "alert" }));
    const { content, tool_calls: calls } = shown.message;
    // A conversation that was cleared meanwhile takes nothing more.
    if (shown.node.isConnected && (content || calls || !failed)) messages.push(shown.message);
    actions();
  });
  busy(false);
  if (failed) $("status").textContent = failed;
}

function unedit() {
  if (editing !== null) $("text").value = "";
  editing = null;
  $("editing").hidden = true;
  grow();
}

function send() {
  const content = $("text").value.trim();
  if (running || content === "") return;
  if (editing !== null) cut(editing);
  unedit();
  $("text").value = "";
  grow();
  messages.push({ role: "user", content });
  showUser(messages.at(-1));
  answer();
}

/** The field is as high as its text. */
function grow() {
  const field = $("text");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}

// The page's life.

const charts = new Charts();

async function watch() {
  try {
    const model = $("model").value;
    const text = await (await call("metrics", { quiet: true })).text();
    if (model === $("model").value) charts.take(read(text, model));
    $("contact").textContent = "";
  } catch (error) {
    $("contact").textContent = "No figures: the server does not answer.";
  }
  setTimeout(watch, 1000);
}

async function start() {
  for (const id of SETTINGS) {
    $(id).value = sessionStorage.getItem(`longrun-${id}`) ?? "";
    $(id).addEventListener("change", () => sessionStorage.setItem(`longrun-${id}`, $(id).value));
  }
  try {
    const models = (await (await call("v1/models")).json()).data;
    $("model").replaceChildren(...models.map(({ id }) => make("option", "", id)));
    $("model").disabled = models.length < 2;
    watch();
  } catch (error) {
    const again = button("Try again", () => { $("contact").textContent = ""; start(); });
    $("contact").replaceChildren(`${error.message} `, again);
  }
}

$("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("text").addEventListener("input", grow);
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
  if (event.key === "Escape" && editing !== null) unedit();
});
$("stop").addEventListener("click", () => { running?.abort(); $("text").focus(); });
$("unedit").addEventListener("click", unedit);
$("clear").addEventListener("click", () => {
  running?.abort();
  unedit();
  cut(0);
  $("turns").replaceChildren();
  $("empty").hidden = false;
  $("text").focus();
});
$("model").addEventListener("change", () => charts.clear());
document.querySelectorAll(".ideas button").forEach((node) => node.addEventListener("click", () => {
  $("text").value = node.textContent;
  send();
}));
$("keyform").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("key").value.trim());
  $("key").value = "";
  $("ask").close("use");
});
$("nokey").addEventListener("click", () => $("ask").close(""));
start();
