/** The page of `recycle-run local|coordinator --page`: a run while it goes on. */

import "../common/base.css";
import "./style.css";
import { drawn, element, make } from "../common/dom";
import { niceStep, plural, short, tickText } from "../common/numbers";
import { type Palettes, Theme } from "../common/theme";

interface Step {
  step: number;
  /** Null where it was not finite. */
  loss: number | null;
  seconds: number;
  planned: number | null;
  data_wait: number;
  learning_rate: number | null;
  gradient_norm: number | null;
  skipped: boolean;
  live: number;
  plan: string;
}

interface Recovery {
  at: number;
  step: number;
  causes: string[];
  plan: string;
  detection: number;
  leaving: number;
  regroup: number;
  repeated: number;
  total: number;
}

interface State {
  name: string;
  phase: string;
  seconds: number;
  steps_wanted: number | null;
  generation: number;
  plan: string;
  why: string;
  planned_seconds: number | null;
  live: number;
  standbys: number;
  grid: ("live" | "failed" | "starting")[][];
  steps: Step[];
  recoveries: Recovery[];
  events: { at: number; text: string }[];
}

const PALETTES: Palettes = {
  light: {
    page: "#ffffff", ink: "#1d232b", quiet: "#5c6670", row: "#f3f5f7", line: "#d7dce2",
    live: "#2f8f6b", bad: "#b3261e", one: "#d98a1f", two: "#7b4f9d", three: "#2f7fc1", four: "#9aa4ae",
  },
  dark: {
    page: "#14181d", ink: "#e6eaee", quiet: "#9aa5b1", row: "#1d232a", line: "#2c343d",
    live: "#45b58b", bad: "#ff8a80", one: "#e8a94c", two: "#b48ad6", three: "#6bb0ea", four: "#6b757e",
  },
};
const PARTS = ["detection", "leaving", "regroup", "repeated"] as const;
const PART_WORDS: Record<(typeof PARTS)[number], string> = {
  detection: "detection",
  leaving: "leaving the group",
  regroup: "forming the new one",
  repeated: "training run again",
};
const EVERY_MS = 1000;
const HEIGHT = 150;
const LEFT = 46;

new Theme(PALETTES, element("theme", HTMLButtonElement));

function clock(seconds: number): string {
  const whole = Math.floor(seconds);
  const pad = (value: number): string => String(value).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${pad(Math.floor(whole / 60) % 60)}:${pad(whole % 60)}`;
}

function median(values: number[]): number {
  const sorted = [...values].sort((one, other) => one - other);
  return sorted[Math.floor(sorted.length / 2)];
}

function show(state: State): void {
  document.title = `${state.name}: ${state.phase}`;
  element("title", HTMLElement).textContent = state.name;
  const phase = element("phase", HTMLElement);
  phase.textContent = `${state.phase}, ${clock(state.seconds)}`;
  phase.classList.toggle("bad", state.phase.startsWith("ended:"));
  showFigures(state);
  showGrid(state);
  showSteps(state);
  showRecoveries(state);
  const events = [...state.events].reverse();
  element("events", HTMLElement).replaceChildren(
    ...events.map((event) => make("li", {}, make("time", {}, clock(event.at)), make("span", {}, event.text))),
  );
}

function showFigures(state: State): void {
  const last = state.steps.at(-1);
  const norm = [...state.steps].reverse().find((row) => row.gradient_norm !== null)?.gradient_norm ?? null;
  const workers = state.grid.flat().length;
  const figures: [string, string, string][] = [
    ["step", last === undefined ? "none yet" : String(last.step), state.steps_wanted === null ? "" : `of ${state.steps_wanted}`],
    ["loss", last === undefined ? "" : (last.loss?.toPrecision(6) ?? "not finite"), last?.skipped ? "skipped" : ""],
    ["seconds a step", last === undefined ? "" : short(last.seconds), state.planned_seconds === null ? "" : `${short(state.planned_seconds)} planned`],
    ["workers", `${state.live} of ${workers}`, state.standbys === 0 ? "" : `${state.standbys} on standby`],
    ["recoveries", String(state.recoveries.length), `generation ${state.generation}`],
    ["learning rate", last?.learning_rate?.toPrecision(3) ?? "", norm === null ? "" : `gradient norm ${norm.toPrecision(3)}`],
  ];
  element("figures", HTMLElement).replaceChildren(
    ...figures.map(([name, value, more]) => make("div", {}, make("dt", {}, name), make("dd", {}, value, make("small", {}, more)))),
  );
}

function showGrid(state: State): void {
  const grid = element("grid", HTMLElement);
  const stages = state.grid[0]?.length ?? 1;
  grid.style.gridTemplateColumns = `repeat(${stages}, minmax(2px, 3.2rem))`;
  grid.replaceChildren(
    ...state.grid.flatMap((row, pipeline) =>
      row.map((cell, stage) => make("i", { class: cell, title: `${pipeline}:${stage} ${cell}`, "data-worker": `${pipeline}:${stage}` })),
    ),
  );
  grid.setAttribute("aria-label", `${state.live} of ${state.grid.flat().length} workers are in the group`);
  const why = state.why === "" ? "" : `: ${state.why}`;
  element("plan", HTMLElement).textContent = state.plan === "" ? "" : `plan ${state.plan} (failed per stage)${why}`;
}

function showSteps(state: State): void {
  const marks = state.recoveries.map((row) => row.step);
  const seconds = state.steps.map((row): [number, number | null] => [row.step, row.seconds]);
  const planned = state.steps.map((row): [number, number | null] => [row.step, row.planned]);
  const losses = state.steps.map((row): [number, number | null] => [row.step, row.loss]);
  plot("times", seconds, planned, marks, true);
  plot("losses", losses, [], marks, false);
  const under = state.steps.filter((row) => row.plan === state.plan && row.planned !== null);
  const usual = under.length === 0 ? null : median(under.map((row) => row.seconds / (row.planned ?? 1)));
  element("pace", HTMLElement).textContent =
    usual === null
      ? "times of the plan are in slots: nothing to compare with"
      : `median ${usual.toFixed(2)} times what the plan promises (dashed)`;
  const finite = losses.filter(([, value]) => value !== null).length;
  element("loss-said", HTMLElement).textContent =
    finite === losses.length ? "" : `${plural(losses.length - finite, "step")} without a finite loss`;
}

/** Values by step; a vertical line where the group changed. */
function plot(id: string, values: [number, number | null][], other: [number, number | null][], marks: number[], fromZero: boolean): void {
  const place = element(id, HTMLElement);
  const known = [...values, ...other].map(([, value]) => value).filter((value) => value !== null);
  if (known.length === 0) {
    place.replaceChildren(make("p", { class: "quiet" }, "Nothing yet."));
    return;
  }
  const width = Math.max(240, place.clientWidth);
  const least = fromZero ? 0 : Math.min(...known);
  const most = Math.max(...known, least + 1e-9);
  const first = values[0][0];
  const last = Math.max(first + 1, values[values.length - 1][0]);
  const x = (step: number): number => LEFT + ((step - first) / (last - first)) * (width - LEFT - 4);
  const y = (value: number): number => 8 + (1 - (value - least) / (most - least)) * (HEIGHT - 30);
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img", "aria-label": id });
  const gap = niceStep((most - least) / 4);
  for (let value = Math.ceil(least / gap) * gap; value <= most + gap * 1e-6; value += gap) {
    svg.append(drawn("line", { class: "rule", x1: LEFT, x2: width, y1: y(value), y2: y(value) }));
    svg.append(drawn("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, tickText(value, gap)));
  }
  for (const step of marks.filter((each) => each >= first && each <= last)) {
    svg.append(drawn("line", { class: "mark", x1: x(step), x2: x(step), y1: 8, y2: HEIGHT - 22 }));
  }
  svg.append(path("planned", other, x, y), path("line", values, x, y));
  svg.append(drawn("text", { x: LEFT, y: HEIGHT - 5 }, `step ${first}`));
  svg.append(drawn("text", { x: width, y: HEIGHT - 5, "text-anchor": "end" }, String(values[values.length - 1][0])));
  place.replaceChildren(svg);
}

function path(kind: string, values: [number, number | null][], x: (step: number) => number, y: (value: number) => number): SVGElement {
  let pen = "M";
  let steps = "";
  for (const [step, value] of values) {
    if (value === null) {
      pen = "M";
      continue;
    }
    steps += `${pen}${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
  }
  return drawn("path", { class: kind, d: steps });
}

function showRecoveries(state: State): void {
  const rows = [...state.recoveries].reverse();
  const place = element("recoveries", HTMLElement);
  const longest = Math.max(...rows.map((row) => row.total + row.repeated), 1e-9);
  element("recovery-said", HTMLElement).textContent =
    rows.length === 0 ? "none so far" : `${short(rows.reduce((sum, row) => sum + row.total, 0))} s in all`;
  if (rows.length === 0) {
    place.replaceChildren();
    return;
  }
  const legend = make("p", { class: "legend" }, ...PARTS.map((part) => make("span", {}, make("i", { class: part }), PART_WORDS[part])));
  place.replaceChildren(legend, ...rows.map((row) => recovery(row, longest)));
}

function recovery(row: Recovery, longest: number): HTMLElement {
  const bar = make("div", { class: "parts" });
  for (const part of PARTS) {
    const piece = make("span", { class: part, title: `${PART_WORDS[part]}: ${short(row[part])} s` });
    piece.style.width = `${(100 * row[part]) / longest}%`;
    bar.append(piece);
  }
  const said = `${clock(row.at)}, step ${row.step}: ${row.causes.join(", ")}; ${short(row.total)} s, then plan ${row.plan}`;
  return make("div", { class: "recovery" }, make("p", {}, said), bar);
}

async function follow(): Promise<void> {
  const foot = element("foot", HTMLElement);
  try {
    const answer = await fetch("/state.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(`the job answers ${answer.status}`);
    show((await answer.json()) as State);
    foot.textContent = "Asks the job every second. Numbers for Prometheus are at /metrics.";
  } catch (error) {
    foot.textContent = `No answer from the job any more (${error instanceof Error ? error.message : "unknown"}); this is what was known last.`;
  }
  setTimeout(() => void follow(), EVERY_MS);
}

void follow();
