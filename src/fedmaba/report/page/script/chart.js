// ---- chart frame ---------------------------------------------------------------------------
const printing = () => document.documentElement.dataset.print === "yes";
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
function logTicks(low, high, most) {
  const out = [];
  for (const set of [[1, 2, 5], [1, 3], [1]]) {
    out.length = 0;
    for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p++) for (const m of set) { const v = Number((m * 10 ** p).toPrecision(12)); if (v >= low && v <= high) out.push(v); }
    if (out.length <= most) break;
  }
  return out.length > 1 ? out : [low, high];
}
function extent(values, { zero = false, pad = 0.06, log = false } = {}) {
  let low = Infinity, high = -Infinity;
  for (const v of values) if (Number.isFinite(v) && (!log || v > 0)) { if (v < low) low = v; if (v > high) high = v; }
  if (low === Infinity || (zero && low === 0 && high === 0)) return log ? [1, 10] : [0, 1];
  if (log) { const room = Math.max(1.05, (high / low) ** pad); return [low / room, high * room]; }
  if (zero) { low = Math.min(0, low); high = Math.max(0, high); }
  const room = (high - low || Math.abs(high) || 1) * pad;
  return [zero && low === 0 ? 0 : low - room, zero && high === 0 ? 0 : high + room];
}
function wantsLog(values, apart = Infinity) { // as the figures in print: where lines would lie on one another
  const all = values.filter(Number.isFinite).sort((a, b) => a - b), top = all[all.length - 1];
  if (!all.length || all[0] <= 0) return false;
  return state.scale === "log" || (state.scale === "auto" && (top >= 5 * all[all.length >> 1] || top >= apart * all[0]));
}
function frame(host, o) {
  host.closest("figure").classList.remove("none", "bare");
  const W = Math.max(240, Math.round(host.clientWidth || 600)), H = Math.round((o.height || 280) * (printing() && !o.rigid ? 0.66 : 1));
  const m = { top: o.ylabel ? 26 : 10, right: 16, bottom: 40, left: 46, ...(o.margin || {}) };
  const svg = s("svg", { viewBox: `0 0 ${W} ${H}`, width: W, height: H, role: "presentation" });
  const [x0, x1] = o.x, [y0, y1] = o.y, left = o.from === undefined ? m.left : o.from, right = o.upto === undefined ? W - m.right : o.upto, bottom = H - m.bottom;
  const share = (v, a, b, log) => (log ? Math.log(v / a) / (Math.log(b / a) || 1) : (v - a) / (b - a || 1));
  const X = (v) => left + share(v, x0, x1, o.logX) * (right - left);
  const Y = (v) => bottom - share(v, y0, y1, o.logY) * (bottom - m.top);
  const back = s("g", {});
  if (!o.noY) {
    const count = Math.max(2, Math.round((bottom - m.top) / (printing() ? 26 : 52)));
    for (const v of o.logY ? logTicks(y0, y1, count + 2) : ticks(y0, y1, count)) {
      back.append(s("line", { class: "grid", x1: left, x2: right, y1: Y(v), y2: Y(v) }));
      back.append(s("text", { x: left - 10, y: Y(v) + 4, "text-anchor": "end" }, (o.fy || brief)(v)));
    }
  }
  if (!o.noX) {
    const count = Math.max(2, Math.min(8, Math.round((right - left) / 70)));
    const every = o.xt || (o.logX ? logTicks(x0, x1, count) : ticks(x0, x1, count, o.whole));
    back.append(s("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
    for (const v of every) back.append(s("text", { x: X(v), y: bottom + 18, "text-anchor": "middle" }, (o.fx || brief)(v)));
  }
  if (o.ylabel) back.append(s("text", { x: o.noY ? left : Math.max(0, left - 46), y: 11 }, o.ylabel));
  if (o.xlabel) back.append(s("text", { x: right, y: H - 4, "text-anchor": "end" }, o.xlabel));
  svg.append(back);
  if (o.within) o.within.append(svg); else host.replaceChildren(svg);
  const inverse = (px) => { const t = (px - left) / (right - left || 1); return o.logX ? x0 * (x1 / x0) ** t : x0 + t * (x1 - x0); };
  return { svg, X, Y, W, H, m: { ...m, left }, right, bottom, invX: inverse };
}
function empty(host, text, data = false) { // a chart with nothing to show is one line; there may be data to download
  host.closest("figure").classList.add("none");
  host.closest("figure").classList.toggle("bare", !data);
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
    const seen = show(key), most = 14;
    layer.replaceChildren(...(seen.marks || []));
    tip.replaceChildren(h("b", {}, seen.title), ...seen.rows.slice(0, most).map(([k, name, value]) =>
      h("div", {}, k === null ? "" : swatch(k), h("span", {}, name), h("span", {}, value))),
    ...(seen.rows.length > most ? [h("div", {}, h("span", {}, `and ${seen.rows.length - most} more`))] : []));
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
  if (!series.length) return empty(host, o.none || lacking("such numbers"));
  const data = {
    rows: () => [[o.xname || "round", "strategy", o.unit || "value", ...(series.some((one) => one.low) ? ["lowest seed", "highest seed"] : [])],
      ...series.flatMap((one) => one.xs.map((x, i) => [x, one.name, exact(one.ys[i]), ...(one.low ? [exact(one.low[i]), exact(one.high[i])] : [])]))],
  };
  const flat = series[0].ys.find(Number.isFinite);
  if (o.flat && series.every((one) => one.ys.every((y) => !Number.isFinite(y) || y === flat))) {
    return { ...empty(host, `${(o.fmt || brief)(flat)} in every round.`, true), ...data };
  }
  const width = host.clientWidth || 600, first = leading(series.map((one) => one.k)), weak = (one) => !first.has(one.k);
  const direct = o.labels !== false && width > 330;
  const most = Math.max(8, Math.min(22, Math.floor(width / 26)));
  const short = squeezed(series.filter((one) => !weak(one)).map((one) => one.name), most), room = direct ? 14 + widest(short.values()) : 14;
  const xs = o.xs || [...new Set(series.flatMap((one) => one.xs))].sort((a, b) => a - b);
  const all = series.flatMap((one) => [...one.ys, ...(one.low || []), ...(one.high || [])]);
  const log = Boolean(o.log) && wantsLog(all);
  if (o.rule) all.push(o.rule.y);
  const f = frame(host, {
    height: o.height || 260, rigid: o.rigid, x: [xs[0], xs[xs.length - 1]], y: o.y || extent(all, { zero: o.zero && !log, log }), logY: log,
    margin: { right: room, left: o.left || 46, ...(log ? { top: 26 } : {}) }, xlabel: o.xlabel || "round", ylabel: log ? "logarithmic" : o.ylabel, fy: o.fy, fx: o.fx, whole: !o.xlabel,
  });
  const value = (one, x) => { // the value at x, or none
    if (o.step) { let at = -1; for (let i = 0; i < one.xs.length && one.xs[i] <= x; i++) at = i; return at < 0 ? 0 : one.ys[at]; }
    const at = one.xs.indexOf(x);
    return at < 0 ? NaN : one.ys[at];
  };
  const groups = new Map(series.map((one) => [one, s("g", { "data-k": one.k, class: weak(one) ? "weak" : null })]));
  f.svg.append(...[...groups].sort(([a], [b]) => weak(b) - weak(a)).map(([, group]) => group)); // those to look at on top
  for (const one of series) {
    if (!one.low || one.runs < 2 || weak(one)) continue;
    const up = one.xs.map((x, i) => `${f.X(x).toFixed(1)} ${f.Y(one.high[i]).toFixed(1)}`);
    const down = one.xs.map((x, i) => `${f.X(x).toFixed(1)} ${f.Y(one.low[i]).toFixed(1)}`).reverse();
    groups.get(one).append(s("path", { d: `M${[...up, ...down].join("L")}Z`, fill: color(one.k), "fill-opacity": series.length > 8 ? 0.04 : 0.08 }));
  }
  if (o.rule) {
    f.svg.append(s("line", { class: "axis", "stroke-dasharray": "2 4", x1: f.m.left, x2: f.right, y1: f.Y(o.rule.y), y2: f.Y(o.rule.y) }));
    f.svg.append(s("text", { x: f.m.left + 4, y: f.Y(o.rule.y) - 6 }, o.rule.text));
  }
  series.forEach((one, row) => {
    let d = "", pen = false;
    const seen = [];
    one.xs.forEach((x, i) => {
      const y = one.ys[i];
      if (!Number.isFinite(y) || (log && y <= 0)) { pen = false; return; }
      const px = f.X(x).toFixed(1), py = f.Y(y).toFixed(1);
      d += !pen ? `M${px} ${o.step ? f.Y(0).toFixed(1) + `V${py}` : py}` : o.step ? `H${px}V${py}` : `L${px} ${py}`;
      pen = true; seen.push([f.X(x), f.Y(y)]);
    });
    if (o.step) d += `H${f.right}`;
    const own = groups.get(one);
    own.append(s("path", { d, fill: "none", stroke: color(one.k), "stroke-width": weak(one) ? 1 : one.k === D.reference ? 1.75 : 2, "stroke-linejoin": "round", "stroke-dasharray": dash(one.k) }));
    const every = Math.max(1, Math.floor(seen.length / 6)), start = seen.length > 6 ? Math.floor((row * every) / series.length) : 0;
    for (let i = start; i < seen.length; i += every) own.append(mark(one.k, ...seen[i], seen.length === 1 ? 4 : weak(one) ? 2.4 : 3.2));
  });
  if (direct && !o.step) {
    const ends = series.filter((one) => !weak(one)).map((one) => ({ one, name: short.get(one.name), y: f.Y(one.ys[one.ys.findLastIndex(Number.isFinite)]) })).filter((end) => Number.isFinite(end.y));
    for (const end of spread(ends, 15, f.m.top, f.bottom)) f.svg.append(nameText(end.one.k, { x: f.right + 8, y: end.at + 4 }, end.name));
  }
  interact(host, f.svg, `${o.title}: ${series.map((one) => `${one.name} ends at ${(o.fmt || brief)(one.ys[one.ys.findLastIndex(Number.isFinite)])}`).join(", ")}`, {
    find: (px) => nearest(xs, f.invX(px)),
    move: (key, dx) => (key === null ? (dx < 0 ? 0 : xs.length - 1) : clamp(key + dx, 0, xs.length - 1)),
    show: (key) => {
      const x = xs[key], seen = series.map((one) => [one, value(one, x)]).filter(([, y]) => Number.isFinite(y));
      if (!o.step) seen.sort((a, b) => b[1] - a[1]);
      return {
        x: f.X(x), y: seen.length ? Math.min(...seen.map(([, y]) => f.Y(y)).filter(Number.isFinite)) : f.m.top,
        title: o.titleOf ? o.titleOf(x) : `round ${x}`,
        rows: seen.map(([one, y]) => [one.k, one.name, (o.fmt || brief)(y) + spanOf(one, x, o)]),
        marks: [s("line", { class: "cursor", x1: f.X(x), x2: f.X(x), y1: f.m.top, y2: f.bottom }), ...seen.filter(([, y]) => Number.isFinite(f.Y(y))).map(([one, y]) => mark(one.k, f.X(x), f.Y(y), 4))],
      };
    },
  });
  return data;
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
