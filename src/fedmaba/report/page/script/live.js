// ---- a live run ----------------------------------------------------------------------------
let heard = Date.now();
const clock = (seconds) => { const whole = Math.round(seconds), pad = (n) => String(n).padStart(2, "0"), hours = Math.floor(whole / 3600), minutes = Math.floor((whole % 3600) / 60); return hours ? `${hours}:${pad(minutes)}:${pad(whole % 60)}` : `${minutes}:${pad(whole % 60)}`; };
function spark(k, curve, title) { // a small curve of one strategy
  const ys = curve.ys.filter(Number.isFinite).slice(-40), low = Math.min(...ys), high = Math.max(...ys), w = 84, tall = 22;
  if (ys.length < 2) return null;
  const d = ys.map((y, i) => `${i ? "L" : "M"}${((i * (w - 4)) / (ys.length - 1) + 2).toFixed(1)} ${(tall - 3 - ((y - low) / (high - low || 1)) * (tall - 6)).toFixed(1)}`).join("");
  return h("span", { class: "spark", title }, s("svg", { width: w, height: tall, role: "img", "aria-label": title }, s("path", { d, fill: "none", stroke: color(k), "stroke-width": 1.75 })), h("span", {}, title));
}
function strip() { // how far the run is, always in sight
  const at = D.live[0], bar = $("#strip");
  bar.hidden = !at;
  const name = D.folders.map((folder) => folder.name).join(", ");
  if (!at) { document.title = `${document.body.dataset.version === undefined ? "" : "✓ "}${name} · fedmaba`; return; }
  document.title = `${at.done}${at.rounds ? `/${at.rounds}` : ""} · ${name} · fedmaba`;
  const left = at.rounds && at.seconds ? clock((at.rounds - at.done) * at.seconds) : null;
  const rate = at.seconds ? (at.seconds < 1 ? `${brief(1 / at.seconds)} rounds/s` : `${brief(at.seconds)} s a round`) : "";
  const k = state.to === null ? D.reference : state.to, runs = D.runs.filter((run) => run.strategy === k);
  const curve = (what) => overSeeds(k, "", runs.map((run) => [run.fair.round, run.fair[state.model][what]]));
  const ends = (what) => { const ys = curve(what).ys; return ys.length ? figure(ys.at(-1)) : "–"; };
  const say_ = D.strategies[k] ? D.strategies[k].label : "";
  const command = at.held ? at.stop : at.resume;
  const button = command ? h("button", { type: "button", "data-copy-text": command, title: command }, at.held ? "copy the command to stop" : "copy the command to go on") : null;
  bar.replaceChildren(
    h("b", {}, at.held ? "running" : "interrupted"),
    h("span", {}, `round ${at.done}${at.rounds ? ` of ${at.rounds}` : ""}`),
    at.rounds ? h("progress", { max: at.rounds, value: at.done, "aria-label": "rounds done" }) : "",
    at.held ? h("span", {}, left ? `${rate}, ${left} left` : "estimating the time left") : "",
    ...(runs.length ? [spark(k, curve("variance"), `${say_}: variance ${ends("variance")}`), spark(k, curve("accuracy"), `mean ${ends("accuracy")}`)].filter(Boolean) : []),
    at.held ? h("span", { id: "heard" }, "") : "", ...(button ? [button] : []));
  commands(bar);
}
function tick() {
  const box = $("#heard");
  if (box) box.textContent = `updated ${Math.round((Date.now() - heard) / 1000)} s ago`;
}
async function live() {
  try {
    const version = await (await fetch("version", { cache: "no-store" })).text();
    if (version !== document.body.dataset.version) {
      const fresh = new DOMParser().parseFromString(await (await fetch("./", { cache: "no-store" })).text(), "text/html");
      const block = $("#data", fresh);
      if (block) { // else it says what is wrong, and is asked again
        const same = $$("figure, #groups, #sites", fresh).length === $$("figure, #groups, #sites").length;
        const usual = D.model;
        D = read(fresh); heard = Date.now();
        if (state.model === usual) state.model = D.model; // the deployed one, once it is evaluated
        document.body.dataset.version = fresh.body.dataset.version;
        if (same) { // curves grow in place
          for (const id of ["#facts", "#live", "#notes", "#groups", "#sites", "#setup"]) if ($(id)) $(id).replaceWith(document.importNode($(id, fresh), true));
        } else $("#main").replaceWith(document.importNode($("#main", fresh), true));
        defaults();
        if (same) { commands($("#setup")); commands($("#live")); } else { wire(); watchSections(); }
        controls(); redraw(); strip();
      }
    }
  } catch (gone) { say("The run's server does not answer."); }
  tick();
  setTimeout(live, 1000);
}

recall(); defaults(); wire(); controls(); redraw(); watchSections(); strip();
if (document.body.dataset.version !== undefined) setTimeout(live, 1000);
