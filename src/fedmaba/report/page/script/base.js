// Helpers, what the reader has chosen, and the data block. Text of runs and clients only ever
// becomes textContent or an attribute; nothing in these files builds markup from strings.
const SVG = "http://www.w3.org/2000/svg";
const $ = (query, at = document) => at.querySelector(query);
const $$ = (query, at = document) => [...at.querySelectorAll(query)];
const read = (from) => JSON.parse($("#data", from).textContent);
let D = read(document);
const state = {
  model: D.model, at: "last", sort: null, only: new Set(), against: "variance", scale: "auto", along: "round",
  to: null, seed: null, gainSeed: "all", place: null, client: null, labels: null,
};

// ---- small helpers -------------------------------------------------------------------------
function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
const h = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => build(document.createElementNS(SVG, tag), attributes, children);
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const minus = (text) => text.replace(/^-/, "−"); // one sign for less than nothing, everywhere
const fixed = (value, digits = 2) => (Number.isFinite(value) ? minus(value.toFixed(digits)) : "–");
const signed = (value, digits = 2) => (value > 0 ? "+" : value < 0 ? "−" : "±") + Math.abs(value).toFixed(digits);
const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
const plural = (count, word) => `${count.toLocaleString("en-GB")} ${word}${count === 1 ? "" : "s"}`;
const exact = (value) => (Number.isFinite(value) ? Number(value.toPrecision(12)) : ""); // without what binary fractions add
function brief(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return minus(value.toExponential(1));
  return minus(String(Number(value.toPrecision(size >= 1000 ? 4 : 3))));
}
function squeeze(text, most) {
  if (text.length <= most) return text;
  const front = Math.ceil((most - 1) * 0.45);
  return text.slice(0, front) + "…" + text.slice(text.length - (most - 1 - front));
}
function squeezed(names, most) { // each at most so long, or longer where two would look alike, or numbered
  const apart = (length) => new Set(names.map((name) => squeeze(name, length))).size === new Set(names).size;
  for (let length = most; length <= 2 * most; length++) if (apart(length)) return new Map(names.map((name) => [name, squeeze(name, length)]));
  return new Map(names.map((name, i) => [name, squeeze(`${i + 1}. ${name}`, most)]));
}
const ruler = document.createElement("canvas").getContext("2d");
function textWidth(text, size = 12.5, weight = 600) { // how wide a text is drawn, in pixels
  ruler.font = `${weight} ${printing() ? Math.min(size, 10.5) : size}px ${getComputedStyle(document.body).fontFamily}`;
  return ruler.measureText(text).width;
}
const widest = (names) => Math.max(0, ...[...names].map((name) => textWidth(name)));
function say(text) { $("#say").textContent = text; }
const calm = matchMedia("(prefers-reduced-motion: reduce)");

// ---- data ----------------------------------------------------------------------------------
const READ = { u1: ["getUint8", 1, 255], u2: ["getUint16", 2, 65535], u4: ["getUint32", 4, 4294967295], f4: ["getFloat32", 4], f8: ["getFloat64", 8] };
function unpack(table, scale = 1) { // whole numbers of so many, the largest is "none"; or floating-point numbers
  if (!table) return null;
  if (!table.values) {
    const [get, bytes, none] = READ[table.kind], raw = Uint8Array.from(atob(table.data), (c) => c.charCodeAt(0)), look = new DataView(raw.buffer);
    const per = (i) => (typeof table.of === "number" ? table.of : table.of[i % table.of.length]), single = table.kind === "f4";
    table.values = Float64Array.from({ length: raw.length / bytes }, (_, i) => {
      const v = look[get](bytes * i, true);
      if (none !== undefined) return v === none ? NaN : (scale * v) / per(i);
      return scale * (single ? Number(v.toPrecision(7)) : v); // what 32 bits hold, without their noise
    });
    table.data = null;
  }
  return table.values;
}
const label = (run) => D.strategies[run.strategy].label;
const visible = (k) => !state.only.size || state.only.has(k);
const shown = () => D.runs.filter((run) => visible(run.strategy));
const kept = (runs) => { const good = runs.filter((run) => !run.diverged); return good.length ? good : runs; };
const byStrategy = (runs = shown()) => D.strategies
  .map((strategy, k) => ({ k, name: strategy.label, runs: kept(runs.filter((run) => run.strategy === k)) }))
  .filter((group) => group.runs.length);
const places = () => { // a federation: the clients of one folder under one seed
  const seen = new Map();
  for (const run of D.runs) seen.set(`${run.folder}.${run.seed}`, { folder: run.folder, seed: run.seed });
  return [...seen].map(([key, at]) => ({
    key, ...at,
    name: D.folders.length > 1 ? `${D.folders[at.folder].name}, seed ${at.seed}` : `seed ${at.seed}`,
    runs: D.runs.filter((run) => run.folder === at.folder && run.seed === at.seed),
  }));
};
const placeOf = (run) => `${run.folder}.${run.seed}`;
const clientId = (run, i) => (run.client ? run.client[i] : i);
function clientName(run, i) {
  const own = D.folders[run.folder].clients[i], left = run.final && Number.isNaN(final(run)[i]);
  return (own === undefined ? `client ${clientId(run, i)}` : own) + (left ? " (not in the figures)" : "");
}
const final = (run) => unpack(run.final && run.final[`${state.model}.${state.at}`], D.unit.scale); // of each client, as shown
const current = () => D.tables[`${state.model}.${state.at}`];
const verdicts = () => D.verdicts[`${state.model}.${state.at}`];
const named = () => D.strategies.findIndex((o) => o.label === verdicts()[0].named);
const strategies = (count) => `${count} strateg${count === 1 ? "y" : "ies"}`;

// ---- colours and marks ---------------------------------------------------------------------
const color = (k) => `var(--s${D.strategies[k].hue})`;
const ink = (k) => `var(--t${D.strategies[k].hue})`; // of text: dark enough to read
const DASHES = [null, "7 4", "2 3", "9 3 2 3", "5 2 2 2 2 2"];
const dash = (k) => DASHES[D.strategies[k].variant % 5];
const PATHS = [ // by hue as figures.MARKERS, within a radius of 1: o s ^ p P X D v < >
  null, "-.9 -.9 .9 -.9 .9 .9 -.9 .9", "0 -1.15 1.1 .8 -1.1 .8",
  "0 -1.15 1.1 -.35 .7 .95 -.7 .95 -1.1 -.35",
  "-1 -.4 -.4 -.4 -.4 -1 .4 -1 .4 -.4 1 -.4 1 .4 .4 .4 .4 1 -.4 1 -.4 .4 -1 .4",
  "-.6 -1.1 0 -.5 .6 -1.1 1.1 -.6 .5 0 1.1 .6 .6 1.1 0 .5 -.6 1.1 -1.1 .6 -.5 0 -1.1 -.6",
  "0 -1.3 1.2 0 0 1.3 -1.2 0", "0 1.15 1.1 -.8 -1.1 -.8", "-1.15 0 .8 -1.1 .8 1.1", "1.15 0 -.8 -1.1 -.8 1.1",
];
const outline = (path) => { // its corners; a circle has many
  if (!path) return Array.from({ length: 24 }, (_, i) => [Math.cos((Math.PI * i) / 12), Math.sin((Math.PI * i) / 12)]);
  const all = path.split(" ").map(Number);
  return all.filter((_, i) => i % 2 === 0).map((x, i) => [x, all[2 * i + 1]]);
};
const SIDES = [null, null, [0, 1], [1, 1], [0, -1]]; // as figures.FILLS: full, none, left, top, right
function half(corners, [along, way]) { // the part of a shape on one side of its middle
  const inside = (p) => way * p[along] <= 0, out = [];
  corners.forEach((p, i) => {
    const q = corners[(i + 1) % corners.length], t = p[along] / (p[along] - q[along] || 1);
    if (inside(p)) out.push(p);
    if (inside(p) !== inside(q)) out.push([p[0] + t * (q[0] - p[0]), p[1] + t * (q[1] - p[1])]);
  });
  return out;
}
function mark(k, x, y, r, attributes) { // shape repeats what colour says, its filling tells variants apart
  const path = PATHS[D.strategies[k].hue], variant = D.strategies[k].variant % 5, corners = variant > 1 || path ? outline(path) : null;
  const place = (list) => list.map(([a, b]) => `${(x + r * a).toFixed(1)} ${(y + r * b).toFixed(1)}`).join(" ");
  const at = { fill: variant ? "var(--paper)" : color(k), ...(variant ? { stroke: color(k), "stroke-width": r < 3 ? 1.1 : 1.5 } : {}), ...attributes };
  const whole = path ? s("polygon", { points: place(corners), ...at }) : s("circle", { cx: x, cy: y, r, ...at });
  return variant < 2 ? whole : s("g", {}, whole, s("polygon", { points: place(half(corners, SIDES[variant])), fill: color(k), ...attributes }));
}
const swatch = (k) => s("svg", { width: 12, height: 12, "aria-hidden": "true" }, mark(k, 6, 6, 4.6));
const sample = (k) => s("svg", { width: 34, height: 12, "aria-hidden": "true" }, // a piece of its line
  s("line", { x1: 1, x2: 33, y1: 6, y2: 6, stroke: color(k), "stroke-width": 2, "stroke-dasharray": dash(k) }), mark(k, 17, 6, 4));
const dots = (points, r, attributes) => s("path", { // round ends of lines without length
  d: points.map(([x, y]) => `M${x.toFixed(1)} ${y.toFixed(1)}h0`).join(""), fill: "none", "stroke-linecap": "round", "stroke-width": 2 * r, ...attributes,
});
function nameText(k, attributes, text) { // a strategy's name: pointing at it greys the rest, a click isolates it
  const node = s("text", { class: "name", "data-k": k, fill: ink(k), ...attributes }, text);
  node.style.fill = ink(k);
  node.addEventListener("pointerenter", () => hot(k));
  node.addEventListener("pointerleave", () => hot(null));
  node.addEventListener("click", (event) => { event.stopPropagation(); isolate(k); });
  return node;
}

// ---- units ---------------------------------------------------------------------------------
const pct = (value, digits = 2) => `${fixed(value, digits)}\u00a0%`;
const score = (value, digits) => (D.unit.mark ? pct(value, digits) : brief(value));
const axis = (name, mark = D.unit.mark) => (mark ? `${name},${mark}` : name); // "accuracy, %"
const points = (text) => (D.unit.mark ? `${text} points` : text);
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const noun = D.unit.name, Noun = capital(noun); // of a score: "accuracy"
const better = D.unit.lower ? -1 : 1; // which way
const figure = (value) => (D.unit.mark ? fixed(value) : brief(value)); // of a strategy, with the table's digits
const worstWords = () => `worst ${brief(100 * D.share)} %`;
function band() { // all percent, or what other scores span
  if (D.unit.mark) return [0, 100];
  const all = D.runs.flatMap((run) => [...(final(run) || [])]).filter(Number.isFinite);
  const low = all.reduce((a, b) => Math.min(a, b), Infinity), high = all.reduce((a, b) => Math.max(a, b), -Infinity);
  return low < high ? [low, high] : Number.isFinite(low) ? [low - 0.5, low + 0.5] : [0, 1];
}
function cases(runs, count) { // what is counted: clients, under several seeds
  const seeds = new Set(runs.map(placeOf)).size;
  return seeds > 1 ? `${count} (${brief(count / seeds)} clients x ${seeds} seeds)` : plural(count, "client");
}
const MANY = 12; // strategies; of more, those to look at first are drawn thick
function leading(list) { // all of a few; of many the reference, the one slid to, and those that none beats in both
  if (list.length <= MANY) return new Set(list);
  const at = list.map((k) => ({ k, row: current().rows.find((row) => row.label === D.strategies[k].label) })).filter((one) => one.row && one.row.values[0] !== null)
    .map(({ k, row }) => ({ k, variance: row.values[0], score: better * row.values[1] }));
  const beats = (b, a) => b.variance <= a.variance && b.score >= a.score && (b.variance < a.variance || b.score > a.score);
  return new Set([D.reference, state.to, ...at.filter((a) => !at.some((b) => beats(b, a))).map((one) => one.k)]);
}
const lacking = (what) => (D.live.length && $("#sites") ? "Sites have not told it yet." : D.live.length ? "Figures by client come with the first checkpoint of a run." : `These results hold no ${what}.`);
const needClients = () => lacking("figures by client");
