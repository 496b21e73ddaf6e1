// ---- every client: one lane per strategy, and a slider from the reference to another --------
const scored = (run) => run.final && [...final(run)].some(Number.isFinite); // a site may have told nothing yet
const hero = { t: 0, movers: [], layer: null, playing: 0 };
function lanes(host) {
  const all = byStrategy(D.runs.filter((run) => scored(run) && (visible(run.strategy) || run.strategy === D.reference)));
  if (!all.length) return empty(host, needClients());
  const total = Math.max(...all.map((g) => g.runs.reduce((n, run) => n + final(run).length, 0)));
  const room = printing() ? 260 : 620, lane = clamp(Math.min(26 + total * 0.28, room / all.length), 15, 78), [low, high] = reached(all);
  const narrow = (host.clientWidth || 600) < 520, short = squeezed(all.map((g) => g.name), narrow ? 40 : 28);
  const left = narrow ? 4 : 22 + widest(short.values());
  const head = narrow ? 16 : 0, r = clamp(Math.min(4.6 - total / 250, lane / 5), 1.6, 4);
  const f = frame(host, { height: all.length * (lane + head) + 58, rigid: true, x: [low, high], y: [0, 1], noY: true, margin: { left, top: 8, right: 12 }, xlabel: axis(`${noun} of each client`) });
  const scores = all.flatMap((g) => g.runs.flatMap((run) => [...final(run)])).filter(Number.isFinite), least = scores.reduce((a, b) => Math.min(a, b), Infinity);
  const step = grain(scores, (high - low) / 1000);
  const pile = step * Math.max(1, Math.ceil(((2 * r + 0.4) * (high - low)) / (f.right - f.m.left) / step - 0.05)); // values that stand on one another
  const marks = [];
  all.forEach((group, row) => {
    const base = 8 + head + row * (lane + head) + lane - Math.min(8, lane / 4), layer = s("g", { "data-k": group.k, class: group.k === D.reference || group.k === state.to ? "end" : null });
    f.svg.append(s("line", { class: "grid", x1: f.m.left, x2: f.right, y1: base + 4, y2: base + 4 }));
    f.svg.append(nameText(group.k, { x: narrow ? f.m.left : left - 16, y: narrow ? 20 + row * (lane + head) : base, "text-anchor": narrow ? "start" : "end" }, short.get(group.name)));
    const columns = new Map(), own = [];
    for (const run of group.runs) final(run).forEach((v, i) => { if (Number.isFinite(v)) own.push({ run, i, k: group.k, v }); });
    own.sort((a, b) => a.v - b.v);
    for (const one of own) {
      const column = Math.floor((one.v - least) / pile + 1e-6); // counted from the least score: the ends of the axis need be none
      one.n = columns.get(column) || 0; columns.set(column, one.n + 1);
      one.x = f.X(clamp(least + (column + (pile > step ? 0.5 - step / pile / 2 : 0)) * pile, low, high));
    }
    const rise = Math.min(2 * r + 0.4, (lane - 2 * r - 6) / Math.max(1, ...columns.values()));
    for (const one of own) { one.y = base - r - one.n * Math.max(0, rise); marks.push(one); }
    layer.append(dots(own.map((one) => [one.x, one.y]), r, { stroke: color(group.k), "stroke-opacity": dark() ? 0.68 : 0.5 }));
    const center = mean(own.map((one) => one.v));
    layer.append(s("line", { x1: f.X(center), x2: f.X(center), y1: base + 1, y2: base + 8, stroke: "var(--ink)", "stroke-width": 2 }));
    f.svg.append(layer);
  });
  hero.layer = s("g", { class: "movers", "pointer-events": "none" });
  f.svg.append(hero.layer);
  const key = (one) => `${placeOf(one.run)}.${one.i}`, ends = new Map(marks.filter((one) => one.k === state.to).map((one) => [key(one), one]));
  hero.movers = marks.filter((one) => one.k === D.reference && ends.has(key(one))).map((from) => ({ from, to: ends.get(key(from)) }));
  hero.r = r;
  slide(hero.t);
  interact(host, f.svg, `${Noun} of every client, ${strategies(all.length)}`, {
    find: (px, py) => { let best = null, near = 22 ** 2; marks.forEach((one, i) => { const d = (one.x - px) ** 2 + (one.y - py) ** 2; if (d < near) { near = d; best = i; } }); return best; },
    move: (at, dx, dy) => {
      if (at === null) return 0;
      if (!dy) return clamp(at + dx, 0, marks.length - 1);
      const now = marks[at], next = marks.findIndex((one) => one.k === all[clamp(all.findIndex((g) => g.k === now.k) - dy, 0, all.length - 1)].k);
      return next < 0 ? at : next;
    },
    show: (at) => {
      const one = marks[at], twins = marks.filter((other) => other.i === one.i && other.run.folder === one.run.folder && other.run.seed === one.run.seed);
      return {
        x: one.x, y: one.y, title: `${clientName(one.run, one.i)}, seed ${one.run.seed}`,
        rows: twins.map((twin) => [twin.k, label(twin.run), score(twin.v)]),
        marks: twins.map((twin) => s("circle", { cx: twin.x, cy: twin.y, r: r + 2, fill: color(twin.k), stroke: "var(--ink)", "stroke-width": 1.5 })),
      };
    },
    go: (at) => open(marks[at].run, marks[at].i),
  });
  return { rows: () => [["strategy", "seed", "client", `${noun}${D.unit.mark}`], ...marks.map((one) => [label(one.run), one.run.seed, clientName(one.run, one.i), exact(one.v)])] };
}
function reached(groups) { // whole tens around all clients: no room is lost on shares that nobody has
  const all = groups.flatMap((g) => g.runs.flatMap((run) => [...final(run)])).filter(Number.isFinite);
  if (!D.unit.mark || !all.length) return band();
  const low = all.reduce((a, b) => Math.min(a, b)), high = all.reduce((a, b) => Math.max(a, b));
  return [clamp(10 * Math.floor((low - 1) / 10), 0, 90), clamp(10 * Math.ceil((high + 1) / 10), 10, 100)];
}
function grain(values, least) { // the steps that scores come in, as of one in 100 test examples; else a small one
  const seen = [...new Set(values.filter(Number.isFinite).map((v) => Number(v.toPrecision(9))))].sort((a, b) => a - b);
  const gaps = seen.slice(1).map((v, i) => v - seen[i]), step = Math.min(...gaps);
  const whole = gaps.every((gap) => Math.abs(gap / step - Math.round(gap / step)) < 1e-3);
  return seen.length > 1 && whole && step > least ? step : least;
}
function slide(t) { // all clients, that far from the reference to the chosen strategy; those that the reference serves worst glow all the way
  hero.t = t;
  const bar = $("#slide"), text = $("#slide-text");
  if (bar) bar.value = String(Math.round(1000 * t));
  if (!hero.layer) return;
  const able = hero.movers.length > 0 && state.to !== D.reference;
  $("#slider").hidden = !able;
  if (!able) { hero.layer.replaceChildren(); text.textContent = ""; return; }
  const at = hero.movers.map(({ from, to }) => ({ place: placeOf(from.run), first: from.v, v: from.v + t * (to.v - from.v), x: from.x + t * (to.x - from.x), y: from.y + t * (to.y - from.y) }));
  const seeds = new Map();
  for (const one of at) { if (!seeds.has(one.place)) seeds.set(one.place, []); seeds.get(one.place).push(one); }
  const found = [], glow = new Set();
  for (const own of seeds.values()) { // as `metrics.tail`
    const count = Math.max(1, Math.ceil(D.share * own.length - 1e-9)), center = mean(own.map((o) => o.v));
    const worst = (by) => own.sort((a, b) => better * (a[by] - b[by])).slice(0, count);
    worst("first").forEach((o) => glow.add(o));
    found.push([mean(own.map((o) => (o.v - center) ** 2)), center, mean(worst("v").map((o) => o.v))]);
  }
  const tint = `color-mix(in srgb, ${color(D.reference)} ${100 - 100 * t}%, ${color(state.to)})`, pair = (o) => [o.x, o.y];
  const still = dots(at.filter((o) => !glow.has(o)).map(pair), hero.r, {}), worst = dots([...glow].map(pair), hero.r + 0.8, { class: "worst" });
  const halo = dots([...glow].map(pair), hero.r + 4, { class: "halo" });
  still.style.stroke = tint;
  hero.layer.replaceChildren(halo, still, worst);
  hero.layer.parentNode.classList.toggle("sliding", t > 0 && t < 1); // they pass other lines
  const row = (k) => current().rows.find((o) => o.label === D.strategies[k].label).values; // at the ends, the table's own
  const [variance, middle, low] = t === 0 ? row(D.reference) : t === 1 ? row(state.to) : [0, 1, 2].map((i) => mean(found.map((o) => o[i])));
  const where = t === 0 ? D.strategies[D.reference].label : t === 1 ? D.strategies[state.to].label : `${Math.round(100 * t)} % of the way`;
  text.textContent = `${where}: variance ${figure(variance)}${D.unit.square}, mean ${score(middle)}, ${worstWords()} ${score(low)}`;
}
function play() {
  const button = $("#play");
  const stop = () => { cancelAnimationFrame(hero.playing); hero.playing = 0; button.textContent = "▶ Play"; };
  if (hero.playing) { stop(); return; }
  if (calm.matches) { slide(hero.t < 1 ? 1 : 0); return; } // no movement: the other end at once
  const from = hero.t >= 1 ? 0 : hero.t, began = performance.now(), length = 2600 * (1 - from);
  button.textContent = "❚❚ Pause";
  const step = (now) => {
    const share = clamp((now - began) / length, 0, 1), eased = share < 0.5 ? 2 * share * share : 1 - 2 * (1 - share) ** 2;
    slide(from + (1 - from) * eased);
    if (share < 1) hero.playing = requestAnimationFrame(step); else stop();
  };
  hero.playing = requestAnimationFrame(step);
}

// ---- the spread over clients ---------------------------------------------------------------
function ridges(host) { // one line each, so that none hides another
  const groups = byStrategy(shown().filter(scored));
  if (!groups.length) return empty(host, needClients());
  const [low, high] = band(), count = 20, step = (high - low) / count, edges = Array.from({ length: count + 1 }, (_, i) => low + i * step);
  const bin = (v) => { // as numpy.histogram: the last one is closed on both sides
    const at = clamp(Math.floor((v - low) / step), 0, count - 1);
    return v < edges[at] ? at - 1 : v >= edges[at + 1] && at < count - 1 ? at + 1 : at;
  };
  const bins = groups.map((group) => {
    const seen = new Array(count).fill(0); let all = 0;
    for (const run of group.runs) for (const v of final(run)) if (Number.isFinite(v)) { seen[bin(v)]++; all++; }
    return { ...group, seen, share: seen.map((n) => (100 * n) / all), all };
  });
  const wide = (host.clientWidth || 600) > 360, short = squeezed(bins.map((b) => b.name), wide ? 18 : 12), left = 12 + widest(short.values());
  const strips = bins.length > 8, lane = clamp(264 / bins.length, 17, 66), over = strips ? 1 : 1.25, top = Math.max(...bins.flatMap((b) => b.share)) || 1;
  const full = edges.slice(1).map((_, i) => i).filter((i) => bins.some((b) => b.seen[i])), [from, upto] = [edges[full[0]], edges[full[full.length - 1] + 1]]; // no room is lost on bands that nobody is in
  const f = frame(host, { height: Math.max(180, bins.length * lane + lane * (over - 1) + 52), rigid: bins.length > 6, x: [from, upto], y: [0, 1], noY: true, xlabel: axis(noun), margin: { left, top: 12 + (over - 1) * lane, right: 10 } });
  const tall = (f.bottom - f.m.top) / bins.length, base = (row) => f.m.top + (row + 1) * tall;
  bins.forEach((one, row) => {
    const own = s("g", { "data-k": one.k }), y = (v) => base(row) - (v / top) * tall * over;
    if (strips) { // ridges would be flat: the darker a band, the more of the strategy's clients are in it
      const most = Math.max(...one.share);
      for (const i of full) if (one.seen[i]) own.append(s("rect", { x: f.X(edges[i]), width: f.X(edges[i + 1]) - f.X(edges[i]) - 0.5, y: base(row) - tall + 1.5, height: tall - 3, fill: color(one.k), "fill-opacity": 0.1 + (0.9 * one.share[i]) / most }));
    } else {
      let d = `M${f.X(from)} ${base(row).toFixed(1)}`;
      for (const i of edges.keys()) if (i >= full[0] && i <= full[full.length - 1]) d += `V${y(one.share[i]).toFixed(1)}H${f.X(edges[i + 1]).toFixed(1)}`;
      own.append(s("path", { d: `${d}V${base(row).toFixed(1)}Z`, fill: color(one.k), "fill-opacity": 0.28, stroke: color(one.k), "stroke-width": 1.25, "stroke-linejoin": "round" }));
    }
    f.svg.append(s("line", { class: "grid", x1: f.m.left, x2: f.right, y1: base(row), y2: base(row) }), own);
    f.svg.append(nameText(one.k, { x: left - 8, y: base(row) - (strips ? tall / 2 - 4 : 2), "text-anchor": "end" }, short.get(one.name)));
  });
  interact(host, f.svg, `Histogram of client ${noun}, one line per strategy`, {
    find: (px) => clamp(Math.floor((f.invX(px) - low) / step), full[0], full[full.length - 1]),
    move: (key, dx) => (key === null ? full[0] : clamp(key + dx, full[0], full[full.length - 1])),
    show: (key) => ({
      x: f.X(low + (key + 0.5) * step), y: f.m.top,
      title: `${brief(edges[key])} to ${brief(edges[key + 1])}${D.unit.mark}`,
      rows: bins.map((b) => [b.k, b.name, `${b.seen[key]} of ${cases(b.runs, b.all)}`]),
      marks: [s("rect", { x: f.X(edges[key]), width: f.X(edges[key + 1]) - f.X(edges[key]), y: f.m.top, height: f.bottom - f.m.top, fill: "var(--ink)", "fill-opacity": 0.06 })],
    }),
  });
  return { rows: () => [["strategy", `from${D.unit.mark}`, `to${D.unit.mark}`, "client-seed pairs", "of"], ...bins.flatMap((b) => b.seen.map((n, i) => [b.name, exact(edges[i]), exact(edges[i + 1]), n, b.all]))] };
}
function ecdf(host) {
  const groups = byStrategy(shown().filter(scored));
  if (!groups.length) return empty(host, needClients());
  const [low, high] = band();
  const series = groups.map((group) => {
    const all = group.runs.flatMap((run) => [...final(run)]).filter(Number.isFinite).sort((a, b) => a - b);
    return { k: group.k, name: group.name, xs: all, ys: all.map((_, i) => (100 * (i + 1)) / all.length) };
  });
  const grid = Array.from({ length: 101 }, (_, i) => low + ((high - low) * i) / 100);
  return lines(host, {
    title: `Share of clients at or below a value of ${noun}`, series, xs: grid, step: true, height: clamp(17 * groups.length + 60, 320, 600), rigid: groups.length > 6, y: [0, 100], labels: false,
    xlabel: axis(noun), ylabel: "share of clients, %", xname: `${noun}${D.unit.mark}`, unit: "share of clients %", fmt: (v) => pct(v, 0), titleOf: (x) => `at or below ${brief(x)}${D.unit.mark}`,
  });
}

// ---- who gains and who loses ---------------------------------------------------------------
function gainPairs() {
  return D.runs.filter((run) => run.strategy === state.to && run.final && (state.gainSeed === "all" || String(run.seed) === state.gainSeed)).map((run) => {
    const mate = (fits) => D.runs.find((other) => other.strategy !== state.to && fits(other) && placeOf(other) === placeOf(run) && other.final);
    const base = mate((other) => other.strategy === D.reference) || mate((other) => D.strategies[other.strategy].base === D.strategies[D.reference].base);
    return base && final(base).length === final(run).length ? { run, base } : null;
  }).filter(Boolean);
}
function gains(host) {
  const pairs = gainPairs();
  if (!pairs.length) return empty(host, D.strategies.length < 2 ? "One strategy alone gains and loses nothing: run another beside it." : needClients());
  const bars = pairs.flatMap(({ run, base }) => [...final(run)].map((v, i) => ({ run, base, i, then: final(base)[i], now: v })))
    .filter((one) => Number.isFinite(one.now - one.then)).sort((a, b) => better * (a.then - b.then || a.now - b.now));
  bars.forEach((one) => { one.d = one.now - one.then; });
  const f = frame(host, { height: 320, x: [0, bars.length], y: extent(bars.map((b) => b.d), { zero: true, pad: 0.1 }), noX: true, margin: { bottom: 40 }, ylabel: D.unit.mark ? `points of ${noun}` : `change of ${noun}`, fy: (v) => (v > 0 ? `+${brief(v)}` : brief(v).replace("-", "−")) });
  const wide = f.X(1) - f.X(0), gap = wide > 5 ? Math.min(3, wide * 0.22) : 0, zero = f.Y(0);
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
  return { rows: () => [["seed", "client", `${label(bars[0].base)}${D.unit.mark}`, `${label(bars[0].run)}${D.unit.mark}`, "difference"], ...bars.map((o) => [o.run.seed, clientName(o.run, o.i), exact(o.then), exact(o.now), exact(o.d)])] };
}

// ---- who was heard, and how it is served ----------------------------------------------------
function turns(host) {
  const groups = byStrategy(shown().filter((run) => run.heard && scored(run)));
  const marks = groups.flatMap((group) => group.runs.flatMap((run) => [...final(run)].map((v, i) => ({ run, i, k: group.k, v, share: (100 * run.heard[i]) / run.of }))))
    .filter((one) => Number.isFinite(one.v)).sort((a, b) => a.share - b.share || a.v - b.v);
  if (!marks.length) return empty(host, needClients());
  const f = frame(host, { height: 320, x: extent(marks.map((one) => one.share), { zero: true }), y: extent(marks.map((one) => one.v)), xlabel: "share of rounds in which the client was heard, %", ylabel: axis(noun) });
  const r = clamp(4.4 - marks.length / 400, 1.6, 4);
  marks.forEach((one) => { one.x = f.X(one.share); one.y = f.Y(one.v); });
  for (const group of groups) f.svg.append(s("g", { "data-k": group.k }, ...marks.filter((one) => one.k === group.k).map((one) => mark(one.k, one.x, one.y, r, { "fill-opacity": 0.6 }))));
  interact(host, f.svg, `${Noun} of clients by how often they were heard, ${strategies(groups.length)}`, {
    find: (px, py) => { let best = null, near = 22 ** 2; marks.forEach((one, i) => { const d = (one.x - px) ** 2 + (one.y - py) ** 2; if (d < near) { near = d; best = i; } }); return best; },
    move: (at, dx) => (at === null ? 0 : clamp(at + dx, 0, marks.length - 1)),
    show: (at) => {
      const one = marks[at];
      return {
        x: one.x, y: one.y, title: `${clientName(one.run, one.i)}, seed ${one.run.seed}: heard in ${one.run.heard[one.i]} of ${plural(one.run.of, "round")}`,
        rows: [[one.k, label(one.run), score(one.v)]],
        marks: [s("circle", { cx: one.x, cy: one.y, r: r + 2, fill: color(one.k), stroke: "var(--ink)", "stroke-width": 1.5 })],
      };
    },
    go: (at) => open(marks[at].run, marks[at].i),
  });
  return { rows: () => [["strategy", "seed", "client", "rounds heard", "rounds", `${noun}${D.unit.mark}`], ...marks.map((one) => [label(one.run), one.run.seed, clientName(one.run, one.i), one.run.heard[one.i], one.run.of, exact(one.v)])] };
}

// ---- one client ----------------------------------------------------------------------------
function open(run, i) {
  state.place = placeOf(run); state.client = i;
  redraw("client"); controls(); remember();
  $("#client").scrollIntoView({ block: "start" });
  $("#client-which").focus({ preventScroll: true });
  say(`${clientName(run, i)}, seed ${run.seed}, opened below`);
}
function here() {
  const place = places().find((one) => one.key === state.place);
  if (!place) return null;
  const folder = D.folders[place.folder], table = folder.labels[place.seed];
  return { ...place, classes: folder.classes, labels: table ? unpack(table.counts) : null };
}
function oneClient(host, what, when, plain, o) {
  const at = here();
  if (!at || state.client === null) return empty(host, needClients());
  const series = at.runs.filter((run) => visible(run.strategy) && run[what]).map((run) => {
    const all = unpack(run[what], what === "accuracy" ? D.unit.scale : 1), [rows, clients] = run[what].shape;
    const own = run[when].map((_, t) => all[t * clients + state.client]);
    const times = plain ? null : equalShares(run, all, clients), ys = plain ? own : own.map((v, t) => v * times[t]);
    return { k: run.strategy, name: label(run), xs: run[when].slice(0, rows), ys };
  });
  return lines(host, { series, height: 230, flat: true, ...o });
}
function clientLabels(host) {
  const at = here();
  const counts = at && at.labels && state.client !== null ? at.labels.slice(state.client * at.classes.length, (state.client + 1) * at.classes.length) : null;
  if (!counts || !counts.length) return empty(host, "Label counts are not stored in this folder.");
  const some = [...counts].map((n, c) => ({ n, c, name: at.classes[c] }));
  const list = some.length > 24 ? some.filter((one) => one.n > 0).sort((a, b) => b.n - a.n).slice(0, 24) : some;
  const left = Math.min(130, 16 + 6.8 * Math.max(...list.map((one) => Math.min(16, one.name.length))));
  const f = frame(host, { height: Math.max(160, 24 + list.length * 20), x: [0, Math.max(...list.map((o) => o.n)) * 1.12 || 1], y: [0, list.length], noX: true, noY: true, margin: { left, top: 4, bottom: 8 } });
  list.forEach((one, i) => {
    const y = f.m.top + (i * (f.bottom - f.m.top)) / list.length, tall = (f.bottom - f.m.top) / list.length;
    f.svg.append(s("text", { x: left - 10, y: y + tall / 2 + 4, "text-anchor": "end" }, squeeze(one.name, 16)));
    if (one.n) f.svg.append(s("rect", { x: left, y: y + tall * 0.2, height: tall * 0.6, width: Math.max(1, f.X(one.n) - left), fill: "var(--s1)", rx: 1.5 }));
    f.svg.append(s("text", { x: f.X(one.n) + 7, y: y + tall / 2 + 4 }, String(one.n)));
  });
  const row = (py) => clamp(Math.floor(((py - f.m.top) / (f.bottom - f.m.top)) * list.length), 0, list.length - 1);
  interact(host, f.svg, "Training examples by class", {
    find: (px, py) => row(py), move: (key, dx, dy) => (key === null ? 0 : clamp(key + dx - dy, 0, list.length - 1)),
    show: (key) => ({ x: f.X(list[key].n), y: f.m.top + ((key + 0.5) * (f.bottom - f.m.top)) / list.length, title: list[key].name, rows: [[null, "training examples", String(list[key].n)]] }),
  });
  return { rows: () => [["class", "training examples"], ...some.map((one) => [one.name, one.n])] };
}
