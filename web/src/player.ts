// Text being written: what the model looked at when it wrote each token, forwards and backwards.

import { fill, h, number } from "./dom";
import type { TileSource } from "./types";
import { label } from "./words";

const PACE = 700; // milliseconds a step

export class Player {
  readonly element = h("div", { class: "inside" });
  private timer: ReturnType<typeof setInterval> | null = null;
  private source: TileSource | null = null;
  private step = 0;
  // These stay while steps change, so that the slider can be dragged and buttons keep the focus.
  private readonly slider = h("input", { type: "range", min: "0", "aria-label": "step" });
  private readonly playing = h("button", { type: "button" });
  private readonly said = h("div", {});
  private readonly controls: HTMLElement;

  constructor(
    private readonly at: (row: number | null) => void,
    private readonly write: (count: number) => void,
  ) {
    const button = (name: string, sign: string, onclick: () => void) =>
      h("button", { type: "button", "aria-label": name, onclick }, sign);
    const by = (steps: number) => () => {
      this.pause();
      this.go(this.step + steps);
    };
    this.playing.addEventListener("click", () => this.play());
    this.slider.addEventListener("input", () => {
      this.pause();
      this.go(Number(this.slider.value));
    });
    const end = () => {
      this.pause();
      this.at(null);
      this.write(0);
    };
    this.controls = h(
      "div",
      { class: "player" },
      button("step back", "◀", by(-1)),
      this.playing,
      button("step on", "▶▏", by(1)),
      this.slider,
      h("button", { type: "button", onclick: end }, "end"),
    );
  }

  private get made(): { start: number; steps: { token: string; p: number }[][] } {
    return this.source!.meta.generated!;
  }

  /** The row that wrote a step's token is that of the token before it. */
  private go(step: number): void {
    this.step = Math.min(this.made.steps.length - 1, Math.max(0, step));
    this.at(this.made.start + this.step - 1);
  }

  private play(): void {
    if (this.timer) {
      this.pause();
      this.go(this.step);
      return;
    }
    const last = this.made.steps.length - 1;
    this.timer = setInterval(() => {
      if (this.step >= last) this.pause();
      this.go(this.step + 1);
    }, PACE);
    this.go(this.step >= last ? 0 : this.step + 1);
  }

  show(source: TileSource, reason: string | null, query: number | null): void {
    const made = source.meta.generated;
    if (source !== this.source) {
      this.pause();
      this.source = source;
      this.step = 0;
      fill(this.element, made ? [this.controls, this.said] : this.invitation(source, reason));
    }
    if (!made) return;
    const count = made.steps.length;
    const step = query === null ? -1 : query - made.start + 1;
    if (step >= 0 && step < count) this.step = step;
    this.slider.max = String(count - 1);
    this.slider.value = String(this.step);
    this.playing.textContent = this.timer ? "❚❚" : "▶";
    this.playing.setAttribute("aria-label", this.timer ? "pause" : "play");
    fill(
      this.said,
      h(
        "p",
        {},
        h("b", {}, label(source.meta.tokens[made.start + this.step] ?? "")),
        h("span", { class: "quiet" }, ` step ${this.step + 1} of ${count}: chosen among`),
      ),
      h(
        "table",
        { class: "predictions" },
        h(
          "tbody",
          {},
          (made.steps[this.step] ?? []).map(({ token, p }) => {
            const bar = h("span", { class: "pbar all" });
            bar.style.width = `${100 * p}%`;
            return h(
              "tr",
              {},
              h("th", { scope: "row" }, label(token)),
              h("td", {}, h("span", { class: "num" }, number(p)), bar),
            );
          }),
        ),
      ),
      h("p", { class: "quiet" }, "The chosen row of the map is what the model looked at when it wrote this."),
    );
  }

  private invitation(source: TileSource, reason: string | null): HTMLElement[] {
    const able = !reason && source.meta.predicts === "next";
    const says = able
      ? "Let the model write, and watch what it looks at for each new token."
      : "This model does not write text.";
    return [
      h("p", { class: "quiet" }, reason ?? says),
      h(
        "button",
        { type: "button", disabled: !able, title: reason ?? "", onclick: () => this.write(24) },
        "Write 24 tokens",
      ),
    ];
  }

  private pause(): void {
    if (this.timer) clearInterval(this.timer);
    this.timer = null;
  }
}
