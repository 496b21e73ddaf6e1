// ---- every figure by its name --------------------------------------------------------------
const draw = {
  dots: lanes, hist: ridges, ecdf, tradeoff, heat, gains, turns, labels: labelTable,
  variance: overRounds("variance", "Variance over clients"), accuracy: overRounds("accuracy", `Mean ${noun}`),
  worst: overRounds("worst", "Worst clients"), best: overRounds("best", "Best clients"),
  effective: (host) => info(host, (run) => run.info.effective, "Effective number of clients", lacking("weights")),
  "client-accuracy": (host) => oneClient(host, "accuracy", "evaluated", true, { unit: `${noun}${D.unit.mark}`, fmt: (v) => score(v), title: `${Noun} of this client` }),
  "client-weight": (host) => oneClient(host, "weight", "rounds", false, { unit: "multiple of an equal share", fmt: (v) => `${fixed(v, 2)} ×`, title: "Weight of this client", zero: true }),
  "client-loss": (host) => oneClient(host, "loss", "rounds", true, { unit: "loss", title: "Loss reported by this client", zero: true, none: "No strategy shown here asks for losses." }),
  "client-labels": clientLabels,
};

// ---- words beside the figures --------------------------------------------------------------
const FOLD = 7; // rows of a table beside the verdict; of more, it opens by a click
function words() {
  const box = $("#binding");
  const said = new Map(); // the same of several strategies is said once
  for (const i of D.numbers.keys()) for (const g of byStrategy()) {
    const runs = g.runs.map((run) => number(run, i)).filter((own) => own && own.above[2]).map((own) => own.above);
    if (!runs.length) continue;
    const above = runs.reduce((n, own) => n + own[0], 0), all = runs.reduce((n, own) => n + own[1], 0), [, , somewhere, nowhere] = runs[0];
    const line = above === 0
      ? `: in all ${plural(all, "round")} of ${plural(runs.length, "seed")} ${nowhere}.`
      : `: ${somewhere} in ${above.toLocaleString("en-GB")} of ${plural(all, "round")} over ${plural(runs.length, "seed")}.`;
    said.set(line, [...(said.get(line) || []), g.name]);
  }
  box.replaceChildren(...[...said].map(([line, names]) => h("p", {}, h("b", {}, names.join(", ")), line)));
  const text = $("#gains-text"), pairs = gainPairs();
  text.textContent = "";
  if (pairs.length) {
    const moves = pairs.flatMap(({ run, base }) => [...final(run)].map((v, i) => ({ d: v - final(base)[i], then: final(base)[i] }))).filter((o) => Number.isFinite(o.d)).sort((a, b) => better * (a.then - b.then)), least = D.unit.mark ? 1e-3 : 0;
    const up = moves.filter((o) => better * o.d > least), down = moves.filter((o) => better * o.d < -least), quarter = moves.slice(0, Math.ceil(moves.length / 4));
    const under = pairs.length > 1 ? `${plural(Math.round(moves.length / pairs.length), "client")} under ${plural(pairs.length, "seed")} (${moves.length} cases)` : `${plural(moves.length, "client")}, seed ${pairs[0].run.seed}`;
    text.textContent = `${D.strategies[state.to].label} instead of ${label(pairs[0].base)}, ${under}: ${up.length} gain` +
      `${up.length ? ` (${points(signed(mean(up.map((o) => o.d))))} on average)` : ""}, ${down.length} lose${down.length ? ` (${signed(mean(down.map((o) => o.d)))})` : ""}. ` +
      `Of the quarter that ${label(pairs[0].base)} serves worst, ${quarter.filter((o) => better * o.d > least).length} of ${quarter.length} gain.`;
    if (D.reference_missing) text.textContent += ` ${D.reference_missing} is not among these runs.`;
  }
  const at = here(), client = $("#client-text");
  if (at && state.client !== null && at.runs.length) {
    const scores = at.runs.filter((run) => run.final && visible(run.strategy)).map((run) => `${label(run)} ${score(final(run)[state.client])}`);
    const own = at.labels ? at.labels.slice(state.client * at.classes.length, (state.client + 1) * at.classes.length) : null;
    const size = own ? `, ${plural(own.reduce((a, b) => a + b, 0), "training example")}` : "";
    const told = scores.length > 8 ? `${scores.length} strategies serve it with ${spanned(at.runs)}` : scores.join(", ") || "not known yet";
    client.textContent = `${clientName(at.runs[0], state.client)}, ${at.name}${size}. ${Noun}: ${told}.`;
  }
}
function spanned(runs) { // the least and the most of many, for the client that is chosen
  const known = runs.filter((run) => run.final && visible(run.strategy)).map((run) => [final(run)[state.client], label(run)]).sort((a, b) => better * (a[0] - b[0]));
  return [known[0], known[known.length - 1]].map(([v, name]) => `${score(v)} (${name})`).join(" to ");
}
function verdict() { // as the template, of the model and round chosen
  const close = (text) => text.replace(/ %/g, "\u00a0%");
  $("#verdict-text").replaceChildren(...verdicts().flatMap((said, i, all) => [
    said.where || said.so_far ? h("p", { class: "so-far" }, [said.where, said.so_far].filter(Boolean).join(": ")) : null,
    i ? h("p", { class: "headline" }, said.headline) : h("h1", {}, said.headline),
    said.sentence ? h("p", { class: "lead" }, close(said.sentence)) : null,
    ...said.remarks.map((text) => h("p", { class: "remark" }, close(text))),
    all.length === 1 && said.tiles.length ? h("dl", { class: "tiles" }, ...said.tiles.map((tile) => h("div", { class: tile.way }, h("dt", {}, `${tile.name}, `, h("span", {}, `minus ${said.base}`)),
      h("dd", {}, h("strong", {}, tile.change), h("span", { class: "unit" }, `${tile.half ? ` ± ${tile.half}` : ""} ${tile.unit}${tile.half ? " (95\u00a0%)" : ""}`),
        h("small", { class: "way" }, tile.way), h("small", {}, close(`${said.named} ${tile.now}, ${said.base} ${tile.then}`)))))) : null,
  ].filter(Boolean)));
  const folded = (said) => { const node = gridTable(said.table, "costs tight"); return said.table.rows.length > FOLD ? h("details", {}, h("summary", {}, said.tally), node) : node; };
  $("#beside").replaceChildren(...verdicts().filter((said) => said.table).map(folded));
}

function gridTable(made, kind) { // as the template's: a title, a head, and lines that say whose they are
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": made.title }, h("table", { class: `plain ${kind}` }, h("caption", {}, made.title),
    h("thead", {}, h("tr", {}, ...made.head.map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, ...made.rows.map(({ cells: [name, ...rest] }) => h("tr", {}, h("th", { scope: "row" }, name), ...rest.map((text, j) => h("td", { "data-name": made.head[j + 1] }, text)))))));
}
const chosenRows = (list) => list.filter((one) => visible(D.strategies.findIndex((o) => o.label === one.label)));
const seenIn = (made) => ({ ...made, rows: chosenRows(made.rows) });
function alone() { // what clients gain over training alone, of the model and round chosen
  const made = D.alone[`${state.model}.${state.at}`], rows = made ? chosenRows(made.rows).length : 0;
  const node = rows ? gridTable(seenIn(made), "costs tight") : null;
  $("#alone").replaceChildren(...(!node ? [] : rows > FOLD ? [h("details", {}, h("summary", {}, `${rows} strategies beside training alone`), node)] : [node]));
}
function costsShown() { // what the rounds cost, of the model and round chosen
  const box = $("#costs-shown");
  if (box) box.replaceChildren(...(D.costs[`${state.model}.${state.at}`] || []).filter((made) => chosenRows(made.rows).length).map((made) => gridTable(seenIn(made), "costs tight")));
}
function groupsShown() { // as the template, of what is chosen
  const box = $("#groups-shown"), opened = new Set($$("details[open]", box || document.createElement("p")).map((node) => node.dataset.label));
  if (!box) return;
  box.replaceChildren(...D.groups.flatMap((part) => {
    const now = part.shown[`${state.model}.${state.at}`], cells = chosenRows(now.cells);
    return [D.groups.length > 1 ? h("h3", {}, part.name) : null, ...now.tables.map((made) => gridTable(seenIn(made), "costs tight")), part.words ? h("p", { class: "key" }, part.words) : null,
      ...cells.map((table, i) => h("details", { "data-label": table.label, open: opened.has(table.label) || (!i && !cells.some((one) => opened.has(one.label))) ? "" : null }, h("summary", {}, table.title),
        h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": table.title }, h("table", { class: "plain cells" },
          h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "client"), ...table.head.map((text) => h("th", { scope: "col", class: "n" }, text)))),
          h("tbody", {}, ...table.rows.map((row) => h("tr", {}, h("th", { scope: "row" }, row.name), ...row.cells.map(([text, shade]) => h("td", { class: shade < 0 ? "n" : `n shade${shade}` }, text)))))))))];
  }).filter(Boolean));
}

// ---- controls ------------------------------------------------------------------------------
function hot(k) { // the rest grey in all charts
  for (const node of $$(".chart svg [data-k], .legend [data-k]")) {
    node.classList.toggle("cold", k !== null && node.dataset.k !== String(k));
    node.classList.toggle("hot", node.dataset.k === String(k));
  }
}
function isolate(k) { // alone; a further one joins it, the same again leaves, the last one brings all back
  if (state.only.has(k)) state.only.delete(k); else state.only.add(k);
  if (state.only.size === D.strategies.length) state.only.clear();
  if (state.only.has(k) && k !== D.reference) state.to = k;
  hot(null); controls(); redraw(); remember();
}
function fill(select, entries, value) {
  select.replaceChildren(...entries.map(([key, name]) => h("option", { value: key }, name)));
  select.value = String(value);
}
function controls() {
  const chips = D.strategies.map((strategy, k) => {
    const chip = h("button", { type: "button", "aria-pressed": String(state.only.has(k)), class: visible(k) ? null : "off", title: "click: show it alone, or beside those chosen" }, swatch(k), strategy.label);
    chip.addEventListener("click", () => { isolate(k); $$("#chips button")[k].focus(); });
    for (const [event, which] of [["pointerenter", k], ["pointerleave", null], ["focus", k], ["blur", null]]) chip.addEventListener(event, () => hot(which));
    return chip;
  });
  const all = h("button", { type: "button", id: "all", hidden: state.only.size ? null : "" }, "show all");
  all.addEventListener("click", () => { state.only.clear(); controls(); redraw(); remember(); });
  $("#chips").replaceChildren(...chips, all);
  fold();
  $$("#models button").forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.model === state.model)));
  $("#at").value = state.at; $("#against").value = state.against; $$(".scale").forEach((one) => { one.value = state.scale; });
  $("#along").parentNode.hidden = alongs().length < 2;
  fill($("#along"), alongs().map((name) => [name, ALONG[name][0]]), state.along);
  const federations = places();
  if (!federations.length) return;
  const others = D.strategies.map((o, k) => [k, o.label]).filter(([k]) => k !== D.reference);
  for (const id of ["#slide-to", "#gains-strategy"]) fill($(id), others, state.to);
  $("#gains .tools").hidden = !others.length;
  $("#slide-from").textContent = D.strategies[D.reference].label;
  fill($("#gains-seed"), [["all", "all"], ...[...new Set(D.runs.filter((run) => run.strategy === state.to).map((run) => run.seed))].map((seed) => [seed, seed])], state.gainSeed);
  for (const [id, value] of [["#weights-seed", state.seed], ["#client-seed", state.place], ["#labels-seed", state.labels]]) fill($(id), federations.map((place) => [place.key, place.name]), value);
  const at = here(), run = at && at.runs.find((one) => one.final);
  fill($("#client-which"), run ? [...final(run)].map((_, i) => [i, clientName(run, i)]) : [], state.client);
  const runs = D.folders.map((folder) => folder.name).join(", ");
  const entry = (k, text) => {
    const node = h("button", { type: "button", "data-k": k, title: "click: show it alone, or beside those chosen" }, sample(k), text);
    for (const [event, which] of [["pointerenter", k], ["pointerleave", null]]) node.addEventListener(event, () => hot(which));
    node.addEventListener("click", () => isolate(k));
    return node;
  };
  $$(".legend").forEach((legend) => legend.replaceChildren(h("b", {}, runs), ...D.strategies.map((o, k) => (visible(k) ? entry(k, o.label) : null)).filter(Boolean)));
  document.documentElement.toggleAttribute("data-many", D.strategies.filter((_, k) => visible(k)).length > MANY);
}
function fold() { // two lines of strategies, and a button where there are more
  const chips = $("#chips"), more = $("#more-chips"), open = chips.classList.contains("open");
  more.hidden = !open && chips.scrollHeight <= chips.clientHeight + 4;
  more.textContent = open ? "fewer ▴" : `all ${D.strategies.length} ▾`;
  more.setAttribute("aria-expanded", String(open));
}
function defaults() {
  const others = D.strategies.map((_, k) => k).filter((k) => k !== D.reference);
  if (state.to === null || !D.strategies[state.to]) state.to = others.includes(named()) ? named() : others.length ? others[0] : D.reference;
  const all = places(), known = (key) => all.some((place) => place.key === key);
  for (const name of ["place", "labels", "seed"]) if (!known(state[name]) && all.length) state[name] = all[0].key;
  if (state.client === null && all.length) { // the one the reference serves worst
    const base = all[0].runs.find((run) => run.strategy === D.reference && run.final) || all[0].runs.find((run) => run.final);
    if (base) { const v = final(base); let worst = 0; v.forEach((a, i) => { if (better * a < better * v[worst] || Number.isNaN(v[worst])) worst = i; }); state.client = worst; }
  }
}

// ---- what is chosen stands in the address ----------------------------------------------------
function remember() {
  const words_ = new URLSearchParams();
  if (state.model !== D.model) words_.set("model", state.model);
  if (state.at !== "last") words_.set("at", state.at);
  for (const k of state.only) words_.append("only", D.strategies[k].label);
  if (state.to !== null && state.to !== named()) words_.set("to", D.strategies[state.to].label);
  if (state.against !== "variance") words_.set("against", state.against);
  if (state.scale !== "auto") words_.set("scale", state.scale);
  if (state.along !== "round") words_.set("along", state.along);
  const text = words_.toString();
  history.replaceState(null, "", text ? `#${text}` : location.href.split("#")[0]);
}
function recall() { // whether the address says anything
  if (!location.hash.includes("=")) return false;
  const words_ = new URLSearchParams(location.hash.slice(1)), one = (name, known, usual) => (known.includes(words_.get(name)) ? words_.get(name) : usual);
  const find = (text) => D.strategies.findIndex((o) => o.label === text);
  state.model = one("model", D.models, D.model); state.at = one("at", ["last", "best", "last5"], "last");
  state.against = one("against", ["variance", "worst"], "variance"); state.scale = one("scale", ["auto", "linear", "log"], "auto");
  state.along = one("along", alongs(), "round");
  state.only = new Set(words_.getAll("only").map(find).filter((k) => k >= 0));
  state.to = find(words_.get("to")) >= 0 ? find(words_.get("to")) : null;
  return true;
}
addEventListener("hashchange", () => { if (recall()) { defaults(); controls(); redraw(); } });

// ---- the table -----------------------------------------------------------------------------
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
  const rows = sorted(), names = current().columns;
  $("#summary-caption").textContent = capital(current().caption);
  const alone = state.model === "personal" ? [] : D.strategies.filter((one) => one.alone).map((one) => one.label);
  $("#alone-note").textContent = alone.length ? `${alone.join(", ")}: no shared model; scores of each client's own.` : "";
  $("#table tbody").replaceChildren(...rows.map((row) => {
    const k = D.strategies.findIndex((o) => o.label === row.label);
    const line = h("tr", { class: visible(k) ? null : "off" },
      h("th", { scope: "row" }, h("span", { class: "who" }, swatch(k), h("span", {}, row.label, row.note ? h("span", { class: "note" }, ` ${row.note}`) : null))),
      ...row.cells.map(([text, rank], i) => h("td", { class: `n r${rank}`, "data-name": names[i] }, text)), h("td", { class: "n", "data-name": "seeds" }, String(row.seeds)));
    line.addEventListener("pointerenter", () => hot(k)); line.addEventListener("pointerleave", () => hot(null));
    return line;
  }));
  $$("#table thead th").forEach((head) => {
    const by = $("button", head).dataset.sort;
    if (state.sort && String(state.sort[0]) === by) head.setAttribute("aria-sort", state.sort[1] > 0 ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  });
  const more = $$("#more thead th").slice(1).map((head) => head.textContent);
  $("#more tbody").replaceChildren(...rows.map((row) => h("tr", {}, h("th", { scope: "row" }, row.label), ...row.more.map((text, i) => h("td", { class: "n", "data-name": more[i] }, text)))));
}
const quote = (value) => { // as escape.for_csv
  let text = value === null || value === undefined || (typeof value === "number" && !Number.isFinite(value)) ? "" : String(value);
  if (!Number.isFinite(Number(text))) text = text.replace(/(^|;)(?=[\s"]*[=+\-@＝＋－＠﹦﹢﹣﹫])/g, "$1'"); // no formula in a spreadsheet
  return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
};
const csv = (rows) => rows.map((row) => row.map(quote).join(",")).join("\r\n") + "\r\n";
const copies = {
  latex: () => ["% \\usepackage{booktabs}", `% ${current().caption}`, `\\begin{tabular}{l${"r".repeat(current().columns.length)}}`, "\\toprule",
    current().latex, "\\midrule", ...sorted().map((row) => row.latex), "\\bottomrule", "\\end{tabular}", ""].join("\n"),
  markdown: () => [current().markdown, `|---|${"---:|".repeat(current().columns.length)}`, ...sorted().map((row) => row.markdown), ""].join("\n"),
  csv: () => csv([["strategy", ...current().columns.flatMap((name) => [name, `sd of ${name}`]), "seeds"], ...sorted().map((row) => [row.label, ...row.values.flatMap((value, i) => [value, row.sd[i]]), row.seeds])]),
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
const LOOK = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linejoin", "stroke-linecap", "font-family", "font-size", "font-weight", "text-anchor", "paint-order"];
function svgText(svg, title) { // a picture that needs no style sheet, with its title and legend
  const host = svg.parentNode, box = svg.viewBox.baseVal, shownHere = new Set($$("[data-k]", svg).map((node) => Number(node.dataset.k)));
  const whole = s("svg", { width: box.width }), runs = D.folders.map((folder) => folder.name).join(", ");
  whole.append(s("text", { class: "title", x: 4, y: 18 }, title), s("text", { x: 4, y: 36 }, `${runs}; ${current().caption}`));
  let x = 4, y = 56;
  for (const k of [...shownHere].sort((a, b) => a - b)) {
    const name = squeeze(D.strategies[k].label, 30), wide = 26 + 7 * name.length;
    if (x > 4 && x + wide > box.width) { x = 4; y += 18; }
    whole.append(mark(k, x + 6, y - 4, 4.6), s("text", { x: x + 16, y }, name));
    x += wide;
  }
  const top = shownHere.size ? y + 12 : 46;
  const inner = svg.cloneNode(true);
  whole.append(s("g", { transform: `translate(0 ${top})` }, ...inner.childNodes));
  whole.setAttribute("viewBox", `0 0 ${box.width} ${box.height + top}`); whole.setAttribute("height", box.height + top);
  host.append(whole); // for a moment, so that its styles are known
  $$("*", whole).forEach((node) => {
    if (node.tagName === "g") return;
    const seen = getComputedStyle(node);
    for (const name of LOOK) { const value = seen.getPropertyValue(name); if (value) node.setAttribute(name, value); }
    node.removeAttribute("style"); node.removeAttribute("class");
  });
  whole.remove();
  const paper = getComputedStyle(document.body).backgroundColor;
  whole.prepend(s("title", {}, title), s("rect", { width: box.width, height: box.height + top, fill: paper }));
  whole.setAttribute("xmlns", SVG);
  return '<?xml version="1.0" encoding="UTF-8"?>\n' + new XMLSerializer().serializeToString(whole) + "\n";
}
const drawn = {};
function tools(figure) {
  const id = figure.dataset.figure, title = $("h3", figure).textContent;
  const button = (name, what, act) => { const node = h("button", { type: "button", "data-act": name.toLowerCase(), "aria-label": `${what}: ${title}` }, name); node.addEventListener("click", act); return node; };
  figure.append(h("div", { class: "acts" },
    button("Table", "Show data as a table", () => {
      const old = $(".data", figure);
      if (old) { old.remove(); return; }
      const [head, ...rows] = drawn[id].rows(), most = 500;
      figure.append(h("div", { class: "data", tabindex: "0", role: "region", "aria-label": `Data of ${title}` }, h("table", {},
        h("thead", {}, h("tr", {}, ...head.map((text) => h("th", { scope: "col" }, String(text))))),
        h("tbody", {}, ...rows.slice(0, most).map((row) => h("tr", {}, ...row.map((v) => h("td", {}, v === null || v === undefined || v === "" ? "–" : String(v)))))),
        rows.length > most ? h("caption", {}, `The first ${most} of ${rows.length.toLocaleString("en-GB")} rows; all are in the CSV.`) : null)));
    }),
    button("CSV", "Download data", () => download(`${id}.csv`, csv(drawn[id].rows()), "text/csv")),
    button("SVG", "Download picture", () => { const svg = $(".chart > svg", figure); if (svg) download(`${id}.svg`, svgText(svg, title), "image/svg+xml"); })));
}

// ---- drawing -------------------------------------------------------------------------------
function paint(figure) {
  const id = figure.dataset.figure, host = $(".chart", figure);
  drawn[id] = id.startsWith("number-") ? drawNumber(host, Number(id.slice(7))) : draw[id](host);
  const old = $(".data", figure);
  if (old) old.remove();
}
let turn = 0;
function redraw(section, atOnce) {
  const mine = ++turn;
  words();
  const list = $$(section ? `#${section} figure` : "figure");
  if (section) { list.forEach(paint); turn--; return; }
  table(); verdict(); alone(); costsShown(); groupsShown();
  delete document.documentElement.dataset.drawn;
  const done = () => { document.documentElement.dataset.drawn = "yes"; };
  if (atOnce) { list.forEach(paint); done(); return; }
  (function next(i) { // a figure at a time, so that the page stays responsive
    if (mine !== turn) return;
    if (i >= list.length) { done(); return; }
    paint(list[i]);
    setTimeout(() => next(i + 1), 0);
  })(0);
}
function theme(name) {
  if (name) document.documentElement.dataset.theme = name; else delete document.documentElement.dataset.theme;
  const button = $("#theme");
  button.textContent = { dark: "●", light: "○" }[name] || "◐";
  button.setAttribute("aria-label", `Theme: ${name || "as the system"}`);
  redraw();
}
function on(id, event, act) { $(id).addEventListener(event, act); }
function wire() { // elements that a live update may replace
  $$("figure").forEach(tools);
  $$("#table thead button").forEach((button) => button.addEventListener("click", () => {
    const by = button.dataset.sort === "label" || button.dataset.sort === "seeds" ? button.dataset.sort : Number(button.dataset.sort);
    const first = by === "label" || by === 0 || (by !== "seeds" && better < 0) ? 1 : -1; // the better end first
    state.sort = state.sort && state.sort[0] === by ? [by, -state.sort[1]] : [by, first];
    table();
  }));
  $$("[data-copy]").forEach((button) => button.addEventListener("click", () => copy(copies[button.dataset.copy](), button)));
  commands(document);
  const choose = (id, name, section) => on(id, "change", (e) => { state[name] = e.target.value; controls(); redraw(section); remember(); });
  choose("#against", "against", "tradeoff"); choose("#along", "along", "rounds"); choose("#weights-seed", "seed", "weights"); choose("#gains-seed", "gainSeed", "gains"); choose("#labels-seed", "labels", "heterogeneity");
  $$(".scale").forEach((one) => one.addEventListener("change", () => { state.scale = one.value; controls(); redraw("rounds"); redraw("tradeoff"); remember(); }));
  for (const id of ["#slide-to", "#gains-strategy"]) on(id, "change", (e) => { state.to = Number(e.target.value); state.gainSeed = "all"; controls(); redraw("gains"); redraw("verdict"); remember(); });
  on("#slide", "input", (e) => slide(Number(e.target.value) / 1000));
  on("#play", "click", play);
  on("#client-seed", "change", (e) => { state.place = e.target.value; const at = here(), run = at.runs.find((one) => one.final); state.client = run ? Math.min(state.client || 0, final(run).length - 1) : null; controls(); redraw("client"); });
  on("#client-which", "change", (e) => { state.client = Number(e.target.value); redraw("client"); });
}
function commands(at) {
  $$("[data-copy-text]", at).forEach((button) => button.addEventListener("click", () => copy(button.dataset.copyText, button)));
}
function watchSections() {
  const links = new Map($$(".toc a").map((link) => [link.hash.slice(1), link]));
  for (const [id, link] of links) link.addEventListener("click", (event) => { event.preventDefault(); $(`#${id}`).scrollIntoView(); }); // the address keeps what is chosen
  if (!("IntersectionObserver" in window)) return;
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) {
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(entry.target.id).setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-15% 0px -75% 0px" });
  $$("main > section").forEach((section) => seen.observe(section));
}
const change = () => { controls(); redraw(); remember(); };
$$("#models button").forEach((button) => button.addEventListener("click", () => { state.model = button.dataset.model; change(); }));
on("#more-chips", "click", () => { $("#chips").classList.toggle("open"); fold(); });
on("#at", "change", (e) => { state.at = e.target.value; change(); });
on("#theme", "click", () => theme({ undefined: dark() ? "light" : "dark", dark: "light", light: "dark" }[document.documentElement.dataset.theme]));
media.addEventListener("change", () => { if (!document.documentElement.dataset.theme) redraw(); });
let wait = null, width = innerWidth;
addEventListener("resize", () => { if (innerWidth === width || printing()) return; width = innerWidth; fold(); clearTimeout(wait); wait = setTimeout(() => redraw(), 120); });
let before;
addEventListener("beforeprint", () => { before = document.documentElement.dataset.theme; document.documentElement.dataset.theme = "light"; document.documentElement.dataset.print = "yes"; redraw(null, true); });
addEventListener("afterprint", () => { delete document.documentElement.dataset.print; theme(before); });
