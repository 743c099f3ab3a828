"use strict";

// What the page knows. `shown` are the robots on the two lanes, as the server described them; `asked`, for which of them
// the page has asked; `orders` wait to be sent. Of several problems the first is told.
const page = {
  about: null, cells: null, version: null, which: "archived", way: [], shown: [null, null], asked: [false, false],
  across: 0, up: 1, slice: [], news: { time: 0, length: 0, playing: true, speed: 1 }, heard: 0, dragging: false,
  reading: false, orders: [], sending: false, problems: { gone: null, asked: null, archive: null, stage: null },
};
const COLOURS = ["rgb(38 70 131)", "rgb(196 78 32)"];
const VIRIDIS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];
const SIZE = 400, EDGE = 34; // of the map, and what its labels take
const MOST_SPOTS = 20000; // drawn of a map with empty cells; of a larger one, only the filled cells are
const SLICES = 10; // of a CVT, along each further measure
const $ = (name) => document.getElementById(name);
const number = (value, digits = 0) => value == null ? "–" :
  value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });

async function ask(place, question) {
  const options = question === undefined ? {} :
    { method: "POST", headers: { "X-Ppga": "1" }, body: JSON.stringify(question) };
  const answer = await fetch(place, options);
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.problem || answer.statusText);
  return content;
}

function complain(about, problem) { // null: it is over
  page.problems[about] = problem;
  const first = Object.values(page.problems).find(Boolean) ?? "";
  $("problem").hidden = !first;
  if ($("problem").textContent !== first) $("problem").textContent = first;
}

const refused = (problem) => complain("asked", problem.message);

function element(name, attributes = {}, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// The map.

function colour(share) {
  const place = Math.min(Math.max(share, 0), 1) * (VIRIDIS.length - 1), low = Math.floor(place);
  const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const a = parts(VIRIDIS[low]), b = parts(VIRIDIS[Math.min(low + 1, VIRIDIS.length - 1)]);
  return `rgb(${a.map((value, at) => Math.round(value + (b[at] - value) * (place - low))).join(" ")})`;
}

function placeOf(index) { // a grid's cell -> its number along each measure
  const place = [];
  for (let axis = page.cells.shape.length - 1; axis >= 0; axis--) {
    place[axis] = index % page.cells.shape[axis];
    index = Math.floor(index / page.cells.shape[axis]);
  }
  return place;
}

function cellAt(place) {
  return place.reduce((index, at, axis) => index * page.cells.shape[axis] + at, 0);
}

function slab(axis) { // from where to where a slice reaches: a grid's cell; of a CVT, a step to both sides
  const [low, high] = page.cells.ranges[axis], at = page.slice[axis];
  const share = page.cells.kind === "grid" ? [at, at + 1].map((edge) => edge / page.cells.shape[axis]) :
    [at - 1, at + 1].map((edge) => Math.min(Math.max(edge / (SLICES - 1), 0), 1));
  return share.map((edge) => low + edge * (high - low));
}

function nearSlice(centroid) { // of a CVT: within the slice chosen, along all measures that are not shown
  return centroid.every((value, axis) => {
    if (axis === page.across || axis === page.up) return true;
    const [low, high] = slab(axis);
    return low <= value && value <= high;
  });
}

function extremes(values) { // of any number of them, more than a function takes arguments
  if (!values.length) return [null, null];
  return values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
}

function drawMap() {
  const cells = page.cells;
  $("map").replaceChildren();
  if (!cells || !cells.shape) return;
  const flat = cells.measures.length < 2, height = flat ? 60 : SIZE;
  const svg = element("svg", { viewBox: `${-EDGE} -4 ${SIZE + EDGE + 6} ${height + EDGE + 6}` });
  const [low, high] = extremes(cells.objective);
  const filled = new Map(cells.index.map((index, row) => [index, cells.objective[row]]));
  const shade = (index) => colour(high > low ? (filled.get(index) - low) / (high - low) : 1);
  const spots = new Map();
  const tell = (spot, index) => {
    spot.dataset.cell = index;
    spot.classList.add("cell", filled.has(index) ? "filled" : "empty");
    if (filled.has(index)) {
      const words = `cell ${index}: ${number(filled.get(index))}`;
      spot.setAttribute("fill", shade(index));
      spot.setAttribute("tabindex", 0);
      spot.setAttribute("role", "button");
      spot.setAttribute("aria-label", words);
      spot.append(element("title", {}, words));
    }
    spots.set(index, spot);
    svg.append(spot);
  };
  if (cells.kind === "cvt") {
    let near = cells.centroids.map((centroid, index) => index).filter((index) => nearSlice(cells.centroids[index]));
    const radius = 0.42 * SIZE / Math.sqrt(Math.max(near.length, 4));
    if (near.length > MOST_SPOTS) near = near.filter((index) => filled.has(index));
    near.sort((a, b) => filled.has(a) - filled.has(b)); // what is filled lies on top
    for (const index of near) {
      const [x, y] = spotOf(cells.centroids[index], height);
      tell(element("circle", { cx: x, cy: flat ? height / 2 : y, r: Math.min(radius, 20) }), index);
    }
  } else {
    const across = cells.shape[page.across], up = flat ? 1 : cells.shape[page.up];
    const wide = SIZE / across, tall = height / up;
    const draw = (x, y, index) =>
      tell(element("rect", { x: x * wide, y: height - (y + 1) * tall, width: wide, height: tall }), index);
    if (across * up > MOST_SPOTS) { // the filled ones only
      const elsewhere = (at, axis) => axis !== page.across && axis !== page.up && at !== page.slice[axis];
      for (const index of filled.keys()) {
        const place = placeOf(index);
        if (!place.some(elsewhere)) draw(place[page.across], flat ? 0 : place[page.up], index);
      }
    } else {
      for (let x = 0; x < across; x++) {
        for (let y = 0; y < up; y++) {
          const place = page.slice.slice();
          place[page.across] = x;
          if (!flat) place[page.up] = y;
          draw(x, y, cellAt(place));
        }
      }
    }
  }
  drawAxes(svg, height, flat);
  if ($("path").checked && !flat) drawWay(svg, height);
  page.shown.forEach((shown, slot) => {
    const spot = shown && spots.get(shown.cell);
    if (!spot) return;
    const mark = spot.cloneNode(false);
    mark.setAttribute("class", "mark");
    mark.removeAttribute("data-cell");
    mark.setAttribute("stroke", COLOURS[slot]);
    svg.append(mark);
  });
  $("map").append(svg);
  $("low").textContent = number(low);
  $("high").textContent = number(high);
}

function spotOf(measures, height) {
  const share = (axis) => {
    const [low, high] = page.cells.ranges[axis];
    return (measures[axis] - low) / (high - low);
  };
  return [share(page.across) * SIZE, height - share(page.up) * height];
}

function drawAxes(svg, height, flat) {
  const { ranges, measures } = page.cells;
  const [low, high] = ranges[page.across];
  const text = (x, y, words, more = {}) => svg.append(element("text", { x, y, ...more }, words));
  text(0, height + 14, number(low, 1));
  text(SIZE, height + 14, number(high, 1), { "text-anchor": "end" });
  text(SIZE / 2, height + 28, measures[page.across], { "text-anchor": "middle" });
  if (flat) return;
  text(-6, height, number(ranges[page.up][0], 1), { "text-anchor": "end" });
  text(-6, 10, number(ranges[page.up][1], 1), { "text-anchor": "end" });
  text(-14, height / 2, measures[page.up], { "text-anchor": "middle", transform: `rotate(-90 -14 ${height / 2})` });
}

function drawWay(svg, height) {
  for (const leg of page.way) {
    const points = leg.filter((at) => at.every((value) => value !== null)).map((at) => spotOf(at, height).join(",")).join(" ");
    for (const kind of ["way", "way inner"]) svg.append(element("polyline", { points, class: kind }));
  }
}

function drawSliders() {
  const cells = page.cells, many = cells.measures.length > 2;
  const slices = (axis) => cells.kind === "grid" ? cells.shape[axis] : SLICES;
  document.querySelectorAll(".axes").forEach((label) => { label.hidden = cells.measures.length < 3; });
  for (const [name, chosen] of [["across", page.across], ["up", page.up]]) {
    $(name).replaceChildren(...cells.measures.map((measure, axis) => new Option(measure, axis, false, axis === chosen)));
  }
  $("sliders").replaceChildren();
  if (!many) return;
  cells.measures.forEach((measure, axis) => {
    if (axis === page.across || axis === page.up) return;
    const label = document.createElement("label"), input = document.createElement("input"), told = document.createElement("span");
    const tell = () => { told.textContent = slab(axis).map((edge) => number(edge, 2)).join(" to "); };
    Object.assign(input, { type: "range", min: 0, max: slices(axis) - 1, value: page.slice[axis] });
    input.addEventListener("input", () => { page.slice[axis] = Number(input.value); tell(); drawMap(); });
    tell();
    label.append(measure, told, input);
    $("sliders").append(label);
  });
}

async function readCells() {
  const which = page.which;
  let cells, way = page.way;
  try {
    cells = await ask(`/api/cells?which=${which}`);
    if ($("path").checked) way = await ask("/api/path");
  } catch (problem) {
    complain("archive", problem.message);
    return;
  }
  if (which !== page.which) return; // another was chosen meanwhile
  page.version = cells.version;
  page.way = way;
  complain("archive", cells.version ? cells.problem : null);
  if (!cells.shape) { page.cells = null; drawMap(); return; }
  const first = !page.cells || page.cells.measures.join() !== cells.measures.join();
  page.cells = cells;
  if (first) {
    page.across = 0;
    page.up = Math.min(1, cells.measures.length - 1);
    const best = cells.index[cells.objective.indexOf(extremes(cells.objective)[1])];
    const share = (value, axis) => (value - cells.ranges[axis][0]) / (cells.ranges[axis][1] - cells.ranges[axis][0]);
    if (best === undefined) page.slice = cells.measures.map(() => 0);
    else if (cells.kind === "grid") page.slice = placeOf(best);
    else page.slice = cells.centroids[best].map((value, axis) => Math.round(share(value, axis) * (SLICES - 1)));
    drawSliders();
  }
  drawMap();
  const figures = { coverage: `${number(100 * cells.coverage, 1)}%`, best: number(cells.best), mean: number(cells.mean),
    "QD-score": number(cells.qd_score) };
  $("figures").replaceChildren(...Object.entries(figures).map(([name, value]) => {
    const pair = document.createElement("div");
    pair.innerHTML = "<dt></dt><dd></dd>";
    pair.children[0].textContent = name;
    pair.children[1].textContent = value;
    return pair;
  }));
}

// The robots.

function put(slot, place, question) { // somebody on a lane, instead of whoever was still waiting for it
  const last = page.orders.at(-1), other = place !== "/api/play" || "cell" in question;
  if (last && last.slot === slot && other) page.orders.pop();
  page.orders.push({ slot, place, question });
  page.asked[slot] = true;
  if (!page.sending) sendOrders();
}

async function sendOrders() { // one after the other, or the last click would not always be played last
  page.sending = true;
  while (page.orders.length) {
    const { slot, place, question } = page.orders.shift();
    try {
      const shown = await ask(place, question);
      page.shown[slot] = shown.cell === undefined ? null : shown;
      complain("asked", null);
      showRobots();
    } catch (problem) {
      refused(problem);
    }
  }
  page.sending = false;
}

function play(slot, cell) {
  put(slot, "/api/play", { slot, cell, start: Number($("start").value), which: page.which });
}

function playAt(spot) {
  const cell = spot.closest(".cell.filled");
  if (cell) play(0, Number(cell.dataset.cell));
}

function showRobots() {
  $("cards").replaceChildren(...page.shown.flatMap((shown, slot) => shown ? [card(shown, slot)] : []));
  drawMap();
  drawGait();
}

function card(shown, slot) {
  const made = document.createElement("article");
  made.className = slot ? "card second" : "card";
  made.dataset.slot = slot;
  const title = document.createElement("h2"), button = document.createElement("button");
  title.append(`cell ${shown.cell}${shown.which === "corrected" ? " (corrected)" : ""}`);
  button.textContent = slot ? "remove" : "pin beside";
  button.className = slot ? "remove" : "pin";
  button.addEventListener("click", () => slot ? put(1, "/api/leave", { slot }) : put(1, "/api/pin", {}));
  title.append(button);
  const table = document.createElement("table");
  const row = (...words) => {
    const line = table.insertRow();
    words.forEach((word, at) => {
      const spot = at ? line.insertCell() : line.appendChild(document.createElement("th"));
      spot.textContent = word;
    });
    return line;
  };
  row("", "archived", "seen now");
  row("reward", number(shown.archived.objective), number(shown.seen.objective)).className = "objective";
  shown.measures.forEach((measure, axis) => {
    row(measure, number(shown.archived.measures[axis], 3), number(shown.seen.measures[axis], 3));
  });
  row("steps", "", number(shown.steps));
  const take = document.createElement("div");
  take.className = "take";
  for (const [words, place, name] of [["policy", "/api/policy", "policy.safetensors"],
    ["rollout (CSV)", "/api/rollout.csv", "rollout.csv"], ["film (GIF)", "/api/film.gif", "film.gif"]]) {
    const link = document.createElement("a");
    Object.assign(link, { href: `${place}?slot=${slot}`, textContent: words });
    link.addEventListener("click", (event) => {
      event.preventDefault();
      takeHome(link.href, `${shown.cell}-${name}`).catch(refused);
    });
    take.append(link);
  }
  made.append(title, table, take);
  return made;
}

async function takeHome(place, name) {
  const answer = await fetch(place);
  if (!answer.ok) throw new Error((await answer.json()).problem || answer.statusText);
  const link = document.createElement("a");
  Object.assign(link, { href: URL.createObjectURL(await answer.blob()), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// Which foot touches when, or how high another proxy is; moves along with the robots.

const GAIT_SECONDS = 3, ROW = 16, NAMES = 110;

function drawGait() {
  const canvas = $("gait"), shown = page.shown.filter(Boolean), dt = page.about && page.about.dt;
  const rows = shown.reduce((sum, one) => sum + one.levels.length, 0);
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth - 28, height = rows * ROW + 4 * shown.length;
  canvas.style.height = `${height + 12}px`;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(Math.max(height, 1) * ratio);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  if (!rows || !dt) return;
  const now = clockNow(), middle = NAMES + (width - NAMES) / 3, scale = (width - NAMES) / GAIT_SECONDS;
  const ink = getComputedStyle(document.body).color;
  let top = 0;
  page.shown.forEach((one, slot) => {
    if (!one) return;
    one.levels.forEach((levels, foot) => {
      pen.fillStyle = ink;
      pen.globalAlpha = 0.75;
      pen.font = "12px system-ui, sans-serif";
      pen.fillText(one.measures[foot], 0, top + ROW - 5, NAMES - 8);
      pen.globalAlpha = 1;
      pen.fillStyle = COLOURS[slot];
      const at = (step) => Math.min(Math.max((step * dt - now) * scale + middle, NAMES), width);
      for (let step = Math.max(0, Math.floor((now - GAIT_SECONDS / 3) / dt)), end; step < levels.length; step = end) {
        end = step + 1;
        while (end < levels.length && levels[end] === levels[step]) end++; // in one piece, or seams would show
        const high = levels[step] * (ROW - 6);
        pen.fillRect(at(step), top + ROW - 3 - high, at(end) - at(step), high);
        if (at(end) === width) break;
      }
      top += ROW;
    });
    top += 4;
  });
  pen.fillStyle = ink;
  pen.fillRect(middle, 0, 1, height);
}

function clockNow() {
  const { time, length, playing, speed } = page.news;
  const gone = playing ? (performance.now() - page.heard) / 1000 * speed : 0;
  return length ? (time + gone) % length : 0;
}

function tick() {
  requestAnimationFrame(tick);
  const now = clockNow();
  if (!page.dragging) $("time").value = page.news.length ? now / page.news.length : 0;
  $("clock").textContent = page.news.length ? `${number(now, 2)} / ${number(page.news.length, 2)} s` : "";
  drawGait();
}

function hear(news) {
  page.news = news;
  page.heard = performance.now();
  $("playing").textContent = news.playing ? "pause" : "play";
  if (document.activeElement !== $("speed")) $("speed").value = String(news.speed);
  $("follow").checked = news.follow;
  $("which").options[1].disabled = !news.versions.corrected;
  complain("stage", news.problem);
  tellWaiting();
  if (news.stage_port && !document.querySelector("iframe")) openStage(news.stage_port).catch(refused);
  if (!page.reading && news.versions[page.which] !== page.version) {
    page.reading = true;
    readCells().finally(() => { page.reading = false; });
  }
}

function tellWaiting() { // where the robots will be
  if (!$("waiting")) return;
  const words = page.cells?.index.length ? "preparing the stage …" : "waiting for the first elites …";
  $("waiting").textContent = page.news.problem ?? words;
}

function clock(question) {
  return ask("/api/clock", question).then((news) => {
    complain("asked", null);
    if ("time" in news) hear(news);
  }).catch(refused);
}

async function begin() {
  page.about = await ask("/api/about");
  const { name, task, algorithm } = page.about;
  $("title").textContent = name;
  document.title = `${name} – ppga`;
  $("subtitle").textContent = [algorithm, task].filter(Boolean).join(" on ");
  await readCells();
}

async function openStage(port) {
  const stage = document.createElement("iframe");
  stage.src = `${location.protocol}//${location.hostname}:${port}/`;
  stage.title = "the robots";
  $("stage").replaceChildren(stage);
  await begin();
  page.shown = page.shown.map((shown, slot) => page.asked[slot] ? shown : page.about.shown[slot]);
  showRobots();
}

// On the map, not on its cells: those may be drawn anew between a button's going down and up.
$("map").addEventListener("pointerdown", (event) => { if (event.button === 0) playAt(event.target); });
$("map").addEventListener("click", (event) => { if (!event.detail) playAt(event.target); }); // without a pointer
$("map").addEventListener("keydown", (event) => { if (event.key === "Enter") playAt(event.target); });
$("which").addEventListener("change", () => { page.which = $("which").value; readCells(); });
$("path").addEventListener("change", () => readCells());
for (const name of ["across", "up"]) {
  $(name).addEventListener("change", () => {
    const other = name === "across" ? "up" : "across", chosen = Number($(name).value);
    if (page[other] === chosen) page[other] = page[name];
    page[name] = chosen;
    drawSliders();
    drawMap();
  });
}
$("playing").addEventListener("click", () => clock({ playing: !page.news.playing }));
$("again").addEventListener("click", () => clock({ time: 0, playing: true }));
$("speed").addEventListener("change", () => { clock({ speed: Number($("speed").value) }); $("speed").blur(); });
$("follow").addEventListener("change", () => clock({ follow: $("follow").checked }));
$("start").addEventListener("change", () => {
  for (const slot of [0, 1]) if (page.shown[slot]) put(slot, "/api/play", { slot, start: Number($("start").value) });
});
$("time").addEventListener("input", () => { page.dragging = true; clock({ time: Number($("time").value) * page.news.length }); });
$("time").addEventListener("change", () => { page.dragging = false; });
document.addEventListener("keydown", (event) => {
  if (event.key === " " && !["INPUT", "SELECT", "BUTTON"].includes(event.target.tagName)) {
    event.preventDefault();
    clock({ playing: !page.news.playing });
  }
});
{
  const pen = $("scale").getContext("2d");
  for (let x = 0; x < 256; x++) { pen.fillStyle = colour(x / 255); pen.fillRect(x, 0, 1, 1); }
}
begin().catch((problem) => complain("archive", problem.message)).finally(() => {
  const news = new EventSource("/api/news");
  news.onmessage = (event) => {
    if (page.problems.gone) { page.version = null; complain("asked", null); } // what could not be read is read again
    complain("gone", null);
    hear(JSON.parse(event.data));
  };
  news.onerror = () => complain("gone", "the viewer has ended, or cannot be reached; waiting for it");
  requestAnimationFrame(tick);
});
