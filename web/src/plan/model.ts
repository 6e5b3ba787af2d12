/** A plan in columns, as Python writes it, and what can be asked about its ops. Times are in ticks. */

import { memoryText, plural, short } from "../common/numbers";

export type WorkerName = readonly [pipeline: number, stage: number];

/** What Python writes: `document_of` in recycle_compiler/viz/page.py. */
export interface PlanDocument {
  job: string;
  title: string[];
  proof: string;
  failures: number;
  unit: string;
  ticks_per_unit: number;
  memory_in_bytes: boolean;
  memory_scale: number;
  stages: number;
  pipelines: number;
  microbatches: number;
  recut: boolean;
  /** Pipelines form groups with cuts of their own. */
  grouped: boolean;
  staggered: boolean;
  measured: boolean;
  chunk_stages: number[];
  tied: number[];
  transfer: number[];
  activation: number[];
  kept_for_weight: number[];
  capacity: (number | null)[];
  period: number;
  makespan: number;
  lower_bound: number;
  reason: string;
  status: string;
  /** Which plans the bound is about, as in "no plan is faster". */
  no_plan: string;
  period_start: number;
  groups: WorkerName[][];
  failed: WorkerName[];
  counts: number[];
  kind: string;
  pipeline: number[];
  microbatch: number[];
  gap: number[];
  duration: Record<string, number[]> | number[];
  chunk: number[] | null;
  edges: [before: number, after: number, lag: number][];
}

/** Small letters are services: what a worker does in a round in which it has no micro-batch. */
export const KINDS = "FBIWSROGfbiw";
const F = 0;
const B = 1;
const I = 2;
const W = 3;
const R = 5;
const O = 6;
const G = 7;
/** What a service is called after what it serves. */
const SERVES = 8;
const NOTHING = -1;

export interface Row {
  worker: WorkerName;
  group: number;
  failed: boolean;
  /** Its ops are first up to end, not included. */
  first: number;
  end: number;
}

/** Something that an op had to wait for. */
export interface Cause {
  op: number;
  /** When the op could start for all that this one is concerned. */
  at: number;
  why: "worker" | "data" | "peers";
}

export interface Curve {
  times: number[];
  held: number[];
  peak: number;
}

export class Plan {
  readonly rows: Row[] = [];
  readonly kind: Uint8Array;
  readonly pipeline: Int32Array;
  readonly microbatch: Int32Array;
  readonly chunk: Int32Array;
  readonly rowOf: Int32Array;
  readonly start: Float64Array;
  readonly end: Float64Array;
  readonly horizon: number;
  readonly size: number;
  private readonly rowByName = new Map<string, number>();
  private readonly curves = new Map<number, Curve>();
  private lookup: Int32Array | null = null;
  private added: Map<number, [number, number][]> | null = null;

  constructor(readonly about: PlanDocument) {
    const size = about.kind.length;
    this.size = size;
    this.kind = Uint8Array.from(about.kind, (letter) => KINDS.indexOf(letter));
    this.pipeline = Int32Array.from(about.pipeline);
    this.microbatch = Int32Array.from(about.microbatch);
    this.chunk = new Int32Array(size);
    this.rowOf = new Int32Array(size);
    this.start = new Float64Array(size);
    this.end = new Float64Array(size);
    this.readRows();
    let horizon = about.period_start + about.period;
    for (let op = 0; op < size; op += 1) horizon = Math.max(horizon, this.end[op]);
    this.horizon = Math.max(horizon, 1);
  }

  private readRows(): void {
    const { about } = this;
    const failed = new Set(about.failed.map(String));
    let op = 0;
    let number = 0;
    about.groups.forEach((group, index) => {
      for (const worker of group) {
        const first = op;
        const end = first + about.counts[number];
        this.rowByName.set(`${worker[0]}:${worker[1]}`, number);
        this.rows.push({ worker, group: index, failed: failed.has(String(worker)), first, end });
        let time = 0;
        for (; op < end; op += 1) {
          this.rowOf[op] = number;
          this.chunk[op] = about.chunk === null ? worker[1] : about.chunk[op];
          this.start[op] = time + about.gap[op];
          this.end[op] = this.start[op] + this.lengthOf(op);
          time = this.end[op];
        }
        number += 1;
      }
    });
  }

  private lengthOf(op: number): number {
    const { duration } = this.about;
    return Array.isArray(duration) ? duration[op] : duration[KINDS[this.kind[op]]][this.chunk[op]];
  }

  /** The row of a worker, by its name as people write it. */
  findRow(name: string): number | undefined {
    return this.rowByName.get(name.trim());
  }

  isOfMicrobatch(op: number): boolean {
    return this.kind[op] <= W;
  }

  isGuest(op: number): boolean {
    return !this.about.recut && this.isOfMicrobatch(op) && this.pipeline[op] !== this.worker(op)[0];
  }

  worker(op: number): WorkerName {
    return this.rows[this.rowOf[op]].worker;
  }

  workerText(op: number): string {
    return this.worker(op).join(":");
  }

  /** The same under every cut: micro-batches of all pipelines counted through. */
  private number(op: number): number {
    const own = this.microbatch[op];
    return this.about.recut ? this.pipeline[op] * this.about.microbatches + own : own;
  }

  /** As it stands in a box: `F3`, of another pipeline `F1.3`. */
  label(op: number): string {
    if (!this.isOfMicrobatch(op)) return KINDS[this.kind[op]];
    const home = this.isGuest(op) ? `${this.pipeline[op]}.` : "";
    const chunk = this.chunk[op] === this.worker(op)[1] ? "" : `c${this.chunk[op]}`;
    return `${KINDS[this.kind[op]]}${home}${this.number(op)}${chunk}`;
  }

  /** Its whole name, wherever it runs: `F1.3`. */
  name(op: number): string {
    if (!this.isOfMicrobatch(op)) return KINDS[this.kind[op]];
    if (this.about.recut) return `${KINDS[this.kind[op]]}${this.number(op)}`;
    return `${KINDS[this.kind[op]]}${this.pipeline[op]}.${this.microbatch[op]}`;
  }

  timeText(ticks: number): string {
    return short(ticks / this.about.ticks_per_unit);
  }

  memoryText(amount: number): string {
    return memoryText(amount, this.about.memory_scale, this.about.memory_in_bytes);
  }

  /** The op that runs at this time on a row, or NOTHING. */
  opAt(row: number, time: number): number {
    const { first, end } = this.rows[row];
    const op = this.firstEnding(first, end, time);
    return op < end && this.start[op] <= time && this.end[op] > this.start[op] ? op : NOTHING;
  }

  /** The first op of a range that ends after this time. */
  firstEnding(first: number, end: number, time: number): number {
    let low = first;
    let high = end;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.end[middle] <= time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Where an op of a micro-batch stands in the table of all: forward, backward, weight. */
  private place(which: number, pipeline: number, microbatch: number, chunk: number): number {
    const { pipelines, microbatches, chunk_stages } = this.about;
    return ((which * pipelines + pipeline) * microbatches + microbatch) * chunk_stages.length + chunk;
  }

  private get table(): Int32Array {
    if (this.lookup !== null) return this.lookup;
    const { pipelines, microbatches, chunk_stages } = this.about;
    const table = new Int32Array(3 * pipelines * microbatches * chunk_stages.length).fill(NOTHING);
    for (let op = 0; op < this.size; op += 1) {
      if (!this.isOfMicrobatch(op)) continue;
      const which = this.kind[op] === F ? 0 : this.kind[op] === W ? 2 : 1;
      table[this.place(which, this.pipeline[op], this.microbatch[op], this.chunk[op])] = op;
    }
    this.lookup = table;
    return table;
  }

  /** The op of this kind, micro-batch and chunk, as it is called in another plan; NOTHING if it has none. */
  counterpart(other: Plan, op: number): number {
    if (!other.isOfMicrobatch(op)) {
      const row = this.findRow(other.workerText(op));
      if (row === undefined) return NOTHING;
      for (let own = this.rows[row].end - 1; own >= this.rows[row].first; own -= 1) {
        if (this.kind[own] === other.kind[op]) return own;
      }
      return NOTHING;
    }
    const which = other.kind[op] === F ? 0 : other.kind[op] === W ? 2 : 1;
    const own = this.table[this.place(which, other.pipeline[op], other.microbatch[op], other.chunk[op])];
    return own === undefined ? NOTHING : own;
  }

  /** The ops with this name: `F1.3` on all chunks, or all of micro-batch `1.3`. */
  named(text: string): number[] {
    const found = /^([FBIW])?(?:(\d+)\.)?(\d+)$/i.exec(text.trim());
    if (found === null) return [];
    const kind = found[1] === undefined ? NOTHING : KINDS.indexOf(found[1].toUpperCase());
    const ops: number[] = [];
    for (let op = 0; op < this.size; op += 1) {
      if (!this.isOfMicrobatch(op) || (kind !== NOTHING && this.kind[op] !== kind)) continue;
      if (found[2] !== undefined && this.pipeline[op] !== Number(found[2])) continue;
      if ((found[2] === undefined ? this.number(op) : this.microbatch[op]) === Number(found[3])) ops.push(op);
    }
    return ops;
  }

  /** Workers that a micro-batch passes, chunk by chunk. */
  route(op: number): string[] {
    const names: string[] = [];
    this.about.chunk_stages.forEach((_, chunk) => {
      const forward = this.table[this.place(0, this.pipeline[op], this.microbatch[op], chunk)];
      names.push(forward === NOTHING ? "?" : this.workerText(forward));
    });
    return names;
  }

  /** All that an op has to wait for. */
  causes(op: number): Cause[] {
    const found: Cause[] = [];
    const row = this.rows[this.rowOf[op]];
    if (op > row.first) found.push({ op: op - 1, at: this.end[op - 1], why: "worker" });
    if (this.isOfMicrobatch(op)) this.addData(op, found);
    else if (this.kind[op] === R) this.addPeers(op, found);
    else if (this.kind[op] === G) this.addOwners(op, found);
    for (const [before, lag] of this.addedEdges.get(op) ?? []) {
      found.push({ op: before, at: this.end[before] + lag, why: "data" });
    }
    return found;
  }

  private get addedEdges(): Map<number, [number, number][]> {
    if (this.added === null) {
      this.added = new Map();
      for (const [before, after, lag] of this.about.edges) {
        this.added.set(after, [...(this.added.get(after) ?? []), [before, lag]]);
      }
    }
    return this.added;
  }

  private addData(op: number, found: Cause[]): void {
    const { grouped, transfer, chunk_stages } = this.about;
    const chunk = this.chunk[op];
    const at = (which: number, other: number): number =>
      this.table[this.place(which, this.pipeline[op], this.microbatch[op], other)];
    const add = (before: number, lag: number): void => {
      if (before === NOTHING || before === undefined) return;
      // Between neighbouring chunks of one worker nothing is sent.
      const sent = grouped && this.rowOf[before] === this.rowOf[op] ? 0 : lag;
      found.push({ op: before, at: this.end[before] + sent, why: "data" });
    };
    const isLast = chunk === chunk_stages.length - 1;
    if (this.kind[op] === F && chunk > 0) add(at(0, chunk - 1), transfer[chunk - 1]);
    if (this.kind[op] === B || this.kind[op] === I) {
      if (isLast) add(at(0, chunk), 0);
      else add(at(1, chunk + 1), transfer[chunk]);
    }
    if (this.kind[op] === W) add(at(1, chunk), 0);
  }

  /** A reduction begins when the last worker that takes part has computed its gradients. */
  private addPeers(op: number, found: Cause[]): void {
    const { grouped, tied, staggered } = this.about;
    let last = NOTHING;
    for (const row of this.rows) {
      if (row.first === row.end || row === this.rows[this.rowOf[op]]) continue;
      if (grouped) {
        const other = this.beforeSum(row, this.chunk[op]);
        if (other !== NOTHING && (last === NOTHING || this.end[other] > this.end[last])) last = other;
        if (staggered) continue;
      }
      for (let other = row.end - 1; other >= row.first; other -= 1) {
        if (!this.isOfMicrobatch(other)) continue;
        if (staggered && tied[this.chunk[other]] !== tied[this.chunk[op]]) continue;
        if (last === NOTHING || this.end[other] > this.end[last]) last = other;
        break;
      }
    }
    if (last !== NOTHING) found.push({ op: last, at: this.end[last], why: "peers" });
  }

  /** Weights are gathered when all holders of the chunk have made their steps. */
  private addOwners(op: number, found: Cause[]): void {
    let last = NOTHING;
    for (const row of this.rows) {
      if (row === this.rows[this.rowOf[op]]) continue;
      for (let other = row.end - 1; other >= row.first && !this.isOfMicrobatch(other); other -= 1) {
        if (this.kind[other] !== O || this.chunk[other] !== this.chunk[op]) continue;
        if (last === NOTHING || this.end[other] > this.end[last]) last = other;
      }
    }
    if (last !== NOTHING) found.push({ op: last, at: this.end[last], why: "peers" });
  }

  /** What a worker with several chunks does last before it sums this one: its work, or the sum before. */
  private beforeSum(row: Row, chunk: number): number {
    for (let op = row.end - 1; op > row.first; op -= 1) {
      if (this.isOfMicrobatch(op)) return NOTHING;
      if (this.kind[op] === R && this.chunk[op] === chunk) return op - 1;
    }
    return NOTHING;
  }

  /** What let an op start when it did: the last of its causes, on its own worker where two are as late. */
  cause(op: number): Cause | null {
    let best: Cause | null = null;
    for (const cause of this.causes(op)) if (best === null || cause.at > best.at) best = cause;
    return best;
  }

  /** The chain of causes that ends with an op, first op first. */
  chain(op: number): number[] {
    const found = [op];
    let cause = this.cause(op);
    // A measured run may start an op before its cause has ended: time never goes forward on the way back.
    while (cause !== null && found.length <= this.size && this.start[cause.op] <= this.start[found[found.length - 1]]) {
      found.push(cause.op);
      if (this.start[cause.op] <= this.about.period_start && this.isWidest(op)) break;
      cause = this.cause(cause.op);
    }
    return found.reverse();
  }

  private isWidest(op: number): boolean {
    return this.end[op] >= this.about.period_start + this.about.period - 1e-6 * this.about.period;
  }

  /** The last op of the stage whose window is the whole period. */
  lastOp(): number {
    let last = NOTHING;
    const closes = this.about.period_start + this.about.period;
    for (let op = 0; op < this.size; op += 1) {
      const nearer = last === NOTHING || Math.abs(this.end[op] - closes) < Math.abs(this.end[last] - closes);
      if (nearer || (this.kind[op] === O && this.end[op] === this.end[last] && this.kind[last] !== O)) last = op;
    }
    return last;
  }

  /** Memory that a worker holds from each time on: F takes it as it starts, the others give it back as they end. */
  memory(row: number): Curve {
    const known = this.curves.get(row);
    if (known !== undefined) return known;
    const { activation, kept_for_weight } = this.about;
    const changes: [number, number][] = [];
    for (let op = this.rows[row].first; op < this.rows[row].end; op += 1) {
      const kind = this.kind[op] < SERVES ? this.kind[op] : this.kind[op] - SERVES;
      const whole = activation[this.chunk[op]];
      const kept = kept_for_weight[this.chunk[op]];
      if (kind === F) changes.push([this.start[op], whole]);
      else if (kind === B) changes.push([this.end[op], -whole]);
      else if (kind === I) changes.push([this.end[op], kept - whole]);
      else if (kind === W) changes.push([this.end[op], -kept]);
    }
    // What is freed at a moment makes room for what is taken then.
    changes.sort((one, other) => one[0] - other[0] || one[1] - other[1]);
    const curve: Curve = { times: [], held: [], peak: 0 };
    let held = 0;
    for (const [time, change] of changes) {
      held += change;
      if (curve.times[curve.times.length - 1] === time) curve.held[curve.held.length - 1] = held;
      else {
        curve.times.push(time);
        curve.held.push(held);
      }
    }
    curve.peak = curve.held.reduce((most, held) => Math.max(most, held), 0);
    this.curves.set(row, curve);
    return curve;
  }

  /** The most that any worker holds or may hold. */
  get mostMemory(): number {
    const limits = this.about.capacity.filter((limit) => limit !== null);
    return Math.max(1, ...limits, ...this.rows.map((_, row) => this.memory(row).peak));
  }

  /** How many live rows there are. */
  get live(): number {
    return this.rows.filter((row) => !row.failed).length;
  }

  /** What an op is, in a few sentences. */
  describe(op: number, words: Record<string, string>): string[] {
    const { about } = this;
    const kind = KINDS[this.kind[op]];
    const lines: string[] = [];
    const times = `${this.timeText(this.start[op])} to ${this.timeText(this.end[op])} ${about.unit}`;
    if (this.isOfMicrobatch(op)) {
      const batch = about.recut ? `micro-batch ${this.number(op)}` : `micro-batch ${this.microbatch[op]} of pipeline ${this.pipeline[op]}`;
      lines.push(`${this.name(op)}: ${words[kind]} of ${batch}`);
    } else lines.push(`${kind}: ${words[kind]} of stage ${this.worker(op)[1]}`);
    lines.push(`worker ${this.workerText(op)}, ${times}`);
    if (this.isOfMicrobatch(op)) {
      const route = this.route(op);
      const shown = route.length > 10 ? [...route.slice(0, 4), "...", ...route.slice(-4)] : route;
      lines.push(`route ${shown.join(" > ")}${this.isGuest(op) ? ` (re-routed, home is pipeline ${this.pipeline[op]})` : ""}`);
    }
    lines.push(this.waitedText(op));
    return lines;
  }

  private waitedText(op: number): string {
    const cause = this.cause(op);
    if (cause === null) return "waited for nothing in this step";
    const lag = cause.at - this.end[cause.op];
    const where = this.rowOf[cause.op] === this.rowOf[op] ? "its worker" : this.workerText(cause.op);
    const travel = lag > 0 ? `, and ${this.timeText(lag)} ${this.about.unit} on the way` : "";
    const what = `${this.name(cause.op)} on ${where} (ended ${this.timeText(this.end[cause.op])}${travel})`;
    const late = this.start[op] - cause.at;
    if (late > 1e-9 * this.horizon) return `waited for ${what}; starts ${this.timeText(late)} later than it could`;
    return `waited for ${what}`;
  }

  chainText(chain: number[]): string {
    const first = chain[0];
    const last = chain[chain.length - 1];
    let work = 0;
    for (const op of chain) work += this.end[op] - this.start[op];
    const workers = new Set(chain.map((op) => this.rowOf[op])).size;
    const whole = this.end[last] - this.start[first];
    const travel = whole - work;
    const rest = travel > 1e-9 * this.horizon ? `, ${this.timeText(travel)} ${this.about.unit} between ops` : "";
    return `${plural(chain.length, "op")} on ${plural(workers, "worker")} from ${this.name(first)} at ${this.timeText(this.start[first])} to ${this.name(last)} at ${this.timeText(this.end[last])} ${this.about.unit}: each starts when the one before it lets it${rest}`;
  }
}
