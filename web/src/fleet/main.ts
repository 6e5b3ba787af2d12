/** The page of `recyclec simulate --format html`: what failures cost a job under several policies. */

import "../common/base.css";
import "./style.css";
import { drawn, element, make, pageData } from "../common/dom";
import { niceStep, percent, tickText } from "../common/numbers";
import { type Palettes, Theme } from "../common/theme";

type Steps = [hours: number, value: number][];

interface Policy {
  name: string;
  note: string;
  /** Null where it cannot run. */
  average: number | null;
  share: number;
  lost: number;
  still: number;
  redone: number;
  /** What it would have needed without failures, as a share of the time. */
  effective: number;
  /** GPU-hours by use. */
  uses: number[];
  /** Of a million of what the unit counts; null without a price. */
  cost: number | null;
  curve: Steps;
  colours: [light: string, dark: string];
}

interface Entry {
  hours: number;
  live: number;
  pause: number;
  redone: number;
  throughput: number;
  why: string;
}

interface PageData {
  title: string;
  about: string;
  made_by: string;
  palettes: Palettes;
  unit: string;
  hours: number;
  workers: number;
  gpus: number;
  reference: number;
  gpu_hours_down: number;
  /** Words for each use of GPU-hours, and what a million of what the unit counts costs, if there is a price. */
  uses: string[];
  per_million: string;
  paid: string;
  shown: string[];
  policies: Policy[];
  live: Steps;
  log: Entry[];
  changes: number;
}

const LABELS: Record<string, string> = {
  recycle: "ReCycle",
  oobleck: "Oobleck",
  bamboo: "Bamboo",
  varuna: "Varuna",
  chameleon: "Chameleon",
  elaswave: "ElasWave",
  ideal: "ideal, in proportion",
};
const IDEAL = "ideal";
const LEFT = 34;
const RIGHT = 6;
const digits = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const hundreds = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

function label(name: string): string {
  return LABELS[name] ?? name;
}

/** Whole numbers where they are large enough to be read without decimals. */
function hoursText(value: number): string {
  return (Math.abs(value) >= 20 ? hundreds : tenths).format(Math.abs(value) < 0.05 ? 0 : value);
}

function valueAt(curve: Steps, hours: number): number {
  let low = 0;
  let high = curve.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (curve[middle][0] <= hours) low = middle;
    else high = middle - 1;
  }
  return curve.length > 0 ? curve[low][1] : 0;
}

interface Strip {
  svg: SVGElement;
  cursor: SVGElement;
  now: HTMLElement;
  say: (hours: number) => string;
}

class Page {
  private readonly theme: Theme;
  private readonly shown: Set<string>;
  private readonly total: number;
  private readonly ideal: Policy;
  private strips: Strip[] = [];
  private hours: number | null = null;
  private width = 0;

  constructor(private readonly data: PageData) {
    this.total = data.gpus * data.hours;
    this.shown = new Set(data.shown);
    const share = this.total > 0 ? 1 - data.gpu_hours_down / this.total : 1;
    this.ideal = {
      name: IDEAL,
      note: "every worker that is up does its full share of our plan without failures, at once; changes cost nothing. It loses as much as the machines were down. A plan can be above it: where it has bubbles, a failure costs less than its share",
      average: share * data.reference,
      share,
      lost: data.gpu_hours_down,
      still: 0,
      redone: 0,
      effective: share,
      uses: [],
      cost: null,
      curve: data.live.map(([at, live]) => [at, (live / Math.max(1, data.workers)) * data.reference]),
      colours: ["#5c6670", "#9aa5b1"],
    };
    this.theme = new Theme(data.palettes, element("theme", HTMLButtonElement));
    this.theme.onChange(() => this.draw());
    this.words();
    this.choice();
    this.draw();
    new ResizeObserver(() => this.resized()).observe(element("strips", HTMLDivElement));
    const moment = element("moment", HTMLInputElement);
    moment.addEventListener("input", () => this.read((Number(moment.value) / 1000) * data.hours));
  }

  private get ours(): Policy | undefined {
    return this.data.policies.find((policy) => policy.name === "ours" && policy.average !== null);
  }

  /** Those that are on the page now, the ideal last. */
  private get chosen(): Policy[] {
    return [...this.data.policies, this.ideal].filter((policy) => this.shown.has(policy.name));
  }

  private colour(policy: Policy): string {
    return policy.colours[this.theme.isDark ? 1 : 0];
  }

  private lostText(policy: Policy): string {
    if (policy.lost < -0.05) return `${hoursText(-policy.lost)} GPU-hours gained over ${hoursText(this.total)}`;
    return `${hoursText(policy.lost)} of ${hoursText(this.total)} GPU-hours lost`;
  }

  private words(): void {
    const { data } = this;
    element("title", HTMLHeadingElement).textContent = data.title;
    element("about", HTMLParagraphElement).textContent = data.about;
    const headline = element("headline", HTMLParagraphElement);
    const { ours } = this;
    if (ours !== undefined) {
      headline.append(make("b", { id: "lost" }, this.lostText(ours)), ` with our plans; machines of the job were down for ${hoursText(data.gpu_hours_down)}.`);
    } else headline.append("Our plans cannot run this job.");
    const above = data.policies.some((policy) => policy.share > 1.0005);
    element("meaning", HTMLParagraphElement).textContent =
      `100 % is our plan without failures on machines that never fail: ${digits.format(data.reference)} ${data.unit}. GPU-hours lost are those of the job beyond what that would have needed for the same iterations. Effective time: what the policy itself would have needed for them if nothing had failed.` +
      (above ? " More than 100 %: a policy that cuts the model anew can have more even stages than the job." : "");
    element("unit", HTMLTableCellElement).textContent = data.unit;
    element("after", HTMLTableCellElement).textContent = `${data.unit} after`;
    element("foot", HTMLParagraphElement).textContent = `Made by ${data.made_by} simulate. In a long trace curves are means over about two pixels, so that a pause of seconds is a notch and not a stroke to zero. This file loads nothing.`;
    element("paid", HTMLParagraphElement).textContent = data.paid;
    const titles = data.per_million === "" ? data.uses : [...data.uses, data.per_million];
    element("uses", HTMLTableRowElement).append(...titles.map((title) => make("th", { scope: "col" }, title)));
    this.log();
  }

  private log(): void {
    const { log, changes } = this.data;
    if (log.length === 0) return;
    element("log", HTMLDetailsElement).hidden = false;
    const which = log.length < changes ? `the first ${log.length} of ${changes} changes` : "every change";
    element("log-title", HTMLElement).textContent = `What ours made of ${which}`;
    const cells = (entry: Entry): string[] => [
      entry.hours.toFixed(3),
      String(entry.live),
      entry.pause.toFixed(2),
      entry.redone.toFixed(2),
      digits.format(entry.throughput),
    ];
    element("entries", HTMLTableSectionElement).append(
      ...log.map((entry) => make("tr", {}, ...cells(entry).map((text) => make("td", {}, text)), make("td", { class: "words" }, entry.why))),
    );
  }

  private choice(): void {
    const box = element("choice", HTMLDivElement);
    for (const policy of [...this.data.policies, this.ideal]) {
      const dot = make("i");
      const button = make("button", { type: "button", "data-policy": policy.name, "aria-pressed": String(this.shown.has(policy.name)) }, dot, label(policy.name));
      const paint = (): void => dot.style.setProperty("--dot", this.colour(policy));
      paint();
      this.theme.onChange(paint);
      button.addEventListener("click", () => {
        if (!this.shown.delete(policy.name)) this.shown.add(policy.name);
        button.setAttribute("aria-pressed", String(this.shown.has(policy.name)));
        this.draw();
      });
      box.append(button);
    }
  }

  private resized(): void {
    if (element("strips", HTMLDivElement).clientWidth !== this.width) this.draw();
  }

  private draw(): void {
    const host = element("strips", HTMLDivElement);
    this.width = host.clientWidth;
    const wide = this.width > 720 ? this.width - 13 * 14 - 16 : this.width;
    const ran = this.chosen.filter((policy) => policy.average !== null && policy !== this.ideal);
    const peaks = ran.flatMap((policy) => policy.curve.map(([, value]) => value));
    const most = 1.04 * peaks.reduce((top, value) => Math.max(top, value), this.data.reference || 1);
    this.strips = [];
    host.replaceChildren(
      ...ran.map((policy) => this.strip(policy, wide, most)),
      this.liveStrip(wide),
    );
    element("rows", HTMLTableSectionElement).replaceChildren(...this.chosen.map((policy) => this.row(policy)));
    element("used", HTMLTableSectionElement).replaceChildren(...ran.map((policy) => this.used(policy)));
    if (this.hours === null) {
      const said = element("said", HTMLParagraphElement);
      said.textContent = "dashed: the ideal, in proportion to the workers that are up";
      said.hidden = !this.shown.has(IDEAL);
    } else this.read(this.hours);
  }

  private strip(policy: Policy, wide: number, most: number): HTMLElement {
    const height = 92;
    const svg = drawn("svg", { viewBox: `0 0 ${wide} ${height}`, height, role: "img", "aria-label": `Throughput of ${label(policy.name)} over time; ${this.lostText(policy)}` });
    const y = (value: number): number => 8 + (height - 16) * (1 - value / most);
    const share = this.data.reference > 0 ? this.data.reference : most;
    for (const part of [0, 0.5, 1]) {
      svg.append(
        drawn("line", { class: "rule", x1: LEFT, x2: wide - RIGHT, y1: y(part * share), y2: y(part * share) }),
        drawn("text", { x: LEFT - 6, y: y(part * share) + 4, "text-anchor": "end" }, `${100 * part}${part === 1 ? "%" : ""}`),
      );
    }
    const colour = this.colour(policy);
    const line = this.path(policy.curve, wide, y);
    svg.append(
      drawn("path", { d: `${line}V${y(0).toFixed(1)}H${LEFT}Z`, fill: colour, opacity: 0.32 }),
      drawn("path", { class: "curve", d: line, fill: "none", stroke: colour, "stroke-width": 1.8 }),
    );
    if (this.shown.has(IDEAL)) svg.append(drawn("path", { class: "ideal", d: this.path(this.ideal.curve, wide, y) }));
    const now = make("div", { class: "now quiet" });
    const say = (hours: number): string => {
      const value = valueAt(policy.curve, hours);
      return `${digits.format(value)} ${this.data.unit}${this.data.reference > 0 ? `, ${Math.round((100 * value) / this.data.reference)} %` : ""}`;
    };
    const cost = make("div", { class: "cost quiet" }, this.lostText(policy));
    return this.framed(make("div", { class: "label" }, make("div", { class: "name" }, label(policy.name)), cost, now), svg, { now, say }, wide, height);
  }

  private liveStrip(wide: number): HTMLElement {
    const height = 84;
    const { workers, live, hours } = this.data;
    const svg = drawn("svg", { viewBox: `0 0 ${wide} ${height}`, height, role: "img", "aria-label": `Workers that were up, of ${workers}` });
    const base = height - 26;
    const y = (value: number): number => 8 + (base - 8) * (1 - value / Math.max(1, workers));
    for (const value of [0, workers]) {
      svg.append(
        drawn("line", { class: "rule", x1: LEFT, x2: wide - RIGHT, y1: y(value), y2: y(value) }),
        drawn("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, hundreds.format(value)),
      );
    }
    const line = this.path(live, wide, y);
    const ink = this.theme.palette["quiet"];
    svg.append(drawn("path", { d: `${line}V${y(0).toFixed(1)}H${LEFT}Z`, fill: ink, opacity: 0.28 }), drawn("path", { d: line, fill: "none", stroke: ink, "stroke-width": 1.2 }));
    const step = niceStep((hours * 70) / Math.max(1, wide - LEFT - RIGHT));
    for (let at = 0; at <= hours * 1.0001; at += step) {
      svg.append(drawn("text", { x: this.x(at, wide), y: height - 8, "text-anchor": "middle" }, `${tickText(at, step)}${at + step > hours * 1.0001 ? " h" : ""}`));
    }
    const now = make("div", { class: "now quiet" });
    const say = (at: number): string => `${hundreds.format(Math.round(valueAt(live, at)))} of ${hundreds.format(workers)} up`;
    const words = make("div", { class: "label" }, make("div", { class: "name" }, "workers up"), now);
    const strip = this.framed(words, svg, { now, say }, wide, height - 26);
    strip.classList.add("live");
    return strip;
  }

  private x(hours: number, wide: number): number {
    return LEFT + ((wide - LEFT - RIGHT) * hours) / Math.max(this.data.hours, 1e-9);
  }

  private path(curve: Steps, wide: number, y: (value: number) => number): string {
    const pieces = curve.map(([hours, value], index) => {
      const at = this.x(hours, wide).toFixed(1);
      return index === 0 ? `M${at} ${y(value).toFixed(1)}` : `H${at}V${y(value).toFixed(1)}`;
    });
    return pieces.length > 0 ? `${pieces.join("")}H${this.x(this.data.hours, wide).toFixed(1)}` : `M${LEFT} ${y(0)}`;
  }

  private framed(words: HTMLElement, svg: SVGElement, strip: { now: HTMLElement; say: (hours: number) => string }, wide: number, height: number): HTMLElement {
    const cursor = drawn("line", { class: "cursor", y1: 0, y2: height, visibility: "hidden" });
    svg.append(cursor);
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const hours = (((event.clientX - box.left) * wide) / box.width - LEFT) / (wide - LEFT - RIGHT) * this.data.hours;
      if (hours >= 0 && hours <= this.data.hours) {
        element("moment", HTMLInputElement).value = String(Math.round((1000 * hours) / this.data.hours));
        this.read(hours);
      }
    });
    this.strips.push({ svg, cursor, ...strip });
    return make("div", { class: "strip" }, words, svg);
  }

  /** Values of one moment, beside every curve. */
  private read(hours: number): void {
    this.hours = hours;
    for (const { svg, cursor, now, say } of this.strips) {
      const wide = Number(svg.getAttribute("viewBox")?.split(" ")[2]);
      cursor.setAttribute("x1", String(this.x(hours, wide)));
      cursor.setAttribute("x2", String(this.x(hours, wide)));
      cursor.setAttribute("visibility", "visible");
      now.textContent = say(hours);
    }
    const said = element("said", HTMLParagraphElement);
    said.hidden = false;
    said.textContent = `at ${hours.toFixed(2)} h`;
    element("moment", HTMLInputElement).setAttribute("aria-valuetext", `${hours.toFixed(2)} hours`);
  }

  private used(policy: Policy): HTMLElement {
    const cells = policy.uses.map((hours) => hoursText(hours));
    if (policy.cost !== null) cells.push(digits.format(policy.cost));
    return make("tr", { "data-policy": policy.name }, make("th", { scope: "row" }, label(policy.name)), ...cells.map((text) => make("td", {}, text)));
  }

  private row(policy: Policy): HTMLElement {
    const name = make("th", { scope: "row" }, label(policy.name), make("details", {}, make("summary", {}, "assumptions"), policy.note));
    if (policy.average === null) return make("tr", { "data-policy": policy.name }, name, make("td", { colspan: "7", class: "words whole" }, `cannot run: ${policy.note}`));
    const longest = Math.max(...this.chosen.map((each) => each.lost), 1e-9);
    const down = Math.min(this.data.gpu_hours_down, Math.max(0, policy.lost));
    const parts = [["down", down], ["own", Math.max(0, policy.lost) - down]] as const;
    const bar = make("span", { class: "bar split", "aria-hidden": "true" });
    bar.style.setProperty("--dot", this.colour(policy));
    for (const [kind, part] of parts) {
      const piece = make("span", { class: kind });
      piece.style.width = `${(100 * part) / longest}%`;
      if (part > 0) bar.append(piece);
    }
    const own = policy.lost - this.data.gpu_hours_down;
    const beyond = policy === this.ideal ? "all of it because machines were down" : own >= 0.05 ? `${hoursText(own)} more than the machines were down` : "";
    const cell = (name: string, text: string): HTMLElement => make("td", text === "" ? {} : { "data-label": name }, text);
    const { ours } = this;
    const more = ours === undefined || policy === ours ? "" : `${policy.lost >= ours.lost ? "+" : "\u2212"}${hoursText(Math.abs(policy.lost - ours.lost))}`;
    return make(
      "tr",
      { "data-policy": policy.name },
      name,
      make("td", {}, make("b", { class: "lost" }, this.lostText(policy)), bar, make("span", { class: "quiet" }, beyond)),
      cell(this.data.unit, digits.format(policy.average)),
      cell("of never failing", percent(policy.share)),
      cell("effective time", percent(policy.effective)),
      cell("without progress", `${policy.still.toFixed(2)} h`),
      cell("iterations done twice", tenths.format(policy.redone)),
      cell("lost more than ours", more),
    );
  }
}

new Page(pageData<PageData>());
