/** The page of `recyclec play`: numbers of a job as sliders, and its plan drawn as they move. */

import "../common/base.css";
import "./style.css";
import { element, make, pageData } from "../common/dom";
import { memoryText, percent, short } from "../common/numbers";
import { type Palettes, Theme } from "../common/theme";
import { Chart } from "../plan/chart";
import { Plan, type PlanDocument } from "../plan/model";
import { legend } from "../plan/panel";

type PerStage = "forward" | "backward_input" | "backward_weight" | "optimizer" | "reduce" | "activation" | "kept_for_weight";
type Count = "stages" | "pipelines" | "microbatches";

/** As recycle_compiler/playground/settings.py reads and writes it. */
interface Settings extends Record<PerStage, number[]>, Record<Count, number> {
  name: string;
  unit: string;
  in_bytes: boolean;
  tensor: number;
  transfer: number[];
  capacity: (number | null)[];
  techniques: string[];
  tied: number[];
  failed: [number, number][];
}

interface Bar {
  name: string;
  value: number;
  text: string;
  note: string;
}

/** What comes back, a line each; the last one says that it is done, or what is wrong. */
interface Piece {
  text?: string;
  doing?: string;
  plan?: PlanDocument;
  seconds?: number;
  bars?: Bar[];
  error?: string;
  done?: number;
  superseded?: boolean;
}

interface PageData {
  settings: Settings;
  most: Record<Count, number>;
  palettes: Palettes;
  light_kinds: string[];
  words: Record<string, string>;
}

const NOTHING = -1;
const PAUSE = 120;
/** Milliseconds without a change before a plan is asked for. */
const PER_STAGE: readonly PerStage[] = ["forward", "backward_input", "backward_weight", "optimizer", "reduce", "activation", "kept_for_weight"];

function resized<T>(values: readonly T[], count: number, filler: T): T[] {
  const last = values.length > 0 ? values[values.length - 1] : filler;
  return Array.from({ length: count }, (_, index) => (index < values.length ? values[index] : last));
}

function same<T>(values: readonly T[]): boolean {
  return values.every((value) => value === values[0]);
}

class Playground {
  private readonly settings: Settings;
  private readonly theme: Theme;
  private chart: Chart | null = null;
  private plan: Plan | null = null;
  private bars: Bar[] = [];
  private asked = 0;
  private waiting: AbortController | null = null;
  private readonly shown: (() => void)[] = [];
  private readonly status = element("status", HTMLParagraphElement);

  constructor(private readonly data: PageData) {
    this.settings = data.settings;
    this.theme = new Theme(data.palettes, element("theme", HTMLButtonElement));
    this.theme.onChange(() => {
      if (this.theme.printing) this.chart?.paintNow();
      else this.chart?.refresh();
      this.legend();
    });
    element("title", HTMLHeadingElement).textContent = this.settings.name;
    this.sliders();
    this.techniques();
    element("revive", HTMLButtonElement).addEventListener("click", () => {
      this.settings.failed = [];
      this.changed();
    });
    const copy = element("copy", HTMLButtonElement);
    copy.addEventListener("click", () => void this.copy(copy));
    addEventListener("resize", () => this.size());
    this.changed();
  }

  // Numbers.

  private slider(name: string, id: string, range: { min: number; max: number; step: number }, get: () => number, text: () => string, set: (value: number) => void): void {
    const input = make("input", { type: "range", id, min: String(range.min), max: String(range.max), step: String(range.step) });
    const said = make("output", { for: id });
    input.addEventListener("input", () => {
      set(Number(input.value));
      this.changed();
    });
    this.shown.push(() => {
      const value = get();
      if (Number(input.max) < value) input.max = String(value);
      input.value = String(value);
      said.textContent = said.title = text();
      input.setAttribute("aria-valuetext", text());
    });
    element("sliders", HTMLFormElement).append(make("label", {}, name, said, input));
  }

  private sliders(): void {
    const { settings, data } = this;
    const counts: [Count, string, number][] = [["stages", "stages", 16], ["pipelines", "pipelines", 16], ["microbatches", "micro-batches each", 48]];
    for (const [name, label, usual] of counts) {
      const max = Math.min(data.most[name], Math.max(usual, 2 * settings[name]));
      this.slider(label, name, { min: 1, max, step: 1 }, () => settings[name], () => String(settings[name]), (value) => {
        settings[name] = value;
        this.reshape();
      });
    }
    const unit = settings.unit === "slot" ? "slots" : settings.unit;
    const times: [PerStage | "transfer", string][] = [["forward", "F forward"], ["backward_input", "I input gradient"], ["backward_weight", "W weight gradient"], ["optimizer", "optimizer"], ["transfer", "transfer"]];
    const usual = Math.max(...settings.forward);
    const step = settings.unit === "slot" ? 0.25 : 10 ** (Math.floor(Math.log10(usual)) - 1);
    for (const [name, label] of times) {
      const isWork = name === "forward" || name === "backward_input" || name === "backward_weight";
      const max = Math.max(4 * usual, 1.5 * Math.max(0, ...settings[name]));
      const round = (value: number): number => Number(value.toFixed(6));
      this.slider(
        label,
        name,
        { min: isWork ? round(step) : 0, max: round(Math.ceil(max / step) * step), step: round(step) },
        () => Math.max(0, ...settings[name]),
        () => {
          const text = same(settings[name]) ? short(settings[name][0] ?? 0) : settings[name].map(short).join(", ");
          return `${text} ${text === "1" && unit === "slots" ? "slot" : unit}`;
        },
        (value) => {
          settings[name] = settings[name].map(() => round(value));
        },
      );
    }
    this.memory();
  }

  /** How many micro-batches a worker has room for; the last place of the slider is as many as there are. */
  private memory(): void {
    const { settings } = this;
    const held = (): number => Math.max(1, ...settings.activation);
    const max = (): number => Math.max(2 * settings.stages + 1, 12);
    const places = (): number => {
      const given = settings.capacity.filter((value) => value !== null);
      return given.length === 0 ? max() : Math.max(1, Math.round(Math.max(...given) / held()));
    };
    const text = (): string => {
      const given = settings.capacity.filter((value) => value !== null);
      if (given.length === 0) return "unlimited";
      const amount = (value: number): string => memoryText(value, 1, settings.in_bytes);
      return same(given) ? amount(given[0]) : given.map(amount).join(", ");
    };
    const label = settings.in_bytes ? "memory for activations" : "memory, in activations";
    this.slider(label, "memory", { min: 1, max: max(), step: 1 }, places, text, (value) => {
      settings.capacity = settings.activation.map((each) => (value >= max() ? null : value * (settings.in_bytes ? Math.max(each, 1) : held())));
    });
    this.shown.push(() => {
      element("memory", HTMLInputElement).max = String(max());
      element("memory", HTMLInputElement).value = String(places());
    });
  }

  /** As many values as there are stages, and no failed workers outside the grid. */
  private reshape(): void {
    const { settings } = this;
    for (const name of PER_STAGE) settings[name] = resized(settings[name], settings.stages, 0);
    settings.transfer = resized(settings.transfer, settings.stages - 1, 0);
    settings.capacity = resized(settings.capacity, settings.stages, null);
    settings.tied = settings.tied.every((stage) => stage < settings.stages) ? settings.tied : [];
    settings.failed = settings.failed.filter(([pipeline, stage]) => pipeline < settings.pipelines && stage < settings.stages);
  }

  private techniques(): void {
    const { settings } = this;
    for (const name of ["adaptive", "decouple", "stagger"]) {
      const box = make("input", { type: "checkbox", id: name });
      box.checked = settings.techniques.includes(name);
      box.addEventListener("change", () => {
        settings.techniques = settings.techniques.filter((each) => each !== name);
        if (box.checked) settings.techniques.push(name);
        this.changed();
      });
      element("techniques", HTMLFieldSetElement).append(make("label", {}, box, name));
    }
  }

  private grid(): void {
    const { settings } = this;
    const host = element("grid", HTMLDivElement);
    const focused = document.activeElement instanceof HTMLButtonElement ? document.activeElement.dataset["worker"] : undefined;
    host.style.gridTemplateColumns = `repeat(${settings.stages}, minmax(${settings.stages > 8 ? 1.5 : 2.2}rem, 1fr))`;
    const cells: HTMLElement[] = [];
    for (let pipeline = 0; pipeline < settings.pipelines; pipeline += 1) {
      for (let stage = 0; stage < settings.stages; stage += 1) cells.push(this.cell(pipeline, stage));
    }
    host.replaceChildren(...cells);
    cells.find((cell) => cell.dataset["worker"] === focused)?.focus();
    element("revive", HTMLButtonElement).hidden = settings.failed.length === 0;
    element("grid-said", HTMLParagraphElement).textContent = settings.failed.length === 0 ? "Rows are pipelines, columns are stages. Click one to fail it." : `${settings.failed.length} of ${settings.stages * settings.pipelines} failed`;
  }

  private cell(pipeline: number, stage: number): HTMLElement {
    const { settings } = this;
    const has = settings.failed.some(([one, other]) => one === pipeline && other === stage);
    const name = `${pipeline}:${stage}`;
    const button = make("button", { type: "button", "aria-pressed": String(has), "data-worker": name, title: has ? `${name} has failed` : name }, settings.stages > 12 ? "" : name);
    button.setAttribute("aria-label", `worker ${name}`);
    button.addEventListener("click", () => {
      settings.failed = settings.failed.filter(([one, other]) => one !== pipeline || other !== stage);
      if (!has) settings.failed.push([pipeline, stage]);
      this.changed();
    });
    return button;
  }

  // Plans.

  /** Something is not as it was: say so at once, and ask for a plan when no more follows. */
  private changed(): void {
    for (const show of this.shown) show();
    this.grid();
    element("chart", HTMLElement).classList.add("old");
    this.asked += 1;
    const number = this.asked;
    this.waiting?.abort();
    setTimeout(() => {
      if (number === this.asked) void this.ask(number);
    }, this.plan === null ? 0 : PAUSE);
  }

  private async ask(number: number): Promise<void> {
    const stop = new AbortController();
    this.waiting = stop;
    try {
      const response = await fetch("/plan", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(this.settings), signal: stop.signal });
      await this.listen(response, number);
    } catch (error) {
      if (!stop.signal.aborted) this.fail(`recyclec does not answer: has it been ended? (${error instanceof Error ? error.message : error})`);
    }
  }

  private async listen(response: Response, number: number): Promise<void> {
    const reader = response.body?.getReader();
    if (reader === undefined) return;
    const decoder = new TextDecoder();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      text += decoder.decode(value, { stream: !done });
      const lines = text.split("\n");
      text = lines.pop() ?? "";
      for (const line of lines) if (line !== "" && number === this.asked) this.take(JSON.parse(line) as Piece);
      if (done) return;
    }
  }

  private take(piece: Piece): void {
    if (piece.text !== undefined) element("text", HTMLPreElement).textContent = piece.text;
    if (piece.doing !== undefined) this.status.textContent = `${piece.doing} ...`;
    if (piece.plan !== undefined) this.show(piece.plan);
    if (piece.bars !== undefined) {
      this.bars = piece.bars;
      this.compare();
    }
    if (piece.error !== undefined) this.fail(piece.error);
    if (piece.done !== undefined) this.status.textContent = `planned in ${piece.done.toFixed(2)} s`;
  }

  private fail(sentence: string): void {
    const error = element("error", HTMLParagraphElement);
    error.textContent = sentence;
    error.hidden = false;
    this.status.textContent = "no plan";
  }

  private show(document: PlanDocument): void {
    element("error", HTMLParagraphElement).hidden = true;
    element("chart", HTMLElement).classList.remove("old");
    const plan = new Plan(document);
    this.plan = plan;
    if (this.chart === null) this.chart = this.newChart(plan);
    else this.chart.setPlan(plan);
    element("canvas", HTMLCanvasElement).setAttribute("aria-label", `${document.title.join("; ")}; ${document.proof}`);
    this.size();
    this.chart.fit();
    this.legend();
    this.figures(plan);
    this.compare();
    element("said", HTMLParagraphElement).textContent = "Click an op to see what it waited for.";
  }

  private newChart(plan: Plan): Chart {
    const tip = element("tip", HTMLDivElement);
    const canvas = element("canvas", HTMLCanvasElement);
    return new Chart(canvas, plan, () => ({ palette: this.theme.palette, light: this.data.light_kinds }), {
      hover: (op, x, y) => {
        tip.hidden = op === NOTHING;
        if (op === NOTHING || this.plan === null) return;
        tip.textContent = this.plan.describe(op, this.data.words).join("\n");
        const box = canvas.getBoundingClientRect();
        tip.style.left = `${Math.max(8, Math.min(innerWidth - tip.offsetWidth - 8, box.left + x + 14))}px`;
        tip.style.top = `${Math.min(innerHeight - tip.offsetHeight - 8, box.top + y + 18)}px`;
      },
      select: (op) => {
        if (this.plan === null) return;
        this.chart?.highlight(op, op === NOTHING ? [] : this.plan.chain(op));
        element("said", HTMLParagraphElement).textContent = op === NOTHING ? "" : this.plan.describe(op, this.data.words).join("\n");
      },
      move: () => {
        tip.hidden = true;
      },
    });
  }

  private size(): void {
    if (this.chart === null) return;
    const most = Math.max(260, innerHeight * 0.6);
    this.chart.fitRows(most, 9);
    element("canvas", HTMLCanvasElement).style.height = `${Math.min(most, this.chart.wholeHeight)}px`;
  }

  private legend(): void {
    if (this.plan !== null) element("legend", HTMLParagraphElement).replaceChildren(...legend([this.plan], this.theme.palette, this.data.words, false));
  }

  private figures(plan: Plan): void {
    const { about } = plan;
    const list = element("figures", HTMLDListElement);
    const rows: [string, string, string][] = [
      ["period", "period", `${plan.timeText(about.period)} ${about.unit}`],
      ["bound", "bound", `${plan.timeText(about.lower_bound)} ${about.unit}`],
      ["above it", "gap", about.status === "optimal" ? "0.0 %" : percent(about.period / Math.max(1, about.lower_bound) - 1)],
      ["workers", "workers", `${plan.live} of ${plan.rows.length}`],
      ["ops", "ops", plan.size.toLocaleString("en")],
    ];
    list.replaceChildren(...rows.map(([name, id, text]) => make("div", {}, make("dt", {}, name), make("dd", { id }, text))));
  }

  /** Lengths of one step, ours first; shorter is better. */
  private compare(): void {
    if (this.plan === null) return;
    const { plan } = this;
    const { about } = plan;
    const inUnit = (ticks: number): number => ticks / about.ticks_per_unit;
    const failures = about.failed.length;
    const rows: (Bar & { kind: string })[] = [
      { name: "this plan", value: inUnit(about.period), text: `${plan.timeText(about.period)} ${about.unit}`, note: failures === 0 ? "without failures" : `with ${failures} failed`, kind: "ours" },
      { name: "bound", value: inUnit(about.lower_bound), text: `${plan.timeText(about.lower_bound)} ${about.unit}`, note: `no plan is faster: ${about.reason}`, kind: "bound" },
      ...this.bars.map((bar) => ({ ...bar, kind: "other" })),
    ];
    const longest = Math.max(...rows.map((row) => row.value));
    const host = element("bars", HTMLDivElement);
    host.replaceChildren();
    for (const row of rows) {
      const bar = make("i");
      bar.style.width = `${(62 * row.value) / longest}%`;
      const share = row.value / rows[0].value - 1;
      const more = row.kind !== "other" ? "" : Math.abs(share) < 0.0005 ? " (the same)" : ` (${share > 0 ? "+" : "\u2212"}${percent(Math.abs(share))})`;
      host.append(make("div", { class: "name" }, row.name), make("div", { class: `bar ${row.kind}`, "data-name": row.name }, bar, make("span", {}, row.text + more)), make("div", { class: "note" }, row.note));
    }
  }

  private async copy(button: HTMLButtonElement): Promise<void> {
    const text = element("text", HTMLPreElement);
    try {
      await navigator.clipboard.writeText(text.textContent ?? "");
      button.textContent = "Copied";
    } catch {
      // Where the clipboard is closed to pages, the text is marked, for the keys that copy.
      getSelection()?.selectAllChildren(text);
      button.textContent = "Marked: press Ctrl+C";
    }
    setTimeout(() => {
      button.textContent = "Copy";
    }, 2000);
  }
}

new Playground(pageData<PageData>());
