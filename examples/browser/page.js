// The page: what is typed and asked for goes to the worker, what it answers is shown.

import { drawCurve } from "./curve.js";

const MOST_BARS = 8;
const PAUSE = 150; // milliseconds without typing, after which a text is read
const FIRST = "The central bank raised its rates again, and shares of lenders fell across Europe.";
const at = (id) => document.getElementById(id);
const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const milliseconds = (ms) => (ms < 10 ? ms.toFixed(1) : ms.toFixed(0));

let model = null; // levels, costs, classes, facts
let asked = 0; // number of the newest question
let read = 0; // number of the newest question about a new text
let curve = null; // its points, one per level
let shown = null; // the level of the newest question
let typing = 0;

const handlers = { progress, ready, answer, curve: curveCame, error };
worker.onmessage = ({ data }) => handlers[data.kind](data);
worker.onerror = () => error({ message: "This browser can't run the page's worker." });
at("message").textContent = "Loading the model…";
worker.postMessage({ kind: "open", folder: "model/" });

function progress({ read: bytes, all }) {
  const size = (count) => (count / 1e6).toFixed(all < 1e7 ? 1 : 0);
  at("message").textContent =
    bytes < all ? `Loading the model: ${size(bytes)} of ${size(all)} MB` : "Starting the model…";
  at("progress").hidden = false;
  [at("progress").value, at("progress").max] = [bytes, all];
}

function ready(opened) {
  model = opened;
  at("status").hidden = true;
  at("desk").hidden = false;
  const slider = at("budget");
  [slider.min, slider.max] = [model.levels[0], model.levels.at(-1)];
  slider.value = model.levels.at(-1);
  at("ticks").replaceChildren(...model.levels.map(tick));
  const { files, precision, length } = model.facts;
  const size = (files["model.onnx"].bytes / 1e6).toFixed(1);
  const kind = precision === "int8" ? "int8" : "single precision";
  at("facts").textContent =
    `${size} MB for all ${model.levels.length} levels, ${kind}, texts of up to ${length} tokens. ` +
    "Nothing that is typed leaves this page.";
  at("text").value ||= FIRST;
  slider.addEventListener("input", moved);
  at("text").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => ask(true), PAUSE);
  });
  new ResizeObserver(drawCurves).observe(at("probability-curve"));
  showBudget();
  ask(true);
}

function tick(level) {
  const mark = document.createElement("span");
  mark.textContent = String(level).replace(/^0/, "");
  mark.style.setProperty("--at", along(level));
  return mark;
}

/** Where a budget stands on the slider, from 0 to 1. */
function along(budget) {
  const [lowest, highest] = [model.levels[0], model.levels.at(-1)];
  return highest > lowest ? (budget - lowest) / (highest - lowest) : 1;
}

const budget = () => Number(at("budget").value);
const place = () => model.levels.findLastIndex((level) => level <= budget() + 1e-6);

function moved() {
  showBudget();
  // Between two levels the lower one is run, and nothing changes.
  if (model.levels[place()] !== shown) ask(false);
}

function ask(sweep) {
  asked += 1;
  if (sweep) read = asked;
  shown = model.levels[place()];
  const text = at("text").value;
  worker.postMessage({ kind: "ask", number: asked, text, budget: budget(), sweep });
}

function showBudget() {
  const level = model.levels[place()];
  at("budget-shown").textContent = budget().toFixed(3).replace(/0+$/, "").replace(/\.$/, "");
  at("budget").style.setProperty("--at", along(budget()));
  at("level").textContent = `Runs level ${level}: ${percent(model.costs[place()])} of the compute.`;
  for (const [number, mark] of [...at("ticks").children].entries()) {
    mark.classList.toggle("run", number === place());
  }
  for (const [number, row] of [...at("rows").children].entries()) {
    row.classList.toggle("run", number === place());
  }
  drawCurves();
}

function answer(found) {
  if (found.number !== asked) return;
  at("label").textContent = found.label;
  at("ms").textContent = milliseconds(found.ms);
  at("tokens").textContent =
    found.full > found.tokens
      ? `${found.full} tokens, of which the model reads ${found.tokens}.`
      : `${found.tokens} tokens.`;
  showBars(found.probabilities);
}

function showBars(probabilities) {
  let bars = probabilities.map((share, number) => ({ name: model.classes[number], share }));
  if (bars.length > MOST_BARS) {
    const ranked = bars.toSorted((one, other) => other.share - one.share);
    const rest = ranked.splice(MOST_BARS - 1);
    const share = rest.reduce((sum, bar) => sum + bar.share, 0);
    bars = [...ranked, { name: `${rest.length} others`, share, rest: true }];
  }
  const most = Math.max(...bars.filter((bar) => !bar.rest).map((bar) => bar.share));
  at("bars").replaceChildren(
    ...bars.map(({ name, share, rest }) => {
      const bar = element("div", "bar", [
        element("span", "name", name),
        element("span", "track", [element("div", "fill")]),
        element("span", "value", percent(share)),
      ]);
      bar.title = name;
      bar.classList.toggle("best", !rest && share === most);
      bar.querySelector(".fill").style.width = percent(share).replace(" ", "");
      return bar;
    }),
  );
}

function curveCame({ number, points }) {
  if (number !== read) return;
  curve = points;
  const whole = points.at(-1).label;
  at("rows").replaceChildren(
    ...points.map((point, row) => {
      const cells = [
        String(point.level),
        percent(model.costs[row]),
        point.label,
        percent(point.probability),
        milliseconds(point.ms),
      ].map((text) => element("td", "", text));
      cells[2].classList.toggle("other", point.label !== whole);
      return element("tr", row === place() ? "run" : "", cells);
    }),
  );
  drawCurves();
}

function drawCurves() {
  if (!curve) return;
  const now = model.levels[place()];
  const whole = curve.at(-1).label;
  const which = model.classes.indexOf(whole);
  at("probability-title").textContent = `Probability of ${whole}, by budget`;
  at("rings").hidden = curve.every(({ label }) => label === whole);
  const shares = curve.map(({ level, label, probabilities }) => ({
    x: level,
    y: probabilities[which],
    other: label !== whole,
    title: `${level}: ${percent(probabilities[which])}${label === whole ? "" : `, says ${label}`}`,
  }));
  const rounded = (share) => `${Math.round(100 * share)} %`;
  drawCurve(at("probability-curve"), shares, { now, top: 1, format: rounded });
  const times = curve.map(({ level, ms }) => ({
    x: level,
    y: ms,
    title: `${level}: ${milliseconds(ms)} ms`,
  }));
  drawCurve(at("time-curve"), times, { now, format: (ms) => String(Number(ms.toPrecision(3))) });
}

function error({ message }) {
  at("status").hidden = false;
  at("status").className = "bad";
  at("message").textContent = message;
  at("progress").hidden = true;
}

function element(name, kind, content = []) {
  const node = document.createElement(name);
  if (kind) node.className = kind;
  node.append(...[content].flat());
  return node;
}
