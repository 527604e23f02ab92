// A curve over budgets, as SVG: points joined by a line, a mark at the level that is run.

const NAMESPACE = "http://www.w3.org/2000/svg";
const HEIGHT = 190;
const EDGE = { left: 48, right: 12, top: 12, bottom: 24 };

/** Draws `points`, a list of {x, y, other, title}, with y from 0 to `top` or a round number above. */
export function drawCurve(svg, points, { now, top, format }) {
  const width = svg.clientWidth || 320;
  const highest = top ?? roundUp(Math.max(...points.map((point) => point.y)));
  const across = (x) => EDGE.left + x * (width - EDGE.left - EDGE.right);
  const up = (y) => HEIGHT - EDGE.bottom - (y / highest) * (HEIGHT - EDGE.top - EDGE.bottom);
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  svg.replaceChildren();
  const add = (name, settings, text) => {
    const node = document.createElementNS(NAMESPACE, name);
    for (const [key, value] of Object.entries(settings)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    svg.append(node);
    return node;
  };
  for (const share of [0, 0.5, 1]) {
    const y = up(share * highest);
    add("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y, y2: y });
    const place = { x: EDGE.left - 8, y: y + 4, "text-anchor": "end" };
    add("text", place, format(share * highest));
  }
  for (const x of [0, 0.25, 0.5, 0.75, 1]) {
    add("text", { x: across(x), y: HEIGHT - 6, "text-anchor": "middle" }, x);
  }
  add("line", { class: "now", x1: across(now), x2: across(now), y1: EDGE.top, y2: up(0) });
  const path = points.map(({ x, y }) => `${across(x)},${up(y)}`).join(" ");
  add("polyline", { class: "line", points: path });
  for (const { x, y, other, title } of points) {
    const radius = Math.abs(x - now) < 1e-6 ? 7 : 5;
    const dot = { cx: across(x), cy: up(y), r: radius, class: other ? "other" : "same" };
    const hint = document.createElementNS(NAMESPACE, "title");
    hint.textContent = title;
    add("circle", dot).append(hint);
  }
}

/** The next of 1, 2, 4, 6, 10 times a power of ten: numbers whose half is short, too. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value || 1));
  return power * [1, 2, 4, 6, 10].find((step) => step * power >= value);
}
