/** The page of `recyclec show --format html` and of `recyclec diff --format html`. */

import "../common/base.css";
import "./style.css";
import { element, isTyping, make, pageData } from "../common/dom";
import { percent, plural } from "../common/numbers";
import { type Palettes, Theme } from "../common/theme";
import { Chart, type View } from "./chart";
import { Plan, type PlanDocument } from "./model";
import { legend } from "./panel";

interface PageData {
  title: string;
  made_by: string;
  note: string;
  palettes: Palettes;
  light_kinds: string[];
  words: Record<string, string>;
  /** The number of the plan that is shown first. */
  first: number;
  sides: { name: string; plans: PlanDocument[] }[];
}

const NOTHING = -1;

interface Side {
  name: string;
  documents: PlanDocument[];
  plan: Plan;
  chart: Chart;
  canvas: HTMLCanvasElement;
  title: HTMLElement;
  about: HTMLElement;
}

class Page {
  private readonly theme: Theme;
  private readonly sides: Side[] = [];
  private readonly plans = new Map<PlanDocument, Plan>();
  private shown: number;
  private active = 0;
  private selected = NOTHING;
  private showsPath = false;
  private showsMemory = false;
  private showsAll = false;
  private readonly tip = element("tip", HTMLDivElement);
  private readonly said = element("said", HTMLParagraphElement);

  constructor(private readonly data: PageData) {
    this.shown = data.first;
    this.theme = new Theme(data.palettes, element("theme", HTMLButtonElement));
    data.sides.forEach((side, index) => this.sides.push(this.newSide(side.name, side.plans, index)));
    this.theme.onChange(() => this.redraw());
    this.controls();
    this.keys();
    element("foot", HTMLParagraphElement).textContent = `${data.note ? `${data.note} ` : ""}Made by ${data.made_by}. This file loads nothing.`;
    this.show(this.shown);
    addEventListener("resize", () => this.sizes());
  }

  private newSide(name: string, documents: PlanDocument[], index: number): Side {
    const canvas = make("canvas", { tabindex: "0", role: "img" });
    const title = make("h2", {}, name);
    const about = make("p", { class: "quiet" });
    title.hidden = about.hidden = this.data.sides.length < 2;
    if (this.data.sides.length < 2) canvas.classList.add("lone");
    element("sides", HTMLDivElement).append(make("section", { class: "side" }, title, about, canvas));
    const plan = this.planOf(documents[this.shown]);
    const chart = new Chart(canvas, plan, () => ({ palette: this.theme.palette, light: this.data.light_kinds }), {
      hover: (op, x, y) => this.hover(index, op, x, y),
      select: (op) => {
        this.active = index;
        this.select(op);
      },
      move: (view) => this.follow(index, view),
    });
    canvas.addEventListener("focus", () => {
      this.active = index;
    });
    return { name, documents, plan, chart, canvas, title, about };
  }

  private planOf(document: PlanDocument): Plan {
    let plan = this.plans.get(document);
    if (plan === undefined) {
      plan = new Plan(document);
      this.plans.set(document, plan);
    }
    return plan;
  }

  /** Show the plan of this number on every side. */
  private show(number: number): void {
    this.shown = number;
    this.selected = NOTHING;
    for (const side of this.sides) {
      side.plan = this.planOf(side.documents[number]);
      side.chart.setPlan(side.plan);
      side.canvas.setAttribute("aria-label", `${side.name}: ${side.plan.about.title.join("; ")}; ${side.plan.about.proof}. Arrow keys go from op to op.`);
    }
    this.sizes();
    this.fit();
    this.words();
    if (this.showsPath) this.path(true);
  }

  private words(): void {
    const about = this.sides[0].plan.about;
    const [first, ...rest] = about.title;
    const isAlone = this.sides.length === 1;
    element("title", HTMLHeadingElement).textContent = isAlone ? first : this.data.title;
    element("about", HTMLParagraphElement).textContent = isAlone ? [...rest, about.proof].join(". ") : "";
    for (const side of this.sides) side.about.textContent = [...side.plan.about.title, side.plan.about.proof].join("; ");
    const plans = this.data.sides[0].plans;
    element("failures", HTMLInputElement).value = String(this.shown);
    element("failures-said", HTMLOutputElement).textContent = `${about.failures} of up to ${plans[plans.length - 1].failures}`;
    element("failures", HTMLInputElement).setAttribute("aria-valuetext", plural(about.failures, "failed worker"));
    this.figures();
    this.legend();
    this.say();
  }

  private figures(): void {
    const list = element("figures", HTMLDListElement);
    list.replaceChildren();
    const add = (name: string, id: string, text: (plan: Plan) => string): void => {
      const values = this.sides.map((side) => text(side.plan));
      const shown = new Set(values).size === 1 ? values[0] : values.join(" \u2192 ");
      list.append(make("div", {}, make("dt", {}, name), make("dd", { id }, shown)));
    };
    add("period", "period", (plan) => `${plan.timeText(plan.about.period)} ${plan.about.unit}`);
    if (this.sides.every((side) => !side.plan.about.measured)) {
      add("bound", "bound", (plan) => `${plan.timeText(plan.about.lower_bound)} ${plan.about.unit}`);
      add("above it", "gap", (plan) => percent(plan.about.period / Math.max(1, plan.about.lower_bound) - 1));
    }
    add("makespan", "makespan", (plan) => `${plan.timeText(plan.about.makespan)} ${plan.about.unit}`);
    add("workers", "workers", (plan) => plan.live.toLocaleString("en"));
    add("ops", "ops", (plan) => plan.size.toLocaleString("en"));
  }

  private legend(): void {
    element("legend", HTMLParagraphElement).replaceChildren(...legend(this.sides.map((side) => side.plan), this.theme.palette, this.data.words, this.showsMemory));
  }

  private redraw(): void {
    for (const { chart } of this.sides) {
      if (this.theme.printing) chart.paintNow();
      else chart.refresh();
    }
    this.legend();
  }

  /** As high as the rows need, up to what a screen has. */
  private sizes(): void {
    const most = Math.max(240, (innerHeight * (this.sides.length > 1 ? 0.86 : 0.72)) / this.sides.length);
    for (const { chart, canvas } of this.sides) {
      chart.fitRows(most, this.showsAll ? 1 : 9);
      canvas.style.height = `${Math.min(most, chart.wholeHeight)}px`;
    }
  }

  private fit(): void {
    const longest = Math.max(...this.sides.map((side) => side.plan.horizon));
    for (const side of this.sides) side.chart.fit(longest);
  }

  private follow(moved: number, view: View): void {
    this.tip.hidden = true;
    this.sides.forEach((side, index) => {
      if (index !== moved) side.chart.setView({ ...view, top: side.chart.view.top });
    });
  }

  private hover(index: number, op: number, x: number, y: number): void {
    this.tip.hidden = op === NOTHING;
    if (op === NOTHING) return;
    const { plan, canvas } = this.sides[index];
    this.tip.textContent = plan.describe(op, this.data.words).join("\n");
    const box = canvas.getBoundingClientRect();
    const { width, height } = this.tip.getBoundingClientRect();
    const left = Math.min(innerWidth - width - 8, box.left + x + 14);
    const below = box.top + y + 18;
    this.tip.style.left = `${Math.max(8, left)}px`;
    this.tip.style.top = `${below + height > innerHeight - 8 ? box.top + y - height - 12 : below}px`;
  }

  /** Choose an op: it is described, and the ops it waited for are shown in every picture. */
  private select(op: number, reveal = false): void {
    this.selected = op;
    this.showsPath = false;
    const { plan } = this.sides[this.active];
    this.sides.forEach((side, index) => {
      const own = index === this.active ? op : op === NOTHING ? NOTHING : side.plan.counterpart(plan, op);
      side.chart.highlight(own, own === NOTHING ? [] : side.plan.chain(own));
      if (reveal && own !== NOTHING) side.chart.reveal(own);
    });
    this.say();
  }

  private path(on: boolean): void {
    this.showsPath = on;
    this.selected = NOTHING;
    for (const side of this.sides) side.chart.highlight(NOTHING, on ? side.plan.chain(side.plan.lastOp()) : []);
    this.say();
  }

  private say(): void {
    element("path", HTMLButtonElement).setAttribute("aria-pressed", String(this.showsPath));
    const lines: string[] = [];
    const many = this.sides.length > 1;
    this.sides.forEach((side, index) => {
      const name = many ? `${side.name}: ` : "";
      const { plan } = side;
      if (this.showsPath) lines.push(`${name}critical path: ${plan.chainText(plan.chain(plan.lastOp()))}`);
      else if (this.selected !== NOTHING) {
        const own = index === this.active ? this.selected : plan.counterpart(this.sides[this.active].plan, this.selected);
        if (own === NOTHING) lines.push(`${name}has no such op`);
        else {
          lines.push(`${name}${plan.describe(own, this.data.words).join("\n")}`);
          if (!many) lines.push(`led to by ${plan.chainText(plan.chain(own))}`);
        }
      }
    });
    this.said.textContent = lines.join("\n") || "Click an op, or choose one with the arrow keys, to see what it waited for.";
  }

  private find(text: string): void {
    for (const side of this.sides) {
      const row = side.plan.findRow(text);
      const ops = row === undefined && text.trim() !== "" ? side.plan.named(text) : [];
      side.chart.revealRow(row ?? NOTHING);
      side.chart.highlight(NOTHING, [], ops);
      if (ops.length > 0) side.chart.reveal(ops[0]);
      if (row !== undefined) this.said.textContent = this.rowText(side.plan, row);
      else if (ops.length > 0) this.said.textContent = `${plural(ops.length, "op")} called ${text.trim()}`;
      else if (text.trim() !== "") this.said.textContent = `no worker and no op is called ${text.trim()}`;
      else this.say();
    }
  }

  private rowText(plan: Plan, row: number): string {
    const { worker, failed, first, end } = plan.rows[row];
    if (failed) return `worker ${worker.join(":")} has failed`;
    let busy = 0;
    for (let op = first; op < end; op += 1) busy += plan.end[op] - plan.start[op];
    const peak = plan.memoryText(plan.memory(row).peak);
    return `worker ${worker.join(":")}: ${plural(end - first, "op")}, busy ${plan.timeText(busy)} of ${plan.timeText(plan.about.period)} ${plan.about.unit} (${percent(busy / plan.about.period)}), holds at most ${peak}${plan.about.memory_in_bytes ? "" : " activations"}`;
  }

  private setMemory(on: boolean): void {
    this.showsMemory = on;
    element("memory", HTMLButtonElement).setAttribute("aria-pressed", String(on));
    for (const side of this.sides) side.chart.setMemory(on);
    this.sizes();
    this.legend();
  }

  private setAllRows(on: boolean): void {
    this.showsAll = on;
    element("rows", HTMLButtonElement).setAttribute("aria-pressed", String(on));
    this.sizes();
  }

  private controls(): void {
    const plans = this.data.sides[0].plans;
    const slider = element("failures", HTMLInputElement);
    slider.max = String(plans.length - 1);
    element("slider", HTMLLabelElement).hidden = plans.length < 2;
    slider.addEventListener("input", () => this.show(Number(slider.value)));
    const search = element("search", HTMLInputElement);
    search.addEventListener("input", () => this.find(search.value));
    const on = (id: string, act: () => void): void => element(id, HTMLButtonElement).addEventListener("click", act);
    on("path", () => this.path(!this.showsPath));
    on("rows", () => this.setAllRows(!this.showsAll));
    on("memory", () => this.setMemory(!this.showsMemory));
    on("in", () => this.sides[0].chart.zoom(0.5));
    on("out", () => this.sides[0].chart.zoom(2));
    on("fit", () => this.fit());
  }

  private step(by: number): void {
    const next = Math.min(this.data.sides[0].plans.length - 1, Math.max(0, this.shown + by));
    if (next !== this.shown) this.show(next);
  }

  private keys(): void {
    const chart = (): Chart => this.sides[this.active].chart;
    const acts: Record<string, () => void> = {
      ArrowLeft: () => this.neighbour(-1),
      ArrowRight: () => this.neighbour(1),
      ArrowUp: () => this.otherRow(-1),
      ArrowDown: () => this.otherRow(1),
      "+": () => chart().zoom(0.5),
      "=": () => chart().zoom(0.5),
      "-": () => chart().zoom(2),
      "0": () => this.fit(),
      "[": () => this.step(-1),
      "]": () => this.step(1),
      c: () => this.path(!this.showsPath),
      r: () => this.setAllRows(!this.showsAll),
      m: () => this.setMemory(!this.showsMemory),
      "/": () => element("search", HTMLInputElement).focus(),
      Escape: () => this.clear(),
    };
    const pans: Record<string, [number, number]> = { ArrowLeft: [-80, 0], ArrowRight: [80, 0], ArrowUp: [0, -48], ArrowDown: [0, 48] };
    addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (isTyping(event) && event.key !== "Escape") return;
      if (event.target instanceof HTMLInputElement && event.target.type === "range" && event.key.startsWith("Arrow")) return;
      const act = event.shiftKey && event.key in pans ? () => chart().pan(...pans[event.key]) : acts[event.key];
      if (act === undefined) return;
      event.preventDefault();
      act();
    });
  }

  private clear(): void {
    const search = element("search", HTMLInputElement);
    search.value = "";
    search.blur();
    this.find("");
    this.select(NOTHING);
  }

  private neighbour(by: number): void {
    const { plan } = this.sides[this.active];
    if (this.selected === NOTHING) {
      this.select(plan.rows.find((row) => row.end > row.first)?.first ?? NOTHING, true);
      return;
    }
    const row = plan.rows[plan.rowOf[this.selected]];
    let op = this.selected + by;
    while (op >= row.first && op < row.end && plan.end[op] === plan.start[op]) op += by;
    if (op >= row.first && op < row.end) this.select(op, true);
  }

  private otherRow(by: number): void {
    const { plan } = this.sides[this.active];
    if (this.selected === NOTHING) {
      this.neighbour(1);
      return;
    }
    let row = plan.rowOf[this.selected] + by;
    while (row >= 0 && row < plan.rows.length && plan.rows[row].first === plan.rows[row].end) row += by;
    if (row < 0 || row >= plan.rows.length) return;
    const { first, end } = plan.rows[row];
    const op = Math.min(end - 1, plan.firstEnding(first, end, plan.start[this.selected]));
    this.select(op, true);
  }

  /** For whoever measures or tests: what is on the screen. */
  get charts(): Chart[] {
    return this.sides.map((side) => side.chart);
  }
}

const page = new Page(pageData<PageData>());
Object.assign(window, { recyclec: page });
