// Text being written: each new token's row, forwards and backwards.

import { fill, h, number } from "./dom";
import type { TileSource } from "./types";

export class Player {
  readonly element = h("div", { class: "inside" });
  private timer: ReturnType<typeof setInterval> | null = null;
  private source: TileSource | null = null;
  private step = 0;

  constructor(
    private readonly at: (row: number | null) => void,
    private readonly write: (count: number) => void,
  ) {}

  show(source: TileSource, reason: string | null, query: number | null): void {
    const made = source.meta.generated;
    if (source !== this.source) {
      this.pause();
      this.source = source;
      this.step = 0;
    }
    if (!made) {
      const able = !reason && source.meta.predicts === "next";
      fill(
        this.element,
        h(
          "p",
          { class: "quiet" },
          reason ??
            (able
              ? "Let the model go on with the text, and watch what each new token looked at."
              : "This model does not write text."),
        ),
        h(
          "button",
          { type: "button", disabled: !able, title: reason ?? "", onclick: () => this.write(24) },
          "Write 24 tokens",
        ),
      );
      return;
    }
    const count = made.steps.length;
    if (query !== null && query >= made.start && query < made.start + count) this.step = query - made.start;
    const go = (step: number) => {
      this.step = Math.min(count - 1, Math.max(0, step));
      this.at(made.start + this.step);
    };
    const play = () => {
      if (this.timer) {
        this.pause();
        go(this.step);
        return;
      }
      if (this.step >= count - 1) this.step = -1;
      this.timer = setInterval(() => {
        if (this.step >= count - 1) this.pause();
        else go(this.step + 1);
      }, 700);
      go(this.step + 1);
    };
    const row = made.start + this.step;
    fill(
      this.element,
      h(
        "div",
        { class: "player" },
        h(
          "button",
          {
            type: "button",
            "aria-label": "step back",
            onclick: () => {
              this.pause();
              go(this.step - 1);
            },
          },
          "◀",
        ),
        h(
          "button",
          { type: "button", "aria-label": this.timer ? "pause" : "play", onclick: play },
          this.timer ? "❚❚" : "▶",
        ),
        h(
          "button",
          {
            type: "button",
            "aria-label": "step on",
            onclick: () => {
              this.pause();
              go(this.step + 1);
            },
          },
          "▶▏",
        ),
        h("input", {
          type: "range",
          min: "0",
          max: String(count - 1),
          value: String(this.step),
          "aria-label": "step",
          oninput: (event: Event) => {
            this.pause();
            go(Number((event.target as HTMLInputElement).value));
          },
        }),
        h(
          "button",
          {
            type: "button",
            onclick: () => {
              this.pause();
              this.at(null);
              this.write(0);
            },
          },
          "end",
        ),
      ),
      h(
        "p",
        {},
        h("b", {}, source.meta.tokens[row]?.trim() || "␣"),
        h("span", { class: "quiet" }, ` step ${this.step + 1} of ${count}: chosen among`),
      ),
      h(
        "table",
        { class: "predictions" },
        h(
          "tbody",
          {},
          (made.steps[this.step] ?? []).map((each) => {
            const bar = h("span", { class: "pbar all" });
            bar.style.width = `${100 * each.p}%`;
            return h(
              "tr",
              {},
              h("th", { scope: "row" }, each.token.trim() || "␣"),
              h("td", {}, h("span", { class: "num" }, number(each.p, 3)), bar),
            );
          }),
        ),
      ),
      h(
        "p",
        { class: "quiet" },
        "Row of the map: what this token looked at when it was read, after it was chosen.",
      ),
    );
  }

  private pause(): void {
    if (this.timer) clearInterval(this.timer);
    this.timer = null;
  }
}
