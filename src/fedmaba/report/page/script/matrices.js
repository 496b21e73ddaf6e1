// ---- matrices as pictures ------------------------------------------------------------------
const RAMPS = { // one hue, monotone in lightness: readable without colour
  light: [[247, 248, 246], [199, 220, 236], [120, 176, 214], [43, 116, 178], [8, 48, 107]],
  dark: [[29, 33, 39], [20, 66, 106], [28, 113, 168], [97, 176, 222], [226, 243, 252]],
};
const DIVERGING = { // below 1 orange, above 1 blue, 1 the paper: apart for the colour-blind too
  light: [[140, 62, 0], [214, 120, 40], [246, 205, 160], [250, 250, 248], [172, 205, 230], [58, 130, 190], [8, 48, 107]],
  dark: [[255, 190, 130], [205, 115, 40], [96, 56, 24], [29, 32, 37], [24, 66, 104], [56, 138, 200], [190, 226, 250]],
};
const media = matchMedia("(prefers-color-scheme: dark)");
const dark = () => (document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : media.matches);
function ramp(share, ramps = RAMPS) {
  const stops = ramps[dark() ? "dark" : "light"], at = clamp(share, 0, 1) * (stops.length - 1), i = Math.min(stops.length - 2, Math.floor(at));
  return stops[i].map((v, j) => Math.round(v + (stops[i + 1][j] - v) * (at - i)));
}
function picture(nx, ny, value, paint) { // a canvas of a pixel per cell, as an address
  const canvas = document.createElement("canvas");
  canvas.width = nx; canvas.height = ny;
  const pen = canvas.getContext("2d"), pixels = pen.createImageData(nx, ny);
  for (let y = 0; y < ny; y++) for (let x = 0; x < nx; x++) {
    const v = value(y, x);
    if (Number.isFinite(v)) pixels.data.set([...paint(v), 255], 4 * (y * nx + x));
  }
  pen.putImageData(pixels, 0, 0);
  return canvas.toDataURL();
}
function scaleBar(svg, right, y, paint, low, high, name) {
  const length = 110, x0 = right - length - 7 * high.length - 6;
  for (let i = 0; i < 24; i++) svg.append(s("rect", { x: x0 + (i * length) / 24, y: y - 8, width: length / 24 + 0.5, height: 8, fill: `rgb(${paint(i / 23).join(" ")})` }));
  svg.append(s("text", { x: right, y, "text-anchor": "end" }, high), s("text", { x: x0 - 8, y, "text-anchor": "end" }, `${name}${low}`));
}
function matrix(host, o) {
  const all = [];
  for (let y = 0; y < o.ny; y++) for (let x = 0; x < o.nx; x++) { const v = o.value(y, x); if (Number.isFinite(v)) all.push(v); }
  all.sort((a, b) => a - b);
  const top = all.length ? Math.max(all[Math.floor((all.length - 1) * 0.995)], 1e-12) : 1, floor = Math.min(0, all[0] || 0);
  const room = printing() ? Math.min(o.height, 15.5 * o.ny) : o.height; // on paper a line of text each
  const f = frame(host, { height: room + 92, rigid: true, x: [0, o.nx], y: [0, o.ny], noX: true, noY: true, margin: { left: o.left, top: 40, bottom: 44, right: 8 } });
  const wide = f.right - f.m.left, tall = f.bottom - f.m.top;
  f.svg.append(s("image", { href: picture(o.nx, o.ny, o.value, (v) => ramp((v - floor) / (top - floor || 1))), x: f.m.left, y: f.m.top, width: wide, height: tall, preserveAspectRatio: "none", "image-rendering": "pixelated" }));
  f.svg.append(s("rect", { x: f.m.left, y: f.m.top, width: wide, height: tall, fill: "none", stroke: "var(--line)" }));
  const px = (x) => f.m.left + (x / o.nx) * wide, py = (y) => f.m.top + (y / o.ny) * tall;
  const skipY = Math.max(1, Math.ceil(o.ny / Math.floor(tall / 15))), skipX = Math.max(1, Math.ceil(o.nx / Math.floor(wide / (12 + Math.max(40, ...o.xs.map((x) => textWidth(String(x), 12, 400)))))));
  for (let y = 0; y < o.ny; y += skipY) f.svg.append(s("text", { x: f.m.left - 10, y: py(y + 0.5) + 4, "text-anchor": "end" }, o.yt(y)));
  for (let x = 0; x < o.nx; x += skipX) f.svg.append(s("text", { x: px(x + 0.5), y: f.bottom + 18, "text-anchor": "middle" }, String(o.xs[x])));
  f.svg.append(s("text", { x: f.right, y: f.H - 6, "text-anchor": "end" }, o.xlabel));
  const above = `${o.legend(top)}${all.length && all[all.length - 1] > top * 1.001 ? " or more" : ""}`;
  scaleBar(f.svg, f.right, 22, ramp, o.legend(floor), above, f.W > 420 ? `${o.rowName}   ` : "");
  interact(host, f.svg, o.title, {
    find: (mx, my) => { const x = Math.floor(((mx - f.m.left) / wide) * o.nx), y = Math.floor(((my - f.m.top) / tall) * o.ny); return x >= 0 && x < o.nx && y >= 0 && y < o.ny ? y * o.nx + x : null; },
    move: (key, dx, dy) => (key === null ? 0 : clamp(Math.floor(key / o.nx) - dy, 0, o.ny - 1) * o.nx + clamp((key % o.nx) + dx, 0, o.nx - 1)),
    show: (key) => {
      const x = key % o.nx, y = Math.floor(key / o.nx), v = o.value(y, x);
      return {
        x: px(x + 0.5), y: py(y), title: `${o.yname(y)}, ${o.xname(x)}`,
        rows: [[null, o.rowName, Number.isFinite(v) ? o.fmt(v) : "–"]],
        marks: [s("rect", { x: px(x) - 1, y: py(y) - 1, width: wide / o.nx + 2, height: tall / o.ny + 2, fill: "none", stroke: "var(--ink)", "stroke-width": 1.5 })],
      };
    },
    go: o.go ? (key) => o.go(Math.floor(key / o.nx), key % o.nx) : null,
  });
  return { rows: o.table };
}

// What a weight of a round is multiplied with to say how many times an equal share it is. Where
// the coefficients of a round do not add up to 1, as q-FFL's, it is the share of their sum.
function equalShares(run, weights, clients) {
  return run.rounds.map((_, t) => {
    let m = 0;
    for (let c = 0; c < clients; c++) if (!Number.isNaN(weights[t * clients + c])) m++;
    return (m * (run.n / clients)) / (run.total && run.total[t] > 0 ? run.total[t] : 1);
  });
}
const between = (low, high) => (low === high ? low : `${low} to ${high}`);
function sums(runs) { // who does not add up to 1, in one line
  const found = byStrategy(runs.filter((run) => run.total)).map((group) => {
    const all = group.runs.flatMap((run) => run.total).filter((v) => v !== null);
    return `${group.name} ${between(...[Math.min(...all), Math.max(...all)].map((v) => fixed(v)))}`;
  });
  return found.length ? `Coefficients that do not add up to 1 make the whole step shorter or longer; shown is each client's share of the sum: ${found.join(", ")}.` : "";
}

const FAINT = 1.1; // times an equal share: a picture of less is blank

// ---- weights: strategies side by side, the same clients in the same lines --------------------
function heat(host) {
  const place = places().find((one) => one.key === state.seed) || places()[0];
  const runs = place ? place.runs.filter((run) => visible(run.strategy) && run.weight) : [];
  const note = $("#weights-note");
  note.textContent = "";
  if (!runs.length) return empty(host, lacking("weights"));
  const panels = runs.map((run) => {
    const weights = unpack(run.weight), [rows, clients] = run.weight.shape;
    const cell = (c, t) => weights[t * clients + c];
    const times = equalShares(run, weights, clients);
    return { run, k: run.strategy, rows, clients, cell, value: (c, t) => cell(c, t) * times[t] };
  });
  const base = place.runs.find((run) => run.strategy === D.reference && run.final) || place.runs.find((run) => run.final);
  const served = base && final(base), count = Math.min(...panels.map((p) => p.clients));
  const order = Array.from({ length: count }, (_, c) => c); // served worst first, in every panel
  if (served) { const at = (c) => (Number.isFinite(served[c]) ? better * served[c] : Infinity); order.sort((a, b) => (at(a) === at(b) ? a - b : at(a) - at(b))); }
  for (const p of panels) { // the least and the most that a client counted
    p.low = Infinity; p.high = -Infinity;
    for (let t = 0; t < p.rows; t++) for (const c of order) { const v = p.value(c, t); if (Number.isFinite(v)) { p.low = Math.min(p.low, v); p.high = Math.max(p.high, v); } }
  }
  const flat = (p) => p.high < 1.005 && p.low > 0.995, pale = (p) => p.high < FAINT && p.low > 1 / FAINT; // nothing to see in its picture
  const even = panels.filter(flat), nearly = panels.filter((p) => pale(p) && !flat(p)), uneven = panels.filter((p) => !pale(p));
  note.textContent = [even.length ? `Every client counted 1.00 × in every round with ${even.map((p) => label(p.run)).join(", ")}.` : "",
    nearly.length ? `Nearly alike, so not drawn: ${nearly.map((p) => `${label(p.run)} (${between(fixed(p.low), fixed(p.high))} ×)`).join(", ")}.` : "", sums(runs)].filter(Boolean).join(" ");
  const table = () => [["strategy", "round", ...order.map((c) => clientName(panels[0].run, c))], ...panels.flatMap((p) => p.run.rounds.map((t, i) => [label(p.run), t, ...order.map((c) => exact(p.cell(c, i)))]))];
  if (!uneven.length) return { ...empty(host, "Nothing to draw: all weights are nearly equal.", true), rows: table };
  const width = host.clientWidth || 600, paper = printing() && uneven.length > 6, most = Math.max(1, Math.min(uneven.length, Math.floor(width / (paper ? 135 : uneven.length > 6 ? 190 : 260)), paper ? 5 : 4));
  const lines_ = Math.ceil(uneven.length / most), columns = Math.ceil(uneven.length / lines_), gap = 20, top = 44;
  const usual = clamp(count * 5, 90, uneven.length > 6 ? 110 : 190), tall = paper ? clamp(840 / lines_ - 44, 24, usual) : usual, step = tall + 44; // all on one sheet of paper
  const f = frame(host, { height: top + lines_ * step + 18, rigid: true, x: [0, 1], y: [0, 1], noX: true, noY: true, margin: { left: 16, right: 4 } });
  const wide = (f.right - f.m.left - gap * (columns - 1)) / columns;
  const all = uneven.flatMap((p) => order.flatMap((c) => p.run.rounds.map((_, t) => p.value(c, t)))).filter((v) => v > 0).map((v) => Math.abs(Math.log2(v))).sort((a, b) => a - b);
  const reach = clamp(all[Math.floor(0.99 * (all.length - 1))] || 1, 0.5, 5), share = (v) => (v > 0 ? 0.5 + Math.log2(v) / (2 * reach) : 0);
  const bar = (t) => ramp(t, DIVERGING);
  scaleBar(f.svg, f.right, 16, bar, `${Number((2 ** -reach).toPrecision(2))} ×  `, `${Number((2 ** reach).toPrecision(2))} ×`, f.W > 420 ? "weight / equal share, 1 × in the middle   " : "");
  uneven.forEach((p, i) => {
    p.x = f.m.left + (i % columns) * (wide + gap); p.y = top + Math.floor(i / columns) * step + 14;
    f.svg.append(nameText(p.k, { x: p.x, y: p.y - 6 }, squeeze(label(p.run), Math.floor(wide / 7.5))));
    f.svg.append(s("g", { "data-k": p.k },
      s("image", { href: picture(p.rows, count, (y, x) => p.value(order[y], x), (v) => ramp(share(v), DIVERGING)), x: p.x, y: p.y, width: wide, height: tall, preserveAspectRatio: "none", "image-rendering": "pixelated" }),
      s("rect", { x: p.x, y: p.y, width: wide, height: tall, fill: "none", stroke: "var(--line)" }),
      s("text", { x: p.x, y: p.y + tall + 14 }, String(p.run.rounds[0])), s("text", { x: p.x + wide, y: p.y + tall + 14, "text-anchor": "end" }, `round ${p.run.rounds[p.rows - 1]}`)));
  });
  const side = textWidth("served worst on top", 12, 400) < tall ? "served worst on top" : "worst on top"; // along each line of panels
  for (let line = 0; line < lines_; line++) f.svg.append(s("text", { class: "side", transform: `translate(10 ${top + 14 + line * step + tall / 2}) rotate(-90)`, "text-anchor": "middle" }, side));
  interact(host, f.svg, `Weights of ${strategies(uneven.length)}, ${place.name}`, {
    find: (mx, my) => {
      const i = uneven.findIndex((p) => mx >= p.x && mx < p.x + wide && my >= p.y && my < p.y + tall);
      return i < 0 ? null : [i, Math.floor(((my - uneven[i].y) / tall) * count), Math.floor(((mx - uneven[i].x) / wide) * uneven[i].rows)];
    },
    move: (key, dx, dy) => {
      if (key === null) return [0, 0, 0];
      const [i, y, x] = key, last = uneven[i].rows - 1;
      if (x + dx > last && dx === 1) return [Math.min(i + 1, uneven.length - 1), y, i + 1 < uneven.length ? 0 : last];
      if (x + dx < 0 && dx === -1 && i) return [i - 1, y, uneven[i - 1].rows - 1];
      return [i, clamp(y - dy, 0, count - 1), clamp(x + dx, 0, last)];
    },
    show: ([i, y, x]) => {
      const p = uneven[i], c = order[y], v = p.value(c, x);
      return {
        x: p.x + ((x + 0.5) / p.rows) * wide, y: p.y + (y / count) * tall, title: `${label(p.run)}: ${clientName(p.run, c)}, round ${p.run.rounds[x]}`,
        rows: [[null, "weight / equal share", Number.isFinite(v) ? `${fixed(v)} ×` : "took no part"], [null, "weight", Number.isNaN(p.cell(c, x)) ? "–" : p.cell(c, x).toPrecision(3)]],
        marks: [s("rect", { x: p.x + (x / p.rows) * wide - 1, y: p.y + (y / count) * tall - 1, width: wide / p.rows + 2, height: tall / count + 2, fill: "none", stroke: "var(--ink)", "stroke-width": 1.5 })],
      };
    },
    go: ([i, y]) => open(uneven[i].run, order[y]),
  });
  return { rows: table };
}

// ---- label by client -----------------------------------------------------------------------
function labelTable(host) {
  const place = places().find((one) => one.key === state.labels) || places()[0];
  const folder = place && D.folders[place.folder], table = folder && folder.labels[place.seed];
  const text = $("#labels-text");
  if (!table) { text.textContent = ""; return empty(host, "Label counts are not stored in this folder: its targets are no classes, or it was written by an older version, or not by a run."); }
  const counts = unpack(table.counts), [clients, classes] = table.counts.shape, run = place.runs[0];
  const sizes = [], held = [];
  for (let c = 0; c < clients; c++) { const own = counts.slice(c * classes, (c + 1) * classes); sizes.push(own.reduce((a, b) => a + b, 0)); held.push(own.filter((n) => n > 0).length); }
  const few = Math.min(...held), many = Math.max(...held);
  text.textContent = `${few === many ? `Each client holds ${few}` : `A client holds ${few} to ${many} (${mean(held).toFixed(1)} on average)`} of ${plural(classes, "class").replace("classs", "classes")}, ` +
    `and ${Math.min(...sizes) === Math.max(...sizes) ? plural(sizes[0], "training example") : `${Math.min(...sizes).toLocaleString("en-GB")} to ${Math.max(...sizes).toLocaleString("en-GB")} training examples`}.`;
  const name = (y) => (folder.classes[y] === undefined ? String(y) : folder.classes[y]);
  const named_ = clients <= 12 && folder.clients.length > 0; // few clients stand there by their names
  const longest = Math.max(...Array.from({ length: classes }, (_, y) => Math.min(16, name(y).length)));
  return matrix(host, {
    nx: clients, ny: classes, value: (y, x) => counts[x * classes + y], height: clamp(classes * 22, 120, 480), left: Math.min(132, 18 + 6.8 * longest),
    xs: Array.from({ length: clients }, (_, x) => (named_ ? squeeze(folder.clients[x], 14) : clientId(run, x))), xlabel: "client", yname: name, yt: (y) => squeeze(name(y), 16), xname: (x) => clientName(run, x),
    fmt: (v) => String(v), legend: (v) => String(Math.round(v)), rowName: "training examples", title: "Training examples of each class at each client",
    go: (y, x) => open(run, x),
    table: () => [["client", ...Array.from({ length: classes }, (_, y) => name(y))], ...Array.from({ length: clients }, (_, x) => [clientName(run, x), ...Array.from({ length: classes }, (_, y) => counts[x * classes + y])])],
  });
}
