// The charts: what /metrics says each second, ten minutes of it. Owns the samples and the drawings; shows text as text.

const HISTORY = 600;
const [WIDTH, HEIGHT, LEFT, TOP, BOTTOM] = [320, 86, 36, 8, 14];

/** A number for people. */
export const number = (x) =>
  x >= 1e6 ? (x / 1e6).toFixed(1) + "M"
    : x >= 1e4 ? (x / 1e3).toFixed(1) + "k"
      : x >= 100 || Number.isInteger(x) ? Math.round(x).toLocaleString("en") : x.toFixed(1);

/** The sums of the lines of `text` with `name` that have all of `labels`. */
export function sum(text, name, labels) {
  let total = 0;
  for (const line of text.split("\n")) {
    const space = line.lastIndexOf(" ");
    const end = line.indexOf("{");
    if (line.slice(0, end < 0 ? space : end) !== name) continue;
    const fits = Object.entries(labels).every(([k, v]) => line.includes(`${k}=${JSON.stringify(v)}`));
    if (fits) total += Number(line.slice(space + 1));
  }
  return total;
}

/** One look at a model. Totals rise; all else is as it is now. */
export function read(text, model) {
  // Names that share an engine have no figures of their own: then it is all engines.
  const of = sum(text, "longrun_live_buffers", { model }) > 0 ? { model } : {};
  const get = (name, labels = {}) => sum(text, "longrun_" + name, { ...of, ...labels });
  return {
    at: performance.now() / 1000,
    buffers: get("live_buffers"),
    generated: get("tokens_total", { kind: "generated" }),
    prompt: get("tokens_total", { kind: "prompt" }),
    cached: get("tokens_total", { kind: "cached" }),
    running: get("rows_running"),
    waiting: get("rows_waiting"),
    blocks: get("cache", { what: "blocks" }),
    used: get("cache", { what: "blocks" }) - get("cache", { what: "blocks_free" }),
    snapshots: get("cache", { what: "snapshots" }),
  };
}

const svg = (name, attributes) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
};

/** The next round number. */
function round(x) {
  const unit = 10 ** Math.floor(Math.log10(Math.max(x, 1)));
  return [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map((k) => k * unit).find((top) => top >= x);
}

class Chart {
  constructor(id, names) {
    const figure = document.getElementById(id);
    this.title = figure.querySelector("figcaption").textContent;
    this.legend = names.map((name) => document.createElement("dd"));
    const list = document.createElement("dl");
    list.className = "legend";
    names.forEach((name, i) => {
      const [item, term] = [document.createElement("div"), document.createElement("dt")];
      item.className = "s" + i;
      term.textContent = name;
      item.append(term, this.legend[i]);
      list.append(item);
    });
    this.image = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
    const floor = HEIGHT - BOTTOM;
    for (const y of [TOP, floor]) {
      this.image.append(svg("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: y, y2: y }));
    }
    const label = (x, y, anchor) => svg("text", { x, y, "text-anchor": anchor });
    this.top = label(LEFT - 5, TOP + 4, "end");
    this.zero = label(LEFT - 5, floor + 4, "end");
    this.zero.textContent = "0";
    this.since = label(LEFT, HEIGHT - 2, "start");
    this.now = label(WIDTH, HEIGHT - 2, "end");
    this.now.textContent = "now";
    this.lines = names.map((_, i) => svg("path", { class: "s" + i }));
    this.image.append(this.top, this.zero, this.since, this.now, ...this.lines);
    figure.append(list, this.image);
  }

  /** Draws series of numbers at `times`; `shown` are the words of the legend. */
  draw(times, series, shown) {
    const end = times.at(-1);
    const span = Math.max(60, end - times[0]);
    const top = round(Math.max(1, ...series.flat()));
    const floor = HEIGHT - BOTTOM;
    const x = (t) => (WIDTH - ((end - t) / span) * (WIDTH - LEFT)).toFixed(1);
    const y = (v) => (floor - (v / top) * (floor - TOP)).toFixed(1);
    series.forEach((values, i) => {
      const points = values.map((v, k) => `${x(times[k])} ${y(v)}`);
      this.lines[i].setAttribute("d", "M" + points.join("L"));
      this.legend[i].textContent = shown[i];
    });
    this.top.textContent = number(top);
    this.since.textContent = span < 120 ? `${Math.round(span)} s ago` : `${Math.round(span / 60)} min ago`;
    const names = [...this.legend].map((dd) => `${dd.previousSibling.textContent} ${dd.textContent}`);
    this.image.setAttribute("aria-label", `${this.title}: ${names.join(", ")}`);
  }
}

/** All charts of a page. */
export class Charts {
  constructor() {
    this.samples = [];
    this.buffers = new Chart("buffers", ["buffers"]);
    this.rates = new Chart("rates", ["generated"]);
    this.prompts = new Chart("prompts", ["read", "from the cache"]);
    this.rows = new Chart("rows", ["running", "waiting"]);
    this.cache = new Chart("cache", ["blocks used", "snapshots"]);
    this.proof = document.getElementById("proof");
  }

  clear() {
    this.samples = [];
  }

  take(sample) {
    const last = this.samples.at(-1);
    const rate = (name) => (last ? Math.max(0, sample[name] - last[name]) / (sample.at - last.at) : 0);
    const rates = { generating: rate("generated"), reading: rate("prompt"), reusing: rate("cached") };
    this.samples.push({ ...sample, ...rates });
    if (this.samples.length > HISTORY) this.samples.shift();
    const times = this.samples.map((s) => s.at);
    const of = (name) => this.samples.map((s) => s[name]);
    const now = this.samples.at(-1);
    this.buffers.draw(times, [of("buffers")], [number(now.buffers)]);
    this.rates.draw(times, [of("generating")], [`${number(now.generating)} (${number(now.generated)} in all)`]);
    const cached = `${number(now.reusing)} (${number(now.cached)} in all)`;
    this.prompts.draw(times, [of("reading"), of("reusing")], [number(now.reading), cached]);
    this.rows.draw(times, [of("running"), of("waiting")], [number(now.running), number(now.waiting)]);
    const used = `${number(now.used)} of ${number(now.blocks)}`;
    this.cache.draw(times, [of("used"), of("snapshots")], [used, number(now.snapshots)]);
    this.tell(of("buffers"));
  }

  /** What the line of live buffers shows, in words. */
  tell(buffers) {
    const [low, high] = [Math.min(...buffers), Math.max(...buffers)];
    const tokens = Math.max(0, this.samples.at(-1).generated - this.samples[0].generated);
    const words = document.createElement("strong");
    words.textContent = low === high ? `Flat at ${number(low)}` : `Between ${number(low)} and ${number(high)}`;
    const rest = tokens > 0
      ? ` while ${number(tokens)} tokens were generated: a step makes no buffer, however long the text.`
      : ": a step makes no buffer, so the line stays flat while text streams.";
    this.proof.replaceChildren(words, rest);
  }
}
