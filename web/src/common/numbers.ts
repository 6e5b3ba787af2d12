/** Numbers as people read them; the same as the commands print. */

/** To three decimals, without trailing zeros. */
export function short(value: number): string {
  const text = value.toFixed(3);
  return text.includes(".") ? text.replace(/0+$/, "").replace(/\.$/, "") : text;
}

/** `6.2 %`. */
export function percent(share: number): string {
  return share > 0 && share < 0.0005 ? "under 0.1 %" : `${(100 * share).toFixed(1)} %`;
}

export function plural(count: number, noun: string): string {
  return count === 1 ? `1 ${noun}` : `${count.toLocaleString("en")} ${noun}${noun.endsWith("ch") ? "es" : "s"}`;
}

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"];

/** `96 MiB`, or a count of activations. */
export function memoryText(amount: number, scale: number, inBytes: boolean): string {
  if (!inBytes) return short(amount / scale);
  let size = amount;
  let unit = 0;
  while (size >= 1024 && unit + 1 < BYTES.length) {
    size /= 1024;
    unit += 1;
  }
  return `${short(size)} ${BYTES[unit]}`;
}

/** 1, 2, 5, 10, ... or 0.5, 0.2, ...: the smallest that is at least this. */
export function niceStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least));
  for (const factor of [1, 2, 5, 10]) if (power * factor >= least * 0.999999) return power * factor;
  return power * 10;
}

/** A number of an axis with as many decimals as its step needs. */
export function tickText(value: number, step: number): string {
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return value.toFixed(Math.min(digits, 12));
}
