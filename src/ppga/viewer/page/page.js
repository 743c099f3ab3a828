"use strict";

// State of the page. `shown`: the episodes on the two lanes, as the server describes them; `requested`: the lanes that the
// page has sent requests for; `queue`: requests that wait to be sent. Of several problems, the first is displayed.
const page = {
  about: null, cells: null, version: null, which: "archived", trajectory: [], shown: [null, null],
  requested: [false, false], across: 0, up: 1, slice: [], status: { time: 0, length: 0, playing: true, speed: 1 },
  statusTime: 0, dragging: false, reading: false, queue: [], sending: false,
  problems: { connection: null, request: null, archive: null, stage: null },
};
const COLORS = ["rgb(38 70 131)", "rgb(196 78 32)"];
const VIRIDIS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];
const SIZE = 400, EDGE = 34; // pixels of the heatmap, and of its labels
const MAX_CELLS = 20000; // of a heatmap with empty cells; in a larger one, only occupied cells are drawn
const SLICES = 10; // of a CVT along each measure that is not on an axis
const $ = (name) => document.getElementById(name);
const number = (value, digits = 0) => value == null ? "–" :
  value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });

async function request(url, body) { // GET without a body, POST with one
  const options = body === undefined ? {} :
    { method: "POST", headers: { "X-Ppga": "1" }, body: JSON.stringify(body) };
  const response = await fetch(url, options);
  const content = await response.json();
  if (!response.ok) throw new Error(content.problem || response.statusText);
  return content;
}

function showProblem(about, problem) { // null: no problem any more
  page.problems[about] = problem;
  const first = Object.values(page.problems).find(Boolean) ?? "";
  $("problem").hidden = !first;
  if ($("problem").textContent !== first) $("problem").textContent = first;
}

const showError = (error) => showProblem("request", error.message);

function element(name, attributes = {}, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

// The heatmap.

function color(share) {
  const position = Math.min(Math.max(share, 0), 1) * (VIRIDIS.length - 1), low = Math.floor(position);
  const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const a = parts(VIRIDIS[low]), b = parts(VIRIDIS[Math.min(low + 1, VIRIDIS.length - 1)]);
  return `rgb(${a.map((value, at) => Math.round(value + (b[at] - value) * (position - low))).join(" ")})`;
}

function gridPosition(index) { // number of a grid's cell -> its position along each measure
  const position = [];
  for (let axis = page.cells.shape.length - 1; axis >= 0; axis--) {
    position[axis] = index % page.cells.shape[axis];
    index = Math.floor(index / page.cells.shape[axis]);
  }
  return position;
}

function cellAt(position) { // position along each measure of a grid -> number of the cell
  return position.reduce((index, at, axis) => index * page.cells.shape[axis] + at, 0);
}

function sliceRange(axis) { // bounds of a slice: those of a grid's cell; of a CVT, one step to both sides
  const [low, high] = page.cells.ranges[axis], at = page.slice[axis];
  const share = page.cells.kind === "grid" ? [at, at + 1].map((edge) => edge / page.cells.shape[axis]) :
    [at - 1, at + 1].map((edge) => Math.min(Math.max(edge / (SLICES - 1), 0), 1));
  return share.map((edge) => low + edge * (high - low));
}

function inSlice(centroid) { // whether a centroid is inside the chosen slices of the measures that are not on an axis
  return centroid.every((value, axis) => {
    if (axis === page.across || axis === page.up) return true;
    const [low, high] = sliceRange(axis);
    return low <= value && value <= high;
  });
}

function extremes(values) { // minimum and maximum; Math.min(...values) fails for very many values
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
  const shade = (index) => color(high > low ? (filled.get(index) - low) / (high - low) : 1);
  const shapes = new Map();
  const addCell = (shape, index) => {
    shape.dataset.cell = index;
    shape.classList.add("cell", filled.has(index) ? "filled" : "empty");
    if (filled.has(index)) {
      const label = `cell ${index}: ${number(filled.get(index))}`;
      shape.setAttribute("fill", shade(index));
      shape.setAttribute("tabindex", 0);
      shape.setAttribute("role", "button");
      shape.setAttribute("aria-label", label);
      shape.append(element("title", {}, label));
    }
    shapes.set(index, shape);
    svg.append(shape);
  };
  if (cells.kind === "cvt") {
    let near = cells.centroids.map((centroid, index) => index).filter((index) => inSlice(cells.centroids[index]));
    const radius = 0.42 * SIZE / Math.sqrt(Math.max(near.length, 4));
    if (near.length > MAX_CELLS) near = near.filter((index) => filled.has(index));
    near.sort((a, b) => filled.has(a) - filled.has(b)); // occupied cells on top
    for (const index of near) {
      const [x, y] = pixelOf(cells.centroids[index], height);
      addCell(element("circle", { cx: x, cy: flat ? height / 2 : y, r: Math.min(radius, 20) }), index);
    }
  } else {
    const across = cells.shape[page.across], up = flat ? 1 : cells.shape[page.up];
    const wide = SIZE / across, tall = height / up;
    const draw = (x, y, index) =>
      addCell(element("rect", { x: x * wide, y: height - (y + 1) * tall, width: wide, height: tall }), index);
    if (across * up > MAX_CELLS) { // occupied cells only
      const outside = (at, axis) => axis !== page.across && axis !== page.up && at !== page.slice[axis];
      for (const index of filled.keys()) {
        const position = gridPosition(index);
        if (!position.some(outside)) draw(position[page.across], flat ? 0 : position[page.up], index);
      }
    } else {
      for (let x = 0; x < across; x++) {
        for (let y = 0; y < up; y++) {
          const position = page.slice.slice();
          position[page.across] = x;
          if (!flat) position[page.up] = y;
          draw(x, y, cellAt(position));
        }
      }
    }
  }
  drawAxes(svg, height, flat);
  if ($("trajectory").checked && !flat) drawTrajectory(svg, height);
  page.shown.forEach((shown, slot) => {
    const shape = shown && shapes.get(shown.cell);
    if (!shape) return;
    const mark = shape.cloneNode(false);
    mark.setAttribute("class", "mark");
    mark.removeAttribute("data-cell");
    mark.setAttribute("stroke", COLORS[slot]);
    svg.append(mark);
  });
  $("map").append(svg);
  $("low").textContent = number(low);
  $("high").textContent = number(high);
}

function pixelOf(measures, height) {
  const share = (axis) => {
    const [low, high] = page.cells.ranges[axis];
    return (measures[axis] - low) / (high - low);
  };
  return [share(page.across) * SIZE, height - share(page.up) * height];
}

function drawAxes(svg, height, flat) {
  const { ranges, measures } = page.cells;
  const [low, high] = ranges[page.across];
  const text = (x, y, label, attributes = {}) => svg.append(element("text", { x, y, ...attributes }, label));
  text(0, height + 14, number(low, 1));
  text(SIZE, height + 14, number(high, 1), { "text-anchor": "end" });
  text(SIZE / 2, height + 28, measures[page.across], { "text-anchor": "middle" });
  if (flat) return;
  text(-6, height, number(ranges[page.up][0], 1), { "text-anchor": "end" });
  text(-6, 10, number(ranges[page.up][1], 1), { "text-anchor": "end" });
  text(-14, height / 2, measures[page.up], { "text-anchor": "middle", transform: `rotate(-90 -14 ${height / 2})` });
}

function drawTrajectory(svg, height) {
  for (const leg of page.trajectory) {
    const known = leg.filter((measures) => measures.every((value) => value !== null));
    const points = known.map((measures) => pixelOf(measures, height).join(",")).join(" ");
    for (const kind of ["trajectory", "trajectory inner"]) svg.append(element("polyline", { points, class: kind }));
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
    const label = document.createElement("label"), input = document.createElement("input");
    const range = document.createElement("span");
    const showRange = () => { range.textContent = sliceRange(axis).map((edge) => number(edge, 2)).join(" to "); };
    Object.assign(input, { type: "range", min: 0, max: slices(axis) - 1, value: page.slice[axis] });
    input.addEventListener("input", () => { page.slice[axis] = Number(input.value); showRange(); drawMap(); });
    showRange();
    label.append(measure, range, input);
    $("sliders").append(label);
  });
}

async function readCells() {
  const which = page.which;
  let cells, trajectory = page.trajectory;
  try {
    cells = await request(`/api/cells?which=${which}`);
    if ($("trajectory").checked) trajectory = await request("/api/trajectory");
  } catch (error) {
    showProblem("archive", error.message);
    return;
  }
  if (which !== page.which) return; // the other archive was chosen in the meantime
  page.version = cells.version;
  page.trajectory = trajectory;
  showProblem("archive", cells.version ? cells.problem : null);
  if (!cells.shape) { page.cells = null; drawMap(); return; }
  const first = !page.cells || page.cells.measures.join() !== cells.measures.join();
  page.cells = cells;
  if (first) {
    page.across = 0;
    page.up = Math.min(1, cells.measures.length - 1);
    const best = cells.index[cells.objective.indexOf(extremes(cells.objective)[1])];
    const share = (value, axis) => (value - cells.ranges[axis][0]) / (cells.ranges[axis][1] - cells.ranges[axis][0]);
    if (best === undefined) page.slice = cells.measures.map(() => 0);
    else if (cells.kind === "grid") page.slice = gridPosition(best);
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

function enqueue(slot, url, body) { // change a lane; replaces a request for the same lane that was not sent yet
  const last = page.queue.at(-1), replaces = url !== "/api/play" || "cell" in body;
  if (last && last.slot === slot && replaces) page.queue.pop();
  page.queue.push({ slot, url, body });
  page.requested[slot] = true;
  if (!page.sending) sendQueue();
}

async function sendQueue() { // one request at a time, so that the last click is played last
  page.sending = true;
  while (page.queue.length) {
    const { slot, url, body } = page.queue.shift();
    try {
      const shown = await request(url, body);
      page.shown[slot] = shown.cell === undefined ? null : shown;
      showProblem("request", null);
      showRobots();
    } catch (error) {
      showError(error);
    }
  }
  page.sending = false;
}

function play(slot, cell) {
  enqueue(slot, "/api/play", { slot, cell, start: Number($("start").value), which: page.which });
}

function playAt(target) {
  const cell = target.closest(".cell.filled");
  if (cell) play(0, Number(cell.dataset.cell));
}

function showRobots() {
  $("cards").replaceChildren(...page.shown.flatMap((shown, slot) => shown ? [card(shown, slot)] : []));
  drawMap();
  drawGait();
}

function card(shown, slot) {
  const article = document.createElement("article");
  article.className = slot ? "card second" : "card";
  article.dataset.slot = slot;
  const title = document.createElement("h2"), button = document.createElement("button");
  title.append(`cell ${shown.cell}${shown.which === "corrected" ? " (corrected)" : ""}`);
  button.textContent = slot ? "close" : "compare";
  button.className = slot ? "remove" : "pin";
  button.addEventListener("click", () => slot ? enqueue(1, "/api/remove", { slot }) : enqueue(1, "/api/pin", {}));
  title.append(button);
  const table = document.createElement("table");
  const addRow = (...texts) => {
    const row = table.insertRow();
    texts.forEach((text, column) => {
      const cell = column ? row.insertCell() : row.appendChild(document.createElement("th"));
      cell.textContent = text;
    });
    return row;
  };
  addRow("", "in archive", "this episode");
  addRow("reward", number(shown.archived.objective), number(shown.episode.objective)).className = "objective";
  shown.measures.forEach((measure, axis) => {
    addRow(measure, number(shown.archived.measures[axis], 3), number(shown.episode.measures[axis], 3));
  });
  const { length, survival } = shown.archived;
  addRow("steps", length === null ? "" : number(length), number(shown.steps));
  if (survival !== null) addRow("survival", `${number(100 * survival)}%`, "");
  const downloads = document.createElement("div");
  downloads.className = "downloads";
  for (const [text, url, name] of [["policy", "/api/policy", "policy.safetensors"],
    ["rollout (CSV)", "/api/rollout.csv", "rollout.csv"], ["animation (GIF)", "/api/animation.gif", "animation.gif"]]) {
    const link = document.createElement("a");
    Object.assign(link, { href: `${url}?slot=${slot}`, textContent: text });
    link.addEventListener("click", (event) => {
      event.preventDefault();
      download(link.href, `${shown.cell}-${name}`).catch(showError);
    });
    downloads.append(link);
  }
  article.append(title, table, downloads);
  return article;
}

async function download(url, name) {
  const response = await fetch(url);
  if (!response.ok) throw new Error((await response.json()).problem || response.statusText);
  const link = document.createElement("a");
  Object.assign(link, { href: URL.createObjectURL(await response.blob()), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// Gait diagram: which foot touches the floor, or the level of another proxy, around the current time.

const GAIT_SECONDS = 3, ROW = 16, NAMES = 110; // seconds shown; pixels of a row's height and of the names' width

function drawGait() {
  const canvas = $("gait"), shown = page.shown.filter(Boolean), dt = page.about && page.about.dt;
  const rows = shown.reduce((sum, episode) => sum + episode.levels.length, 0);
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
  page.shown.forEach((episode, slot) => {
    if (!episode) return;
    episode.levels.forEach((levels, foot) => {
      pen.fillStyle = ink;
      pen.globalAlpha = 0.75;
      pen.font = "12px system-ui, sans-serif";
      pen.fillText(episode.measures[foot], 0, top + ROW - 5, NAMES - 8);
      pen.globalAlpha = 1;
      pen.fillStyle = COLORS[slot];
      const at = (step) => Math.min(Math.max((step * dt - now) * scale + middle, NAMES), width);
      for (let step = Math.max(0, Math.floor((now - GAIT_SECONDS / 3) / dt)), end; step < levels.length; step = end) {
        end = step + 1;
        while (end < levels.length && levels[end] === levels[step]) end++; // one bar without seams
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
  const { time, length, playing, speed } = page.status;
  const elapsed = playing ? (performance.now() - page.statusTime) / 1000 * speed : 0;
  return length ? (time + elapsed) % length : 0;
}

function tick() {
  requestAnimationFrame(tick);
  const now = clockNow();
  const { length } = page.status;
  if (!page.dragging) $("time").value = length ? now / length : 0;
  $("clock").textContent = length ? `${number(now, 2)} / ${number(length, 2)} s` : "";
  drawGait();
}

function update(status) {
  page.status = status;
  page.statusTime = performance.now();
  $("playing").textContent = status.playing ? "pause" : "play";
  if (document.activeElement !== $("speed")) $("speed").value = String(status.speed);
  $("follow").checked = status.follow;
  $("which").options[1].disabled = !status.versions.corrected;
  showProblem("stage", status.problem);
  showWaiting();
  if (status.stage_port && !document.querySelector("iframe")) openStage(status.stage_port).catch(showError);
  if (!page.reading && status.versions[page.which] !== page.version) {
    page.reading = true;
    readCells().finally(() => { page.reading = false; });
  }
}

function showWaiting() { // in place of the robots
  if (!$("waiting")) return;
  const text = page.cells?.index.length ? "loading the 3D view …" : "waiting for the first elites …";
  $("waiting").textContent = page.status.problem ?? text;
}

function setClock(changes) {
  return request("/api/clock", changes).then((status) => {
    showProblem("request", null);
    if ("time" in status) update(status);
  }).catch(showError);
}

async function start() {
  page.about = await request("/api/about");
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
  await start();
  page.shown = page.shown.map((shown, slot) => page.requested[slot] ? shown : page.about.shown[slot]);
  showRobots();
}

// Listeners of the heatmap, not of its cells, which may be redrawn between pressing and releasing a button.
$("map").addEventListener("pointerdown", (event) => { if (event.button === 0) playAt(event.target); });
$("map").addEventListener("click", (event) => { if (!event.detail) playAt(event.target); }); // without a pointer
$("map").addEventListener("keydown", (event) => {
  if (!["Enter", " "].includes(event.key) || !event.target.closest(".cell.filled")) return;
  event.preventDefault(); // Space scrolls
  event.stopPropagation(); // and pauses elsewhere
  playAt(event.target);
});
$("which").addEventListener("change", () => { page.which = $("which").value; readCells(); });
$("trajectory").addEventListener("change", () => readCells());
for (const name of ["across", "up"]) {
  $(name).addEventListener("change", () => {
    const other = name === "across" ? "up" : "across", chosen = Number($(name).value);
    if (page[other] === chosen) page[other] = page[name];
    page[name] = chosen;
    drawSliders();
    drawMap();
  });
}
$("playing").addEventListener("click", () => setClock({ playing: !page.status.playing }));
$("rewind").addEventListener("click", () => setClock({ time: 0, playing: true }));
$("speed").addEventListener("change", () => { setClock({ speed: Number($("speed").value) }); $("speed").blur(); });
$("follow").addEventListener("change", () => setClock({ follow: $("follow").checked }));
$("start").addEventListener("change", () => {
  for (const slot of [0, 1]) {
    if (page.shown[slot]) enqueue(slot, "/api/play", { slot, start: Number($("start").value) });
  }
});
$("time").addEventListener("input", () => {
  page.dragging = true;
  setClock({ time: Number($("time").value) * page.status.length });
});
$("time").addEventListener("change", () => { page.dragging = false; });
document.addEventListener("keydown", (event) => {
  if (event.key === " " && !["INPUT", "SELECT", "BUTTON"].includes(event.target.tagName)) {
    event.preventDefault();
    setClock({ playing: !page.status.playing });
  }
});
{
  const pen = $("scale").getContext("2d");
  for (let x = 0; x < 256; x++) { pen.fillStyle = color(x / 255); pen.fillRect(x, 0, 1, 1); }
}
start().catch((error) => showProblem("archive", error.message)).finally(() => {
  const events = new EventSource("/api/status");
  events.onmessage = (event) => {
    if (page.problems.connection) { page.version = null; showProblem("request", null); } // read everything again
    showProblem("connection", null);
    update(JSON.parse(event.data));
  };
  events.onerror = () => showProblem("connection", "Connection to the viewer lost; reconnecting.");
  requestAnimationFrame(tick);
});
