"use strict";
// Draws the page's figures from its data block. Text of runs and clients only ever becomes
// textContent or an attribute; nothing here builds markup from strings.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const $ = (query, at = document) => at.querySelector(query);
  const $$ = (query, at = document) => [...at.querySelectorAll(query)];
  const read = (from) => JSON.parse($("#data", from).textContent);
  let D = read(document);
  const state = {
    model: "deployed", at: "last", sort: null, hidden: new Set(), against: "variance",
    run: null, gain: null, gainSeed: "all", place: null, client: null, labels: null,
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
  const fixed = (value, digits = 1) => (Number.isFinite(value) ? value.toFixed(digits) : "–");
  const signed = (value, digits = 1) => (value > 0 ? "+" : value < 0 ? "−" : "±") + Math.abs(value).toFixed(digits);
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const plural = (count, word) => `${count.toLocaleString("en-GB")} ${word}${count === 1 ? "" : "s"}`;
  function brief(value) {
    if (!Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(1);
    return String(Number(value.toPrecision(size >= 1000 ? 4 : 3)));
  }
  function squeeze(text, most) {
    if (text.length <= most) return text;
    const front = Math.ceil((most - 1) * 0.45);
    return text.slice(0, front) + "…" + text.slice(text.length - (most - 1 - front));
  }
  function say(text) { $("#say").textContent = text; }

  // ---- data ----------------------------------------------------------------------------------
  function unpack(table) { // 32-bit numbers, or 16-bit steps between low and high; 65535 is "none"
    if (!table) return null;
    if (!table.values) {
      const raw = Uint8Array.from(atob(table.data), (c) => c.charCodeAt(0)), look = new DataView(raw.buffer);
      if (table.span === undefined) {
        table.values = Float32Array.from({ length: raw.length / 4 }, (_, i) => look.getFloat32(4 * i, true));
      } else {
        table.values = Float32Array.from({ length: raw.length / 2 }, (_, i) => {
          const step = look.getUint16(2 * i, true);
          return step === 65535 ? NaN : table.low + (table.span * step) / 65534;
        });
      }
      table.data = null;
    }
    return table.values;
  }
  const label = (run) => D.strategies[run.strategy].label;
  const shown = () => D.runs.filter((run) => !state.hidden.has(run.strategy));
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
  const clientId = (run, i) => (run.client ? run.client[i] : i);
  function clientName(run, i) {
    const own = D.folders[run.folder].clients[i], left = run.final && Number.isNaN(final(run)[i]);
    return (own === undefined ? `client ${clientId(run, i)}` : own) + (left ? " (not in the figures)" : "");
  }
  const final = (run) => unpack(run.final && run.final[state.model]);
  const color = (k) => `var(--s${D.strategies[k].hue})`;
  const DASHES = [null, "7 4", "2 3", "9 3 2 3", "5 2 2 2 2 2"];
  const dash = (k) => DASHES[D.strategies[k].variant % 5];
  const PATHS = [ // by hue as figures.MARKERS, within a radius of 1: o s ^ p P X D v < >
    null, "-.9 -.9 .9 -.9 .9 .9 -.9 .9", "0 -1.15 1.1 .8 -1.1 .8",
    "0 -1.15 1.1 -.35 .7 .95 -.7 .95 -1.1 -.35",
    "-1 -.4 -.4 -.4 -.4 -1 .4 -1 .4 -.4 1 -.4 1 .4 .4 .4 .4 1 -.4 1 -.4 .4 -1 .4",
    "-.6 -1.1 0 -.5 .6 -1.1 1.1 -.6 .5 0 1.1 .6 .6 1.1 0 .5 -.6 1.1 -1.1 .6 -.5 0 -1.1 -.6",
    "0 -1.3 1.2 0 0 1.3 -1.2 0", "0 1.15 1.1 -.8 -1.1 -.8", "-1.15 0 .8 -1.1 .8 1.1", "1.15 0 -.8 -1.1 -.8 1.1",
  ];
  function mark(k, x, y, r, attributes) { // shape repeats what colour says, an open one is a variant
    const path = PATHS[D.strategies[k].hue], open = D.strategies[k].variant % 2;
    const at = { fill: open ? "var(--paper)" : color(k), ...(open ? { stroke: color(k), "stroke-width": 1.5 } : {}), ...attributes };
    if (!path) return s("circle", { cx: x, cy: y, r, ...at });
    const points = path.split(" ").map((value, i) => (i % 2 ? y : x) + r * value).join(" ");
    return s("polygon", { points, ...at });
  }
  const swatch = (k) => s("svg", { width: 12, height: 12, "aria-hidden": "true" }, mark(k, 6, 6, 4.6));

  // ---- chart frame ---------------------------------------------------------------------------
  function ticks(low, high, count, whole) {
    const span = high - low || 1, rough = Math.max(span / Math.max(1, count), whole ? 1 : 0);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].find((m) => m * power >= rough * 0.999 && !(whole && m * power % 1)) * power;
    const out = [];
    for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) {
      out.push(Math.abs(v) < step * 1e-9 ? 0 : Number(v.toPrecision(12)));
    }
    return out;
  }
  function extent(values, { zero = false, pad = 0.06 } = {}) {
    let low = Infinity, high = -Infinity;
    for (const v of values) if (Number.isFinite(v)) { if (v < low) low = v; if (v > high) high = v; }
    if (low === Infinity || (zero && low === 0 && high === 0)) return [0, 1];
    if (zero) { low = Math.min(0, low); high = Math.max(0, high); }
    const room = (high - low || Math.abs(high) || 1) * pad;
    return [zero && low === 0 ? 0 : low - room, zero && high === 0 ? 0 : high + room];
  }
  function frame(host, o) {
    const W = Math.max(260, Math.round(host.clientWidth || 600)), H = o.height || 280;
    const m = { top: o.ylabel ? 26 : 10, right: 16, bottom: 40, left: 46, ...(o.margin || {}) };
    const svg = s("svg", { viewBox: `0 0 ${W} ${H}`, width: W, height: H, role: "presentation" });
    const [x0, x1] = o.x, [y0, y1] = o.y, right = W - m.right, bottom = H - m.bottom;
    const X = (v) => m.left + ((v - x0) / (x1 - x0 || 1)) * (right - m.left);
    const Y = (v) => bottom - ((v - y0) / (y1 - y0 || 1)) * (bottom - m.top);
    const back = s("g", {});
    if (!o.noY) {
      for (const v of ticks(y0, y1, Math.max(2, Math.round((bottom - m.top) / 52)))) {
        back.append(s("line", { class: "grid", x1: m.left, x2: right, y1: Y(v), y2: Y(v) }));
        back.append(s("text", { x: m.left - 10, y: Y(v) + 4, "text-anchor": "end" }, (o.fy || brief)(v)));
      }
    }
    if (!o.noX) {
      const every = o.xt || ticks(x0, x1, Math.max(2, Math.min(8, Math.round((right - m.left) / 70))), o.whole);
      back.append(s("line", { class: "axis", x1: m.left, x2: right, y1: bottom, y2: bottom }));
      for (const v of every) back.append(s("text", { x: X(v), y: bottom + 18, "text-anchor": "middle" }, (o.fx || brief)(v)));
    }
    if (o.ylabel) back.append(s("text", { x: o.noY ? 0 : m.left - 10, y: 11, "text-anchor": o.noY ? "start" : "start", dx: o.noY ? 0 : -m.left + 10 }, o.ylabel));
    if (o.xlabel) back.append(s("text", { x: right, y: H - 4, "text-anchor": "end" }, o.xlabel));
    svg.append(back);
    host.replaceChildren(svg);
    return { svg, X, Y, W, H, m, right, bottom, invX: (px) => x0 + ((px - m.left) / (right - m.left || 1)) * (x1 - x0) };
  }
  function empty(host, text) {
    host.replaceChildren(h("p", { class: "empty" }, text));
    host.removeAttribute("tabindex"); host.removeAttribute("role"); host.removeAttribute("aria-label");
    host.onkeydown = null;
    return { rows: () => [["note"], [text]] };
  }
  // One way to point at things: mouse, touch and arrow keys all end in show(key).
  function interact(host, svg, summary, { find, move, show, go }) {
    const layer = s("g", { "pointer-events": "none" });
    svg.append(layer);
    let key = null;
    const tip = $("#tip");
    function clear() { layer.replaceChildren(); tip.hidden = true; key = null; }
    function point(next, quiet) {
      if (next === null || next === undefined) { clear(); return; }
      key = next;
      const seen = show(key);
      layer.replaceChildren(...(seen.marks || []));
      tip.replaceChildren(h("b", {}, seen.title), ...seen.rows.map(([k, name, value]) =>
        h("div", {}, k === null ? "" : swatch(k), h("span", {}, name), h("span", {}, value))));
      tip.hidden = false;
      const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
      const px = box.left + seen.x * scale, py = box.top + seen.y * scale, own = tip.getBoundingClientRect();
      const left = px + 16 + own.width > innerWidth - 8 ? px - own.width - 16 : px + 16;
      tip.style.left = `${clamp(left, 8, Math.max(8, innerWidth - own.width - 8))}px`;
      tip.style.top = `${clamp(py - own.height - 12, 60, Math.max(60, innerHeight - own.height - 8))}px`;
      if (!quiet) say(`${seen.title}: ${seen.rows.map(([, name, value]) => `${name} ${value}`).join(", ")}`);
    }
    const where = (event) => {
      const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
      return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    };
    svg.addEventListener("pointermove", (event) => point(find(...where(event)), true));
    svg.addEventListener("pointerleave", clear);
    svg.addEventListener("click", (event) => { const at = find(...where(event)); if (at !== null && go) go(at); });
    if (go) svg.classList.add("click");
    host.setAttribute("tabindex", "0");
    host.setAttribute("role", "application");
    host.setAttribute("aria-roledescription", "chart");
    host.setAttribute("aria-label", `${summary}. Arrow keys read values${go ? ", Enter opens the client" : ""}.`);
    host.onkeydown = (event) => {
      const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1], Home: [-1e9, 0], End: [1e9, 0] }[event.key];
      if (step) { event.preventDefault(); point(move(key, ...step)); }
      else if (event.key === "Enter" && key !== null && go) { event.preventDefault(); go(key); }
      else if (event.key === "Escape") clear();
    };
    host.onblur = clear;
  }

  // ---- lines with bands ----------------------------------------------------------------------
  function spread(items, gap, low, high) { // labels that do not overlap
    items.sort((a, b) => a.y - b.y);
    for (let i = 0; i < items.length; i++) items[i].at = Math.max(items[i].y, i ? items[i - 1].at + gap : low);
    const over = items.length ? items[items.length - 1].at - high : 0;
    if (over > 0) for (let i = items.length - 1, limit = high; i >= 0; i--) { items[i].at = Math.min(items[i].at, limit); limit = items[i].at - gap; }
    return items;
  }
  function lines(host, o) {
    const series = o.series.filter((one) => one.ys.some(Number.isFinite));
    if (!series.length) return empty(host, o.none || "Nothing recorded yet.");
    const width = host.clientWidth || 600, direct = o.labels !== false && width > 330 && series.length <= 12;
    const most = Math.max(8, Math.min(22, Math.floor(width / 26)));
    const names = series.map((one) => squeeze(one.name, most));
    const room = direct ? Math.min(160, 14 + 7.1 * Math.max(...names.map((n) => n.length))) : 14;
    const xs = o.xs || [...new Set(series.flatMap((one) => one.xs))].sort((a, b) => a - b);
    const all = series.flatMap((one) => [...one.ys, ...(one.low || []), ...(one.high || [])]);
    if (o.rule) all.push(o.rule.y);
    const f = frame(host, {
      height: o.height || 260, x: [xs[0], xs[xs.length - 1]], y: o.y || extent(all, { zero: o.zero }),
      margin: { right: room, left: o.left || 46 }, xlabel: o.xlabel || "round", ylabel: o.ylabel, fy: o.fy, fx: o.fx, whole: !o.xlabel,
    });
    const value = (one, x) => { // the value at x, or none
      if (o.step) { let at = -1; for (let i = 0; i < one.xs.length && one.xs[i] <= x; i++) at = i; return at < 0 ? 0 : one.ys[at]; }
      const at = one.xs.indexOf(x);
      return at < 0 ? NaN : one.ys[at];
    };
    for (const one of series) {
      if (!one.low || one.runs < 2) continue;
      const up = one.xs.map((x, i) => `${f.X(x).toFixed(1)} ${f.Y(one.high[i]).toFixed(1)}`);
      const down = one.xs.map((x, i) => `${f.X(x).toFixed(1)} ${f.Y(one.low[i]).toFixed(1)}`).reverse();
      f.svg.append(s("path", { d: `M${[...up, ...down].join("L")}Z`, fill: color(one.k), "fill-opacity": 0.08 }));
    }
    if (o.rule) {
      f.svg.append(s("line", { class: "axis", "stroke-dasharray": "2 4", x1: f.m.left, x2: f.right, y1: f.Y(o.rule.y), y2: f.Y(o.rule.y) }));
      f.svg.append(s("text", { x: f.m.left + 4, y: f.Y(o.rule.y) - 6 }, o.rule.text));
    }
    for (const one of series) {
      let d = "", pen = false, before = null;
      one.xs.forEach((x, i) => {
        const y = one.ys[i];
        if (!Number.isFinite(y)) { pen = false; return; }
        const px = f.X(x).toFixed(1), py = f.Y(y).toFixed(1);
        d += !pen ? `M${px} ${o.step ? f.Y(0).toFixed(1) + `V${py}` : py}` : o.step ? `H${px}V${py}` : `L${px} ${py}`;
        pen = true; before = px;
      });
      if (o.step) d += `H${f.right}`;
      f.svg.append(s("path", { d, fill: "none", stroke: color(one.k), "stroke-width": one.k === D.reference ? 1.75 : 2, "stroke-linejoin": "round", "stroke-dasharray": dash(one.k) }));
      if (one.xs.length === 1 && before !== null) f.svg.append(mark(one.k, f.X(one.xs[0]), f.Y(one.ys[0]), 4));
    }
    if (direct) {
      const ends = series.map((one, i) => {
        const last = o.step ? one.ys.length - 1 : one.ys.findLastIndex(Number.isFinite);
        return { one, name: names[i], y: o.step ? NaN : f.Y(one.ys[last]) };
      });
      if (!o.step) {
        for (const end of spread(ends, 15, f.m.top, f.bottom)) {
          f.svg.append(s("text", { class: "name", x: f.right + 8, y: end.at + 4, style: null, fill: color(end.one.k) }, end.name));
        }
      } else { // steps all end at 1: name them at the middle of their rise, on the right
        ends.forEach((end, i) => f.svg.append(s("text", { class: "name", x: f.right + 8, y: f.m.top + 16 + 16 * i, fill: color(end.one.k) }, end.name)));
      }
    }
    $$("text.name", f.svg).forEach((node) => { node.style.fill = node.getAttribute("fill"); });
    interact(host, f.svg, `${o.title}: ${series.map((one) => `${one.name} ends at ${(o.fmt || brief)(one.ys[one.ys.findLastIndex(Number.isFinite)])}`).join(", ")}`, {
      find: (px) => nearest(xs, f.invX(px)),
      move: (key, dx) => (key === null ? (dx < 0 ? 0 : xs.length - 1) : clamp(key + dx, 0, xs.length - 1)),
      show: (key) => {
        const x = xs[key], seen = series.map((one) => [one, value(one, x)]).filter(([, y]) => Number.isFinite(y));
        if (!o.step) seen.sort((a, b) => b[1] - a[1]);
        return {
          x: f.X(x), y: seen.length ? Math.min(...seen.map(([, y]) => f.Y(y))) : f.m.top,
          title: o.titleOf ? o.titleOf(x) : `round ${x}`,
          rows: seen.map(([one, y]) => [one.k, one.name, (o.fmt || brief)(y) + spanOf(one, x, o)]),
          marks: [s("line", { class: "cursor", x1: f.X(x), x2: f.X(x), y1: f.m.top, y2: f.bottom }), ...seen.map(([one, y]) => mark(one.k, f.X(x), f.Y(y), 4))],
        };
      },
    });
    return {
      rows: () => [[o.xname || "round", "strategy", o.unit || "value", ...(series.some((one) => one.low) ? ["lowest seed", "highest seed"] : [])],
        ...series.flatMap((one) => one.xs.map((x, i) => [x, one.name, one.ys[i], ...(one.low ? [one.low[i], one.high[i]] : [])]))],
    };
  }
  function spanOf(one, x, o) {
    const at = one.low && one.runs > 1 ? one.xs.indexOf(x) : -1;
    return at < 0 ? "" : ` (${(o.fmt || brief)(one.low[at])} to ${(o.fmt || brief)(one.high[at])})`;
  }
  function nearest(xs, x) {
    let best = 0;
    for (let i = 1; i < xs.length; i++) if (Math.abs(xs[i] - x) < Math.abs(xs[best] - x)) best = i;
    return best;
  }
  function overSeeds(k, name, curves) { // curves: [[xs, ys], ...] of one strategy's seeds
    const at = new Map();
    for (const [xs, ys] of curves) xs.forEach((x, i) => {
      if (ys[i] === null || !Number.isFinite(ys[i])) return;
      if (!at.has(x)) at.set(x, []);
      at.get(x).push(ys[i]);
    });
    const xs = [...at.keys()].sort((a, b) => a - b);
    return {
      k, name, xs, runs: curves.length, ys: xs.map((x) => mean(at.get(x))),
      low: xs.map((x) => Math.min(...at.get(x))), high: xs.map((x) => Math.max(...at.get(x))),
    };
  }

  // ---- the figures ---------------------------------------------------------------------------
  const pct = (value, digits = 1) => `${fixed(value, digits)}\u00a0%`;
  const score = (value, digits) => (D.unit.mark ? pct(value, digits) : brief(value));
  const scaled = (share) => D.unit.scale * share;
  const noun = D.unit.name, Noun = noun[0].toUpperCase() + noun.slice(1); // of a score: "accuracy"
  const better = D.unit.lower ? -1 : 1; // which way
  const axis = (name, mark = D.unit.mark) => (mark ? `${name},${mark}` : name); // "accuracy, %"
  const points = (text) => (D.unit.mark ? `${text} points` : text);
  function band() { // all percent, or what other scores span
    if (D.unit.mark) return [0, 100];
    const all = D.runs.flatMap((run) => [...(final(run) || [])]).filter(Number.isFinite).map(scaled);
    const low = all.reduce((a, b) => Math.min(a, b), Infinity), high = all.reduce((a, b) => Math.max(a, b), -Infinity);
    return low < high ? [low, high] : Number.isFinite(low) ? [low - 0.5, low + 0.5] : [0, 1];
  }
  const open = (run, i) => {
    state.place = `${run.folder}.${run.seed}`; state.client = i;
    redraw("client"); controls();
    $("#client").scrollIntoView({ block: "start" });
    $("#client-which").focus({ preventScroll: true });
    say(`${clientName(run, i)}, seed ${run.seed}, opened below`);
  };
  const needClients = "Figures by client come with the first checkpoint of a run.";

  const draw = {
    dots(host) {
      const groups = byStrategy(shown().filter((run) => run.final));
      if (!groups.length) return empty(host, needClients);
      const total = Math.max(...groups.map((g) => g.runs.reduce((n, run) => n + final(run).length, 0)));
      const lane = clamp(26 + total * 0.28, 44, 86), [low, high] = band();
      const narrow = (host.clientWidth || 600) < 520, most = narrow ? 40 : 24;
      const left = narrow ? 4 : Math.min(176, 20 + 7.1 * Math.max(...groups.map((g) => Math.min(most, g.name.length))));
      const head = narrow ? 18 : 0;
      const f = frame(host, { height: groups.length * (lane + head) + 58, x: [low, high], y: [0, 1], noY: true, margin: { left, top: 8, right: 12 }, xlabel: axis(noun) });
      const marks = [], r = clamp(4.4 - total / 250, 1.8, 3.6);
      groups.forEach((group, row) => {
        const base = 8 + head + row * (lane + head) + lane - 8;
        f.svg.append(s("line", { class: "grid", x1: f.m.left, x2: f.right, y1: base + 5, y2: base + 5 }));
        const title = s("text", { class: "name", x: narrow ? f.m.left : left - 16, y: narrow ? base - lane + 12 : base - 2, "text-anchor": narrow ? "start" : "end" }, squeeze(group.name, most));
        title.style.fill = color(group.k);
        f.svg.append(title);
        const columns = new Map(), own = [];
        for (const run of group.runs) final(run).forEach((v, i) => { if (Number.isFinite(v)) own.push({ run, i, k: group.k, v: scaled(v) }); });
        own.sort((a, b) => a.v - b.v);
        for (const one of own) {
          const column = Math.round(f.X(one.v) / (2 * r + 0.6));
          one.n = columns.get(column) || 0; columns.set(column, one.n + 1);
          one.x = column * (2 * r + 0.6);
        }
        const rise = Math.min(2 * r + 0.4, (lane - 18) / Math.max(1, ...columns.values()));
        for (const one of own) { one.y = base - r - one.n * rise; marks.push(one); }
        const center = mean(own.map((one) => one.v));
        f.svg.append(...own.map((one) => s("circle", { cx: one.x, cy: one.y, r, fill: color(one.k), "fill-opacity": 0.72 })));
        f.svg.append(s("line", { x1: f.X(center), x2: f.X(center), y1: base + 1, y2: base + 10, stroke: "var(--ink)", "stroke-width": 2 }));
      });
      interact(host, f.svg, `${Noun} of every client, ${plural(groups.length, "strategy").replace("strategys", "strategies")}`, {
        find: (px, py) => { let best = null, near = 22 ** 2; marks.forEach((one, i) => { const d = (one.x - px) ** 2 + (one.y - py) ** 2; if (d < near) { near = d; best = i; } }); return best; },
        move: (key, dx, dy) => {
          if (key === null) return 0;
          if (!dy) return clamp(key + dx, 0, marks.length - 1);
          const now = marks[key], next = marks.findIndex((one) => one.k === groups[clamp(groups.findIndex((g) => g.k === now.k) - dy, 0, groups.length - 1)].k);
          return next < 0 ? key : next;
        },
        show: (key) => {
          const one = marks[key], twins = marks.filter((other) => other.i === one.i && other.run.folder === one.run.folder && other.run.seed === one.run.seed);
          return {
            x: one.x, y: one.y, title: `${clientName(one.run, one.i)}, seed ${one.run.seed}`,
            rows: twins.map((twin) => [twin.k, label(twin.run), score(twin.v)]),
            marks: twins.map((twin) => s("circle", { cx: twin.x, cy: twin.y, r: r + 2, fill: color(twin.k), stroke: "var(--ink)", "stroke-width": 1.5 })),
          };
        },
        go: (key) => open(marks[key].run, marks[key].i),
      });
      return { rows: () => [["strategy", "seed", "client", `${noun}${D.unit.mark}`], ...marks.map((one) => [label(one.run), one.run.seed, clientName(one.run, one.i), one.v.toFixed(3)])] };
    },

    hist(host) {
      const groups = byStrategy(shown().filter((run) => run.final));
      if (!groups.length) return empty(host, needClients);
      const [low, high] = band(), count = 20, step = (high - low) / count;
      const bins = groups.map((group) => {
        const seen = new Array(count).fill(0); let all = 0;
        for (const run of group.runs) for (const v of final(run)) if (Number.isFinite(v)) { seen[clamp(Math.floor((scaled(v) - low) / step + 1e-6), 0, count - 1)]++; all++; }
        return { ...group, seen, share: seen.map((n) => (100 * n) / all), all };
      });
      const f = frame(host, { height: 280, x: [low, high], y: [0, 1.08 * Math.max(...bins.flatMap((b) => b.share))], xlabel: axis(noun), ylabel: "share of clients, %" });
      bins.forEach((one, row) => { // edges a little apart, so that none hides another
        const shift = Math.min(1.8, 9 / bins.length) * (row - (bins.length - 1) / 2);
        let d = `M${f.X(low) + shift} ${f.bottom}`;
        one.share.forEach((v, i) => { d += `V${f.Y(v).toFixed(1)}H${(f.X(low + (i + 1) * step) + shift).toFixed(1)}`; });
        d += `V${f.bottom}`;
        f.svg.append(s("path", { d, fill: bins.length > 3 ? "none" : color(one.k), "fill-opacity": 0.07, stroke: color(one.k), "stroke-width": 1.75, "stroke-linejoin": "round", "stroke-dasharray": dash(one.k) }));
      });
      interact(host, f.svg, `Histogram of client ${noun}`, {
        find: (px) => clamp(Math.floor((f.invX(px) - low) / step), 0, count - 1),
        move: (key, dx) => (key === null ? 0 : clamp(key + dx, 0, count - 1)),
        show: (key) => ({
          x: f.X(low + (key + 0.5) * step), y: Math.min(...bins.map((b) => f.Y(b.share[key]))),
          title: `${brief(low + key * step)} to ${brief(low + (key + 1) * step)}${D.unit.mark}`,
          rows: bins.map((b) => [b.k, b.name, `${b.seen[key]} of ${b.all}`]),
          marks: [s("rect", { x: f.X(low + key * step), width: f.X(low + (key + 1) * step) - f.X(low + key * step), y: f.m.top, height: f.bottom - f.m.top, fill: "var(--ink)", "fill-opacity": 0.05 })],
        }),
      });
      return { rows: () => [["strategy", `from${D.unit.mark}`, `to${D.unit.mark}`, "clients", "of"], ...bins.flatMap((b) => b.seen.map((n, i) => [b.name, low + i * step, low + (i + 1) * step, n, b.all]))] };
    },

    ecdf(host) {
      const groups = byStrategy(shown().filter((run) => run.final));
      if (!groups.length) return empty(host, needClients);
      const [low, high] = band();
      const series = groups.map((group) => {
        const all = group.runs.flatMap((run) => [...final(run)]).filter(Number.isFinite).map(scaled).sort((a, b) => a - b);
        return { k: group.k, name: group.name, xs: all, ys: all.map((_, i) => (100 * (i + 1)) / all.length) };
      });
      const grid = Array.from({ length: 101 }, (_, i) => low + ((high - low) * i) / 100);
      return lines(host, {
        title: `Share of clients at or below a value of ${noun}`, series, xs: grid, step: true, height: 280, y: [0, 100], labels: false,
        xlabel: axis(noun), ylabel: "share of clients, %", xname: `${noun}${D.unit.mark}`, unit: "share of clients %", fmt: (v) => pct(v, 0), titleOf: (x) => `at or below ${brief(x)}${D.unit.mark}`,
      });
    },

    tradeoff(host) {
      const key = state.against, sign = key === "variance" ? -1 : better;
      const dots = shown().filter((run) => run.fair.round.length && !run.diverged).map((run) => {
        const at = run.fair[state.model];
        return { run, k: run.strategy, x: at[key].at(-1), y: at.accuracy.at(-1) };
      }).filter((one) => Number.isFinite(one.x) && Number.isFinite(one.y) && one.x !== null);
      if (!dots.length) return empty(host, "No run has been evaluated yet.");
      const means = byStrategy().map((group) => {
        const own = dots.filter((one) => one.k === group.k);
        return own.length ? { k: group.k, name: group.name, x: mean(own.map((o) => o.x)), y: mean(own.map((o) => o.y)), seeds: own.length } : null;
      }).filter(Boolean);
      const f = frame(host, {
        height: 400, x: extent(dots.map((o) => o.x), { pad: 0.12 }), y: extent(dots.map((o) => o.y), { pad: 0.14 }), margin: { right: 24 },
        xlabel: key === "variance" ? axis("variance over clients", D.unit.square) : axis(`worst ${brief(100 * D.share)} % of clients`), ylabel: axis(`mean ${noun}`),
      });
      const left = sign < 0, arrow = better > 0 ? (left ? "↖" : "↗") : left ? "↙" : "↘";
      f.svg.append(s("text", { x: left ? f.m.left + 10 : f.right - 4, y: better > 0 ? f.m.top + 14 : f.bottom - 8, "text-anchor": left ? "start" : "end", "fill-opacity": 0.8 }, left ? `${arrow} fairer and better` : `fairer and better ${arrow}`));
      const front = means.filter((a) => !means.some((b) => b !== a && sign * b.x >= sign * a.x && better * b.y >= better * a.y && (sign * b.x > sign * a.x || better * b.y > better * a.y))).sort((a, b) => a.x - b.x);
      if (front.length > 1) f.svg.append(s("path", { d: "M" + front.map((o) => `${f.X(o.x)} ${f.Y(o.y)}`).join("L"), fill: "none", stroke: "var(--faint)", "stroke-width": 1.25, "stroke-dasharray": "3 4" }));
      for (const one of dots) {
        const to = means.find((m) => m.k === one.k);
        f.svg.append(s("line", { x1: f.X(one.x), y1: f.Y(one.y), x2: f.X(to.x), y2: f.Y(to.y), stroke: color(one.k), "stroke-opacity": 0.28 }));
      }
      f.svg.append(...dots.map((one) => mark(one.k, f.X(one.x), f.Y(one.y), 4.5, { "fill-opacity": 0.85 })));
      const boxes = [];
      for (const one of means) {
        f.svg.append(s("circle", { cx: f.X(one.x), cy: f.Y(one.y), r: 9, fill: "var(--paper)", "fill-opacity": 0.6, stroke: color(one.k), "stroke-width": 2.5 }));
        const text = squeeze(one.name, 26), wide = 7.2 * text.length, x = f.X(one.x), y = f.Y(one.y);
        const tries = [[14, 4, "start"], [-14, 4, "end"], [0, -16, "middle"], [0, 24, "middle"], [14, -12, "start"], [14, 20, "start"], [-14, -12, "end"], [-14, 20, "end"]];
        const free = tries.map(([dx, dy, anchor]) => {
          const l = x + dx - (anchor === "end" ? wide : anchor === "middle" ? wide / 2 : 0);
          const box = [l, y + dy - 12, l + wide, y + dy + 4];
          let cost = (l < 0 || l + wide > f.W ? 50 : 0) + (box[1] < f.m.top || box[3] > f.bottom ? 20 : 0);
          for (const b of boxes) if (box[0] < b[2] && box[2] > b[0] && box[1] < b[3] && box[3] > b[1]) cost += 30;
          for (const d of [...dots, ...means.filter((m) => m !== one)]) { const u = f.X(d.x), v = f.Y(d.y); if (u > box[0] - 7 && u < box[2] + 7 && v > box[1] - 7 && v < box[3] + 7) cost += 5; }
          return { cost, dx, dy, anchor, box };
        }).reduce((a, b) => (b.cost < a.cost ? b : a));
        boxes.push(free.box);
        const node = s("text", { class: "name", x: x + free.dx, y: y + free.dy, "text-anchor": free.anchor }, text);
        node.style.fill = color(one.k);
        f.svg.append(node);
      }
      const marks = [...dots, ...means];
      const unit = (v) => (key === "variance" ? `${fixed(v, 1)}${D.unit.square}` : score(v));
      interact(host, f.svg, `Mean ${noun} against fairness of every run`, {
        find: (px, py) => { let best = null, near = 26 ** 2; marks.forEach((one, i) => { const d = (f.X(one.x) - px) ** 2 + (f.Y(one.y) - py) ** 2; if (d < near) { near = d; best = i; } }); return best; },
        move: (at, dx) => (at === null ? 0 : clamp(at + dx, 0, marks.length - 1)),
        show: (at) => {
          const one = marks[at];
          return {
            x: f.X(one.x), y: f.Y(one.y), title: one.run ? `${label(one.run)}, seed ${one.run.seed}` : `${one.name}, mean of ${plural(one.seeds, "seed")}`,
            rows: [[null, `mean ${noun}`, score(one.y, 2)], [null, key === "variance" ? "variance" : "worst", unit(one.x)]],
            marks: [s("circle", { cx: f.X(one.x), cy: f.Y(one.y), r: 12, fill: "none", stroke: "var(--ink)", "stroke-width": 1.5 })],
          };
        },
      });
      return { rows: () => [["strategy", "seed", key, `mean ${noun}${D.unit.mark}`], ...dots.map((o) => [label(o.run), o.run.seed, o.x, o.y]), ...means.map((o) => [o.name, "mean", o.x, o.y])] };
    },

    ...Object.fromEntries(["variance", "accuracy", "worst", "best"].map((name) => [name, (host) => lines(host, {
      title: { variance: "Variance over clients", accuracy: `Mean ${noun}`, worst: "Worst clients", best: "Best clients" }[name],
      series: byStrategy().map((g) => overSeeds(g.k, g.name, g.runs.map((run) => [run.fair.round, run.fair[state.model][name]]))),
      unit: name === "variance" ? `variance${D.unit.square}` : `${noun}${D.unit.mark}`, fmt: name === "variance" ? (v) => fixed(v, 1) : (v) => score(v), zero: name === "variance",
      none: "No run has been evaluated yet.",
    })])),

    heat(host) {
      const run = D.runs[state.run];
      const weights = run && unpack(run.weight);
      if (!weights) return empty(host, needClients);
      const [rows, clients] = run.weight.shape;
      const cell = (c, t) => weights[t * clients + c];
      const equal = run.rounds.map((_, t) => { let m = 0; for (let c = 0; c < clients; c++) if (!Number.isNaN(cell(c, t))) m++; return m ? 1 / (m * (run.n / clients)) : 1; });
      const value = (c, t) => cell(c, t) / equal[t];
      return matrix(host, {
        nx: rows, ny: clients, value, height: clamp(clients * 9, 180, 420), xs: run.rounds, xlabel: "round", ylabel: "client",
        yname: (c) => clientName(run, c), xname: (t) => `round ${run.rounds[t]}`, yt: (c) => String(clientId(run, c)), left: 46,
        fmt: (v) => `${fixed(v, 2)} ×`, legend: (v) => `${brief(v)} ×`, none: "took no part",
        extra: (c, t) => [[null, "weight", Number.isNaN(cell(c, t)) ? "–" : cell(c, t).toPrecision(3)]], rowName: "weight / equal share",
        title: `Weights of ${label(run)}, seed ${run.seed}`, go: (c) => open(run, c),
        table: () => [["round", ...Array.from({ length: clients }, (_, c) => clientName(run, c))], ...run.rounds.map((t, i) => [t, ...Array.from({ length: clients }, (_, c) => (Number.isNaN(cell(c, i)) ? "" : cell(c, i).toPrecision(5)))])],
      });
    },
    effective: (host) => info(host, (run) => run.info.effective, "Effective number of clients", "No weights yet."),

    gains(host) {
      const pairs = gainPairs();
      if (!pairs.length) return empty(host, D.strategies.length < 2 ? "One strategy alone gains and loses nothing: run another beside it." : needClients);
      const bars = pairs.flatMap(({ run, base }) => [...final(run)].map((v, i) => ({ run, base, i, then: scaled(final(base)[i]), now: scaled(v) })))
        .filter((one) => Number.isFinite(one.now - one.then)).sort((a, b) => better * (a.then - b.then || a.now - b.now));
      bars.forEach((one) => { one.d = one.now - one.then; });
      const f = frame(host, { height: 320, x: [0, bars.length], y: extent(bars.map((b) => b.d), { zero: true, pad: 0.1 }), noX: true, margin: { bottom: 40 }, ylabel: D.unit.mark ? `points of ${noun}` : `change of ${noun}`, fy: (v) => (v > 0 ? `+${brief(v)}` : brief(v).replace("-", "−")) });
      const wide = f.X(1) - f.X(0), gap = wide > 5 ? Math.min(3, wide * 0.22) : 0;
      const zero = f.Y(0);
      bars.forEach((one, i) => {
        one.x = f.X(i) + gap / 2;
        const y = f.Y(Math.max(0, one.d)), tall = Math.max(1, Math.abs(f.Y(one.d) - zero));
        f.svg.append(s("rect", { x: one.x, width: Math.max(0.5, wide - gap), y: one.d < 0 ? zero : y, height: tall, rx: wide > 8 ? 1.5 : 0, fill: better * one.d >= 0 ? "var(--gain)" : "var(--loss)" }));
      });
      f.svg.append(s("line", { class: "axis", x1: f.m.left, x2: f.right, y1: zero, y2: zero }));
      f.svg.append(s("text", { x: f.m.left, y: f.H - 8 }, `← served worst by ${squeeze(D.strategies[D.reference].label, 24)}`), s("text", { x: f.right, y: f.H - 8, "text-anchor": "end" }, "served best →"));
      interact(host, f.svg, $("#gains-text").textContent, {
        find: (px) => { const i = Math.floor(f.invX(px)); return i >= 0 && i < bars.length ? i : null; },
        move: (key, dx) => (key === null ? 0 : clamp(key + dx, 0, bars.length - 1)),
        show: (key) => {
          const one = bars[key];
          return {
            x: one.x + wide / 2, y: f.Y(Math.max(0, one.d)), title: `${clientName(one.run, one.i)}, seed ${one.run.seed}: ${points(signed(one.d))}`,
            rows: [[one.base.strategy, label(one.base), score(one.then)], [one.run.strategy, label(one.run), score(one.now)]],
            marks: [s("rect", { x: one.x - 1, width: wide - gap + 2, y: f.m.top, height: f.bottom - f.m.top, fill: "var(--ink)", "fill-opacity": 0.07 })],
          };
        },
        go: (key) => open(bars[key].run, bars[key].i),
      });
      return { rows: () => [["seed", "client", `${label(bars[0].base)}${D.unit.mark}`, `${label(bars[0].run)}${D.unit.mark}`, "difference"], ...bars.map((o) => [o.run.seed, clientName(o.run, o.i), o.then.toFixed(3), o.now.toFixed(3), o.d.toFixed(3)])] };
    },

    "client-accuracy": (host) => oneClient(host, "accuracy", "evaluated", D.unit.scale, { unit: `${noun}${D.unit.mark}`, fmt: (v) => score(v), title: `${Noun} of this client` }),
    "client-weight": (host) => oneClient(host, "weight", "rounds", null, { unit: "multiple of an equal share", fmt: (v) => `${fixed(v, 2)} ×`, title: "Weight of this client", zero: true }),
    "client-loss": (host) => oneClient(host, "loss", "rounds", 1, { unit: "loss", title: "Loss reported by this client", zero: true, none: "No strategy shown here asks for losses." }),
    "client-labels"(host) {
      const at = here();
      const counts = at && at.labels && state.client !== null ? at.labels.slice(state.client * at.classes.length, (state.client + 1) * at.classes.length) : null;
      if (!counts || !counts.length) return empty(host, "Label counts are not stored in this folder.");
      const some = [...counts].map((n, c) => ({ n, c, name: at.classes[c] }));
      const list = some.length > 24 ? some.filter((one) => one.n > 0).sort((a, b) => b.n - a.n).slice(0, 24) : some;
      const left = Math.min(130, 16 + 6.8 * Math.max(...list.map((one) => Math.min(16, one.name.length))));
      const f = frame(host, { height: Math.max(200, 24 + list.length * 22), x: [0, Math.max(...list.map((o) => o.n)) * 1.12 || 1], y: [0, list.length], noX: true, noY: true, margin: { left, top: 4, bottom: 8 } });
      list.forEach((one, i) => {
        const y = f.m.top + (i * (f.bottom - f.m.top)) / list.length, tall = (f.bottom - f.m.top) / list.length;
        f.svg.append(s("text", { x: left - 10, y: y + tall / 2 + 4, "text-anchor": "end" }, squeeze(one.name, 16)));
        if (one.n) f.svg.append(s("rect", { x: left, y: y + tall * 0.2, height: tall * 0.6, width: Math.max(1, f.X(one.n) - left), fill: "var(--s1)", rx: 1.5 }));
        f.svg.append(s("text", { x: f.X(one.n) + 7, y: y + tall / 2 + 4, "fill-opacity": one.n ? 1 : 0.45 }, String(Math.round(one.n))));
      });
      const row = (py) => clamp(Math.floor(((py - f.m.top) / (f.bottom - f.m.top)) * list.length), 0, list.length - 1);
      interact(host, f.svg, "Training examples by class", {
        find: (px, py) => row(py), move: (key, dx, dy) => (key === null ? 0 : clamp(key + dx - dy, 0, list.length - 1)),
        show: (key) => ({ x: f.X(list[key].n), y: f.m.top + ((key + 0.5) * (f.bottom - f.m.top)) / list.length, title: list[key].name, rows: [[null, "training examples", String(Math.round(list[key].n))]] }),
      });
      return { rows: () => [["class", "training examples"], ...some.map((one) => [one.name, Math.round(one.n)])] };
    },

    labels(host) {
      const place = places().find((one) => one.key === state.labels) || places()[0];
      const folder = place && D.folders[place.folder], table = folder && folder.labels[place.seed];
      const text = $("#labels-text");
      if (!table) { text.textContent = ""; return empty(host, "Label counts are not stored in this folder: its targets are no classes, or it was written by an older version, or not by a run."); }
      const counts = unpack(table.counts), [clients, classes] = table.counts.shape, run = place.runs[0];
      const sizes = [], held = [];
      for (let c = 0; c < clients; c++) { const own = counts.slice(c * classes, (c + 1) * classes); sizes.push(Math.round(own.reduce((a, b) => a + b, 0))); held.push(own.filter((n) => n > 0.5).length); }
      const few = Math.min(...held), many = Math.max(...held);
      text.textContent = `${few === many ? `Each client holds ${few}` : `A client holds ${few} to ${many} (${mean(held).toFixed(1)} on average)`} of ${plural(classes, "class").replace("classs", "classes")}, ` +
        `and ${Math.min(...sizes) === Math.max(...sizes) ? plural(sizes[0], "training example") : `${Math.min(...sizes).toLocaleString("en-GB")} to ${Math.max(...sizes).toLocaleString("en-GB")} training examples`}.`;
      const name = (y) => folder.classes[y] === undefined ? String(y) : folder.classes[y];
      const longest = Math.max(...Array.from({ length: classes }, (_, y) => Math.min(16, name(y).length)));
      return matrix(host, {
        nx: clients, ny: classes, value: (y, x) => counts[x * classes + y], blank: true, height: clamp(classes * 26, 150, 480), left: Math.min(132, 18 + 6.8 * longest),
        xs: Array.from({ length: clients }, (_, x) => clientId(run, x)), xlabel: "client", yname: name, yt: (y) => squeeze(name(y), 16), xname: (x) => clientName(run, x),
        fmt: (v) => String(Math.round(v)), legend: (v) => String(Math.round(v)), rowName: "training examples", title: "Training examples of each class at each client",
        extra: () => [], go: (y, x) => open(run, x),
        table: () => [["client", ...Array.from({ length: classes }, (_, y) => name(y))], ...Array.from({ length: clients }, (_, x) => [clientName(run, x), ...Array.from({ length: classes }, (_, y) => Math.round(counts[x * classes + y]))])],
      });
    },
  };

  const number = (run, i) => (run.info.numbers || [])[i]; // one that its strategy reports
  function drawNumber(host, i) {
    const told = D.numbers[i], limits = [...new Set(shown().map((run) => number(run, i)).filter((own) => own && own.limit !== null).map((own) => own.limit))];
    const rule = limits.length === 1 ? { y: limits[0], text: `${told.limit_name || "limit"} = ${brief(limits[0])}` } : null;
    return info(host, (run) => number(run, i) && number(run, i).values, told.title, "No strategy shown here reports it.", rule);
  }
  function info(host, values, title, none, rule) {
    return lines(host, {
      title, none, rule, unit: title, height: 220, zero: true, left: 42, fmt: brief,
      series: byStrategy().map((g) => overSeeds(g.k, g.name, g.runs.filter(values).map((run) => [run.rounds, values(run)]))).filter((one) => one.xs.length),
    });
  }
  function oneClient(host, what, when, factor, o) {
    const at = here();
    if (!at || state.client === null) return empty(host, needClients);
    const series = at.runs.filter((run) => !state.hidden.has(run.strategy) && run[what]).map((run) => {
      const all = unpack(run[what]), [rows, clients] = run[what].shape;
      const own = run[when].map((_, t) => all[t * clients + state.client]);
      const ys = factor !== null ? own.map((v) => v * factor) : own.map((v, t) => {
        let m = 0; for (let c = 0; c < clients; c++) if (!Number.isNaN(all[t * clients + c])) m++;
        return v * m * (run.n / clients);
      });
      return { k: run.strategy, name: label(run), xs: run[when].slice(0, rows), ys };
    });
    return lines(host, { series, height: 230, ...o });
  }
  function here() {
    const place = places().find((one) => one.key === state.place);
    if (!place) return null;
    const folder = D.folders[place.folder], table = folder.labels[place.seed];
    return { ...place, classes: folder.classes, labels: table ? unpack(table.counts) : null };
  }
  function gainPairs() {
    const k = state.gain;
    return D.runs.filter((run) => run.strategy === k && run.final && (state.gainSeed === "all" || String(run.seed) === state.gainSeed)).map((run) => {
      const base = D.runs.find((other) => other.strategy === D.reference && other.folder === run.folder && other.seed === run.seed && other.final)
        || D.runs.find((other) => other.strategy !== k && D.strategies[other.strategy].base === D.strategies[D.reference].base && other.folder === run.folder && other.seed === run.seed && other.final);
      return base && final(base).length === final(run).length ? { run, base } : null;
    }).filter(Boolean);
  }

  // ---- matrices as pictures ------------------------------------------------------------------
  const RAMPS = { // one hue, monotone in lightness: readable without colour
    light: [[247, 248, 246], [199, 220, 236], [120, 176, 214], [43, 116, 178], [8, 48, 107]],
    dark: [[29, 33, 39], [20, 66, 106], [28, 113, 168], [97, 176, 222], [226, 243, 252]],
  };
  function ramp(share) {
    const stops = RAMPS[dark() ? "dark" : "light"], at = clamp(share, 0, 1) * (stops.length - 1), i = Math.min(stops.length - 2, Math.floor(at));
    return stops[i].map((v, j) => Math.round(v + (stops[i + 1][j] - v) * (at - i)));
  }
  function matrix(host, o) {
    const all = [];
    for (let y = 0; y < o.ny; y++) for (let x = 0; x < o.nx; x++) { const v = o.value(y, x); if (Number.isFinite(v)) all.push(v); }
    all.sort((a, b) => a - b);
    const top = all.length ? Math.max(all[Math.floor((all.length - 1) * 0.995)], 1e-12) : 1, floor = Math.min(0, all[0] || 0);
    const f = frame(host, { height: o.height + 92, x: [0, o.nx], y: [0, o.ny], noX: true, noY: true, margin: { left: o.left, top: 40, bottom: 44, right: 8 } });
    const canvas = document.createElement("canvas");
    canvas.width = o.nx; canvas.height = o.ny;
    const pen = canvas.getContext("2d"), pixels = pen.createImageData(o.nx, o.ny);
    for (let y = 0; y < o.ny; y++) for (let x = 0; x < o.nx; x++) {
      const v = o.value(y, x), at = 4 * (y * o.nx + x);
      if (!Number.isFinite(v)) continue;
      pixels.data.set([...ramp((v - floor) / (top - floor || 1)), 255], at);
    }
    pen.putImageData(pixels, 0, 0);
    const wide = f.right - f.m.left, tall = f.bottom - f.m.top;
    f.svg.append(s("image", { href: canvas.toDataURL(), x: f.m.left, y: f.m.top, width: wide, height: tall, preserveAspectRatio: "none", "image-rendering": "pixelated" }));
    f.svg.append(s("rect", { x: f.m.left, y: f.m.top, width: wide, height: tall, fill: "none", stroke: "var(--line)" }));
    const px = (x) => f.m.left + (x / o.nx) * wide, py = (y) => f.m.top + (y / o.ny) * tall;
    const skipY = Math.max(1, Math.ceil(o.ny / Math.floor(tall / 15))), skipX = Math.max(1, Math.ceil(o.nx / Math.floor(wide / 52)));
    for (let y = 0; y < o.ny; y += skipY) f.svg.append(s("text", { x: f.m.left - 10, y: py(y + 0.5) + 4, "text-anchor": "end" }, o.yt(y)));
    for (let x = 0; x < o.nx; x += skipX) f.svg.append(s("text", { x: px(x + 0.5), y: f.bottom + 18, "text-anchor": "middle" }, String(o.xs[x])));
    f.svg.append(s("text", { x: f.right, y: f.H - 6, "text-anchor": "end" }, o.xlabel));
    if (o.ylabel) f.svg.append(s("text", { x: 0, y: f.m.top - 10 }, o.ylabel));
    const above = `${o.legend(top)}${all.length && all[all.length - 1] > top * 1.001 ? " or more" : ""}`;
    const length = 110, x0 = f.right - length - 7 * above.length - 6;
    for (let i = 0; i < 24; i++) f.svg.append(s("rect", { x: x0 + (i * length) / 24, y: 14, width: length / 24 + 0.5, height: 8, fill: `rgb(${ramp(i / 23).join(" ")})` }));
    f.svg.append(s("text", { x: f.right, y: 22, "text-anchor": "end" }, above));
    f.svg.append(s("text", { x: x0 - 8, y: 22, "text-anchor": "end" }, `${f.W > 420 ? `${o.rowName}   ` : ""}${o.legend(floor)}`));
    interact(host, f.svg, o.title, {
      find: (mx, my) => { const x = Math.floor(((mx - f.m.left) / wide) * o.nx), y = Math.floor(((my - f.m.top) / tall) * o.ny); return x >= 0 && x < o.nx && y >= 0 && y < o.ny ? y * o.nx + x : null; },
      move: (key, dx, dy) => (key === null ? 0 : clamp(Math.floor(key / o.nx) - dy, 0, o.ny - 1) * o.nx + clamp((key % o.nx) + dx, 0, o.nx - 1)),
      show: (key) => {
        const x = key % o.nx, y = Math.floor(key / o.nx), v = o.value(y, x);
        return {
          x: px(x + 0.5), y: py(y), title: `${o.yname(y)}, ${o.xname(x)}`,
          rows: [[null, o.rowName, Number.isFinite(v) ? o.fmt(v) : o.none || "–"], ...o.extra(y, x)],
          marks: [s("rect", { x: px(x) - 1, y: py(y) - 1, width: wide / o.nx + 2, height: tall / o.ny + 2, fill: "none", stroke: "var(--ink)", "stroke-width": 1.5 })],
        };
      },
      go: o.go ? (key) => o.go(Math.floor(key / o.nx), key % o.nx) : null,
    });
    return { rows: o.table };
  }

  // ---- words beside the figures --------------------------------------------------------------
  function words() {
    const box = $("#binding");
    box.replaceChildren(...D.numbers.flatMap((_, i) => byStrategy().map((g) => {
      const runs = g.runs.map((run) => number(run, i)).filter((own) => own && own.above[2]).map((own) => own.above);
      if (!runs.length) return null;
      const above = runs.reduce((n, own) => n + own[0], 0), all = runs.reduce((n, own) => n + own[1], 0), [, , somewhere, nowhere] = runs[0];
      return h("p", {}, h("b", {}, g.name), above === 0
        ? `: in all ${plural(all, "round")} of ${plural(runs.length, "seed")} ${nowhere}.`
        : `: ${somewhere} in ${above.toLocaleString("en-GB")} of ${plural(all, "round")} over ${plural(runs.length, "seed")}.`);
    })).filter(Boolean));
    const text = $("#gains-text"), pairs = gainPairs();
    text.textContent = "";
    if (pairs.length) {
      const moves = pairs.flatMap(({ run, base }) => [...final(run)].map((v, i) => ({ d: scaled(v - final(base)[i]), then: final(base)[i] }))).filter((o) => Number.isFinite(o.d)).sort((a, b) => better * (a.then - b.then));
      const least = D.unit.mark ? 1e-3 : 0;
      const up = moves.filter((o) => better * o.d > least), down = moves.filter((o) => better * o.d < -least), quarter = moves.slice(0, Math.ceil(moves.length / 4));
      const seeds = state.gainSeed === "all" ? `over ${plural(pairs.length, "seed")}` : `with seed ${state.gainSeed}`;
      text.textContent = `With ${D.strategies[state.gain].label} instead of ${label(pairs[0].base)}, ${up.length} of ${plural(moves.length, "client")} gain` +
        `${up.length ? ` (${points(signed(mean(up.map((o) => o.d))))} on average)` : ""} and ${down.length} lose${down.length ? ` (${signed(mean(down.map((o) => o.d)))})` : ""}, ${seeds}. ` +
        `Of the quarter that ${label(pairs[0].base)} serves worst, ${quarter.filter((o) => better * o.d > least).length} of ${quarter.length} gain.`;
      if (D.reference_missing) text.textContent += ` ${D.reference_missing} is not among these runs.`;
    }
    const at = here(), client = $("#client-text");
    if (at && state.client !== null && at.runs.length) {
      const scores = at.runs.filter((run) => run.final && !state.hidden.has(run.strategy)).map((run) => `${label(run)} ${score(scaled(final(run)[state.client]))}`);
      const own = at.labels ? at.labels.slice(state.client * at.classes.length, (state.client + 1) * at.classes.length) : null;
      const size = own ? `, ${plural(Math.round(own.reduce((a, b) => a + b, 0)), "training example")}` : "";
      client.textContent = `${clientName(at.runs[0], state.client)}, ${at.name}${size}. ${Noun} at the end: ${scores.join(", ") || "not known yet"}.`;
    }
  }

  // ---- controls ------------------------------------------------------------------------------
  function fill(select, entries, value) {
    select.replaceChildren(...entries.map(([key, name]) => h("option", { value: key }, name)));
    select.value = String(value);
  }
  function controls() {
    $("#chips").replaceChildren(...D.strategies.map((strategy, k) => {
      const chip = h("button", { type: "button", "aria-pressed": String(!state.hidden.has(k)), title: "show or hide" }, swatch(k), strategy.label);
      chip.addEventListener("click", () => { if (state.hidden.has(k)) state.hidden.delete(k); else state.hidden.add(k); controls(); redraw(); $$("#chips button")[k].focus(); });
      return chip;
    }));
    $$("#models button").forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.model === state.model)));
    const all = places();
    if (!all.length) return;
    fill($("#weights-run"), D.runs.map((run, r) => [r, `${label(run)}, seed ${run.seed}${D.folders.length > 1 ? ` (${D.folders[run.folder].name})` : ""}`]), state.run);
    fill($("#gains-strategy"), D.strategies.map((o, k) => [k, o.label]).filter(([k]) => k !== D.reference), state.gain);
    fill($("#gains-seed"), [["all", "all"], ...[...new Set(D.runs.filter((run) => run.strategy === state.gain).map((run) => run.seed))].map((seed) => [seed, seed])], state.gainSeed);
    fill($("#client-seed"), all.map((place) => [place.key, place.name]), state.place);
    fill($("#labels-seed"), all.map((place) => [place.key, place.name]), state.labels);
    const at = here(), run = at && at.runs.find((one) => one.final);
    fill($("#client-which"), run ? [...final(run)].map((_, i) => [i, clientName(run, i)]) : [], state.client);
  }
  function defaults() {
    const others = D.strategies.map((_, k) => k).filter((k) => k !== D.reference);
    if (state.gain === null) state.gain = others.includes(D.fairest) ? D.fairest : others.length ? others[0] : D.reference;
    const bounded = D.runs.findIndex((run) => (run.info.numbers || []).some(Boolean));
    if (state.run === null) state.run = bounded >= 0 ? bounded : Math.max(0, D.runs.findIndex((run) => run.strategy === state.gain));
    const all = places();
    if (state.place === null && all.length) state.place = all[0].key;
    if (state.labels === null && all.length) state.labels = all[0].key;
    if (state.client === null && all.length) { // the one the reference serves worst
      const base = all[0].runs.find((run) => run.strategy === D.reference && run.final) || all[0].runs.find((run) => run.final);
      if (base) { const v = final(base); let worst = 0; v.forEach((a, i) => { if (better * a < better * v[worst] || Number.isNaN(v[worst])) worst = i; }); state.client = worst; }
    }
  }

  // ---- the table -----------------------------------------------------------------------------
  const current = () => D.tables[`${state.model}.${state.at}`];
  function sorted() {
    const rows = [...current().rows];
    if (!state.sort) return rows;
    const [by, way] = state.sort;
    const key = (row) => (by === "label" ? row.label : by === "seeds" ? row.seeds : row.values[by]);
    return rows.sort((a, b) => {
      const u = key(a), v = key(b);
      if (u === null || v === null) return u === v ? 0 : u === null ? 1 : -1;
      return way * (typeof u === "string" ? u.localeCompare(v) : u - v);
    });
  }
  function table() {
    const rows = sorted();
    $("#summary-caption").textContent = current().caption;
    $("#table tbody").replaceChildren(...rows.map((row) => h("tr", {},
      h("th", { scope: "row" }, h("span", { class: "who" }, swatch(D.strategies.findIndex((o) => o.label === row.label)),
        h("span", {}, row.label, row.note ? h("span", { class: "note" }, ` ${row.note}`) : null))),
      ...row.cells.map(([text, rank]) => h("td", { class: `n r${rank}` }, text)), h("td", { class: "n" }, String(row.seeds)))));
    $$("#table thead th").forEach((head) => {
      const by = $("button", head).dataset.sort;
      if (state.sort && String(state.sort[0]) === by) head.setAttribute("aria-sort", state.sort[1] > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    $("#more tbody").replaceChildren(...rows.map((row) => h("tr", {}, h("th", { scope: "row" }, row.label), ...row.more.map((text) => h("td", { class: "n" }, text)))));
  }
  const quote = (value) => { // as escape.for_csv
    let text = value === null || value === undefined || (typeof value === "number" && !Number.isFinite(value)) ? "" : String(value);
    if (!Number.isFinite(Number(text))) text = text.replace(/(^|;)(?=[\s"]*[=+\-@＝＋－＠﹦﹢﹣﹫])/g, "$1'"); // no formula in a spreadsheet
    return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };
  const csv = (rows) => rows.map((row) => row.map(quote).join(",")).join("\r\n") + "\r\n";
  const copies = {
    latex: () => ["% \\usepackage{booktabs,xcolor}", `% ${current().caption}`, `\\begin{tabular}{l${"r".repeat(current().columns.length)}}`, "\\toprule",
      current().latex, "\\midrule", ...sorted().map((row) => row.latex), "\\bottomrule", "\\end{tabular}", ""].join("\n"),
    markdown: () => [current().markdown, `|---|${"---:|".repeat(current().columns.length)}`, ...sorted().map((row) => row.markdown), ""].join("\n"),
    csv: () => csv([["strategy", ...current().columns, "seeds"], ...sorted().map((row) => [row.label, ...row.cells.map(([text]) => text), row.seeds])]),
  };
  async function copy(text, button) {
    try { await navigator.clipboard.writeText(text); } catch (refused) {
      const area = h("textarea", { class: "hidden" });
      area.value = text; document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
    }
    const before = button.textContent;
    button.textContent = "Copied"; say("Copied");
    setTimeout(() => { button.textContent = before; }, 1200);
  }

  // ---- downloads -----------------------------------------------------------------------------
  function download(name, text, type) {
    const link = h("a", { download: name, href: URL.createObjectURL(new Blob([text], { type })) });
    document.body.append(link); link.click(); link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
  const LOOK = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linejoin", "font-family", "font-size", "font-weight", "text-anchor", "paint-order"];
  function svgText(svg, title) { // a picture that needs no style sheet
    const copied = svg.cloneNode(true), from = [svg, ...$$("*", svg)], to = [copied, ...$$("*", copied)];
    from.forEach((node, i) => {
      if (node.tagName === "svg" || node.tagName === "g") return;
      const seen = getComputedStyle(node);
      for (const name of LOOK) { const value = seen.getPropertyValue(name); if (value) to[i].setAttribute(name, value); }
      to[i].removeAttribute("style"); to[i].removeAttribute("class");
    });
    const box = svg.viewBox.baseVal, paper = getComputedStyle(document.body).backgroundColor;
    copied.prepend(s("title", {}, title), s("rect", { width: box.width, height: box.height, fill: paper }));
    copied.setAttribute("xmlns", SVG); copied.removeAttribute("class"); copied.removeAttribute("role");
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + new XMLSerializer().serializeToString(copied) + "\n";
  }
  const drawn = {};
  function tools(figure) {
    const id = figure.dataset.figure, title = $("h3", figure).textContent;
    const button = (name, what, act) => { const node = h("button", { type: "button", "data-act": name.toLowerCase(), "aria-label": `${what}: ${title}` }, name); node.addEventListener("click", act); return node; };
    figure.append(h("div", { class: "acts" },
      button("Table", "Show data as a table", () => {
        const open = $(".data", figure);
        if (open) { open.remove(); return; }
        const [head, ...rows] = drawn[id].rows(), most = 500;
        figure.append(h("div", { class: "data", tabindex: "0", role: "region", "aria-label": `Data of ${title}` }, h("table", {},
          h("thead", {}, h("tr", {}, ...head.map((text) => h("th", { scope: "col" }, String(text))))),
          h("tbody", {}, ...rows.slice(0, most).map((row) => h("tr", {}, ...row.map((v) => h("td", {}, typeof v === "number" ? brief(v) : v === null || v === undefined ? "–" : String(v)))))),
          rows.length > most ? h("caption", {}, `The first ${most} of ${rows.length.toLocaleString("en-GB")} rows; all are in the CSV.`) : null)));
      }),
      button("CSV", "Download data", () => download(`${id}.csv`, csv(drawn[id].rows()), "text/csv")),
      button("SVG", "Download picture", () => { const svg = $(".chart > svg", figure); if (svg) download(`${id}.svg`, svgText(svg, title), "image/svg+xml"); })));
  }

  // ---- drawing -------------------------------------------------------------------------------
  function paint(figure) {
    const id = figure.dataset.figure;
    const host = $(".chart", figure);
    drawn[id] = id.startsWith("number-") ? drawNumber(host, Number(id.slice(7))) : draw[id](host);
    const open = $(".data", figure);
    if (open) open.remove();
  }
  let turn = 0;
  function redraw(section, atOnce) {
    const mine = ++turn;
    words();
    const list = $$(section ? `#${section} figure` : "figure");
    if (atOnce || section) { list.forEach(paint); if (section) turn--; return; }
    table();
    (function next(i) { // a figure at a time, so that the page stays responsive
      if (mine !== turn || i >= list.length) { if (i >= list.length) document.documentElement.dataset.drawn = "yes"; return; }
      paint(list[i]);
      setTimeout(() => next(i + 1), 0);
    })(0);
  }
  const media = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : media.matches);
  function theme(name) {
    if (name) document.documentElement.dataset.theme = name; else delete document.documentElement.dataset.theme;
    const button = $("#theme");
    button.textContent = { dark: "●", light: "○" }[name] || "◐";
    button.setAttribute("aria-label", `Theme: ${name || "as the system"}`);
    redraw();
  }
  function on(id, event, act) { $(id).addEventListener(event, act); }
  function wire() { // elements that a live update replaces
    $$("figure").forEach(tools);
    $$("#table thead button").forEach((button) => button.addEventListener("click", () => {
      const by = button.dataset.sort === "label" || button.dataset.sort === "seeds" ? button.dataset.sort : Number(button.dataset.sort);
      const first = by === "label" || by === 0 ? 1 : -1; // the better end first
      state.sort = state.sort && state.sort[0] === by ? [by, -state.sort[1]] : [by, first];
      table();
    }));
    $$("[data-copy]").forEach((button) => button.addEventListener("click", () => copy(copies[button.dataset.copy](), button)));
    $$("[data-copy-text]").forEach((button) => button.addEventListener("click", () => copy(button.dataset.copyText, button)));
    $("#at").value = state.at; $("#against").value = state.against;
    on("#at", "change", (e) => { state.at = e.target.value; table(); });
    on("#against", "change", (e) => { state.against = e.target.value; redraw("tradeoff"); });
    on("#weights-run", "change", (e) => { state.run = Number(e.target.value); paint($("#fig-heat")); });
    on("#gains-strategy", "change", (e) => { state.gain = Number(e.target.value); state.gainSeed = "all"; controls(); redraw("gains"); });
    on("#gains-seed", "change", (e) => { state.gainSeed = e.target.value; redraw("gains"); });
    on("#client-seed", "change", (e) => { state.place = e.target.value; const at = here(), run = at.runs.find((one) => one.final); state.client = run ? Math.min(state.client || 0, final(run).length - 1) : null; controls(); redraw("client"); });
    on("#client-which", "change", (e) => { state.client = Number(e.target.value); redraw("client"); });
    on("#labels-seed", "change", (e) => { state.labels = e.target.value; redraw("heterogeneity"); });
  }
  function watchSections() {
    if (!("IntersectionObserver" in window)) return;
    const links = new Map($$(".toc a").map((link) => [link.hash.slice(1), link]));
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) {
        for (const link of links.values()) link.removeAttribute("aria-current");
        links.get(entry.target.id).setAttribute("aria-current", "true");
      }
    }, { rootMargin: "-15% 0px -75% 0px" });
    $$("main > section").forEach((section) => seen.observe(section));
  }
  $$("#models button").forEach((button) => button.addEventListener("click", () => { state.model = button.dataset.model; controls(); redraw(); }));
  on("#theme", "click", () => theme({ undefined: dark() ? "light" : "dark", dark: "light", light: "dark" }[document.documentElement.dataset.theme]));
  media.addEventListener("change", () => { if (!document.documentElement.dataset.theme) redraw(); });
  let wait = null, width = innerWidth;
  addEventListener("resize", () => { if (innerWidth === width) return; width = innerWidth; clearTimeout(wait); wait = setTimeout(() => redraw(), 120); });
  let before;
  addEventListener("beforeprint", () => { before = document.documentElement.dataset.theme; document.documentElement.dataset.theme = "light"; redraw(null, true); });
  addEventListener("afterprint", () => theme(before));

  // ---- a live run ----------------------------------------------------------------------------
  async function live() {
    try {
      const version = await (await fetch("version", { cache: "no-store" })).text();
      if (version !== document.body.dataset.version) {
        const fresh = new DOMParser().parseFromString(await (await fetch("./", { cache: "no-store" })).text(), "text/html");
        D = read(fresh);
        const scroll = scrollY;
        $("#main").replaceWith(document.importNode($("#main", fresh), true));
        document.body.dataset.version = fresh.body.dataset.version;
        defaults(); wire(); controls(); redraw(); watchSections();
        scrollTo({ top: scroll, behavior: "instant" });
      }
    } catch (gone) { say("The run's server does not answer."); }
    setTimeout(live, 2000);
  }

  defaults(); wire(); controls(); redraw(); watchSections();
  if (document.body.dataset.version !== undefined) setTimeout(live, 2000);
})();
