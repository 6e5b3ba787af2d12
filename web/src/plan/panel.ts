/** A chart with its title, and its legend: what show, diff and the playground have in common. */

import { drawn, make } from "../common/dom";
import type { Palette } from "../common/theme";
import { KINDS, type Plan } from "./model";

/** Entries for what these plans have. */
export function legend(plans: Plan[], palette: Palette, words: Record<string, string>, memory: boolean): HTMLElement[] {
  const kinds = new Set<string>();
  let guests = false;
  for (const plan of plans) {
    for (let op = 0; op < plan.size; op += 1) {
      if (plan.end[op] > plan.start[op]) kinds.add(KINDS[plan.kind[op]]);
      guests ||= plan.isGuest(op);
    }
  }
  const entries = [...KINDS].filter((kind) => kinds.has(kind)).map((kind) => entry(`${kind} ${words[kind]}`, swatch(palette[kind], "")));
  if (guests) entries.push(entry("re-routed: of another pipeline", swatch("none", palette["frame"])));
  if (plans.some((plan) => plan.rows.some((row) => row.failed))) entries.push(entry("failed", hatched(palette)));
  if (memory) {
    const limited = plans.some((plan) => plan.about.capacity.some((limit) => limit !== null));
    entries.push(entry(`activations held${limited ? "; dashed: capacity" : ""}`, swatch(palette["memory"], "")));
  }
  return entries;
}

function entry(text: string, picture: SVGElement): HTMLElement {
  return make("span", {}, picture, text);
}

function swatch(fill: string, stroke: string): SVGElement {
  const box = drawn("rect", { x: 1, y: 1, width: 11, height: 11, fill, stroke: stroke || "none", "stroke-width": 1.8 });
  return drawn("svg", { viewBox: "0 0 13 13", "aria-hidden": "true" }, box);
}

function hatched(palette: Palette): SVGElement {
  const lines = [-9, -2, 5].map((x) => drawn("line", { x1: x, y1: 13, x2: x + 13, y2: 0, stroke: palette["failed"], "stroke-width": 2.2, opacity: 0.6 }));
  return drawn("svg", { viewBox: "0 0 13 13", "aria-hidden": "true" }, drawn("rect", { width: 13, height: 13, fill: palette["row"] }), ...lines);
}
