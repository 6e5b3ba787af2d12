/** Light and dark: as the system says, or as a button says. Printed pages are light. */

export type Palette = Record<string, string>;
export interface Palettes {
  light: Palette;
  dark: Palette;
}

type Choice = "auto" | "light" | "dark";
const CHOICES: readonly Choice[] = ["auto", "light", "dark"];

export class Theme {
  /** True while the page goes to paper. */
  printing = false;
  private choice: Choice = "auto";
  private readonly system = matchMedia("(prefers-color-scheme: dark)");
  private readonly listeners: (() => void)[] = [];

  constructor(
    private readonly palettes: Palettes,
    button: HTMLButtonElement,
  ) {
    const say = (): void => {
      button.textContent = `Theme: ${this.choice}`;
    };
    button.addEventListener("click", () => {
      this.choice = CHOICES[(CHOICES.indexOf(this.choice) + 1) % CHOICES.length];
      say();
      this.apply();
    });
    this.system.addEventListener("change", () => this.apply());
    addEventListener("beforeprint", () => this.print(true));
    addEventListener("afterprint", () => this.print(false));
    say();
    this.apply();
  }

  get palette(): Palette {
    return this.isDark ? this.palettes.dark : this.palettes.light;
  }

  get isDark(): boolean {
    return !this.printing && (this.choice === "dark" || (this.choice === "auto" && this.system.matches));
  }

  onChange(listener: () => void): void {
    this.listeners.push(listener);
  }

  private print(begins: boolean): void {
    this.printing = begins;
    this.apply();
  }

  private apply(): void {
    const root = document.documentElement;
    for (const [name, colour] of Object.entries(this.palette)) root.style.setProperty(`--${name}`, colour);
    root.style.setProperty("--accent", this.isDark ? "#8cc4ee" : "#1f6fae");
    root.style.colorScheme = this.isDark ? "dark" : "light";
    for (const listener of this.listeners) listener();
  }
}
