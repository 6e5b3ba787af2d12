/**
 * A plan on a canvas: a row for every worker, time to the right.
 *
 * Ops are painted into a buffer row by row, a few milliseconds in every frame, and the buffer is what the screen
 * shows, moved and stretched to where the view has got to meanwhile. So panning and zooming cost the same for ten
 * ops and for a million, and the picture is sharp again as soon as a buffer is whole.
 */

import { niceStep, tickText } from "../common/numbers";
import type { Palette } from "../common/theme";
import { KINDS, type Plan } from "./model";

export interface View {
  /** Time at the left side, and how much time there is to the right side. */
  start: number;
  span: number;
  /** Pixels that are scrolled out at the top. */
  top: number;
}

export interface Colours {
  palette: Palette;
  /** Kinds whose labels are dark. */
  light: readonly string[];
}

export interface Events {
  hover(op: number, x: number, y: number): void;
  select(op: number): void;
  /** The person has moved the view. */
  move(view: View): void;
}

interface Buffer {
  canvas: HTMLCanvasElement;
  view: View;
  /** What it covers: more than the screen on all sides. */
  from: number;
  until: number;
  top: number;
  bottom: number;
  nextRow: number;
  lastRow: number;
  stamp: number;
}

const NOTHING = -1;
const BUDGET = 6;
/** Milliseconds of a frame that may be spent on painting. */
const SMALL = 6_000;
/** Ops of a plan that is painted in one go. */
const MARGIN = 0.3;
/** Of the screen on each side, painted beyond it. */
const LETTER = 6.6;
const RULER = 26;
const MEASURE = 18;
const BETWEEN = 8;

export class Chart {
  readonly view: View = { start: 0, span: 1, top: 0 };
  showsMemory = false;
  rowHeight = 22;
  private width = 0;
  private height = 0;
  private ratio = 1;
  private left = 44;
  private tops: number[] = [];
  private total = 0;
  private front: Buffer | null = null;
  private back: Buffer | null = null;
  private stamp = 0;
  private asked = false;
  private hovered = NOTHING;
  private selected = NOTHING;
  private chain: number[] = [];
  private marked: number[] = [];
  private markedRow = NOTHING;
  private readonly context: CanvasRenderingContext2D;
  private readonly pointers = new Map<number, { x: number; y: number }>();
  private moved = 0;
  private mostMemory = 1;
  /** How long frames took, for whoever measures. */
  readonly frames: number[] = [];

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private plan: Plan,
    private readonly colours: () => Colours,
    private readonly events: Events,
  ) {
    const context = canvas.getContext("2d");
    if (context === null) throw new Error("this browser has no canvas");
    this.context = context;
    this.listen();
    new ResizeObserver(() => this.resize()).observe(canvas);
    this.setPlan(plan);
  }

  setPlan(plan: Plan): void {
    this.plan = plan;
    this.hovered = NOTHING;
    this.selected = NOTHING;
    this.chain = [];
    this.marked = [];
    this.markedRow = NOTHING;
    this.mostMemory = this.showsMemory ? plan.mostMemory : 1;
    this.left = 14 + LETTER * Math.max(4, ...plan.rows.map((row) => row.worker.join(":").length));
    this.layout();
    this.refresh();
  }

  setMemory(on: boolean): void {
    this.showsMemory = on;
    this.mostMemory = on ? this.plan.mostMemory : 1;
    this.layout();
    this.refresh();
  }

  /** As high as all rows are, for a page that wants to show them all. */
  get wholeHeight(): number {
    return this.header + this.total + 6;
  }

  private get header(): number {
    return RULER + MEASURE * this.measures().length + 4;
  }

  private get memoryHeight(): number {
    return this.showsMemory ? Math.max(4, Math.round(this.rowHeight * 0.8)) : 0;
  }

  /** Rows as high as they can be in this height: so that names can be read, or as low as it takes to see all. */
  fitRows(height: number, least: number): void {
    const { rows, about } = this.plan;
    const room = height - this.header - BETWEEN * (about.groups.length - 1) - 6;
    this.rowHeight = Math.max(least, Math.min(24, Math.floor(room / rows.length) - 2 - this.memoryHeight));
    this.layout();
    this.refresh();
  }

  private layout(): void {
    let y = 0;
    let group = 0;
    this.tops = this.plan.rows.map((row) => {
      if (row.group !== group) y += this.rowHeight > 5 ? BETWEEN : 3;
      group = row.group;
      const top = y;
      y += this.rowHeight + this.memoryHeight + (this.rowHeight > 5 ? 2 : 1);
      return top;
    });
    this.total = y;
    this.clamp();
  }

  /** Everything is painted anew. */
  refresh(): void {
    this.stamp += 1;
    this.ask();
  }

  /** The same, before this returns: paper does not wait for frames. */
  paintNow(): void {
    this.stamp += 1;
    do this.frame(Infinity);
    while (this.back !== null);
  }

  setView(view: View): void {
    Object.assign(this.view, view);
    this.clamp();
    this.ask();
  }

  fit(until: number = this.plan.horizon): void {
    this.setView({ start: 0, span: until * 1.01, top: this.view.top });
  }

  zoom(factor: number, x: number = this.left + this.plotWidth / 2): void {
    const at = this.timeAt(x);
    const span = Math.min(this.plan.horizon * 1.6, Math.max(this.plan.horizon * 1e-5, this.view.span * factor));
    this.setView({ start: at - ((at - this.view.start) * span) / this.view.span, span, top: this.view.top });
    this.events.move(this.view);
  }

  pan(x: number, y: number): void {
    const start = this.view.start + (x / this.plotWidth) * this.view.span;
    this.setView({ start, span: this.view.span, top: this.view.top + y });
    this.events.move(this.view);
  }

  highlight(selected: number, chain: number[], marked: number[] = []): void {
    this.selected = selected;
    this.chain = chain;
    this.marked = marked;
    this.ask();
  }

  /** Bring an op to where it can be seen. */
  reveal(op: number): void {
    const view = { ...this.view };
    const middle = (this.plan.start[op] + this.plan.end[op]) / 2;
    if (this.plan.start[op] < view.start || this.plan.end[op] > view.start + view.span) view.start = middle - view.span / 2;
    view.top = this.topOfRow(this.plan.rowOf[op], view.top);
    this.setView(view);
  }

  revealRow(row: number): void {
    this.markedRow = row;
    this.setView({ ...this.view, top: this.topOfRow(row, this.view.top) });
  }

  private topOfRow(row: number, top: number): number {
    const room = this.height - this.header;
    const y = this.tops[row];
    const below = y + this.rowHeight + this.memoryHeight;
    return y < top || below > top + room ? y - room / 2 : top;
  }

  get plotWidth(): number {
    return Math.max(1, this.width - this.left - 10);
  }

  private clamp(): void {
    const { view } = this;
    const most = Math.max(0, this.total - (this.height - this.header) + 6);
    view.top = Math.min(most, Math.max(0, view.top));
    view.start = Math.min(this.plan.horizon - view.span * 0.1, Math.max(-view.span * 0.9, view.start));
  }

  private resize(): void {
    const box = this.canvas.getBoundingClientRect();
    this.ratio = devicePixelRatio || 1;
    this.width = box.width;
    this.height = box.height;
    this.canvas.width = Math.round(box.width * this.ratio);
    this.canvas.height = Math.round(box.height * this.ratio);
    this.clamp();
    this.refresh();
  }

  private ask(): void {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      const began = performance.now();
      this.frame(began);
      this.frames.push(performance.now() - began);
      if (this.frames.length > 1000) this.frames.shift();
    });
  }

  /** True when what is on the screen is as sharp as it gets. */
  get isSharp(): boolean {
    return !this.asked && this.back === null;
  }

  private x(time: number): number {
    return this.left + ((time - this.view.start) / this.view.span) * this.plotWidth;
  }

  private timeAt(x: number): number {
    return this.view.start + ((x - this.left) / this.plotWidth) * this.view.span;
  }

  private frame(began: number): void {
    if (this.width < 2 || this.height < 2) return;
    this.paintPieces(began);
    const { context } = this;
    const { palette } = this.colours();
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.fillStyle = palette["page"];
    context.fillRect(0, 0, this.width, this.height);
    context.save();
    context.beginPath();
    context.rect(this.left, this.header, this.width - this.left, this.height - this.header);
    context.clip();
    this.drawGrid();
    this.drawFront();
    this.drawLines();
    this.drawHighlights();
    context.restore();
    this.drawNames();
    this.drawHeader();
    if (this.back !== null) this.ask();
  }

  // Painting ops, in pieces.

  private paintPieces(began: number): void {
    if (this.back === null && this.isStale(this.front)) this.back = this.newBuffer();
    if (this.back !== null && this.back.stamp !== this.stamp) this.back = this.newBuffer();
    const { back } = this;
    if (back === null) return;
    const context = back.canvas.getContext("2d");
    if (context === null) return;
    while (back.nextRow < back.lastRow) {
      this.paintRow(context, back, back.nextRow);
      back.nextRow += 1;
      if (this.plan.size > SMALL && performance.now() - began > BUDGET) break;
    }
    if (back.nextRow < back.lastRow) return;
    const old = this.front;
    this.front = back;
    // The one that was shown is painted next; nothing is allocated while somebody moves the view.
    this.spare = old === null ? null : old.canvas;
    this.back = this.isStale(back) ? this.newBuffer() : null;
  }

  private spare: HTMLCanvasElement | null = null;

  private isStale(buffer: Buffer | null): boolean {
    if (buffer === null || buffer.stamp !== this.stamp) return true;
    return buffer.view.start !== this.view.start || buffer.view.span !== this.view.span || buffer.view.top !== this.view.top;
  }

  private newBuffer(): Buffer {
    const canvas = this.spare ?? document.createElement("canvas");
    this.spare = null;
    const room = this.height - this.header;
    const width = Math.round(this.plotWidth * (1 + 2 * MARGIN) * this.ratio);
    const height = Math.round(room * (1 + 2 * MARGIN) * this.ratio);
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
    } else {
      const context = canvas.getContext("2d");
      context?.setTransform(1, 0, 0, 1, 0, 0);
      context?.clearRect(0, 0, width, height);
    }
    const top = this.view.top - room * MARGIN;
    const bottom = this.view.top + room * (1 + MARGIN);
    let first = 0;
    while (first < this.tops.length && this.tops[first] + this.rowHeight + this.memoryHeight < top) first += 1;
    let last = first;
    while (last < this.tops.length && this.tops[last] < bottom) last += 1;
    const context = canvas.getContext("2d");
    context?.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    return {
      canvas,
      view: { ...this.view },
      from: this.view.start - this.view.span * MARGIN,
      until: this.view.start + this.view.span * (1 + MARGIN),
      top,
      bottom,
      nextRow: first,
      lastRow: last,
      stamp: this.stamp,
    };
  }

  private paintRow(context: CanvasRenderingContext2D, buffer: Buffer, number: number): void {
    const { plan } = this;
    const row = plan.rows[number];
    const { palette } = this.colours();
    const scale = this.plotWidth / buffer.view.span;
    const y = this.tops[number] - buffer.top;
    const height = this.rowHeight;
    const zero = (0 - buffer.from) * scale;
    const end = (plan.horizon - buffer.from) * scale;
    const limit = this.plotWidth * (1 + 2 * MARGIN);
    const from = Math.max(0, zero);
    const width = Math.min(limit, end) - from;
    context.fillStyle = palette["row"];
    if (width > 0) context.fillRect(from, y, width, height);
    if (row.failed) {
      hatch(context, from, y, width, height, palette["failed"]);
      return;
    }
    let op = plan.firstEnding(row.first, row.end, buffer.from);
    while (op < row.end && plan.start[op] < buffer.until) {
      const x = (plan.start[op] - buffer.from) * scale;
      const wide = (plan.end[op] - plan.start[op]) * scale;
      if (wide < 1) op = this.paintCrowd(context, buffer, row.end, op, y);
      else {
        this.paintOp(context, op, x, y, wide);
        op += 1;
      }
    }
    if (this.showsMemory) this.paintMemory(context, buffer, number, y + height);
  }

  private paintOp(context: CanvasRenderingContext2D, op: number, x: number, y: number, wide: number): void {
    const { plan } = this;
    const { palette, light } = this.colours();
    const kind = KINDS[plan.kind[op]];
    const gap = wide > 4 ? 1 : 0;
    context.fillStyle = palette[kind];
    context.fillRect(x, y, wide - gap, this.rowHeight);
    if (plan.isGuest(op) && wide >= 3) {
      const line = wide < 9 ? 0.8 : 1.8;
      context.strokeStyle = palette["frame"];
      context.lineWidth = line;
      context.strokeRect(x + line / 2, y + line / 2, wide - gap - line, this.rowHeight - line);
    }
    if (wide < 9 || this.rowHeight < 13) return;
    let label = plan.label(op);
    if (label.length * LETTER > wide - 3) label = kind;
    if (label.length * LETTER > wide - 2) return;
    context.fillStyle = light.includes(kind) ? "#10202e" : "#ffffff";
    context.font = "10.5px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace";
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(label, x + (wide - gap) / 2, y + this.rowHeight / 2 + 0.5);
  }

  /** Ops of less than a pixel: one stroke in the colour of what takes most of it; returns the op after them. */
  private paintCrowd(context: CanvasRenderingContext2D, buffer: Buffer, end: number, op: number, y: number): number {
    const { plan } = this;
    const scale = this.plotWidth / buffer.view.span;
    const x = (plan.start[op] - buffer.from) * scale;
    const shares = new Array<number>(KINDS.length).fill(0);
    let next = op;
    let until = x;
    let busy = 0;
    while (next < end && until < x + 1) {
      const length = plan.end[next] - plan.start[next];
      const right = (plan.end[next] - buffer.from) * scale;
      if (next > op && (length * scale >= 1 || (plan.start[next] - buffer.from) * scale > x + 1)) break;
      shares[plan.kind[next]] += length;
      busy += length;
      until = right;
      next += 1;
    }
    if (busy > 0) {
      const kind = shares.indexOf(Math.max(...shares));
      context.fillStyle = this.colours().palette[KINDS[kind]];
      context.fillRect(x, y, Math.max(busy * scale, 0.35), this.rowHeight);
    }
    return Math.max(next, op + 1);
  }

  private paintMemory(context: CanvasRenderingContext2D, buffer: Buffer, number: number, y: number): void {
    const { palette } = this.colours();
    const scale = this.plotWidth / buffer.view.span;
    const room = this.memoryHeight;
    const base = y + room - 1;
    const at = (amount: number): number => base - ((room - 3) * amount) / this.mostMemory;
    const { times, held } = this.plan.memory(number);
    context.fillStyle = palette["memory"];
    context.globalAlpha = 0.6;
    context.beginPath();
    context.moveTo((0 - buffer.from) * scale, base);
    let level = 0;
    for (let index = 0; index < times.length; index += 1) {
      const x = (times[index] - buffer.from) * scale;
      context.lineTo(x, at(level));
      level = held[index];
      context.lineTo(x, at(level));
      if (times[index] > buffer.until) break;
    }
    context.lineTo((this.plan.horizon - buffer.from) * scale, at(level));
    context.lineTo((this.plan.horizon - buffer.from) * scale, base);
    context.fill();
    context.globalAlpha = 1;
    const capacity = this.plan.about.capacity[this.plan.rows[number].worker[1]];
    context.strokeStyle = palette["failed"];
    context.lineWidth = 1;
    if (capacity !== null && capacity !== undefined) {
      context.setLineDash([3, 3]);
      context.beginPath();
      context.moveTo(Math.max(0, (0 - buffer.from) * scale), at(capacity));
      context.lineTo((this.plan.horizon - buffer.from) * scale, at(capacity));
      context.stroke();
      context.setLineDash([]);
    }
  }

  // What is drawn in every frame.

  private drawFront(): void {
    // After a change of rows or colours, what was painted before it is wrong: the new pieces show as they come.
    const front = this.front?.stamp === this.stamp ? this.front : this.back;
    if (front === null) return;
    const x = this.x(front.from);
    const wide = this.x(front.until) - x;
    const y = this.header + front.top - this.view.top;
    const sharp = front.view.span === this.view.span;
    this.context.imageSmoothingEnabled = !sharp;
    const snapped = sharp ? Math.round(x * this.ratio) / this.ratio : x;
    const width = sharp ? front.canvas.width / this.ratio : wide;
    this.context.drawImage(front.canvas, snapped, y, width, front.canvas.height / this.ratio);
  }

  private step(): number {
    const perUnit = this.plan.about.ticks_per_unit;
    return niceStep(((this.view.span / perUnit) * 70) / this.plotWidth) * perUnit;
  }

  private marks(): number[] {
    const step = this.step();
    const marks: number[] = [];
    const first = Math.max(0, Math.ceil(this.view.start / step));
    for (let index = first; index * step <= Math.min(this.view.start + this.view.span, this.plan.horizon * 1.2); index += 1) marks.push(index * step);
    return marks;
  }

  private drawGrid(): void {
    this.context.strokeStyle = this.colours().palette["line"];
    this.context.lineWidth = 1;
    this.context.beginPath();
    for (const mark of this.marks()) {
      const x = Math.round(this.x(mark)) + 0.5;
      this.context.moveTo(x, this.header);
      this.context.lineTo(x, this.header + this.total - this.view.top);
    }
    this.context.stroke();
  }

  private measures(): { name: "period" | "bound"; ticks: number; text: string }[] {
    const { about } = this.plan;
    const isBest = about.status === "optimal" && !about.measured;
    const words = about.measured ? "step as measured" : isBest ? `period, and ${about.no_plan} is faster` : "period";
    const found: { name: "period" | "bound"; ticks: number; text: string }[] = [
      { name: "period", ticks: about.period, text: `${this.plan.timeText(about.period)} ${about.unit}: ${words}` },
    ];
    if (!isBest && about.lower_bound > 0) {
      found.push({ name: "bound", ticks: about.lower_bound, text: `${this.plan.timeText(about.lower_bound)} ${about.unit}: ${about.measured ? "planned period" : `bound, ${about.no_plan} is faster`}` });
    }
    return found;
  }

  /** Where the period and the bound end. */
  private drawLines(): void {
    const { palette } = this.colours();
    for (const { name, ticks } of this.measures()) {
      for (const time of [this.plan.about.period_start, this.plan.about.period_start + ticks]) {
        const x = this.x(time);
        this.context.strokeStyle = name === "period" ? palette["ink"] : palette["quiet"];
        this.context.setLineDash(name === "period" ? [] : [4, 3]);
        this.context.lineWidth = 1.2;
        this.context.beginPath();
        this.context.moveTo(x, this.header);
        this.context.lineTo(x, this.header + this.total - this.view.top);
        this.context.stroke();
      }
    }
    this.context.setLineDash([]);
  }

  private boxOf(op: number): [number, number, number, number] {
    const x = this.x(this.plan.start[op]);
    const width = Math.max(2, this.x(this.plan.end[op]) - x);
    return [x, this.header + this.tops[this.plan.rowOf[op]] - this.view.top, width, this.rowHeight];
  }

  private drawHighlights(): void {
    const { context } = this;
    const { palette } = this.colours();
    const lit = new Set([...this.chain, ...this.marked]);
    if (lit.size > 0) {
      // All else steps back.
      context.fillStyle = palette["page"];
      context.globalAlpha = 0.62;
      context.fillRect(this.left, this.header, this.width, this.height);
      context.globalAlpha = 1;
      for (const op of lit) {
        if (this.plan.end[op] === this.plan.start[op]) continue;
        const [x, y, width, height] = this.boxOf(op);
        if (x > this.width || x + width < this.left || y > this.height || y + height < this.header) continue;
        this.paintOp(context, op, x, y, Math.max(2, this.x(this.plan.end[op]) - x));
      }
    }
    if (this.chain.length > 1) this.drawChain();
    if (this.markedRow !== NOTHING) {
      const y = this.header + this.tops[this.markedRow] - this.view.top;
      context.strokeStyle = palette["ink"];
      context.lineWidth = 2;
      context.strokeRect(this.left + 1, y - 1, this.plotWidth - 2, this.rowHeight + this.memoryHeight + 2);
    }
    for (const [op, width] of [[this.hovered, 1.5], [this.selected, 3]] as const) {
      if (op === NOTHING) continue;
      const [x, y, wide, height] = this.boxOf(op);
      context.lineWidth = width + 2;
      context.strokeStyle = palette["page"];
      context.strokeRect(x - 1, y - 1, wide + 1, height + 2);
      context.lineWidth = width;
      context.strokeStyle = palette["ink"];
      context.strokeRect(x - 1, y - 1, wide + 1, height + 2);
    }
  }

  private drawChain(): void {
    const { context } = this;
    context.strokeStyle = this.colours().palette["ink"];
    context.lineWidth = 1.6;
    context.beginPath();
    // Ops of one worker follow each other anyway; lines lead from worker to worker.
    for (let index = 1; index < this.chain.length; index += 1) {
      const [before, after] = [this.chain[index - 1], this.chain[index]];
      if (this.plan.rowOf[before] === this.plan.rowOf[after]) continue;
      const [x, y, width, height] = this.boxOf(before);
      const [toX, toY, , toHeight] = this.boxOf(after);
      const isDown = toY > y;
      context.moveTo(x + width - 1, isDown ? y + height : y);
      context.lineTo(toX + 1, isDown ? toY : toY + toHeight);
    }
    context.stroke();
  }

  private drawNames(): void {
    const { context } = this;
    const { palette } = this.colours();
    context.fillStyle = palette["page"];
    context.fillRect(0, 0, this.left - 1, this.height);
    context.font = "11px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace";
    context.textAlign = "right";
    context.textBaseline = "middle";
    let last = -Infinity;
    this.plan.rows.forEach((row, number) => {
      const y = this.header + this.tops[number] - this.view.top + this.rowHeight / 2;
      if (y < this.header || y > this.height + 20 || y - last < 11) return;
      last = y;
      context.fillStyle = row.failed ? palette["failed"] : palette["ink"];
      context.fillText(row.worker.join(":"), this.left - 7, y + 0.5);
    });
  }

  private drawHeader(): void {
    const { context } = this;
    const { palette } = this.colours();
    const bottom = this.header;
    context.fillStyle = palette["page"];
    context.fillRect(0, 0, this.width, bottom);
    context.font = "11px ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif";
    context.textBaseline = "alphabetic";
    context.textAlign = "center";
    context.fillStyle = palette["quiet"];
    const perUnit = this.plan.about.ticks_per_unit;
    const step = this.step() / perUnit;
    for (const mark of this.marks()) {
      const x = this.x(mark);
      if (x >= this.left - 1 && x <= this.width - 6) context.fillText(tickText(mark / perUnit, step), x, 16);
    }
    context.textAlign = "right";
    context.fillText(this.plan.about.unit, this.left - 7, 16);
    this.drawMeasures(bottom);
  }

  private drawMeasures(bottom: number): void {
    const { context } = this;
    const { palette } = this.colours();
    context.save();
    context.beginPath();
    context.rect(this.left - 1, RULER - 4, this.width - this.left, bottom);
    context.clip();
    this.measures().forEach(({ name, ticks, text }, index) => {
      const y = RULER + MEASURE * index + 7;
      const from = this.x(this.plan.about.period_start);
      const until = this.x(this.plan.about.period_start + ticks);
      context.strokeStyle = name === "period" ? palette["ink"] : palette["quiet"];
      context.lineWidth = 1.2;
      context.setLineDash(name === "period" ? [] : [4, 3]);
      context.beginPath();
      context.moveTo(from, y - 4);
      context.lineTo(from, y + 4);
      context.moveTo(from, y);
      context.lineTo(until, y);
      context.moveTo(until, y - 4);
      context.lineTo(until, y + 4);
      context.stroke();
      context.setLineDash([]);
      const middle = (Math.max(from, this.left) + Math.min(until, this.width - 10)) / 2;
      const wide = context.measureText(text).width;
      const x = Math.max(this.left + wide / 2 + 6, Math.min(this.width - 12 - wide / 2, middle));
      context.fillStyle = palette["page"];
      context.fillRect(x - wide / 2 - 6, y - 8, wide + 12, 16);
      context.fillStyle = name === "period" ? palette["ink"] : palette["quiet"];
      context.textAlign = "center";
      context.textBaseline = "middle";
      context.fillText(text, x, y + 0.5);
    });
    context.restore();
  }

  // Pointer.

  private at(event: { clientX: number; clientY: number }): [number, number] {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  private opUnder(x: number, y: number): number {
    if (y < this.header || x < this.left) return NOTHING;
    const at = y - this.header + this.view.top;
    const row = this.tops.findIndex((top) => at >= top && at < top + this.rowHeight);
    return row === NOTHING ? NOTHING : this.plan.opAt(row, this.timeAt(x));
  }

  private listen(): void {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
      this.moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => this.pointerMoves(event));
    const up = (event: PointerEvent): void => {
      const was = this.pointers.delete(event.pointerId);
      if (was && event.type === "pointerup" && this.moved < 6) {
        const op = this.opUnder(...this.at(event));
        this.markedRow = NOTHING;
        this.events.select(op);
      }
    };
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", up);
    canvas.addEventListener("pointerleave", () => {
      this.hovered = NOTHING;
      this.events.hover(NOTHING, 0, 0);
      this.ask();
    });
    canvas.addEventListener("dblclick", (event) => this.zoom(event.shiftKey ? 2 : 0.5, this.at(event)[0]));
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  private wheel(event: WheelEvent): void {
    const unit = event.deltaMode === 1 ? 16 : 1;
    const down = event.deltaY * unit;
    const aside = event.deltaX * unit;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoom(Math.exp(Math.max(-60, Math.min(60, down)) * 0.008), this.at(event)[0]);
      return;
    }
    const across = event.shiftKey ? down + aside : aside;
    const before = this.view.top;
    this.pan(across, event.shiftKey ? 0 : down);
    // A page that can scroll on does so at the end of the rows.
    if (across !== 0 || this.view.top !== before) event.preventDefault();
  }

  private pointerMoves(event: PointerEvent): void {
    const last = this.pointers.get(event.pointerId);
    if (last === undefined) {
      const [x, y] = this.at(event);
      const op = this.opUnder(x, y);
      this.events.hover(op, x, y);
      if (op !== this.hovered) {
        this.hovered = op;
        this.ask();
      }
      return;
    }
    const x = event.clientX - last.x;
    const y = event.clientY - last.y;
    this.moved += Math.abs(x) + Math.abs(y);
    const other = [...this.pointers].find(([id]) => id !== event.pointerId)?.[1];
    if (other !== undefined) {
      const before = Math.abs(last.x - other.x);
      const now = Math.abs(event.clientX - other.x);
      if (before > 8 && now > 8) this.zoom(before / now, (event.clientX + other.x) / 2 - this.canvas.getBoundingClientRect().left);
    } else if (this.moved >= 6) this.pan(-x, -y);
    this.pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
  }
}

/** Strokes from bottom left to top right. */
function hatch(context: CanvasRenderingContext2D, x: number, y: number, width: number, height: number, colour: string): void {
  if (width <= 0) return;
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = colour;
  context.globalAlpha = 0.55;
  context.lineWidth = 2.4;
  context.beginPath();
  for (let at = x - height; at < x + width; at += 11) {
    context.moveTo(at, y + height);
    context.lineTo(at + height, y);
  }
  context.stroke();
  context.restore();
}
