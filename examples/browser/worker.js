// The model, away from the page's own thread, so that the slider never waits for it.
//
// A newer text makes an older one's measurements stop; answers carry the number of their question.

import { openModel } from "./model.js";

const ROUNDS = 3; // measurements of each level; the shortest is shown
let model = null;
let newest = 0;
let turn = Promise.resolve(); // calls go one by one, so that no time includes another's

self.onmessage = async ({ data }) => {
  try {
    if (data.kind === "open") await open(data.folder);
    else if (data.kind === "ask") await answer(data);
  } catch (error) {
    self.postMessage({ kind: "error", message: error.message.split("\n")[0] });
  }
};

async function open(folder) {
  model = await openModel(folder, (read, all) => self.postMessage({ kind: "progress", read, all }));
  // The first call at a level is slower than all others.
  for (const level of model.levels) await model.predict("warm", level);
  const { levels, costs, classes, facts } = model;
  self.postMessage({ kind: "ready", levels, costs, classes, facts });
}

async function answer({ number, text, budget, sweep }) {
  if (sweep) newest = number;
  self.postMessage({ kind: "answer", number, ...(await predict(text, budget)) });
  if (!sweep) return;
  const points = model.levels.map(() => null);
  for (let round = 0; round < ROUNDS; round++) {
    for (const [place, level] of model.levels.entries()) {
      await messages();
      if (newest !== number) return;
      const found = await predict(text, level);
      const ms = Math.min(found.ms, points[place]?.ms ?? Infinity);
      points[place] = { ...found, ms };
    }
    self.postMessage({ kind: "curve", number, points });
  }
}

function predict(text, budget) {
  turn = turn.catch(() => {}).then(() => model.predict(text, budget));
  return turn;
}

/** Lets messages that have come in be read. */
const messages = () => new Promise((resume) => setTimeout(resume));
