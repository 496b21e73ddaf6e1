// ---- what fairness costs -------------------------------------------------------------------
const NEAR = 5; // points below the best mean: as the verdict looks no further
function placeNames(f, list, boxes, obstacles, [x0, x1]) { // each beside its point, in the cheapest of many places around
  const short = squeezed(list.map((one) => one.name), list.length > 12 ? 18 : 26);
  for (const one of [...list].sort((a, b) => a.py - b.py)) {
    const text = short.get(one.name), wide = textWidth(text) + 2, found = [];
    for (const far of [14, 19, 26, 36, 48, 62, 78, 96]) for (let turn = 0; turn < 16; turn++) {
      const angle = (Math.PI * turn) / 8, ax = one.px + far * Math.cos(angle), ay = one.py + far * Math.sin(angle);
      const left = ax + (wide / 2) * (Math.cos(angle) - 1), top = ay - 8 + 8 * Math.sin(angle), box = [left, top, left + wide, top + 15];
      let cost = 1.2 * far + (turn % 8 ? 3 : 0) + (box[0] < x0 || box[2] > x1 || box[1] < f.m.top - 8 || box[3] > f.bottom ? 900 : 0);
      for (const b of boxes) if (box[0] < b[2] + 2 && box[2] > b[0] - 2 && box[1] < b[3] && box[3] > b[1]) cost += 300;
      for (const d of obstacles) if (d.px > box[0] - 6 && d.px < box[2] + 6 && d.py > box[1] - 6 && d.py < box[3] + 6) cost += d === one ? 0 : d.run ? 40 : 120;
      found.push({ cost, box, ax, ay, far });
    }
    const best = found.reduce((a, b) => (b.cost < a.cost ? b : a));
    boxes.push(best.box);
    if (best.far > 18) f.svg.append(s("line", { "data-k": one.k, x1: one.px, y1: one.py, x2: best.ax, y2: best.ay, stroke: color(one.k), "stroke-width": 0.8 }));
    f.svg.append(nameText(one.k, { x: (best.box[0] + best.box[2]) / 2, y: best.box[3] - 3.5, "text-anchor": "middle" }, text));
  }
}
function tradeoff(host) {
  const key = state.against, sign = key === "variance" ? -1 : better;
  const runs = shown().filter((run) => !run.diverged).map((run) => {
    const [variance, accuracy, worst] = run.figures[`${state.model}.${state.at}`];
    return { run, k: run.strategy, x: key === "variance" ? variance : worst, y: accuracy };
  }).filter((one) => one.x !== null && one.y !== null);
  if (!runs.length) return empty(host, "No run has been evaluated yet.");
  const means = byStrategy().map((group) => {
    const own = runs.filter((one) => one.k === group.k);
    return own.length ? { k: group.k, name: group.name, x: mean(own.map((o) => o.x)), y: mean(own.map((o) => o.y)), seeds: own.length } : null;
  }).filter(Boolean);
  const alone = state.model === "personal" ? [] : means.filter((m) => D.strategies[m.k].alone), rivals = alone.length < means.length ? means.filter((m) => !alone.includes(m)) : means; // clients alone have no model to hand out
  $("#front-note").textContent = rivals.length < means.length ? `It leaves out ${alone.map((m) => m.name).join(", ")}, where there is no shared model to hand out.` : "";
  const top = better * Math.max(...rivals.map((m) => better * m.y)), room = D.unit.mark ? NEAR : (NEAR / 100) * Math.abs(top), least = top - better * room;
  const close = means.filter((m) => better * m.y >= better * least && better * m.y <= better * (top + better * room)), width = host.clientWidth || 600;
  const zoom = width > 620 && means.length > 6 && close.length < means.length && 2 * close.length >= means.length;
  const front = rivals.filter((a) => !rivals.some((b) => b !== a && sign * b.x >= sign * a.x && better * b.y >= better * a.y && (sign * b.x > sign * a.x || better * b.y > better * a.y))).sort((a, b) => a.x - b.x);
  const log = key === "variance" && wantsLog(means.map((m) => m.x), 20);
  const xlabel = key === "variance" ? axis("variance over clients", D.unit.square) : axis(`${worstWords()} of clients`);
  const west = sign < 0, arrow = better > 0 ? (west ? "↖" : "↗") : west ? "↙" : "↘", corner = west ? `${arrow} fairer and better` : `fairer and better ${arrow}`;
  const marks = [], height = means.length > 12 ? 520 : 420;
  const canvas = s("svg", {});
  function panel(list, named, from, upto, title) { // one set of axes; those named have their names
    const own = runs.filter((one) => list.some((m) => m.k === one.k)), all = [...own, ...list];
    const f = frame(host, {
      height, x: extent(all.map((o) => o.x), { pad: 0.12, log }).map((v) => (key === "variance" ? Math.max(0, v) : v)), y: extent(all.map((o) => o.y), { pad: 0.14 }), logX: log, from, upto, within: canvas,
      xlabel: log ? `${xlabel}, logarithmic` : xlabel, ylabel: title || axis(`mean ${noun}`), margin: { right: 24 },
    });
    const seeds = s("g", {}), best = front.filter((o) => list.includes(o));
    if (best.length > 1) f.svg.append(s("path", { d: "M" + best.map((o) => `${f.X(o.x)} ${f.Y(o.y)}`).join("L"), fill: "none", stroke: "var(--faint)", "stroke-width": 1.25, "stroke-dasharray": "3 4" }));
    for (const one of own) {
      const to = list.find((m) => m.k === one.k);
      seeds.append(s("g", { "data-k": one.k },
        s("line", { x1: f.X(one.x), y1: f.Y(one.y), x2: f.X(to.x), y2: f.Y(to.y), stroke: color(one.k), "stroke-opacity": 0.28 }),
        mark(one.k, f.X(one.x), f.Y(one.y), means.length > 12 ? 2.6 : 4, { "fill-opacity": 0.7 })));
    }
    f.svg.append(seeds);
    for (const one of list) f.svg.append(s("g", { "data-k": one.k }, s("circle", { cx: f.X(one.x), cy: f.Y(one.y), r: means.length > 12 ? 6.5 : 9, fill: "var(--paper)", "fill-opacity": 0.6, stroke: color(one.k), "stroke-width": 2 }), mark(one.k, f.X(one.x), f.Y(one.y), means.length > 12 ? 3.2 : 4)));
    const spots = all.map((o) => ({ ...o, px: f.X(o.x), py: f.Y(o.y) }));
    marks.push(...spots);
    const said = textWidth(corner, 12, 400), at = west ? f.m.left + 10 : f.right - 4 - said, low = better > 0 ? f.m.top + 14 : f.bottom - 8;
    placeNames(f, spots.filter((o) => named.some((m) => m.k === o.k && !o.run)), [[at, low - 12, at + said, low + 3]], spots, [f.m.left - 4, upto || f.W]);
    return f;
  }
  let f;
  if (zoom) {
    const split = Math.round(0.36 * width), left = panel(means, means.filter((m) => !close.includes(m)), 46, split - 30, `all; mean ${noun}${D.unit.mark}`);
    f = panel(close, close, split + 46, width - 20, `within ${NEAR}${D.unit.mark ? " points" : " %"} of the best mean; mean ${noun}${D.unit.mark ? ", %" : ""}`);
    const xs = extent(close.flatMap((m) => runs.filter((o) => o.k === m.k)).map((o) => o.x), { pad: 0.12, log }), ys = [least, better * Math.max(...runs.filter((o) => close.some((m) => m.k === o.k)).map((o) => better * o.y))].sort((a, b) => a - b);
    left.svg.append(s("rect", { class: "zoom", x: left.X(xs[0]), width: Math.max(2, left.X(xs[1]) - left.X(xs[0])), y: left.Y(ys[1]) - 6, height: Math.max(2, left.Y(ys[0]) - left.Y(ys[1]) + 6), fill: "none", stroke: "var(--soft)" }));
  } else f = panel(means, means, undefined, undefined, "");
  const svg = s("svg", { viewBox: `0 0 ${f.W} ${f.H}`, width: f.W, height: f.H, role: "presentation" });
  for (const part of [...canvas.children]) svg.append(...part.childNodes);
  svg.append(s("text", { class: "corner", x: west ? f.m.left + 10 : f.right - 4, y: better > 0 ? f.m.top + 14 : f.bottom - 8, "text-anchor": west ? "start" : "end" }, corner));
  host.replaceChildren(svg);
  const unit = (v) => (key === "variance" ? `${figure(v)}${D.unit.square}` : score(v));
  interact(host, svg, `Mean ${noun} against fairness of every run`, {
    find: (px, py) => { let best = null, near = 26 ** 2; marks.forEach((one, i) => { const d = (one.px - px) ** 2 + (one.py - py) ** 2; if (d < near) { near = d; best = i; } }); return best; },
    move: (at, dx) => (at === null ? 0 : clamp(at + dx, 0, marks.length - 1)),
    show: (at) => {
      const one = marks[at];
      return {
        x: one.px, y: one.py, title: one.run ? `${label(one.run)}, seed ${one.run.seed}` : `${one.name}, mean of ${plural(one.seeds, "seed")}`,
        rows: [[null, `mean ${noun}`, score(one.y)], [null, key === "variance" ? "variance" : "worst", unit(one.x)]],
        marks: [s("circle", { cx: one.px, cy: one.py, r: 12, fill: "none", stroke: "var(--ink)", "stroke-width": 1.5 })],
      };
    },
  });
  return { rows: () => [["strategy", "seed", key, `mean ${noun}${D.unit.mark}`], ...runs.map((o) => [label(o.run), o.run.seed, o.x, o.y]), ...means.map((o) => [o.name, "mean", exact(o.x), exact(o.y)])] };
}

// ---- over rounds ---------------------------------------------------------------------------
const figuresOf = (name) => byStrategy().flatMap((g) => g.runs.flatMap((run) => run.fair[state.model][name])).filter((v) => v !== null);
const ROW = { worst: ["worst", "best"], best: ["worst", "best"] }; // panels of one row have one range
const inBand = ([low, high]) => (D.unit.mark ? [Math.max(0, low), Math.min(100, high)] : [low, high]); // no share lies beyond
const ALONG = { // what the curves run over: its name, its axis, and how a place on it is told
  round: ["rounds"],
  gigabytes: ["gigabytes sent", "gigabytes, down and up", (x) => `${brief(x)} GB`],
  hours: ["hours", "hours of the simulated clock", (x) => `${brief(x)} hours`],
};
const alongs = () => Object.keys(ALONG).filter((name) => D.runs.some((run) => run.fair[name])); // what the runs record
function curve(g, name) { // of one strategy: means over seeds at each evaluation
  const runs = g.runs.filter((run) => run.fair[state.along]);
  const over = (values) => overSeeds(g.k, g.name, runs.map((run) => [run.fair.round, values(run).map((v, i) => (run.fair[state.along][i] === null ? null : v))]));
  const ys = over((run) => run.fair[state.model][name]), places = over((run) => run.fair[state.along]);
  return { ...ys, xs: ys.xs.map((x) => places.ys[places.xs.indexOf(x)]) };
}
const overRounds = (name, title) => (host) => lines(host, {
  title, y: ROW[name] && inBand(extent(ROW[name].flatMap(figuresOf))), height: ROW[name] && 320, series: byStrategy().map((g) => curve(g, name)),
  ...(state.along === "round" ? {} : { xname: state.along, xlabel: ALONG[state.along][1], titleOf: ALONG[state.along][2] }),
  unit: name === "variance" ? `variance${D.unit.square}` : `${noun}${D.unit.mark}`, fmt: name === "variance" ? figure : (v) => score(v), zero: name === "variance",
  log: name === "variance", none: "No run has been evaluated yet.",
});
const number = (run, i) => (run.info.numbers || [])[i]; // one that its strategy reports
function drawNumber(host, i) {
  const told = D.numbers[i], limits = [...new Set(shown().map((run) => number(run, i)).filter((own) => own && own.limit !== null).map((own) => own.limit))];
  const rule = limits.length === 1 ? { y: limits[0], text: `${told.limit_name || "limit"} = ${brief(limits[0])}` } : null;
  return info(host, (run) => number(run, i) && number(run, i).values, told.title, "No strategy shown here reports it.", rule);
}
function info(host, values, title, none, rule) {
  return lines(host, {
    title, none, rule, unit: title, height: 220, zero: true, left: 42, fmt: brief, flat: true,
    series: byStrategy().map((g) => overSeeds(g.k, g.name, g.runs.filter(values).map((run) => [run.info.rounds, values(run)]))).filter((one) => one.xs.length),
  });
}
